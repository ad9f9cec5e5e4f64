"""Layers between a load client and its socket: TLS, WebSocket, or both. Bytes in, bytes out.

The load tool's own cost does not matter: it runs on another core than the broker.
"""

import os
import ssl
import struct

from shardbroker.transport.websocket import client_frame

__all__ = ["Transport", "context_for"]

RECORD_MAX = 16384
"""Plaintext of one TLS record, bytes."""
UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
PATH = "/mqtt"
BINARY = 2
KEY = os.urandom(4)
"""Masks protect nothing between a load tool and a broker, so all frames share one."""


def context_for(cafile: str) -> ssl.SSLContext:
    """Returns the TLS context of all clients. Without a file of authorities, any certificate is accepted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if cafile:
        context.load_verify_locations(cafile)
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Transport:
    """The layers of one connection. `raw` holds bytes to send; the sender removes them from the front."""

    def __init__(self, context: ssl.SSLContext | None, websocket: bool, host: str) -> None:
        self.raw = bytearray()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = None if context is None else context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._shaken = context is None
        self._websocket = websocket
        self._upgraded = not websocket
        self._waiting = bytearray(UPGRADE.format(path=PATH, host=host).encode() if websocket else b"")
        self._frames = bytearray()
        self._early: list[bytes] = []
        self._push()

    def send(self, data: bytes) -> None:
        """Accepts MQTT bytes, which are buffered until the connection is established."""
        if self._upgraded:
            self._waiting += client_frame(data, mask=KEY) if self._websocket else data
            self._push()
        else:
            self._early.append(data)

    def receive(self, data: bytes) -> bytes:
        """Returns the MQTT bytes in the received data. Raises OSError if the connection has failed."""
        if self._tls is None:
            return self._above_tls(data)
        self._incoming.write(data)
        plain = bytearray()
        self._push()
        try:
            while self._shaken and (self._incoming.pending or self._tls.pending()):
                part = self._tls.read(RECORD_MAX)
                if not part:
                    break
                plain += part
        except ssl.SSLWantReadError:
            pass
        self._push()
        return self._above_tls(bytes(plain)) if plain else b""

    def _push(self) -> None:
        if self._tls is None:
            self.raw += self._waiting
            self._waiting.clear()
            return
        if not self._shaken:
            try:
                self._tls.do_handshake()
                self._shaken = True
            except ssl.SSLWantReadError:
                pass
        if self._shaken and self._waiting:
            self._tls.write(self._waiting)
            self._waiting = bytearray()
        if self._outgoing.pending:
            self.raw += self._outgoing.read()

    def _above_tls(self, data: bytes) -> bytes:
        if not self._websocket:
            return data
        self._frames += data
        if not self._upgraded:
            end = self._frames.find(b"\r\n\r\n")
            if end < 0:
                return b""
            status = bytes(self._frames[: self._frames.find(b"\r\n")])
            if b" 101 " not in status:
                raise ConnectionRefusedError(status.decode(errors="replace"))
            del self._frames[: end + 4]
            self._upgraded = True
            for early in self._early:
                self.send(early)
            self._early.clear()
        return self._unframe()

    def _unframe(self) -> bytes:
        frames, at, parts = self._frames, 0, []
        while len(frames) - at >= 2:
            size, head = frames[at + 1], 2
            if size == 126 and len(frames) - at >= 4:
                (size,), head = struct.unpack_from("!H", frames, at + 2), 4
            elif size == 127 and len(frames) - at >= 10:
                (size,), head = struct.unpack_from("!Q", frames, at + 2), 10
            elif size >= 126:
                break
            if len(frames) - at < head + size:
                break
            if frames[at] & 0x0F == BINARY:
                parts.append(bytes(frames[at + head : at + head + size]))
            at += head + size
        del frames[:at]
        return b"".join(parts)
