"""Every size bound of the wire, for both directions: what is larger is refused, by name.

Bytes unless the name says otherwise. A limit is far above what a healthy run sends; it bounds what a message can make
its receiver hold.
"""

from __future__ import annotations

MAX_MESSAGE_BYTES = 1 << 20
MAX_FRAME_BYTES = 8 << 20  # of a bulk stream, its header included
MAX_RECORD_BYTES = 4096  # a DHT record
MAX_RECORD_LIFE_S = 86_400.0  # how far ahead a DHT record may expire

MAX_WHOLE = (1 << 63) - 1  # largest number anywhere
MAX_IDS = 1 << 16  # sample ids or positions in one list
MAX_IDS_PER_MESSAGE = 1 << 20  # in all unequal lists of a message together: runs are small, what they stand for is not
MAX_NORM_BYTES = 64  # of an exact squared norm

MAX_UPDATES = 4096  # roster lines in a message
MAX_MEMBERS = 16_384  # peers named in a list: members of an exchange, holders, a plan's assignments
MAX_VOTERS = 256
MAX_BUNDLES = 4096
MAX_PARTS = 4096
MAX_STAGES = 4096
MAX_CHUNKS = 16_384  # of a snapshot
MAX_CHUNK_BYTES = 64 << 20
MAX_SLICES = 65_536

MAX_ADDRESSES = 16
MAX_ADDRESS_CHARS = 262  # a DNS name, a colon, a port
MAX_PEER_CHARS = 64
MAX_RUN_CHARS = 64
MAX_NAME_CHARS = 64  # region, party, version
MAX_REASON_CHARS = 1024
MAX_SIGNATURE_BYTES = 512
MAX_PUBLIC_KEY_BYTES = 1024
