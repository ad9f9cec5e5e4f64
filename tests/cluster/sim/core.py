"""A cluster whose members are in etcd: a model of etcd, and nodes that drive the real tables and registrations with it.

etcd is linearisable and has revisions, leases, watches that are late, and compaction. It may be down, cut off from a node, or set
up again without a key. A node keeps its last view on disk. The invariants are those of clients that move between nodes; at the end
all nodes have the same members, none is isolated, and all have a lease.
"""

from typing import Any

from shardbroker.cluster.core import DRAINING, JOINING, UP, CoreKeys, CoreTable, CoreView, decode_view, encode_view
from shardbroker.cluster.registration import Change, Put, RegistrationRefused, registration
from shardbroker.cluster.signals import Signals
from shardbroker.cluster.view import NodeState
from tests.cluster.sim.node import Node
from tests.cluster.sim.sessions import RoamingCluster, RoamingNode

__all__ = ["CoreCluster", "EtcdModel"]

KEYS = CoreKeys("sim", "c")
LEASE_MS = 3_000
LATE_SHARE = 0.3
"""Of the looks at the watch that find nothing, since it is late."""
TROUBLE_SHARE = 0.06
DOWN_US = (100_000, 8_000_000)
EXPIRY_US = 50_000


class EtcdModel:
    """The keys of one etcd cluster, at one point in time for all clients."""

    def __init__(self) -> None:
        self.keys: dict[bytes, tuple[bytes, int, int]] = {}
        """Value, revision of the last change, lease."""
        self.revision = 1
        self.log: list[tuple[int, bytes, bytes | None]] = []
        self.compacted = 0
        self.leases: dict[int, int] = {}
        self.next_lease = 1
        self.is_up = True
        self.life = 0
        """Grows when it is set up again: a watch of an earlier one ends."""

    def grant(self, now_ms: int) -> int:
        """Returns a new lease; numbers are never used twice."""
        self.next_lease += 1
        self.leases[self.next_lease] = now_ms + LEASE_MS
        return self.next_lease

    def renew(self, lease: int, now_ms: int) -> bool:
        if lease not in self.leases:
            return False
        self.leases[lease] = now_ms + LEASE_MS
        return True

    def revoke(self, lease: int) -> None:
        self.leases.pop(lease, None)
        for key in sorted(key for key, (_, _, of) in self.keys.items() if of == lease):
            self.revision += 1
            del self.keys[key]
            self.log.append((self.revision, key, None))

    def expire(self, now_ms: int) -> None:
        for lease in [lease for lease, end_ms in self.leases.items() if now_ms >= end_ms]:
            self.revoke(lease)

    def change(self, change: Change, lease: int) -> bool:
        """Carries out a transaction: all of its changes have one revision."""
        assert lease in self.leases
        if any(self.keys.get(key, (b"", 0, 0))[1] != revision for key, revision in change.conditions):
            return False
        self.revision += 1
        for one in change.operations:
            if isinstance(one, Put):
                self.keys[one.key] = one.value, self.revision, lease if one.is_leased else 0
                self.log.append((self.revision, one.key, one.value))
            elif self.keys.pop(one.key, None) is not None:
                self.log.append((self.revision, one.key, None))
        return True

    def compact(self) -> None:
        self.compacted = self.revision
        self.log.clear()

    def delete_all(self) -> None:
        """Loses its keys one after the other, which watches see."""
        for key in sorted(self.keys):
            self.revision += 1
            del self.keys[key]
            self.log.append((self.revision, key, None))

    def set_up_again(self) -> None:
        """Loses everything, as after `rm -rf` of its data."""
        self.keys.clear()
        self.leases.clear()
        self.log.clear()
        self.revision, self.compacted, self.life = 1, 0, self.life + 1

    def since(self, revision: int) -> list[tuple[bytes, bytes | None, int]] | None:
        """Returns the changes behind a revision; None: they are no longer there."""
        if revision < self.compacted:
            return None
        return [(key, value, changed) for changed, key, value in self.log if changed > revision]


