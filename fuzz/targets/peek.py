"""acceptor/peek.pyx: the client id of a CONNECT is found once all of its bytes are there, and not earlier."""

from collections.abc import Iterable

from acceptor.peek import peek_client_id
from fuzz.engine import exact
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import Connect, Will, decode

MAX_LEN = 300
PACKET_MAX = 4096


def seeds() -> Iterable[bytes]:
    for version in (3, 4, 5):
        will = Will(b"will", b"gone", 1, True, {0x18: 5} if version == 5 else None)
        for client_id in (b"", b"client-1"):
            yield Connect(version, client_id, True, 30, b"user", b"secret", will).encode(version)
    yield Connect(5, b"c" * 30, True, 0, properties={0x11: 100, 0x21: 10, 0x26: [(b"a", b"b")]}).encode(5)
    yield Connect(4, b"bridge", bridge=True).encode(4)


def check(data: bytes) -> None:
    whole = peek_client_id(data, PACKET_MAX)
    answers = [peek_client_id(exact(data[:size]), PACKET_MAX) for size in range(len(data))]
    # After the first answer, more bytes do not change it.
    for answer in answers:
        assert answer is None or answer == whole, (answer, whole)
    try:
        found = decode(data)
    except MqttError:
        return
    if found is not None and type(found[0]) is Connect:
        assert whole == ("too_large" if found[1] > PACKET_MAX else found[0].client_id), (whole, found)
