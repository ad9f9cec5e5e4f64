"""An MQTT-SN client written from the norm, for tests: it sends exactly what it is told, and parses datagrams strictly.

It has a codec of its own. `head`: of a forwarder, in front of each message.
"""

import select
import socket
import struct
import time
from typing import NamedTuple

TIMEOUT_S = 10.0
QUIET_S = 0.4
KNOCK_S = 5.0
"""Longest wait for an answer before a message is sent again, which would have an answer of its own."""
QOS = {-1: 0x60, 0: 0x00, 1: 0x20, 2: 0x40}
DUP, RETAIN, WILL, CLEAN = 0x80, 0x10, 0x08, 0x04
NAME, PREDEFINED, SHORT = 0, 1, 2
TYPES = {
    "ADVERTISE": 0x00, "SEARCHGW": 0x01, "GWINFO": 0x02, "CONNECT": 0x04, "CONNACK": 0x05, "WILLTOPICREQ": 0x06, "WILLTOPIC": 0x07,
    "WILLMSGREQ": 0x08, "WILLMSG": 0x09, "REGISTER": 0x0A, "REGACK": 0x0B, "PUBLISH": 0x0C, "PUBACK": 0x0D, "PUBCOMP": 0x0E,
    "PUBREC": 0x0F, "PUBREL": 0x10, "SUBSCRIBE": 0x12, "SUBACK": 0x13, "UNSUBSCRIBE": 0x14, "UNSUBACK": 0x15, "PINGREQ": 0x16,
    "PINGRESP": 0x17, "DISCONNECT": 0x18, "WILLTOPICUPD": 0x1A, "WILLTOPICRESP": 0x1B, "WILLMSGUPD": 0x1C, "WILLMSGRESP": 0x1D,
}  # fmt: skip
OF_GATEWAY = {
    "ADVERTISE": "!BH", "GWINFO": "!B", "CONNACK": "!B", "WILLTOPICREQ": "!", "WILLMSGREQ": "!", "REGISTER": "!HH",
    "REGACK": "!HHB", "PUBLISH": "!BHH", "PUBACK": "!HHB", "PUBCOMP": "!H", "PUBREC": "!H", "PUBREL": "!H", "SUBACK": "!BHHB",
    "UNSUBACK": "!H", "PINGREQ": "!", "PINGRESP": "!", "DISCONNECT": "!", "WILLTOPICRESP": "!B", "WILLMSGRESP": "!B",
}  # fmt: skip
"""Fields of what a gateway sends; REGISTER and PUBLISH have a rest."""
NAMES = {number: name for name, number in TYPES.items()}


class Got(NamedTuple):
    """A message of the gateway."""

    name: str
    fields: tuple[int, ...]
    rest: bytes


def framed(name: str, body: bytes = b"") -> bytes:
    """A message: one byte of length, or three."""
    if len(body) + 2 < 256:
        return bytes((len(body) + 2, TYPES[name])) + body
    return struct.pack("!BHB", 1, len(body) + 4, TYPES[name]) + body


def parsed(data: bytes) -> Got:
    """A message of the gateway. Fails if it is not exactly one."""
    at = 4 if data[0] == 1 else 2
    assert (struct.unpack_from("!H", data, 1)[0] if at == 4 else data[0]) == len(data), data
    assert at == 2 or len(data) > 255, "the long form of a short message"
    name = NAMES[data[at - 1]]
    size = struct.calcsize(OF_GATEWAY[name])
    rest = data[at + size :]
    assert not rest or name in ("REGISTER", "PUBLISH"), data
    return Got(name, struct.unpack_from(OF_GATEWAY[name], data, at), rest)


def connect(client_id: str, duration_s: int = 60, flags: int = CLEAN, protocol: int = 1) -> bytes:
    return framed("CONNECT", struct.pack("!BBH", flags, protocol, duration_s) + client_id.encode())


def publish(kind: int, topic_id: int, payload: bytes, qos: int = 0, message_id: int = 0, flags: int = 0) -> bytes:
    return framed("PUBLISH", struct.pack("!BHH", QOS[qos] | kind | flags, topic_id, message_id) + payload)


def subscribe(topic: bytes, qos: int, message_id: int, kind: int = NAME, flags: int = 0, name: str = "SUBSCRIBE") -> bytes:
    return framed(name, struct.pack("!BH", QOS[qos] | kind | flags, message_id) + topic)


