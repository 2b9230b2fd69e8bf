"""Translation between the core's values and bytes. Generated protobuf (``wire.v1``) stops here.

``translate`` control messages, ``bulk`` raw byte streams, ``records`` signed DHT records, ``limits`` every size bound.
Whatever bytes come in, each decoder returns a value or raises ``ProtocolError`` (``records``: or ``AdmissionError``).
"""
