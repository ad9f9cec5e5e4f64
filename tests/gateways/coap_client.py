"""A CoAP client, written from RFC 7252 and independent of the gateway's code."""

import itertools
import secrets
import socket
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

CON, NON, ACK, RST = range(4)
GET, POST, PUT, DELETE = range(1, 5)
OBSERVE, URI_PATH, CONTENT_FORMAT, MAX_AGE, URI_QUERY, ACCEPT, BLOCK2, BLOCK1, SIZE1, ETAG = 6, 11, 12, 14, 15, 17, 23, 27, 60, 4


def code(text: str) -> int:
    """4.04 as a byte."""
    big, _, small = text.partition(".")
    return int(big) << 5 | int(small)


class Got(NamedTuple):
    """A received message."""

    kind: int
    code: int
    mid: int
    token: bytes
    options: list[tuple[int, bytes]]
    payload: bytes

    @property
    def text(self) -> str:
        return f"{self.code >> 5}.{self.code & 31:02}"

    def option(self, number: int) -> bytes | None:
        return next((value for one, value in self.options if one == number), None)

    def uint(self, number: int) -> int | None:
        value = self.option(number)
        return None if value is None else int.from_bytes(value, "big")


def nibble(value: int) -> tuple[int, bytes]:
    if value < 13:
        return value, b""
    return (13, bytes([value - 13])) if value < 269 else (14, (value - 269).to_bytes(2, "big"))


def message(kind: int, number: int, mid: int, token: bytes = b"", options: Iterable[tuple[int, bytes]] = (), payload: bytes = b"") -> bytes:  # noqa: E501
    out = bytes([0x40 | kind << 4 | len(token), number]) + mid.to_bytes(2, "big") + token
    last = 0
    for option, value in sorted(options, key=lambda one: one[0]):
        (delta, more), (size, extra) = nibble(option - last), nibble(len(value))
        out += bytes([delta << 4 | size]) + more + extra + value
        last = option
    return out + (b"\xff" + payload if payload else b"")


def parsed(data: bytes) -> Got:
    assert data[0] >> 6 == 1
    size = data[0] & 15
    at, options, last = 4 + size, [], 0
    while at < len(data) and data[at] != 0xFF:
        pair = [data[at] >> 4, data[at] & 15]
        at += 1
        for n, value in enumerate(pair):
            if value == 13:
                pair[n], at = data[at] + 13, at + 1
            elif value == 14:
                pair[n], at = int.from_bytes(data[at : at + 2], "big") + 269, at + 2
        last += pair[0]
        options.append((last, data[at : at + pair[1]]))
        at += pair[1]
    assert at == len(data) or at + 1 < len(data)
    return Got(data[0] >> 4 & 3, data[1], int.from_bytes(data[2:4], "big"), data[4 : 4 + size], options, data[at + 1 :])


def uint(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


def block(number: int, more: bool, exponent: int) -> bytes:
    return uint(number << 4 | more << 3 | exponent)


def options_of(path: str, queries: dict[str, Any], **more: bytes) -> list[tuple[int, bytes]]:
    """path: without a slash in front. more: names of options in lower case."""
    found = [(URI_PATH, one.encode()) for one in path.split("/")] if path else []
    found += [(URI_QUERY, f"{name}={value}".encode()) for name, value in queries.items()]
    return found + [(globals()[name.upper()], value) for name, value in more.items()]


class CoapClient:
    """An endpoint over UDP."""

    def __init__(self, at: tuple[str, int], source: str = "") -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        if source:
            self.socket.bind((source, 0))
        self.socket.connect(at)
        self.mids = itertools.count(secrets.randbelow(30_000))
        self.notifications: deque[Got] = deque()
        self.observing: set[bytes] = set()
        self._taken: set[tuple[int, bytes, bytes]] = set()
        self.auth: dict[str, Any] = {}

    def __enter__(self) -> "CoapClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def raw(self, data: bytes) -> None:
        self.socket.send(data)

    def recv(self, timeout_s: float = 10.0) -> Got:
        self.socket.settimeout(timeout_s)
        return parsed(self.socket.recv(65536))

    def next_mid(self) -> int:
        return next(self.mids) % 65536

    def take(self, got: Got) -> None:
        """Acknowledges what is Confirmable; answers pings. A copy of a message, or of an answer, is no notification."""
        if got.kind == CON:
            self.raw(message(ACK if got.code else RST, 0, got.mid))
        if got.token in self.observing and got.code and got.kind != ACK:
            key = got.mid, got.token, got.payload
            if key not in self._taken:
                self._taken.add(key)
                self.notifications.append(got)

    def request(
        self, method: int, path: str, payload: bytes = b"", kind: int = CON, token: bytes | None = None, timeout_s: float = 10.0,
        more: dict[str, bytes] | None = None, is_new: bool = False, **queries: Any,
    ) -> Got:  # fmt: skip
        """The response. A request without an answer is sent again every second. is_new: nothing before it has its token."""
        token = secrets.token_bytes(4) if token is None else token
        mid = self.next_mid()
        data = message(kind, method, mid, token, options_of(path, self.auth | queries, **(more or {})), payload)
        self.raw(data)
        waited_s = 0.0
        while True:
            try:
                got = self.recv(1.0)
            except TimeoutError:
                waited_s += 1
                if waited_s >= timeout_s:
                    raise
                if kind == CON:
                    self.raw(data)
                continue
            if got.kind == ACK and got.mid == mid:
                if got.code:
                    assert got.token == token
                    return got
                continue
            if got.code and got.token == token and (is_new or got.option(OBSERVE) is None):
                self.take(got)
                if self.notifications and self.notifications[-1] is got:  # the first answer to OBSERVE, which took long
                    self.notifications.pop()
                return got
            assert got.kind != RST or got.mid != mid, got
            self.take(got)

    def good(self, method: int, path: str, payload: bytes = b"", **more: Any) -> Got:
        got = self.request(method, path, payload, **more)
        assert got.code >> 5 == 2, (got.text, got.payload)
        return got

    def connect(self, client_id: str, **queries: Any) -> None:
        """Opens a connection; its token is in all later requests."""
        self.auth = {}
        got = self.good(POST, "mqtt/connection", clientid=client_id, **queries)
        assert got.text == "2.01", got
        self.auth = {"clientid": client_id, "token": got.payload.decode()}

    def observe(self, topic: str, token: bytes | None = None, **more: Any) -> bytes:
        token = secrets.token_bytes(4) if token is None else token
        is_new = token not in self.observing
        self.observing.add(token)
        got = self.good(GET, f"ps/{topic}", token=token, more={"observe": b""} | more.pop("more", {}), is_new=is_new, **more)
        assert got.text == "2.05" and got.option(OBSERVE) is not None, got
        return token

    def notified(self, timeout_s: float = 10.0) -> Got:
        """The next notification, which is acknowledged."""
        while not self.notifications:
            self.take(self.recv(timeout_s))
        return self.notifications.popleft()

    def expect_nothing(self, timeout_s: float = 0.3) -> None:
        try:
            got = self.recv(timeout_s)
        except TimeoutError:
            return
        raise AssertionError(got)