class CoreNode(RoamingNode):
    """A node with the process `cluster`."""

    cluster: "CoreCluster"
    copy = b""
    """On disk: the members as they were last known."""
    lease = 0
    registered = ""
    renewed_ms = -LEASE_MS
    etcd_life = -1
    """Life of the etcd that the table is of."""
    killed: frozenset[int] | set[int] = frozenset()
    """Incarnations of its earlier brokers."""

    def start(self) -> None:
        self.is_fresh = True
        before = decode_view(self.copy)._replace(is_current=False) if self.copy else CoreView()
        own = before.node(self.node_id)
        self.former = own.incarnation if own is not None else 0
        self.killed = {*self.killed, self.incarnation}
        self.table = CoreTable(KEYS, before)
        self.lease, self.registered, self.etcd_life, self.renewed_ms = 0, "", -1, -LEASE_MS
        super().start()

    def make_signals(self, *arguments: Any) -> Signals:
        before = decode_view(self.copy) if self.copy else CoreView()
        # A link process that is started again in the same broker finds the view of the process `cluster`.
        return Signals(*arguments, core=before._replace(is_current=before.is_current and not self.is_fresh))

    def _tick(self) -> None:
        self.follow_core()
        super()._tick()

    def follow_core(self) -> None:
        cluster, etcd, now_ms = self.cluster, self.cluster.etcd, self.cluster.events.now_ms
        if etcd.is_up and self not in cluster.without_etcd:
            if not etcd.renew(self.lease, now_ms):
                self.lease, self.registered = etcd.grant(now_ms), ""
            self.renewed_ms = now_ms
            self.read(etcd)
            state = self.signals.view.state
            wanted = UP if state == NodeState.NORMAL else DRAINING if state > NodeState.NORMAL else JOINING
            own = self.table.row("members", self.node_id)
            if own is None or own.value["incarnation"] != self.incarnation:
                self.registered = ""
            if wanted != self.registered:
                self.registered = wanted if self.register(etcd, wanted) else ""
        self.signals.view.set_lease(now_ms - self.renewed_ms < LEASE_MS - 500, now_ms)

    def register(self, etcd: EtcdModel, wanted: str) -> bool:
        try:
            change = registration(self.table, self.identity(), self.former, wanted)
        except RegistrationRefused:
            known = self.table.row("members", self.node_id)
            if known is None or known.value["incarnation"] not in self.killed:
                raise
            # It was killed before it had read its own key: it waits until that lease has ended.
            return False
        return etcd.change(change, self.lease)

    def read(self, etcd: EtcdModel) -> None:
        changes = etcd.since(self.table.revision) if self.etcd_life == etcd.life else None
        if changes is None:
            self.etcd_life = etcd.life
            self.table.load([(key, value, revision) for key, (value, revision, _) in etcd.keys.items()], etcd.revision)
            self.registered = ""
        elif not changes or self.rng.random() < LATE_SHARE:
            return
        else:
            self.table.apply(changes)
        assert not self.table.problems
        self.is_fresh = False
        view = self.table.view()
        if (text := encode_view(view)) != self.copy or self.signals.view.core != view:
            self.copy = text
            self.execute(self.signals.set_core(view, self.cluster.events.now_ms))

    def check_left(self) -> None:
        super().check_left()
        if self.has_left and self.lease:
            self.cluster.etcd.revoke(self.lease)
            self.lease = 0


class CoreCluster(RoamingCluster):
    """A run with etcd."""

    def __init__(self, seed: int, nodes: int) -> None:
        self.etcd = EtcdModel()
        self.without_etcd: set[Node] = set()
        self.troubles = 0
        super().__init__(seed, nodes)
        self.seeds = []
        self.events.after(EXPIRY_US, self.expire)

    def make_node(self, index: int) -> Node:
        return CoreNode(self, index)

    def expire(self) -> None:
        if self.etcd.is_up:
            self.etcd.expire(self.events.now_ms)
        self.events.after(EXPIRY_US, self.expire)

    def act(self) -> None:
        if self.rng.random() < TROUBLE_SHARE:
            self.trouble_etcd()
        super().act()

    def trouble_etcd(self) -> None:
        self.troubles += 1
        match self.rng.randrange(6):
            case 0:
                self.etcd.is_up = False
                self.events.after(self.rng.randint(*DOWN_US), self.etcd_returns)
            case 1 | 2:
                node = self.rng.choice(self.nodes)
                self.without_etcd.add(node)
                self.events.after(self.rng.randint(*DOWN_US), self.without_etcd.discard, node)
            case 3:
                self.etcd.compact()
            case 4:
                self.etcd.set_up_again()
            case 5:
                self.etcd.delete_all()

    def etcd_returns(self) -> None:
        """After an election its leases last for their whole time again."""
        self.etcd.is_up = True
        for lease in self.etcd.leases:
            self.etcd.leases[lease] = self.events.now_ms + LEASE_MS

    def heal(self) -> None:
        self.etcd_returns()
        self.without_etcd.clear()
        super().heal()

    def restless(self) -> str | None:
        for node in self.running():
            view = node.signals.view
            members = {other.node_id: other.incarnation for other in self.running()}
            if dict(view.members) != members or not view.holds_lease:
                return f"members of {node.name}: {view.members}, running: {members}"
        return super().restless()

    def check(self) -> int:
        assert not any(node.signals.view.isolated for node in self.running())
        return super().check()
