"""MQTT 5.0 on one connection: malformed packets and protocol errors, as data.

A row: name, statements, reason codes of which one is allowed in CONNACK or DISCONNECT, bytes. `BEFORE` rows are sent instead of
CONNECT, `ONLINE` rows behind an accepted one. The connection always ends; a bare close is allowed too.
"""

import contextlib
from collections.abc import Callable

import pytest

from tests.harness import AnyBroker, Client, Closed, Connack, Disconnect, statement, wire
from tests.harness.wire import string

MALFORMED = 0x81
PROTOCOL = 0x82
BAD = b"\xc3\x28"


def connect_bytes(flags: int, payload: bytes, *, name: bytes = b"MQTT", level: int = 5, properties: bytes = b"\0") -> bytes:
    return wire.packet(1, string(name) + bytes((level, flags)) + b"\0\x3c" + properties + payload)


ID = string(b"v5wire")
WILL = b"\0" + string(b"w") + string(b"x")

BEFORE: list[tuple[str, tuple[str, ...], set[int], bytes]] = [
    ("first packet is PUBLISH", ("MQTT-3.1.0-1", "MQTT-3.14.0-1"), set(), b"\x30\x04\0\x01t\0"),
    ("protocol name", ("MQTT-3.1.2-1",), {0x84}, connect_bytes(2, ID, name=b"XQTT")),
    ("protocol version", ("MQTT-3.1.2-2", "MQTT-3.2.2-7"), {0x84}, connect_bytes(2, ID, level=6)),
    ("reserved flag", ("MQTT-3.1.2-3", "MQTT-4.13.2-1"), {MALFORMED}, connect_bytes(3, ID)),
    ("will fields missing", ("MQTT-3.1.2-9",), {MALFORMED}, connect_bytes(6, ID)),
    ("will QoS without will", ("MQTT-3.1.2-11",), {MALFORMED}, connect_bytes(0x0A, ID)),
    ("will QoS 3", ("MQTT-3.1.2-12",), {MALFORMED}, connect_bytes(0x1E, ID + WILL)),
    ("will retain without will", ("MQTT-3.1.2-13",), {MALFORMED}, connect_bytes(0x22, ID)),
    ("user name without flag", ("MQTT-3.1.2-16",), {MALFORMED}, connect_bytes(2, ID + string(b"u"))),
    ("user name missing", ("MQTT-3.1.2-17",), {MALFORMED}, connect_bytes(0x82, ID)),
    ("password without flag", ("MQTT-3.1.2-18",), {MALFORMED}, connect_bytes(0x82, ID + string(b"u") + string(b"p"))),
    ("password missing", ("MQTT-3.1.2-19",), {MALFORMED}, connect_bytes(0x42, ID)),
    ("client id missing", ("MQTT-3.1.3-3",), {MALFORMED}, connect_bytes(2, b"")),
    ("client id not UTF-8", ("MQTT-3.1.3-4",), {MALFORMED, 0x85}, connect_bytes(2, string(b"\xff\xfe"))),
    ("will topic not UTF-8", ("MQTT-3.1.3-11",), {MALFORMED, 0x90}, connect_bytes(6, ID + b"\0" + string(BAD) + string(b"x"))),
    ("user name not UTF-8", ("MQTT-3.1.3-12",), {MALFORMED, 0x86}, connect_bytes(0x82, ID + string(BAD))),
    ("client id too long", ("MQTT-3.1.4-1",), {MALFORMED}, connect_bytes(2, b"\0\x50abc")),
    ("no property length", ("MQTT-2.2.2-1",), {MALFORMED, PROTOCOL}, wire.packet(1, string(b"MQTT") + b"\x05\x02\0\x3c" + ID)),
    ("unknown auth method", ("MQTT-4.12.0-1",), {0x8C, 0x87}, connect_bytes(2, ID, properties=b"\x05\x15\0\x02no")),
    ("receive maximum 0", (), {PROTOCOL}, connect_bytes(2, ID, properties=b"\x03\x21\0\0")),
    ("property twice", (), {PROTOCOL}, connect_bytes(2, ID, properties=b"\x0a\x11\0\0\0\x01\x11\0\0\0\x01")),
]

