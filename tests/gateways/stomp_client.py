"""A STOMP client written from the norm, for tests: it sends exactly what it is told, and parses frames of a server strictly."""

import re
import socket
import time
from typing import NamedTuple

TIMEOUT_S = 10.0
QUIET_S = 0.3


class Frame(NamedTuple):
    """A frame of the server; headers as they are on the wire, first ones first."""

    command: str
    headers: dict[str, str]
    body: bytes


class StompClient:
    """A connection. `at`: (host, port)."""

    def __init__(self, at: tuple[str, int], connection: socket.socket | None = None) -> None:
        self.socket = connection or socket.create_connection(at, TIMEOUT_S)
        self.socket.settimeout(TIMEOUT_S)
        self.data = b""

    def __enter__(self) -> "StompClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, command: str, body: bytes = b"", **headers: str) -> None:
        """Sends a frame; `_` in names of headers means `-`. Values are sent as they are."""
        lines = [command, *(f"{name.replace('_', '-')}:{value}" for name, value in headers.items())]
        self.raw("\n".join(lines).encode() + b"\n\n" + body + b"\0")

    def connect(self, version: str = "1.2", **headers: str) -> Frame:
        accept = {} if version == "1.0" else {"accept_version": version, "host": "broker"}
        self.send("CONNECT", **accept, **headers)
        return self.expect("CONNECTED")

    def recv(self, timeout_s: float = TIMEOUT_S) -> Frame | None:
        """The next frame; None if the server has closed the connection. Raises TimeoutError."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self.data = self.data.lstrip(b"\n")
            frame = self._parsed()
            if frame is not None:
                return frame
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self.socket.settimeout(left_s)
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                assert not self.data, f"the end of the connection within a frame: {self.data!r}"
                return None
            self.data += data

    def _parsed(self) -> Frame | None:
        head, blank, rest = self.data.partition(b"\n\n")
        if not blank:
            return None
        command, *lines = head.decode().split("\n")
        assert re.fullmatch("CONNECTED|MESSAGE|RECEIPT|ERROR", command), command
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            assert colon and name, line
            headers.setdefault(name, value)
        size = int(headers["content-length"]) if "content-length" in headers else rest.find(b"\0")
        if size < 0 or len(rest) <= size:
            return None
        assert rest[size] == 0, "no NUL octet after the body"
        self.data = rest[size + 1 :]
        assert command in ("MESSAGE", "ERROR") or not size, f"{command} with a body"
        return Frame(command, headers, rest[:size])

    def expect(self, command: str, **headers: str) -> Frame:
        frame = self.recv()
        assert frame is not None and frame.command == command, frame
        for name, value in headers.items():
            assert frame.headers.get(name.replace("_", "-")) == value, frame
        return frame

    def expect_error(self, *words: str) -> Frame:
        """An ERROR frame with these words, after which the server closes the connection."""
        frame = self.expect("ERROR")
        assert all(word in frame.body.decode() for word in words), frame
        assert self.recv() is None
        return frame

    def expect_nothing(self) -> None:
        try:
            frame = self.recv(QUIET_S)
        except TimeoutError:
            return
        raise AssertionError(f"unexpected: {frame}")

    def done(self, command: str, body: bytes = b"", **headers: str) -> None:
        """Sends a frame with a receipt and waits for it."""
        self.send(command, body, receipt="done", **headers)
        self.expect("RECEIPT", receipt_id="done")