class MqttSnClient:
    """A device. `at`: (host, port) of the gateway."""

    def __init__(self, at: tuple[str, int], head: bytes = b"", source: str = "") -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        if source:
            self.socket.bind((source, 0))
        self.socket.connect(at)
        self.head = head
        self.message_id = 0

    def __enter__(self) -> "MqttSnClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def raw(self, data: bytes) -> None:
        self.socket.send(self.head + data)

    def send(self, name: str, body: bytes = b"") -> None:
        self.raw(framed(name, body))

    def recv(self, timeout_s: float = TIMEOUT_S) -> Got:
        """The next message. Raises TimeoutError."""
        if not select.select([self.socket], [], [], timeout_s)[0]:
            raise TimeoutError("no datagram of the gateway")
        data = self.socket.recv(65536)
        assert data.startswith(self.head), data
        return parsed(data[len(self.head) :])

    def expect(self, name: str, *fields: int) -> Got:
        got = self.recv()
        assert got.name == name and (not fields or got.fields == fields), got
        return got

    def expect_nothing(self, quiet_s: float = QUIET_S) -> None:
        try:
            got = self.recv(quiet_s)
        except TimeoutError:
            return
        raise AssertionError(f"unexpected: {got}")

    def next_id(self) -> int:
        self.message_id = self.message_id % 65535 + 1
        return self.message_id

    def connect(self, client_id: str, duration_s: int = 60, flags: int = CLEAN, will: tuple[str, bytes, int] | None = None) -> None:
        """Connects, as soon as the gateway listens. will: (topic, message, flags)."""
        hello = connect(client_id, duration_s, flags | (WILL if will else 0))
        self.knock(hello)
        if will is not None:
            self.expect("WILLTOPICREQ")
            self.send("WILLTOPIC", bytes((will[2],)) + will[0].encode())
            self.expect("WILLMSGREQ")
            self.send("WILLMSG", will[1])
        self.expect("CONNACK", 0)

    def knock(self, data: bytes) -> None:
        """Sends until there is an answer, which stays to be read."""
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            try:
                self.raw(data)
                if select.select([self.socket], [], [], KNOCK_S)[0]:
                    self.socket.recv(1, socket.MSG_PEEK)
                    return
            except ConnectionRefusedError:
                time.sleep(0.05)
        raise TimeoutError("the gateway does not answer")

    def register(self, topic: str) -> int:
        message_id = self.next_id()
        self.send("REGISTER", struct.pack("!HH", 0, message_id) + topic.encode())
        got = self.expect("REGACK")
        assert got.fields[1:] == (message_id, 0), got
        return got.fields[0]

    def subscribe(self, topic: str | int, qos: int = 1, kind: int = NAME) -> int:
        """Returns the topic id."""
        message_id = self.next_id()
        self.raw(subscribe(topic.to_bytes(2, "big") if isinstance(topic, int) else topic.encode(), qos, message_id, kind))
        got = self.expect("SUBACK")
        assert got.fields[0] == QOS[qos] and got.fields[2:] == (message_id, 0), got
        return got.fields[1]

    def publish(self, topic_id: int, payload: bytes, qos: int = 1, kind: int = NAME, flags: int = 0) -> None:
        """Publishes, and takes part in the whole exchange."""
        message_id = self.next_id() if qos > 0 else 0
        self.raw(publish(kind, topic_id, payload, qos, message_id, flags))
        if qos == 1:
            self.expect("PUBACK", topic_id, message_id, 0)
        elif qos == 2:
            self.expect("PUBREC", message_id)
            self.send("PUBREL", struct.pack("!H", message_id))
            self.expect("PUBCOMP", message_id)

    def take(self, qos: int = 1) -> tuple[int, int, bytes]:
        """Takes a message and acknowledges it, after REGISTER if that comes first; returns topic kind, topic id and payload."""
        got = self.recv()
        while got.name == "REGISTER":  # once for the topic, and before it once for a proof of the address
            self.send("REGACK", struct.pack("!HHB", *got.fields, 0))
            got = self.recv()
        assert got.name == "PUBLISH" and got.fields[0] & 0x60 == QOS[qos], got
        flags, topic_id, message_id = got.fields
        if qos == 1:
            self.send("PUBACK", struct.pack("!HHB", topic_id, message_id, 0))
        elif qos == 2:
            self.send("PUBREC", struct.pack("!H", message_id))
            self.expect("PUBREL", message_id)
            self.send("PUBCOMP", struct.pack("!H", message_id))
        return flags & 3, topic_id, got.rest

    def sleep(self, duration_s: int) -> None:
        self.send("DISCONNECT", struct.pack("!H", duration_s))
        self.expect("DISCONNECT")
