"""DTLS 1.2 for a listener of datagrams, by OpenSSL through memory BIOs.

A sender gets a cookie first, which is a code over its address (RFC 6347 §4.2.1): nothing is kept of it, and what it is sent is no
longer than its ClientHello. A sender that brings its cookie has an address of its own, and gets a connection. The connections of a
listener are bounded, and the one that was silent for longest gives way.
"""

from collections.abc import Callable, Iterator
from math import inf
from typing import Any

from shardbroker.gateways.connection import Peer

__all__ = ["RECEIVE", "DtlsPeers"]

MTU = 1200
"""Longest datagram of a handshake: with headers of IP and UDP it fits every usual network."""
RECORD_EXTRA = 128
"""Bytes that a record has beside its content, at most."""
RECEIVE = 16_384 + RECORD_EXTRA
"""Longest datagram that is read: a record may have 2^14 bytes (RFC 6347 §4.1)."""
PEERS = 100_000
"""Connections of a listener without max_connections; each takes about 40 KB."""
HANDSHAKE, CLIENT_HELLO = 22, 1
HEADER = 13
"""Bytes of a record before its content (RFC 6347 §4.1)."""


class _Peer:
    """A connection with one address."""

    __slots__ = ("connection", "is_open", "until_s")

    def __init__(self, connection: Any, until_s: float) -> None:
        self.connection, self.until_s = connection, until_s
        self.is_open = False
        """Whether the handshake is complete."""


class DtlsPeers:
    """The connections of a listener. context: of acceptor.dtls. send: sends a datagram to an address.

    limit: most connections; 0: PEERS.
    """

    def __init__(self, context: Any, handshake_s: float, limit: int, send: Callable[[bytes, Peer], None]) -> None:
        from OpenSSL import SSL

        self._ssl: Any = SSL
        self._context, self._handshake_s, self._limit, self._send = context, handshake_s, limit or PEERS, send
        self._peers: dict[Peer, _Peer] = {}
        """Least recently used first."""
        self._opening: dict[Peer, _Peer] = {}

    def use(self, context: Any) -> None:
        """Takes another context, for later connections."""
        self._context = context

    def __len__(self) -> int:
        return len(self._peers)

    def knows(self, data: bytes, peer: Peer) -> bool:
        """Returns whether a datagram belongs to a connection; a ClientHello may begin a new one at any time (RFC 6347 §4.2.8)."""
        return peer in self._peers and not (_is_first_hello(data) and self._peers[peer].is_open)

    def received(self, data: bytes, peer: Peer, now_s: float) -> Iterator[bytes]:
        """Handles a datagram; yields the messages in it."""
        found = self._peers.get(peer)
        if found is None or not self.knows(data, peer):
            found = self._greet(data, peer, now_s)
            if found is None:
                return
        else:
            if not data:
                return
            self._peers[peer] = self._peers.pop(peer)
            found.connection.bio_write(data)
        try:
            if not found.is_open:
                found.connection.do_handshake()
                found.is_open, found.until_s = True, inf
                self._opening.pop(peer, None)
                self._flush(found, peer)
            while True:
                yield found.connection.recv(RECEIVE)
        except self._ssl.WantReadError:
            self._flush(found, peer)
        except self._ssl.Error:  # closed by the device, or against the protocol
            self._flush(found, peer)
            self.forget(peer)

    def _greet(self, data: bytes, peer: Peer, now_s: float) -> _Peer | None:
        """Answers a ClientHello: by a cookie, or if it has one by a connection, which is returned."""
        if not _is_hello(data):
            return None
        connection = self._ssl.Connection(self._context, None)
        connection.set_app_data(peer)
        connection.set_accept_state()
        connection.set_ciphertext_mtu(MTU)
        connection.bio_write(data)
        found = _Peer(connection, now_s + self._handshake_s)
        try:
            connection.DTLSv1_listen()
        except self._ssl.WantReadError:
            self._flush(found, peer)
            return None
        except self._ssl.Error:
            return None
        self.forget(peer)
        if len(self._peers) >= self._limit:
            self.forget(next(iter(self._peers)))
        self._peers[peer] = self._opening[peer] = found
        return found

    def send(self, message: bytes, peer: Peer) -> bool:
        """Sends a message; returns whether there is a connection for it."""
        found = self._peers.get(peer)
        if found is None or not found.is_open:
            return False
        try:
            found.connection.send(message)
        except self._ssl.Error:
            self.forget(peer)
            return False
        self._flush(found, peer)
        return True

    def _flush(self, found: _Peer, peer: Peer) -> None:
        """Sends what OpenSSL has: at most MTU bytes a datagram, a record whole."""
        try:
            data = found.connection.bio_read(1 << 20)
        except self._ssl.WantReadError:
            return
        for one in _datagrams(data):
            self._send(one, peer)

    def tick(self, now_s: float) -> None:
        """Sends flights of handshakes again that were not answered, and ends those that take too long."""
        for peer, found in [*self._opening.items()]:
            if now_s >= found.until_s:
                self.forget(peer)
            elif found.connection.DTLSv1_get_timeout() == 0:
                try:
                    found.connection.DTLSv1_handle_timeout()
                except self._ssl.Error:
                    self.forget(peer)
                    continue
                self._flush(found, peer)

    def forget(self, peer: Peer) -> None:
        """Drops a connection."""
        self._peers.pop(peer, None)
        self._opening.pop(peer, None)

    def close(self) -> None:
        """Ends all connections."""
        for peer, found in [*self._peers.items()]:
            if found.is_open:
                try:
                    found.connection.shutdown()
                except self._ssl.Error:
                    continue
                self._flush(found, peer)
        self._peers.clear()
        self._opening.clear()


def _is_hello(data: bytes) -> bool:
    return len(data) > HEADER and data[0] == HANDSHAKE and data[1] == 0xFE and data[HEADER] == CLIENT_HELLO


def _is_first_hello(data: bytes) -> bool:
    """Returns whether a datagram is a ClientHello of a new connection: of epoch 0."""
    return _is_hello(data) and data[3:5] == b"\0\0"


def _datagrams(data: bytes) -> Iterator[bytes]:
    """Splits records into datagrams."""
    begin = at = 0
    while at + HEADER <= len(data):
        end = at + HEADER + (data[at + 11] << 8 | data[at + 12])
        if end - begin > MTU and at > begin:
            yield data[begin:at]
            begin = at
        at = end
    if begin < len(data):
        yield data[begin:]
