"""The signal channel of a node: handshakes, membership and routes, on one connection per peer. What the process `link-0` drives.

The driver opens, reads and closes connections and reports all of it here; each call returns what to do, in order (outputs.py). A
connection is a number that the driver chooses and never uses twice. A fault of a peer ends its connection with a reason and
nothing else.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from shardbroker.cluster.core import CoreView
from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.handshake import (
    AUTH_TIMEOUT_MS,
    FEATURE_LOAD,
    FEATURE_SESSIONS,
    FEATURES,
    Handshake,
    Identity,
)
from shardbroker.cluster.messages import (
    Bye,
    Hello,
    Leaving,
    Load,
    Message,
    OfTable,
    Ping,
    Pong,
    RetainedMessages,
    RouteAck,
    RouteEntries,
    RoutePartAck,
    RoutesBegin,
    RoutesEnd,
    RoutesFrom,
    RoutesPart,
    RoutesResume,
    SessionMessage,
    Welcome,
)
from shardbroker.cluster.outputs import Arrived, Close, Established, Gone, Output, Refused, RetainedArrived, Send
from shardbroker.cluster.rlog import DumpSlots, RouteReceiver, RouteSender, RouteSource, RouteStore, SubackWait
from shardbroker.cluster.sessions import checked
from shardbroker.cluster.view import SIGNALS, LinkState, NodeState, PeerLink, View, ViewSettings

__all__ = ["UNPROVED_MAX", "Signals"]

UNPROVED_MAX = 512
"""Accepted connections without proof at the same time: two of each of 250 nodes; each costs a few KB for 5 s at most."""


@dataclass
class _Connection:
    """One connection, and once it is proved the routes of both sides on it."""

    number: int
    handshake: Handshake
    address: str = ""
    sender: RouteSender | None = None
    receiver: RouteReceiver | None = None


class Signals:
    """The signal channel of one node."""

    def __init__(
        self,
        me: Identity,
        cookie: bytes,
        seeds: Iterable[str],
        source: RouteSource,
        store: RouteStore,
        rng: Random,
        nonces: Callable[[], bytes],
        now_ms: int,
        settings: ViewSettings | None = None,
        suback: SubackWait | None = None,
        auth_timeout_ms: int = AUTH_TIMEOUT_MS,
        core: CoreView | None = None,
        features: int = FEATURES,
    ) -> None:
        self.me = me
        self.features = features
        self.view = View(me, seeds, settings or ViewSettings(), rng, now_ms, core)
        self.suback = SubackWait() if suback is None else suback
        # An earlier process may have sent the SUBACK of any of them.
        self.suback.sent = source.head
        self.load: Load | None = None
        """Sent with each PING to the nodes that take it."""
        self._cookie, self._source, self._store, self._nonces = cookie, source, store, nonces
        self._auth_timeout_ms = auth_timeout_ms
        self._slots = DumpSlots()
        self._connections: dict[int, _Connection] = {}
        self._purges: set[int] = set()
        """Nodes whose routes are being removed, a batch at a time."""

    # --- connections ---------------------------------------------------------------------------------------------------

    def opened(self, number: int, address: str, now_ms: int) -> list[Output]:
        """Takes a new connection; `address` is the dialled one, or "" for an accepted connection."""
        unproved = sum(not connection.handshake.is_done for connection in self._connections.values())
        if not address and unproved >= UNPROVED_MAX:
            return [Close(number, ByeReason.LIMIT, f"more than {UNPROVED_MAX} connections without proof")]
        handshake = Handshake(
            self.me, self._cookie, self._nonces(), SIGNALS, bool(address), now_ms + self._auth_timeout_ms, expected_address=address,
            features=self.features,
        )  # fmt: skip
        self._connections[number] = _Connection(number, handshake, address)
        return [Send(number, message) for message in handshake.start()]

    def failed(self, address: str, now_ms: int) -> None:
        """Takes the failure to open a connection that was asked for."""
        self.view.lost(address, now_ms)

    def closed(self, number: int, now_ms: int) -> list[Output]:
        """Takes the end of a connection."""
        self._forget(number, now_ms)
        return self._release(now_ms)

    def _forget(self, number: int, now_ms: int) -> None:
        connection = self._connections.pop(number, None)
        if connection is None:
            return
        if connection.sender is not None:
            connection.sender.close()
        link = self.view.links.get(connection.address)
        if link is not None and (link.connection == number or link.state == LinkState.HELLO):
            self.view.lost(connection.address, now_ms)

    def _end(self, number: int, fault: PeerFault, now_ms: int) -> list[Output]:
        self._forget(number, now_ms)
        return [Close(number, fault.reason, fault.text), *self._release(now_ms)]

    # --- messages ------------------------------------------------------------------------------------------------------

    def received(self, number: int, message: Message, now_ms: int, clock_ms: int) -> list[Output]:
        """Takes a message of a connection, in the order in which they were sent."""
        connection = self._connections.get(number)
        if connection is None:
            return []
        try:
            done = self._dispatch(connection, message, now_ms, clock_ms)
        except PeerFault as fault:
            refused = [Refused(connection.address, fault.reason, fault.text)] if connection.address else []
            return [*refused, *self._end(number, fault, now_ms)]
        return [*done, *self._release(now_ms)]

    def _dispatch(self, connection: _Connection, message: Message, now_ms: int, clock_ms: int) -> list[Output]:
        if isinstance(message, Bye):
            self._forget(connection.number, now_ms)
            refused = Refused(connection.address, message.reason, message.text[:TEXT_SHOWN])
            return [refused, Close(connection.number, ByeReason.REPLACED, "")]
        if not connection.handshake.is_done:
            return self._greet(connection, message, now_ms)
        link = self.view.links[connection.address]
        sender, receiver = connection.sender, connection.receiver
        assert sender is not None and receiver is not None
        answers: list[Message] = []
        match message:
            case Ping():
                return self.view.on_ping(link, message, clock_ms, now_ms)
            case Pong():
                self.view.on_pong(link, message, now_ms)
            case Load():
                link.load = message
                return []
            case RoutesFrom() | RoutePartAck() | RouteAck():
                answers = sender.receive(message, now_ms)
            case RoutesResume() | RoutesBegin() | RoutesPart() | RoutesEnd() | RouteEntries():
                answers = receiver.receive(message)
            case Leaving():
                return self._gone(self.view.left(connection.address, now_ms))
            case _ if isinstance(message, SessionMessage):
                node = connection.handshake.peer
                assert node is not None
                return [Arrived(node.node_id, checked(message))]
            case _ if isinstance(message, RetainedMessages):
                return [RetainedArrived(connection.number, message)]
            case OfTable(table, of_table):
                return [RetainedArrived(connection.number, of_table, table)]
            case _:
                raise PeerFault(ByeReason.PROTOCOL_ERROR, f"{type(message).__name__}: not allowed on the signal channel")
        self._synced(link, sender, receiver, now_ms)
        return [Send(connection.number, answer) for answer in answers]

    def _greet(self, connection: _Connection, message: Message, now_ms: int) -> list[Output]:
        handshake = connection.handshake
        match message:
            case Hello():
                answers = handshake.on_hello(message)
                if message.channel != SIGNALS:
                    raise PeerFault(ByeReason.PROTOCOL_ERROR, f"HELLO channel: must be {SIGNALS}, got {message.channel}")
                self.view.check(message)
                connection.address = message.address
                self.view.greeting(message.address)
            case Welcome():
                answers = handshake.on_welcome(message)
            case _:
                raise PeerFault(ByeReason.PROTOCOL_ERROR, f"{type(message).__name__}: must follow HELLO and WELCOME")
        done: list[Output] = [Send(connection.number, answer) for answer in answers]
        return done + self._established(connection, now_ms) if handshake.is_done else done

    def _established(self, connection: _Connection, now_ms: int) -> list[Output]:
        hello = connection.handshake.peer
        assert hello is not None
        done = self._gone(self.view.established(hello, connection.number, now_ms))
        for one in done:
            if isinstance(one, Close):
                self._forget(one.connection, now_ms)
            if isinstance(one, Established) and one.is_new:
                self._store.begin(one.node_id)
        # A dump removes the rows that it does not renew, so a removal under way is no longer needed.
        self._purges.discard(hello.node_id)
        connection.sender = RouteSender(self._source, self.me.incarnation, hello.node_id, self._slots, now_ms)
        connection.receiver = RouteReceiver(self._store, hello.node_id, hello.incarnation)
        return [*done, *(Send(connection.number, message) for message in connection.receiver.start())]

    def _gone(self, done: list[Output]) -> list[Output]:
        """Begins the removal of the routes of nodes that are gone."""
        for one in done:
            if isinstance(one, Gone):
                self._store.begin(one.node_id)
                self._purges.add(one.node_id)
        return done

    # --- routes --------------------------------------------------------------------------------------------------------

    def routes_changed(self, now_ms: int) -> list[Output]:
        """Sends what the log has more; to be called after a transaction that changed it."""
        return [*self._pump(now_ms), *self._release(now_ms)]

    def hold_suback(self, ticket: int, position: int, now_ms: int) -> list[Output]:
        """Takes a SUBACK whose routes end at a position of the log; it is due with SubackDue."""
        return [*self.suback.hold(ticket, position, now_ms), *self._release(now_ms)]

    def _release(self, now_ms: int) -> list[Output]:
        return [*self.suback.release(self._acked(), now_ms)] if len(self.suback) else []

    def _acked(self) -> list[int]:
        """Returns the acknowledged positions of the peers that are up."""
        return [
            connection.sender.acked
            for connection in self._connections.values()
            if connection.sender is not None and self.view.links[connection.address].state == LinkState.UP
        ]

    def _pump(self, now_ms: int) -> list[Output]:
        done: list[Output] = []
        for connection in [*self._connections.values()]:
            if connection.sender is None or connection.receiver is None:
                continue
            try:
                messages = connection.sender.pump(now_ms)
            except PeerFault as fault:
                done += self._end(connection.number, fault, now_ms)
                continue
            if connection.receiver.has_work:
                messages += connection.receiver.work()
            done += [Send(connection.number, message) for message in messages]
            self._synced(self.view.links[connection.address], connection.sender, connection.receiver, now_ms)
        return done

    def _synced(self, link: PeerLink, sender: RouteSender, receiver: RouteReceiver, now_ms: int) -> None:
        """Reports the states of the routes to the view. A link rises, from SUSPECT too, once the peer also has the routes whose
        SUBACKs were sent while it was not UP, so that nothing published there misses them; later ones wait for the peer, or are
        late."""
        is_complete = sender.is_complete and (link.state == LinkState.UP or sender.acked >= self.suback.sent)
        self.view.synced(link.address, receiver.state, is_complete, now_ms)

    def _purge(self) -> None:
        for node_id in [*self._purges]:
            if self._store.sweep(node_id, self._store.begin(node_id), PURGE_ROUTES):
                self._purges.discard(node_id)

    # --- time and the end ----------------------------------------------------------------------------------------------

    def tick(self, now_ms: int, clock_ms: int) -> list[Output]:
        """Does what is due by the clock; to be called every 50 ms or so."""
        done: list[Output] = []
        for connection in [*self._connections.values()]:
            if not connection.handshake.is_done and now_ms >= connection.handshake.deadline_ms:
                fault = PeerFault(ByeReason.TIMEOUT, f"no proof within {self._auth_timeout_ms} ms: cluster.link.auth_timeout")
                done += self._end(connection.number, fault, now_ms)
        for one in self.view.tick(now_ms, clock_ms):
            done.append(one)
            if isinstance(one, Close):
                self._forget(one.connection, now_ms)
            elif isinstance(one, Send) and self.load is not None and self._takes_load(one.connection):
                done.append(Send(one.connection, self.load))
        done += self._pump(now_ms)
        self._purge()
        return [*done, *self._release(now_ms)]

    def _takes_load(self, number: int) -> bool:
        connection = self._connections.get(number)
        peer = None if connection is None else connection.handshake.peer
        return peer is not None and bool(peer.features & FEATURE_LOAD)

    @property
    def differing(self) -> list[str]:
        """Returns the names of the linked nodes of which sessions move and ours do not, or the other way round."""
        peers = [connection.handshake.peer for connection in self._connections.values() if connection.sender is not None]
        return sorted({peer.name for peer in peers if peer is not None and (peer.features ^ self.features) & FEATURE_SESSIONS})

    def peers_with(self, feature: int) -> dict[int, int]:
        """Returns the nodes that have a feature as this one has, by their connections."""
        found = ((number, one.handshake.peer) for number, one in self._connections.items() if one.sender is not None)
        return {number: peer.node_id for number, peer in found if peer is not None and peer.features & self.features & feature}

    def set_seeds(self, seeds: Iterable[str], now_ms: int) -> list[Output]:
        """Makes these addresses the members."""
        return self._changed(self.view.set_seeds(seeds, now_ms), now_ms)

    def set_core(self, core: CoreView, now_ms: int) -> list[Output]:
        """Takes a view of the core."""
        return self._changed(self.view.set_core(core, now_ms), now_ms)

    def forget(self, node_id: int) -> list[Output]:
        """Removes what is kept for a node that is not linked."""
        return self._gone([Gone(node_id)])

    def _changed(self, found: list[Output], now_ms: int) -> list[Output]:
        done = self._gone(found)
        for one in done:
            if isinstance(one, Close):
                self._forget(one.connection, now_ms)
        return [*done, *self._release(now_ms)]

    def leave(self, now_ms: int) -> list[Output]:
        """Begins to leave the cluster. The caller has closed its listeners and removed its routes, and calls `farewell` once this
        and its data channels are drained."""
        self.view.drain(now_ms)
        return self.routes_changed(now_ms)

    @property
    def is_drained(self) -> bool:
        """Returns whether all peers that are up have stored all routes."""
        return self.view.state == NodeState.DRAINING and all(acked >= self._source.head for acked in self._acked())

    def farewell(self) -> list[Output]:
        """Leaves the cluster: peers remove what they keep for this node."""
        numbers = [connection.number for connection in self._connections.values() if connection.sender is not None]
        done: list[Output] = [Send(number, Leaving()) for number in numbers]
        done += self.view.leave()
        for connection in self._connections.values():
            if connection.sender is not None:
                connection.sender.close()
        self._connections.clear()
        return done

    def is_proved(self, number: int) -> bool:
        """Returns whether the peer of a connection has proved the cookie."""
        connection = self._connections.get(number)
        return connection is not None and connection.handshake.is_done

    @property
    def head(self) -> int:
        """Returns the position of the newest entry of this node's route log."""
        return self._source.head

    def progress(self) -> dict[int, tuple[int, int]]:
        """Returns for each connected node the position of the route log that it has stored, and the number of entries that it has
        not stored."""
        return {
            connection.handshake.peer.node_id: (connection.sender.acked, connection.sender.lag)
            for connection in self._connections.values()
            if connection.sender is not None and connection.handshake.peer is not None
        }

    def link_of(self, number: int) -> PeerLink | None:
        """Returns the link that a connection belongs to, or None."""
        connection = self._connections.get(number)
        return None if connection is None else self.view.links.get(connection.address)


PURGE_ROUTES = 2_000
"""Routes removed in one tick of a node that is gone: 5 ms of the process that writes them."""
TEXT_SHOWN = 500
"""Characters of a peer's reason that reach the log."""
