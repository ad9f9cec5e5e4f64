"""gateways/mqttsn/codec.py: what is accepted survives a second way, and a forwarder's header is taken off as it was put on."""

from collections.abc import Iterable

from shardbroker.gateways.mqttsn.codec import LAYOUTS, NODE_MAX, Kind, Message, MqttSnError, decode, unwrap

MAX_LEN = 400


def seeds() -> Iterable[bytes]:
    for kind, layout in LAYOUTS.items():
        message = Message(kind, flags=0x20, topic_id=1, msg_id=2, duration=3, data=b"a/b" if layout.has_rest else b"")
        yield message.encode()
        yield b"\x05\xfe\x00n1" + message.encode()
    yield bytes((2, Kind.DISCONNECT))
    yield Message(Kind.PUBLISH, data=b"x" * 300).encode()
    yield b"\x01\x00\x04\x16"


def check(data: bytes) -> None:
    try:
        head, inner = unwrap(data)
    except MqttSnError:
        return
    assert head + inner == data and len(head) <= 3 + NODE_MAX, head
    try:
        message = decode(inner)
    except MqttSnError:
        return
    layout = LAYOUTS[message.kind]
    assert layout.has_rest or not message.data, message
    encoded = message.encode()
    assert len(encoded) <= len(inner), message
    assert decode(encoded) == message, message
    assert len(message.data) + 2 <= len(inner), message
