"""A WebSocket client by hand: the request, frames right and wrong, and the frames that come back, parsed strictly."""

import base64
import os
import socket
import struct
from typing import Any

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FIN = 0x80


def request(path: str = "/mqtt", subprotocol: str | None = "mqtt", **headers: str) -> bytes:
    """An upgrade request; `headers` replace or add (underscores for dashes), an empty one removes."""
    fields = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Version": "13",
    }
    if subprotocol is not None:
        fields["Sec-WebSocket-Protocol"] = subprotocol
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode()


def frame(payload: bytes, first: int = FIN | BINARY, mask: bytes | None = b"\x11\x22\x33\x44") -> bytes:
    """A frame of a client; without a mask it is one of a server."""
    bit = 0x80 if mask is not None else 0
    if len(payload) < 126:
        head = struct.pack("!BB", first, bit | len(payload))
    elif len(payload) < 65536:
        head = struct.pack("!BBH", first, bit | 126, len(payload))
    else:
        head = struct.pack("!BBQ", first, bit | 127, len(payload))
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


class WebSocket:
    """Acts as a socket whose bytes travel in binary frames. Control frames that come are kept in `controls`."""

    family = socket.AF_INET

    def __init__(self, under: Any, piece: int = 0) -> None:
        """`under`: the connected socket, upgraded here. `piece`: payload bytes of each frame that is sent; 0: all in one."""
        self.under = under
        self.piece = piece
        self.controls: list[tuple[int, bytes]] = []
        self._raw = bytearray()
        self._plain = bytearray()
        under.sendall(request())
        while b"\r\n\r\n" not in self._raw:
            data = under.recv(65536)
            assert data, f"no upgrade: {bytes(self._raw)!r}"
            self._raw += data
        head, _, rest = bytes(self._raw).partition(b"\r\n\r\n")
        self._raw = bytearray(rest)
        self.head = head.decode()
        assert self.head.startswith("HTTP/1.1 101"), self.head

    def sendall(self, data: bytes) -> None:
        size = self.piece or max(len(data), 1)
        self.under.sendall(b"".join(frame(data[at : at + size]) for at in range(0, len(data), size)))

    def recv(self, size: int) -> bytes:
        while not self._plain:
            if not self._take_frame():
                data = self.under.recv(65536)
                if not data:
                    return b""
                self._raw += data
        data = bytes(self._plain[:size])
        del self._plain[:size]
        return data

    def _take_frame(self) -> bool:
        if len(self._raw) < 2:
            return False
        first, length = self._raw[0], self._raw[1]
        assert not length & 0x80, "a server's frame has no mask"
        head = 2 + {126: 2, 127: 8}.get(length, 0)
        if len(self._raw) < head:
            return False
        size = int.from_bytes(self._raw[2:head]) if head > 2 else length
        if len(self._raw) < head + size:
            return False
        payload = bytes(self._raw[head : head + size])
        del self._raw[: head + size]
        assert first & FIN and not first & 0x70
        if first & 0x0F == BINARY:
            self._plain += payload
        else:
            self.controls.append((first & 0x0F, payload))
        return True

    def close_code(self) -> int:
        """Reads to the end; the code of the Close frame that came before it, 0 if there was none."""
        try:
            while self.recv(65536):
                pass
        except ConnectionError:
            pass
        codes = [int.from_bytes(payload[:2]) for kind, payload in self.controls if kind == CLOSE]
        return codes[-1] if codes else 0

    def settimeout(self, seconds: float) -> None:
        self.under.settimeout(seconds)

    def setsockopt(self, *arguments: Any) -> None:
        self.under.setsockopt(*arguments)

    def shutdown(self, how: int) -> None:
        self.under.shutdown(how)

    def close(self) -> None:
        self.under.close()
