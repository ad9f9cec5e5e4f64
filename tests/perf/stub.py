"""The least broker that the load tool can run against, with faults on demand: what the tool says of it is what is tested."""

import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

Fault = Callable[[int, bytes], list[bytes]]
"""Gets the number of a PUBLISH to be passed on and its bytes; returns what is sent in its place."""


class Stub:
    """One thread, exact topics, QoS 0 to 2 towards the publisher, QoS 0 towards the subscriber. Context manager."""

    def __init__(self, fault: Fault = lambda number, packet: [packet], connack: bytes = b"\x20\x02\x00\x00") -> None:
        self._fault = fault
        self._connack = connack
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._rest: dict[socket.socket, bytes] = {}
        self._subscribers: dict[bytes, list[socket.socket]] = {}
        self._passed_on = 0
        self.peers: list[str] = []
        self.greetings: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "Stub":
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._waker.close()
        self._thread.join(10)
        for sock in [*self._rest, self._listener, self._wake]:
            sock.close()
        self._selector.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                sock = key.fileobj
                if sock is self._wake:
                    return
                if sock is self._listener:
                    client, peer = self._listener.accept()
                    self.peers.append(peer[0])
                    self._rest[client] = b""
                    self._selector.register(client, selectors.EVENT_READ)
                elif isinstance(sock, socket.socket):
                    with suppress(OSError):
                        self._read(sock)

    def _read(self, sock: socket.socket) -> None:
        data = sock.recv(65536)
        if not data:
            self._selector.unregister(sock)
            del self._rest[sock]
            sock.close()
            return
        data = self._rest[sock] + data
        while len(data) >= 2:
            size = 1
            while data[size] & 0x80:
                size += 1
            length = sum((byte & 0x7F) << (7 * i) for i, byte in enumerate(data[1 : size + 1]))
            end = size + 1 + length
            if len(data) < end:
                break
            self._take(sock, data[:end], data[size + 1 : end])
            data = data[end:]
        self._rest[sock] = data

    def _take(self, sock: socket.socket, packet: bytes, body: bytes) -> None:
        kind, qos = packet[0] >> 4, packet[0] >> 1 & 3
        if kind == 1:
            self.greetings.append(packet)
            sock.sendall(self._connack)
        elif kind == 8:
            size = int.from_bytes(body[2:4])
            self._subscribers.setdefault(body[4 : 4 + size], []).append(sock)
            sock.sendall(b"\x90\x03" + body[:2] + b"\x00")
        elif kind == 3:
            size = int.from_bytes(body[:2])
            topic, at = body[2 : 2 + size], 2 + size
            if qos:
                sock.sendall((b"\x40\x02" if qos == 1 else b"\x50\x02") + body[at : at + 2])
                at += 2
            passed = body[: 2 + size] + body[at:]
            for target in self._subscribers.get(topic, []):
                for out in self._fault(self._passed_on, b"\x30" + bytes([len(passed)]) + passed):
                    target.sendall(out)
                self._passed_on += 1
        elif kind == 14:
            sock.shutdown(socket.SHUT_WR)
        elif kind == 6:
            sock.sendall(b"\x70\x02" + body[:2])
