"""Membership: without a core (`cluster.core.mode = none`) the members are the seeds, and each node judges its own links.

    link of a peer    DOWN -> HELLO -> SYNCING -> UP <-> SUSPECT -> DOWN
                      HELLO     a connection is being opened or has not been proved
                      SYNCING   proved; the routes of one side are not complete on the other
                      UP        both tables of routes are complete
                      SUSPECT   no PONG for `suspect_ms`; after as long again the connection ends

    state of the node ALONE | JOINING -> BOOTSTRAP -> LOCAL_REPLAY -> NORMAL -> DRAINING -> LEFT

With a core (core.py) the nodes that it knows are linked, and those that have a lease there own partitions, whatever the links do;
the links alone decide where a message goes. Without contact to the core its last view stays.

A seed is an address; the node behind it is known once it has proved who it is. Node ids are set by hand, and the first node that
proves an id keeps it until its seed is removed: a second one is refused with the name of the first. One node of each pair dials,
that with the lower address, so that two connections never cross.

Invariants: a node id is bound to at most one seed; a link has a connection exactly in SYNCING, UP and SUSPECT; `epoch` grows with
every change of the member set or of an incarnation; without a core it never grows otherwise, with one it follows the core's.
Time is monotonic and in milliseconds; the wall clock is only reported to peers, and nothing is decided by it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b
from random import Random

from shardbroker.cluster.core import CoreNode, CoreView
from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.handshake import Identity
from shardbroker.cluster.messages import Hello, Load, Ping, Pong
from shardbroker.cluster.outputs import Close, Dial, Established, Gone, Output, Send
from shardbroker.cluster.rendezvous import owners
from shardbroker.cluster.session_view import SessionView

__all__ = [
    "SEEDS_MAX",
    "SIGNALS",
    "LinkState",
    "NodeState",
    "PeerLink",
    "RouteState",
    "View",
    "ViewSettings",
]

SIGNALS = 0
"""Channel of the signals."""
SEEDS_MAX = 250
"""Seeds: as many as there are node ids."""
REDIAL_FIRST_MS, REDIAL_MAX_MS = 50, 500
"""Pause before a lost connection is dialled again, doubled up to the maximum. The first one is short: a reset has to heal in 200
ms. So is the longest one: a split has to heal in 2 s, of which an attempt that times out takes another one."""
DIGEST_BYTES = 16
SKEW_RTT_MS = 500
"""Longest round trip by which the clock of a peer is read: it is known within half of that."""
SKEW_MS_MAX = 1 << 40
"""35 years: what a peer sends as its clock fits shared memory."""


class LinkState(IntEnum):
    """State of a peer's signal link."""

    DOWN = 0
    HELLO = 1
    SYNCING = 2
    UP = 3
    SUSPECT = 4


class RouteState(IntEnum):
    """State of a peer's routes in the table of this node."""

    DISCONNECTED = 0
    BOOTSTRAP = 1
    LOCAL_REPLAY = 2
    NORMAL = 3


class NodeState(IntEnum):
    """State of a node. Numbers are part of the protocol (PING)."""

    ALONE = 0
    JOINING = 1
    BOOTSTRAP = 2
    LOCAL_REPLAY = 3
    NORMAL = 4
    DRAINING = 5
    LEFT = 6


@dataclass(frozen=True)
class ViewSettings:
    """Times of a view, milliseconds."""

    ping_ms: int = 500
    """Between two pings of a link."""
    suspect_ms: int = 2_000
    """`cluster.suspect`: without a PONG for so long, a link is suspect."""
    join_timeout_ms: int = 30_000
    """`cluster.join_timeout`: a node serves after so long even if routes of some seed are missing, with an alarm."""
    first_dial_ms: int = 2_000
    """Spread of the first dials, so that nodes that start together do not dial together."""


