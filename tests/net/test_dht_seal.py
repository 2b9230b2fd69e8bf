"""The signatures in use: what one peer seals another opens, and the helper's guard lets nothing else pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2ptrain.errors import AdmissionError, ProtocolError
from p2ptrain.net.dht_records import bucket_of, sift
from p2ptrain.net.dht_seal import check, sealing
from p2ptrain.net.identity import Identity
from tests.net.dht_support import RUN, info_of

NOW = 1_000_000.0


def test_a_sealed_record_is_believed_and_a_changed_or_foreign_one_is_not():
    alice, mallory = Identity.generate(), Identity.generate()
    seal, unseal = sealing(alice, RUN)
    info = alice.sign_info(RUN, info_of(alice.peer))
    data = seal(info, NOW + 60.0)
    assert unseal(data, NOW) == info and check(data, RUN, NOW) == alice.peer
    forged = sealing(mallory, RUN)[0](info, NOW + 900.0)
    records = [(alice.peer, record) for record in (data, forged, data[:-1], data[:-1] + bytes([data[-1] ^ 1]))]
    result = sift(records, bucket_of(alice.peer), 16, unseal, NOW, 10)
    assert result.infos == [info]
    assert result.dropped == {"malformed": 1, "not admitted": 2}
    with pytest.raises(AdmissionError):
        check(data, "0" * 64, NOW)
    with pytest.raises(AdmissionError):
        check(data, RUN, NOW + 61.0)
    with pytest.raises((AdmissionError, ProtocolError)):
        seal_as_other = sealing(mallory, RUN)[0](replace(info_of(alice.peer), public_key=mallory.public_key), NOW + 9.0)
        check(seal_as_other, RUN, NOW)