ONLINE: list[tuple[str, tuple[str, ...], set[int], bytes]] = [
    ("topic not UTF-8", ("MQTT-1.5.4-1", "MQTT-3.3.2-1"), {MALFORMED, PROTOCOL, 0x90}, wire.packet(3, string(BAD) + b"\0x")),
    ("topic with a surrogate", ("MQTT-1.5.4-1",), {MALFORMED, PROTOCOL, 0x90}, wire.packet(3, string(b"\xed\xa0\x80") + b"\0x")),
    ("topic with NUL", ("MQTT-1.5.4-2",), {MALFORMED, 0x90}, wire.packet(3, string(b"a\0b") + b"\0x")),
    ("long form of a length", ("MQTT-1.5.5-1",), {MALFORMED}, b"\xc0\x80\0"),
    (
        "user property not UTF-8",
        ("MQTT-1.5.7-1",),
        {MALFORMED},
        wire.packet(3, string(b"t") + b"\x08\x26\0\x01k\0\x02" + BAD + b"x"),
    ),
    ("flags of PINGREQ", ("MQTT-2.1.3-1",), {MALFORMED}, b"\xc1\0"),
    ("SUBSCRIBE with id 0", ("MQTT-2.2.1-3",), {MALFORMED, PROTOCOL}, wire.packet(8, b"\0\0\0" + string(b"t") + b"\0", flags=2)),
    ("QoS 1 with id 0", ("MQTT-2.2.1-3",), {MALFORMED, PROTOCOL}, wire.packet(3, string(b"t") + b"\0\0\0x", flags=2)),
    ("second CONNECT", ("MQTT-3.1.0-2", "MQTT-3.2.0-2"), {PROTOCOL}, connect_bytes(2, ID)),
    ("QoS 3", ("MQTT-3.3.1-4",), {MALFORMED}, wire.packet(3, string(b"t") + b"\0\x01\0x", flags=6)),
    ("topic with +", ("MQTT-3.3.2-2", "MQTT-4.7.0-1"), {0x90, PROTOCOL}, wire.packet(3, string(b"a/+") + b"\0x")),
    ("topic with #", ("MQTT-3.3.2-2", "MQTT-4.7.0-1"), {0x90, PROTOCOL}, wire.packet(3, string(b"a/#") + b"\0x")),
    ("alias 0", ("MQTT-3.3.2-8",), {0x94, MALFORMED, PROTOCOL}, wire.packet(3, string(b"t") + b"\x03\x23\0\0x")),
    ("unknown alias", ("MQTT-3.3.2-7",), {PROTOCOL, 0x94}, wire.packet(3, b"\0\0\x03\x23\0\x01x")),
    ("response topic not UTF-8", ("MQTT-3.3.2-13",), {MALFORMED}, wire.packet(3, string(b"t") + b"\x05\x08\0\x02" + BAD + b"x")),
    ("response topic with wildcard", ("MQTT-3.3.2-14",), {PROTOCOL, 0x90}, wire.packet(3, string(b"t") + b"\x06\x08\0\x03a/#x")),
    ("content type not UTF-8", ("MQTT-3.3.2-19",), {MALFORMED}, wire.packet(3, string(b"t") + b"\x05\x03\0\x02" + BAD + b"x")),
    ("subscription identifier in PUBLISH", ("MQTT-3.3.4-6",), {PROTOCOL}, wire.packet(3, string(b"t") + b"\x02\x0b\x01x")),
    ("PUBREL with flags 0", ("MQTT-3.6.1-1",), {MALFORMED}, b"\x60\x02\0\x01"),
    ("SUBSCRIBE with flags 0", ("MQTT-3.8.1-1",), {MALFORMED}, wire.packet(8, b"\0\x01\0" + string(b"t") + b"\0", flags=0)),
    ("filter not UTF-8", ("MQTT-3.8.3-1",), {MALFORMED}, wire.packet(8, b"\0\x01\0" + string(BAD) + b"\0", flags=2)),
    ("filter with NUL", ("MQTT-4.7.3-2",), {MALFORMED}, wire.packet(8, b"\0\x01\0" + string(b"a\0b") + b"\0", flags=2)),
    ("SUBSCRIBE without filters", ("MQTT-3.8.3-2",), {PROTOCOL}, wire.packet(8, b"\0\x01\0", flags=2)),
    (
        "No Local on a shared subscription",
        ("MQTT-3.8.3-4",),
        {PROTOCOL},
        wire.packet(8, b"\0\x01\0" + string(b"$share/g/t") + b"\x05", flags=2),
    ),
    ("options 0x40", ("MQTT-3.8.3-5",), {MALFORMED}, wire.packet(8, b"\0\x01\0" + string(b"t") + b"\x40", flags=2)),
    ("options 0x80", ("MQTT-3.8.3-5",), {MALFORMED}, wire.packet(8, b"\0\x01\0" + string(b"t") + b"\x80", flags=2)),
    ("retain handling 3", (), {PROTOCOL}, wire.packet(8, b"\0\x01\0" + string(b"t") + b"\x30", flags=2)),
    ("empty filter", ("MQTT-4.7.3-1",), {MALFORMED, PROTOCOL, 0x8F}, wire.packet(8, b"\0\x01\0\0\0\0", flags=2)),
    ("UNSUBSCRIBE with flags 0", ("MQTT-3.10.1-1",), {MALFORMED}, wire.packet(10, b"\0\x01\0" + string(b"t"), flags=0)),
    ("UNSUBSCRIBE not UTF-8", ("MQTT-3.10.3-1",), {MALFORMED}, wire.packet(10, b"\0\x01\0" + string(BAD), flags=2)),
    ("UNSUBSCRIBE without filters", ("MQTT-3.10.3-2",), {PROTOCOL}, wire.packet(10, b"\0\x01\0", flags=2)),
    ("flags of DISCONNECT", ("MQTT-3.14.1-1",), {MALFORMED}, b"\xe1\0"),
    ("flags of AUTH", ("MQTT-3.15.1-1",), {MALFORMED}, b"\xf1\0"),
    ("AUTH without a method", ("MQTT-4.12.0-7", "MQTT-4.12.0-6"), {PROTOCOL}, b"\xf0\x02\x19\0"),
    ("AUTH with an undefined code", ("MQTT-3.15.2-1",), {PROTOCOL, MALFORMED}, b"\xf0\x02\x55\0"),
    ("packet type 0", ("MQTT-4.13.1-1",), {MALFORMED, PROTOCOL}, b"\0\0"),
    ("SUBACK from a client", ("MQTT-4.13.1-1", "MQTT-3.14.4-2"), {PROTOCOL, MALFORMED}, b"\x90\x04\0\x01\0\0"),
    ("empty topic without alias", ("MQTT-4.7.3-1",), {PROTOCOL, 0x90}, wire.packet(3, b"\0\0\0x")),
    ("DISCONNECT code of a server", ("MQTT-3.14.2-1",), {PROTOCOL, MALFORMED}, b"\xe0\x01\x8c"[:2] + b"\x01"),
]