@dataclass
class PeerLink:
    """One seed other than this node."""

    address: str
    state: LinkState = LinkState.DOWN
    node: Hello | None = None
    """The node behind the address, as it last proved itself; None: never, or removed."""
    is_proved: bool = False
    """The node has proved itself since the broker started; otherwise it is what an earlier broker knew."""
    connection: int | None = None
    dial_ms: int = 0
    """When to dial next; only for the side that dials."""
    pause_ms: int = REDIAL_FIRST_MS
    pong_ms: int = 0
    ping_due_ms: int = 0
    pings: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Number of each ping without PONG to the times it was sent at, monotonic and wall clock."""
    load: Load | None = None
    """As the connected node has reported it last; None: it has not."""
    rtt_ms: int = 0
    skew_ms: int = 0
    """Wall clock of the peer minus that of this node, to half a round trip."""
    digest: bytes = b""
    peer_state: NodeState = NodeState.JOINING
    routes_in: RouteState = RouteState.DISCONNECTED
    routes_out: bool = False
    """The peer has this node's routes up to the head of their log at the time of the link."""
    has_left: bool = False

    @property
    def is_connected(self) -> bool:
        return self.connection is not None


class View:
    """The members of the cluster as one node sees them."""

    def __init__(
        self, me: Identity, seeds: Iterable[str], settings: ViewSettings, rng: Random, now_ms: int, core: CoreView | None = None
    ) -> None:
        """core: its last view, which may be empty; None: there is no core, and the members are the seeds."""
        self.me = me
        self.core = core
        self.holds_lease = core is None
        """Without a lease for long enough to have lost it, this node may be cut off from the core."""
        self.settings = settings
        self.epoch = 1
        self.state = NodeState.JOINING
        self.joined_late = False
        """The node serves although routes of some seed are missing: an alarm."""
        self.links: dict[str, PeerLink] = {}
        self._rng = rng
        self._started_ms = now_ms
        self._ping_number = 0
        self._members: tuple[tuple[int, int], ...] = ()
        self._owners: tuple[int, ...] = ()
        """Computed when needed: it takes some 10 ms with 23 nodes, and after a split the member set changes many times."""
        self._digest = b""
        self._changes = 0
        """Number of calls after which something may have changed."""
        self._sessions: tuple[int, tuple[object, ...], SessionView] = 0, (), SessionView()
        if core is None:
            self.set_seeds(seeds, now_ms)
        else:
            self.set_core(core, now_ms)

    # --- members -------------------------------------------------------------------------------------------------------

    def set_seeds(self, seeds: Iterable[str], now_ms: int) -> list[Output]:
        """Makes these addresses the members. The node of a removed seed is gone, and its id is free."""
        wanted = {address for address in seeds if address != self.me.address}
        if len(wanted) >= SEEDS_MAX:
            raise ValueError(f"cluster.static.seeds: must be at most {SEEDS_MAX} addresses, got {len(wanted) + 1}")
        done: list[Output] = []
        for address in [*self.links]:
            if address not in wanted:
                link = self.links.pop(address)
                if link.connection is not None:
                    done.append(Close(link.connection, ByeReason.NOT_A_MEMBER, f"{address} was removed from {self._list}"))
                if link.node is not None:
                    done.append(Gone(link.node.node_id))
        for address in sorted(wanted - {*self.links}):
            self.links[address] = PeerLink(address, dial_ms=now_ms + self._rng.randint(0, self.settings.first_dial_ms))
        self._settle(now_ms)
        return done

    def set_core(self, core: CoreView, now_ms: int) -> list[Output]:
        """Takes a view of the core. What is kept for a node that is gone, or whose data directory is another one, is removed."""
        self.core = core
        done: list[Output] = []
        nodes = self._nodes_of(core)
        for address, link in [*self.links.items()]:
            known = link.node
            if known is None:
                continue
            now = next((node for node in nodes.values() if node.node_id == known.node_id), None)
            if now is None or now.uuid == known.node_uuid:
                if now is not None and now.address != address:
                    done += self._move(link, now.address, now_ms)
            else:  # the id belongs to another data directory now
                if link.connection is not None:
                    text = f"node id {known.node_id} belongs to node {now.name}"
                    done.append(Close(link.connection, ByeReason.DUPLICATE_ID, text))
                    link.state, link.connection = LinkState.DOWN, None
                    link.routes_in, link.routes_out = RouteState.DISCONNECTED, False
                done.append(Gone(known.node_id))
                link.node = None
        return [*done, *self.set_seeds(nodes, now_ms)]

    def _nodes_of(self, core: CoreView) -> dict[str, CoreNode]:
        """Returns the nodes to link by address. Of two with one address the one with a lease counts."""
        others = [node for node in core.nodes if node.node_id != self.me.node_id and not node.is_gone]
        return {node.address: node for node in sorted(others, key=lambda node: node.incarnation > 0)}

    def _move(self, link: PeerLink, address: str, now_ms: int) -> list[Output]:
        """Gives the link of a node another address; a connection to the former one ends."""
        done: list[Output] = []
        if link.connection is not None:
            done.append(Close(link.connection, ByeReason.REPLACED, f"node {link.address} has the address {address}"))
        del self.links[link.address]
        stood = self.links.pop(address, None)
        if stood is not None:
            if stood.connection is not None:
                done.append(Close(stood.connection, ByeReason.NOT_A_MEMBER, f"{address} belongs to another node"))
            if stood.node is not None:
                done.append(Gone(stood.node.node_id))
        assert link.node is not None
        self.links[address] = PeerLink(address, node=link.node._replace(address=address), dial_ms=now_ms)
        return done

    def set_lease(self, is_held: bool, now_ms: int) -> None:
        """Notes whether this node still has its lease."""
        if is_held != self.holds_lease:
            self.holds_lease = is_held
            self._settle(now_ms)

    @property
    def _list(self) -> str:
        """Returns what the members are listed in, for texts."""
        return "cluster.static.seeds" if self.core is None else "the nodes of the core"

    def restore(
        self, node_id: int, name: str, address: str, node_uuid: bytes, incarnation: int, is_proved: bool = True
    ) -> None:  # fmt: skip
        """Takes over what an earlier process of this node knew of a seed, so that the id stays bound to it; without `is_proved` an
        earlier broker, so that the id is bound until another node proves it."""
        link = self.links.get(address)
        if link is not None and link.node is None and self.link_of(node_id) is None:
            link.is_proved = is_proved
            cluster, nothing = self.me.cluster, bytes(16)
            link.node = Hello(SIGNALS, node_id, name, address, cluster, node_uuid, incarnation, 0, 0, 0, nothing)

    def link_of(self, node_id: int) -> PeerLink | None:
        """Returns the link of a node id, or None if no seed has proved it."""
        return next((link for link in self.links.values() if link.node is not None and link.node.node_id == node_id), None)

    @property
    def members(self) -> tuple[tuple[int, int], ...]:
        """Returns (node id, incarnation) of this node and all that can own partitions, in the order of ids."""
        return self._members

    @property
    def digest(self) -> bytes:
        """Returns the digest of the member set: claims are compared by it, since epochs of nodes without a core are local."""
        return self._digest

    @property
    def owners(self) -> tuple[int, ...]:
        """Returns the owner of each partition; none while this node is alone and draining."""
        if not self._owners and self._members:
            self._owners = owners(node_id for node_id, _ in self._members)
        return self._owners

    @property
    def isolated(self) -> bool:
        """Returns whether fewer than half of the seeds are reachable; this node counts as one of them. With a core: whether this
        node has lost its lease and does not reach all members, so that others may decide without it."""
        if self.core is not None:
            lost = {LinkState.DOWN, LinkState.HELLO, LinkState.SUSPECT}
            return not self.holds_lease and any(link.state in lost for link in self.links.values() if self._is_awaited(link))
        reachable = 1 + sum(link.state in (LinkState.SYNCING, LinkState.UP) for link in self.links.values())
        return 2 * reachable < 1 + len(self.links)

    @property
    def agreed(self) -> bool:
        """Returns whether all peers that are up have the same member set."""
        return all(link.digest == self.digest for link in self.links.values() if link.state == LinkState.UP)

    def _settle(self, now_ms: int) -> None:
        """Brings what depends on the links up to date: members, epoch, owners, state of the node."""
        self._changes += 1
        members = {self.me.node_id: self.me.incarnation} if self.state < NodeState.DRAINING else {}
        if self.core is not None:
            members = {**self.core.owners, **members}
            if self.state >= NodeState.DRAINING:
                members.pop(self.me.node_id, None)
        for link in self.links.values():
            if link.node is None or link.state not in (LinkState.UP, LinkState.SUSPECT) or link.peer_state >= NodeState.DRAINING:
                continue
            # A broker that has proved itself is the latest of its node, whether or not the core knows of it already.
            if self.core is None or link.node.node_id in members:
                members[link.node.node_id] = link.node.incarnation
        found = tuple(sorted(members.items()))
        if self.core is not None:
            self.epoch = max(self.epoch + (found != self._members != ()), self.core.epoch)
        if found != self._members:
            self.epoch += self.core is None and self._members != ()
            self._members, self._owners = found, ()
            self._digest = blake2b(repr(found).encode(), digest_size=DIGEST_BYTES, person=b"shard-members").digest()
        self._advance(now_ms)

    def _advance(self, now_ms: int) -> None:
        """Moves the state of the node towards NORMAL; a node that is NORMAL stays so whatever its links do."""
        if self.state >= NodeState.NORMAL:
            return
        if not self.links and self.core is None:
            self.state = NodeState.ALONE
            return
        awaited = [link for link in self.links.values() if self._is_awaited(link)]
        if self._is_registered and all(link.routes_in == RouteState.NORMAL or link.has_left for link in awaited):
            self.state = NodeState.NORMAL
        elif now_ms - self._started_ms >= self.settings.join_timeout_ms:
            self.state, self.joined_late = NodeState.NORMAL, True
        else:
            syncing = [link.routes_in for link in self.links.values() if link.is_connected and link.routes_in]
            least = min(syncing, default=RouteState.DISCONNECTED)
            if least == RouteState.DISCONNECTED:
                self.state = NodeState.JOINING
            else:
                self.state = NodeState.BOOTSTRAP if least == RouteState.BOOTSTRAP else NodeState.LOCAL_REPLAY

    @property
    def _is_registered(self) -> bool:
        """Returns whether the core knows of this broker, or is not reached: then what an earlier broker knew of it is in use."""
        if self.core is None:
            return True
        own = self.core.node(self.me.node_id)
        return own is not None and (own.incarnation == self.me.incarnation or not self.core.is_current)

    def _is_awaited(self, link: PeerLink) -> bool:
        """Returns whether a peer is there by what is known: with a current view of the core it has a lease."""
        if self.core is None or not self.core.is_current:
            return True
        return any(node.address == link.address and node.incarnation for node in self.core.nodes)

    @property
    def serves(self) -> bool:
        """Returns whether the listeners are open."""
        return self.state in (NodeState.ALONE, NodeState.NORMAL)

    def connections(self) -> dict[int, int]:
        """Returns the connection of each node that has one."""
        links = self.links.values()
        return {link.node.node_id: link.connection for link in links if link.node is not None and link.connection is not None}

    def sessions(self) -> SessionView:
        """Returns the view of sessions: the same object until it has changed, or until a connection was replaced."""
        changes, state, view = self._sessions
        if changes == self._changes:
            return view
        all_up = all(link.state == LinkState.UP for link in self.links.values())
        found = self.connections()
        state_now = self.epoch, all_up, self.isolated, found
        if state_now != state:
            rest = frozenset(found), all_up, self.isolated
            view = SessionView(0, self.epoch, self.members, self.digest, bytes(self.owners), *rest)
        self._sessions = self._changes, state_now, view
        return view

    # --- connections ---------------------------------------------------------------------------------------------------

    def dials(self, address: str) -> bool:
        """Returns whether this node is the one that dials a peer."""
        return self.me.address < address

    def check(self, hello: Hello) -> PeerLink:
        """Returns the link that a HELLO belongs to. Raises PeerFault if the identity is not welcome."""
        me = self.me
        if (hello.node_uuid, hello.incarnation) == (me.node_uuid, me.incarnation):
            raise PeerFault(ByeReason.SELF, f"{hello.address} is the address of node {me.name} itself")
        if hello.node_id == me.node_id or hello.address == me.address:
            what = f"node id {me.node_id}" if hello.node_id == me.node_id else f"address {me.address}"
            text = f"{what} of node {hello.name} belongs to node {me.name}: node.id must be unique"
            raise PeerFault(ByeReason.DUPLICATE_ID, text)
        link = self.links.get(hello.address)
        if link is None:
            raise PeerFault(ByeReason.NOT_A_MEMBER, f"{hello.address} is missing from {self._list} of node {me.name}")
        if self.core is not None:
            self._check_core(hello)
        holder = self.link_of(hello.node_id)
        if holder is not None and holder is not link and holder.is_proved:
            assert holder.node is not None
            text = f"node id {hello.node_id} of node {hello.name} belongs to node {holder.node.name} at {holder.address}"
            raise PeerFault(ByeReason.DUPLICATE_ID, f"{text}: node.id must be unique")
        if link.node is not None and link.node.node_uuid != hello.node_uuid and link.is_connected:
            text = f"address {hello.address} of node {hello.name} belongs to node {link.node.name}, which is connected"
            raise PeerFault(ByeReason.DUPLICATE_ID, f"{text}: two data directories must not share an address")
        return link

    def _check_core(self, hello: Hello) -> None:
        """Raises PeerFault unless a node is the one that has its id and its address in the core."""
        assert self.core is not None
        node = self._nodes_of(self.core).get(hello.address)
        if node is None or (node.node_id, node.uuid) != (hello.node_id, hello.node_uuid):
            text = f"node id {hello.node_id} at {hello.address} of node {hello.name} belongs to another data directory in the core"
            raise PeerFault(ByeReason.DUPLICATE_ID, text)

    def greeting(self, address: str) -> None:
        """Notes that a connection of a peer has begun its handshake."""
        link = self.links.get(address)
        if link is not None and link.state == LinkState.DOWN:
            link.state = LinkState.HELLO

    def established(self, hello: Hello, connection: int, now_ms: int) -> list[Output]:
        """Takes a proved connection into use; an older one of the same peer is closed. Raises PeerFault as `check` does."""
        link = self.check(hello)
        done: list[Output] = []
        if link.connection is not None:
            done.append(Close(link.connection, ByeReason.REPLACED, f"node {hello.name} has opened a newer connection"))
        known = link.node
        holder = self.link_of(hello.node_id)
        if holder is not None and holder is not link:  # an earlier broker knew the node, or another one of this id, there
            known_of_id, holder.node = holder.node, None
        else:
            known_of_id = known
        is_new = known_of_id is not None and (known_of_id.node_uuid, known_of_id.node_id) != (hello.node_uuid, hello.node_id)
        if known is not None and known.node_id != hello.node_id:
            done.append(Gone(known.node_id))
        link.node, link.is_proved, link.connection, link.state = hello, True, connection, LinkState.SYNCING
        link.pong_ms = link.ping_due_ms = now_ms
        link.pings.clear()
        link.pause_ms = REDIAL_FIRST_MS
        link.routes_in, link.routes_out, link.has_left = RouteState.DISCONNECTED, False, False
        link.peer_state, link.digest, link.load = NodeState.JOINING, b"", None
        done.append(Established(hello.node_id, hello.incarnation, hello.address, is_new))
        self._settle(now_ms)
        return done

    def lost(self, address: str, now_ms: int) -> None:
        """Takes the end of a peer's connection, or of an attempt to open one."""
        link = self.links.get(address)
        if link is None:
            return
        link.state, link.connection, link.load = LinkState.DOWN, None, None
        link.routes_in, link.routes_out = RouteState.DISCONNECTED, False
        link.dial_ms = now_ms + self._rng.randint(link.pause_ms // 2, link.pause_ms)
        link.pause_ms = min(2 * link.pause_ms, REDIAL_MAX_MS)
        self._settle(now_ms)

    def synced(self, address: str, routes_in: RouteState, routes_out: bool, now_ms: int) -> None:
        """Takes the states of the routes on a link, which is UP while both are complete; from SUSPECT it also needs a PONG."""
        link = self.links[address]
        is_suspect = link.state == LinkState.SUSPECT
        if not link.is_connected or (not is_suspect and (link.routes_in, link.routes_out) == (routes_in, routes_out)):
            return
        link.routes_in, link.routes_out = routes_in, routes_out
        if routes_in == RouteState.NORMAL and routes_out:
            if now_ms - link.pong_ms < self.settings.suspect_ms:
                link.state = LinkState.UP
        elif not is_suspect:
            link.state = LinkState.SYNCING
        self._settle(now_ms)

    def left(self, address: str, now_ms: int) -> list[Output]:
        """Takes a peer's word that it leaves the cluster; its seed stays, so it may join again."""
        link = self.links[address]
        link.has_left = True
        self._settle(now_ms)
        return [Gone(link.node.node_id)] if link.node is not None else []

    # --- liveness ------------------------------------------------------------------------------------------------------

    def on_ping(self, link: PeerLink, ping: Ping, clock_ms: int, now_ms: int) -> list[Output]:
        """Answers a ping. Raises PeerFault."""
        if len(ping.digest) > DIGEST_BYTES or ping.state not in NodeState.__members__.values():
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"PING state: must be 0 to {max(NodeState)}, got {ping.state}")
        link.digest, link.peer_state = ping.digest, NodeState(ping.state)
        self._settle(now_ms)
        return [] if link.connection is None else [Send(link.connection, Pong(ping.number, clock_ms))]

    def on_pong(self, link: PeerLink, pong: Pong, now_ms: int) -> None:
        """Takes the answer to a ping; `synced` has to follow, which ends SUSPECT. Raises PeerFault if no such ping is open."""
        sent = link.pings.pop(pong.number, None)
        if sent is None:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"PONG number: must be that of an open ping, got {pong.number}")
        # Pings are answered in order, so what is older than the answered one will not be.
        for number in [number for number in link.pings if number < pong.number]:
            del link.pings[number]
        link.pong_ms = now_ms
        link.rtt_ms = now_ms - sent[0]
        if link.rtt_ms <= SKEW_RTT_MS:
            skew_ms = pong.clock_ms - sent[1] - link.rtt_ms // 2
            link.skew_ms = max(-SKEW_MS_MAX, min(skew_ms, SKEW_MS_MAX))

    def tick(self, now_ms: int, clock_ms: int) -> list[Output]:
        """Does what is due: dials, pings, judgement of silent links. To be called every 50 ms or so."""
        done: list[Output] = []
        if self.state == NodeState.LEFT:
            return done
        for link in self.links.values():
            if link.connection is not None:
                done += self._watch(link, link.connection, now_ms, clock_ms)
            elif link.state == LinkState.DOWN and now_ms >= link.dial_ms and self.dials(link.address):
                link.state = LinkState.HELLO
                done.append(Dial(link.address, SIGNALS))
        self._settle(now_ms)
        return done

    def _watch(self, link: PeerLink, connection: int, now_ms: int, clock_ms: int) -> list[Output]:
        silent_ms = now_ms - link.pong_ms
        if silent_ms >= 2 * self.settings.suspect_ms:
            self.lost(link.address, now_ms)
            return [Close(connection, ByeReason.TIMEOUT, f"no PONG from {link.address} for {silent_ms} ms")]
        if silent_ms >= self.settings.suspect_ms:
            link.state = LinkState.SUSPECT
        if now_ms < link.ping_due_ms:
            return []
        self._ping_number += 1
        link.ping_due_ms = now_ms + self.settings.ping_ms
        # Open pings are few: a link without PONG ends after 2 * suspect_ms.
        link.pings[self._ping_number] = now_ms, clock_ms
        return [Send(connection, Ping(self._ping_number, clock_ms, self.digest, self.state))]

    # --- the end -------------------------------------------------------------------------------------------------------

    def drain(self, now_ms: int) -> None:
        """Begins the end of this node: it owns no partitions any more."""
        self.state = NodeState.DRAINING
        self._settle(now_ms)

    def leave(self) -> list[Output]:
        """Ends the membership: all connections are closed, and none is opened again."""
        self.state = NodeState.LEFT
        self._changes += 1
        done: list[Output] = []
        for link in self.links.values():
            if link.connection is not None:
                done.append(Close(link.connection, ByeReason.LEAVING, f"node {self.me.name} leaves the cluster"))
            link.state, link.connection = LinkState.DOWN, None
        return done
