"""The data channel of a node: handshakes and streams, on one connection per peer. What a process `link-1` and above drives.

The view lives in another process: its result arrives by `set_peer` and `gone`. A data connection is accepted from a peer whose
signal link has been proved, in the same incarnation; before that it is refused with UNKNOWN_PEER and dialled again. Signals and
data are otherwise independent: messages go on while `link-0` restarts. The driver is the same as that of signals.py.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.handshake import AUTH_TIMEOUT_MS, Handshake, Identity
from shardbroker.cluster.inbound import Inbound, Inlets
from shardbroker.cluster.messages import Bye, Data, DataAck, Hello, Message, Resume, Streams, Welcome
from shardbroker.cluster.outbound import LaneRing, Outbound
from shardbroker.cluster.outputs import Close, Dial, Output, Refused, Send

__all__ = ["DataChannel", "Peer"]

REDIAL_FIRST_MS, REDIAL_MAX_MS = 50, 500
"""Pause before a lost connection is dialled again, doubled up to the maximum."""
CATCH_UP_MS = 100
"""From the streams of a new connection until what its peer has kept meanwhile has arrived: a round trip, and some MB of a spool."""
UNPROVED_MAX = 512
"""Accepted connections without proof at the same time."""
TEXT_SHOWN = 500
"""Characters of a peer's reason that reach the log."""


@dataclass
class Peer:
    """A peer and its streams in both directions."""

    node_id: int
    address: str
    incarnation: int
    outbound: Outbound
    inbound: Inbound
    is_reachable: bool = True
    """The view has a proved link; a peer that was never proved is not dialled."""
    connection: int | None = None
    is_dialling: bool = False
    dial_ms: int = 0
    pause_ms: int = REDIAL_FIRST_MS
    resumed_ms: int | None = None
    """When the connection has offered its streams."""

    def is_lagging(self, now_ms: int) -> bool:
        """Returns whether messages that the peer sent a moment ago may not be in the rings of the workers."""
        return self.resumed_ms is None or now_ms - self.resumed_ms < CATCH_UP_MS or self.inbound.is_full


@dataclass
class _Connection:
    number: int
    handshake: Handshake
    address: str = ""
    peer: Peer | None = None