def marked(rows: list[tuple[str, tuple[str, ...], set[int], bytes]]) -> list[object]:
    return [
        pytest.param(codes, data, id=name.replace(" ", "_"), marks=[statement("5.0", *ids)] if ids else [])
        for name, ids, codes, data in rows
    ]


@pytest.mark.parametrize(("codes", "data"), marked(BEFORE))
def test_connect_is_refused(connect: Callable[..., Client], codes: set[int], data: bytes) -> None:
    # A level that this server does not know is answered in the form of 3.1.1: it may be anything.
    unknown_level = b"MQTT\x06" in data
    client = connect(4 if unknown_level else 5, connect=False)
    client.send_raw(data)
    codes = {1} if unknown_level else codes
    try:
        answer = client.recv(5)
    except Closed:
        return
    assert isinstance(answer, Connack), answer
    assert answer.code in codes
    assert not answer.session_present
    client.expect_close()


NOT_SERVED = [
    *((b"MQTT", level) for level in (0, 1, 2, 3, 6, 7, 64, 127, 255)),
    *((b"MQIsdp", level) for level in (0, 2, 4, 5, 6, 255)),
]


@statement("3.1.1", "MQTT-3.1.2-2")
@statement("5.0", "MQTT-3.1.2-2")
@pytest.mark.parametrize(("name", "level"), NOT_SERVED)
@pytest.mark.parametrize("properties", [b"", b"\0"], ids=["as in 3.1.1", "as in 5.0"])
def test_mqtt_3_1_2_2_a_level_that_is_not_served(
    broker: AnyBroker, connect: Callable[..., Client], topic: str, name: bytes, level: int, properties: bytes
) -> None:
    """CONNACK 0x01, in the form of 3.1.1 since the client's is not known, and the end; what comes behind CONNECT is not done."""
    witness = connect()
    witness.subscribe(topic)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(broker.address, 4, connect=False))
        publish = wire.publish(topic, b"not served", version=4)
        client.send_raw(connect_bytes(2, ID, name=name, level=level, properties=properties) + publish)
        answer = client.recv(5)
        assert isinstance(answer, Connack), answer
        assert (answer.code, answer.session_present) == (1, False)
        assert client.expect_close() is None
    witness.ping()
    witness.expect_none(0.05)


@pytest.mark.parametrize(("codes", "data"), marked(ONLINE))
def test_connection_ends(connect: Callable[..., Client], codes: set[int], data: bytes) -> None:
    client = connect()
    client.send_raw(data)
    answer = client.expect_close()
    if answer is not None:
        assert isinstance(answer, Disconnect)
        assert answer.code in codes
        assert "session_expiry_interval" not in answer.properties
