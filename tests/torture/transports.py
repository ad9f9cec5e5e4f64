"""What lies between MQTT and a socket, at the side of a client: nothing, TLS, WebSocket, or both. Bytes in, bytes out, no socket.

    socket -> take() -> MQTT        MQTT -> put() -> pending -> socket

`pending` may also have what the layer itself sends: a handshake, a Pong. A layer that is not open yet takes nothing from `put`.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.edge.certificates import Authority
from tests.edge.websocket import BINARY, FIN, PING, PONG, frame, request
from tests.harness import free_port
from tests.harness.client import Address

__all__ = ["Listening", "Plain"]

HOST = "127.0.0.1"
UPGRADE_MAX = 4096
"""Bytes of an answer to a WebSocket request."""


class Plain:
    """TCP alone."""

    def __init__(self) -> None:
        self.pending = bytearray()
        """What is to be written to the socket."""

    def take(self, data: bytes) -> bytes:
        """Returns what has arrived for MQTT. Raises OSError where the other side ends or breaks the layer."""
        return data

    def put(self, data: bytearray) -> None:
        """Moves what MQTT sends to `pending`, if the layer is open."""
        self.pending += data
        data.clear()


class Tls(Plain):
    """A connection of TLS."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._from, self._to = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._from, self._to, server_hostname="localhost")
        self._open = False
        self._go_on()

    def _go_on(self) -> None:
        """Continues the handshake."""
        try:
            self._tls.do_handshake()
            self._open = True
        except ssl.SSLWantReadError:
            pass
        self.pending += self._to.read()

    def take(self, data: bytes) -> bytes:
        self._from.write(data)
        if not self._open:
            self._go_on()
        found = bytearray()
        while self._open:
            try:
                piece = self._tls.read(1 << 16)
            except ssl.SSLWantReadError:
                break
            if not piece:
                raise ConnectionResetError("close_notify")
            found += piece
        self.pending += self._to.read()
        return bytes(found)

    def put(self, data: bytearray) -> None:
        if self._open and data:
            self._tls.write(data)
            data.clear()
            self.pending += self._to.read()


class WebSocket(Plain):
    """Binary frames over another layer."""

    def __init__(self, under: Plain) -> None:
        super().__init__()
        self._under = under
        self.pending = under.pending
        self._open = False
        self._raw = bytearray()
        self._frames = bytearray(request())
        """For the layer below."""
        under.put(self._frames)

    def take(self, data: bytes) -> bytes:
        self._raw += self._under.take(data)
        if not self._open:
            self._upgrade()
        found = bytearray()
        while self._open and (taken := self._frame()) is not None:
            found += taken
        self._under.put(self._frames)
        return bytes(found)

    def _upgrade(self) -> None:
        head, end, rest = bytes(self._raw).partition(b"\r\n\r\n")
        if end and head.startswith(b"HTTP/1.1 101"):
            self._open, self._raw = True, bytearray(rest)
        elif end or len(head) > UPGRADE_MAX:
            raise ConnectionRefusedError(head[:100].decode(errors="replace"))

    def _frame(self) -> bytes | None:
        """Returns the payload of the next frame, empty if it is not of MQTT; None: it is not complete."""
        if len(self._raw) < 2:
            return None
        head = 2 + {126: 2, 127: 8}.get(self._raw[1], 0)
        if len(self._raw) < head:
            return None
        size = int.from_bytes(self._raw[2:head]) if head > 2 else self._raw[1]
        if len(self._raw) < head + size:
            return None
        first, payload = self._raw[0], bytes(self._raw[head : head + size])
        del self._raw[: head + size]
        if first == FIN | PING:
            self._frames += frame(payload, FIN | PONG)
        return payload if first == FIN | BINARY else b""

    def put(self, data: bytearray) -> None:
        if self._open and data:
            self._frames += frame(bytes(data))
            data.clear()
        self._under.put(self._frames)


@dataclass
class Listening:
    """Where a broker listens, by transport, and how a client connects there."""

    addresses: Mapping[str, Address]
    layers: Mapping[str, Callable[[], Plain]]
    arguments: tuple[str, ...] = ()
    """Of the broker, beside its address of TCP."""
    settings: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def plain(cls, address: Address | None = None) -> "Listening":
        """Returns a place for TCP alone; without an address, at a free port."""
        return cls({"tcp": address or (HOST, free_port())}, {"tcp": Plain})

    @classmethod
    def everywhere(cls, directory: Path) -> "Listening":
        """Returns a place for each transport, at free ports. Certificates are in the directory."""
        authority = Authority(directory)
        certificate = authority.issue("broker", "broker", ("localhost", "127.0.0.1"))
        places = {kind: (HOST, free_port()) for kind in ("tcp", "ssl", "ws", "wss")}
        others = [f"--listen={kind}://{host}:{port}" for kind, (host, port) in places.items() if kind != "tcp"]

        def speaking(version: ssl.TLSVersion) -> ssl.SSLContext:
            context = authority.client()
            context.minimum_version = context.maximum_version = version
            return context

        older, newer = speaking(ssl.TLSVersion.TLSv1_2), speaking(ssl.TLSVersion.TLSv1_3)
        return cls(
            {"tcp": places["tcp"], "ws": places["ws"], "tls1.2": places["ssl"], "tls1.3": places["ssl"], "wss": places["wss"]},
            {
                "tcp": Plain, "ws": lambda: WebSocket(Plain()), "tls1.2": lambda: Tls(older), "tls1.3": lambda: Tls(newer),
                "wss": lambda: WebSocket(Tls(newer)),
            },
            tuple(others), {f"listeners.listen-{number}.tls.certfile": certificate for number in (2, 4)},
        )  # fmt: skip