class DataChannel:
    """One data channel of a node."""

    def __init__(
        self,
        me: Identity,
        cookie: bytes,
        channel: int,
        outbound: Callable[[int], Outbound],
        inlets: Inlets,
        rng: Random,
        nonces: Callable[[], bytes],
    ) -> None:
        self.me, self.channel = me, channel
        self.peers: dict[int, Peer] = {}
        self._cookie, self._make_outbound, self._inlets, self._rng, self._nonces = cookie, outbound, inlets, rng, nonces
        self._connections: dict[int, _Connection] = {}
        self._touched: set[int] = set()
        """Peers for which something may be done before the next tick."""

    # --- peers ---------------------------------------------------------------------------------------------------------

    def add_peer(self, node_id: int, address: str) -> Peer:
        """Returns a peer by node id. One with a spool or left-over rings is added at the start, before it is reachable."""
        peer = self.peers.get(node_id)
        if peer is None:
            outbound, inbound = self._make_outbound(node_id), Inbound(node_id, self._inlets)
            peer = self.peers[node_id] = Peer(node_id, address, 0, outbound, inbound, is_reachable=False)
        return peer

    def set_peer(self, node_id: int, address: str, incarnation: int, is_new: bool, now_ms: int) -> list[Output]:
        """Takes a proved peer from the view. Another incarnation ends the connection; another data directory also what is kept."""
        done: list[Output] = []
        peer = self.add_peer(node_id, address)
        if peer.connection is not None and (peer.incarnation != incarnation or is_new):
            done.append(Close(peer.connection, ByeReason.REPLACED, f"node {node_id} has a new incarnation"))
            self._forget(peer.connection, now_ms)
        if is_new:
            peer.outbound.drop_all()
            peer.inbound.forget()
        peer.address, peer.incarnation, peer.is_reachable = address, incarnation, True
        peer.dial_ms, peer.pause_ms = min(peer.dial_ms, now_ms), REDIAL_FIRST_MS
        return done

    def hurry(self, node_id: int, now_ms: int) -> None:
        """Dials a peer again without a pause: its signal link is up. The driver has given up attempts that are under way."""
        peer = self.peers[node_id]
        peer.dial_ms, peer.pause_ms = min(peer.dial_ms, now_ms), REDIAL_FIRST_MS

    def gone(self, node_id: int, now_ms: int) -> list[Output]:
        """Drops what is kept for a node that is gone. Positions of its streams remain: it may be back with what it has not sent."""
        peer = self.peers.get(node_id)
        if peer is None:
            return []
        done: list[Output] = []
        if peer.connection is not None:
            done.append(Close(peer.connection, ByeReason.LEAVING, f"node {node_id} is gone"))
            self._forget(peer.connection, now_ms)
        peer.outbound.drop_all()
        peer.is_reachable = False
        return done

    def add_rings(self, node_id: int, rings: Iterable[LaneRing]) -> list[Output]:
        """Takes rings to a peer that were created after the peer was added."""
        peer = self.peers[node_id]
        messages = [message for ring in rings for message in peer.outbound.add_ring(ring)]
        self._touched.add(node_id)
        return [] if peer.connection is None else [Send(peer.connection, message) for message in messages]

    @property
    def is_drained(self) -> bool:
        """Returns whether nothing is kept for peers that are connected."""
        return all(peer.outbound.is_empty for peer in self.peers.values() if peer.connection is not None)

    # --- connections ---------------------------------------------------------------------------------------------------

    def opened(self, number: int, address: str, now_ms: int) -> list[Output]:
        """Takes a new connection; `address` is the dialled one, or "" for an accepted connection."""
        unproved = sum(not connection.handshake.is_done for connection in self._connections.values())
        if not address and unproved >= UNPROVED_MAX:
            return [Close(number, ByeReason.LIMIT, f"more than {UNPROVED_MAX} connections without proof")]
        handshake = Handshake(
            self.me, self._cookie, self._nonces(), self.channel, bool(address), now_ms + AUTH_TIMEOUT_MS, expected_address=address
        )
        self._connections[number] = _Connection(number, handshake, address)
        return [Send(number, message) for message in handshake.start()]

    def failed(self, address: str, now_ms: int) -> None:
        """Takes the failure to open a connection that was asked for."""
        for peer in self.peers.values():
            if peer.address == address and peer.is_dialling:
                self._retry(peer, now_ms)

    def _retry(self, peer: Peer, now_ms: int) -> None:
        peer.is_dialling = False
        peer.dial_ms = now_ms + self._rng.randint(peer.pause_ms // 2, peer.pause_ms)
        peer.pause_ms = min(2 * peer.pause_ms, REDIAL_MAX_MS)

    def refuse(self, number: int, fault: PeerFault, now_ms: int) -> list[Output]:
        """Ends a connection for a fault that the driver has found."""
        return self._end(number, fault, now_ms) if number in self._connections else []

    def peer_of(self, number: int) -> Peer | None:
        """Returns the peer of a connection, or None before its proof."""
        connection = self._connections.get(number)
        return None if connection is None else connection.peer

    def closed(self, number: int, now_ms: int) -> None:
        """Takes the end of a connection."""
        self._forget(number, now_ms)

    def _forget(self, number: int, now_ms: int) -> None:
        connection = self._connections.pop(number, None)
        if connection is None:
            return
        peer = connection.peer
        if peer is not None and peer.connection == number:
            peer.connection = peer.resumed_ms = None
            peer.outbound.disconnected(now_ms)
            self._retry(peer, now_ms)
        elif peer is None and connection.address:
            self.failed(connection.address, now_ms)

    def _end(self, number: int, fault: PeerFault, now_ms: int) -> list[Output]:
        self._forget(number, now_ms)
        return [Close(number, fault.reason, fault.text)]

    def _welcome(self, hello: Hello) -> Peer:
        """Returns the peer of a HELLO. Raises PeerFault if the view does not have it."""
        peer = self.peers.get(hello.node_id)
        known = peer is not None and (peer.is_reachable, peer.address, peer.incarnation) == (True, hello.address, hello.incarnation)
        if peer is None or not known:
            text = f"node {hello.name} of incarnation {hello.incarnation} has no signal link to node {self.me.name}"
            raise PeerFault(ByeReason.UNKNOWN_PEER, text)
        return peer

    # --- messages ------------------------------------------------------------------------------------------------------

    def received(self, number: int, message: Message, now_ms: int) -> list[Output]:
        """Takes a message of a connection, in the order in which they were sent."""
        connection = self._connections.get(number)
        if connection is None:
            return []
        try:
            if isinstance(message, Bye):
                self._forget(number, now_ms)
                refused = Refused(connection.address, message.reason, message.text[:TEXT_SHOWN])
                return [refused, Close(number, ByeReason.REPLACED, "")]
            if connection.peer is None:
                return self._greet(connection, message, now_ms)
            self._touched.add(connection.peer.node_id)
            match message:
                case Resume() | DataAck():
                    connection.peer.outbound.receive(message, now_ms)
                    return []
                case Streams() | Data():
                    if connection.peer.resumed_ms is None:
                        connection.peer.resumed_ms = now_ms
                    return [Send(number, answer) for answer in connection.peer.inbound.receive(message)]
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"{type(message).__name__}: not allowed on a data channel")
        except PeerFault as fault:
            return self._end(number, fault, now_ms)

    def _greet(self, connection: _Connection, message: Message, now_ms: int) -> list[Output]:
        handshake = connection.handshake
        match message:
            case Hello():
                answers = handshake.on_hello(message)
                if message.channel != self.channel:
                    raise PeerFault(ByeReason.PROTOCOL_ERROR, f"HELLO channel: must be {self.channel}, got {message.channel}")
                self._welcome(message)
            case Welcome():
                answers = handshake.on_welcome(message)
            case _:
                raise PeerFault(ByeReason.PROTOCOL_ERROR, f"{type(message).__name__}: must follow HELLO and WELCOME")
        done: list[Output] = [Send(connection.number, answer) for answer in answers]
        if not handshake.is_done:
            return done
        assert handshake.peer is not None
        peer = self._welcome(handshake.peer)
        if peer.connection is not None:
            old = peer.connection
            self._forget(old, now_ms)
            done.append(Close(old, ByeReason.REPLACED, f"node {peer.node_id} has opened a newer connection"))
        connection.peer, peer.connection, peer.is_dialling, peer.pause_ms = peer, connection.number, False, REDIAL_FIRST_MS
        peer.inbound.connected()
        return done + [Send(connection.number, answer) for answer in peer.outbound.connected(now_ms)]

    # --- time ----------------------------------------------------------------------------------------------------------

    def is_reading(self, number: int) -> bool:
        """Returns whether a connection is to be read: not while too much waits for full workers."""
        connection = self._connections.get(number)
        return connection is None or connection.peer is None or connection.peer.inbound.is_reading

    def touch(self, node_id: int) -> None:
        """Notes that there is something to do for a peer: records in a ring, or a connection that takes more."""
        self._touched.add(node_id)

    def turn(self, now_ms: int, writable: Callable[[int], bool]) -> list[Output]:
        """Does one pass for the peers that were touched: records and acknowledgements leave. A peer that waits for workers stays
        touched."""
        done: list[Output] = []
        for node_id in sorted(self._touched):
            peer = self.peers[node_id]
            done += self._turn(peer, now_ms, writable)
            if not peer.inbound.is_waiting:
                self._touched.discard(node_id)
        return done

    def tick(self, now_ms: int, writable: Callable[[int], bool]) -> list[Output]:
        """Does what is due by the clock, and a pass for all peers; to be called every 50 ms or so."""
        done: list[Output] = []
        for connection in [*self._connections.values()]:
            if not connection.handshake.is_done and now_ms >= connection.handshake.deadline_ms:
                fault = PeerFault(ByeReason.TIMEOUT, f"no proof within {AUTH_TIMEOUT_MS} ms: cluster.link.auth_timeout")
                done += self._end(connection.number, fault, now_ms)
        for peer in self.peers.values():
            done += self._turn(peer, now_ms, writable)
            number = peer.connection
            if number is not None and peer.outbound.stalled(now_ms):
                text = f"node {peer.node_id} has made no progress for {peer.outbound.settings.stall_ms} ms: cluster.link.stall"
                done += self._end(number, PeerFault(ByeReason.STALLED, text), now_ms)
            elif number is not None or not peer.is_reachable or peer.is_dialling:
                continue
            elif now_ms >= peer.dial_ms and self.me.address < peer.address:
                peer.is_dialling = True
                done.append(Dial(peer.address, self.channel))
        return done

    def _turn(self, peer: Peer, now_ms: int, writable: Callable[[int], bool]) -> list[Output]:
        peer.inbound.pump()
        peer.outbound.tick(now_ms)
        number = peer.connection
        if number is None:
            return []
        done: list[Output] = [Send(number, message) for message in peer.inbound.acks()]
        if writable(number):
            done += [Send(number, message) for message in peer.outbound.pump()]
        return done
