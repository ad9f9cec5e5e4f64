"""What a node writes into the core: its own registration, and the removal of nodes that are gone.

A change is carried out only if the keys are still those that it was made from, so that of two writers one wins. It may be repeated:
an attempt whose answer is lost fails the second time, and the keys then show that the first one was carried out.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from shardbroker.cluster.adoption import adopter, adoption_revision
from shardbroker.cluster.changes import Change, Delete, Put
from shardbroker.cluster.core import UP, CoreTable, value_of
from shardbroker.cluster.handshake import Identity

__all__ = ["Change", "Cleaner", "Delete", "Put", "RegistrationRefused", "registration", "removal"]


class RegistrationRefused(Exception):
    """The core belongs to another cluster, or has another node in place of this one."""


def registration(
    table: CoreTable, me: Identity, former: int, state: str, core: str = "", settings: Iterable[tuple[bytes, bytes]] = (),
    term: int = 0,
) -> Change:
    """Returns the change that registers a node in a state. `former`: incarnation of its last broker, whose key it may replace.
    `core`: HOST:PORT of the etcd that the node could run; empty: none. `term`: of the adoption for which this broker serves the
    data directory; 0: of none.

    It also makes good for what an etcd that was set up again lacks, with these settings of all nodes. Raises RegistrationRefused.
    """
    keys, node_id = table.keys, me.node_id
    if table.meta and table.meta != me.cluster:
        raise RegistrationRefused("cluster.name: in etcd it is another cluster than that of this data directory")
    if (owner := adopter(table, me.node_uuid, term)) is not None:
        raise RegistrationRefused(f"this data directory belongs to an adoption by node {owner}")
    own, member = table.row("ids", node_id), table.row("members", node_id)
    if own is not None and own.value["uuid"] != me.node_uuid:
        text = f"node id {node_id} belongs to node {own.value['name']} with another data directory"
        raise RegistrationRefused(f"{text}: remove cluster/enrolled from this one for another id")
    if member is not None and member.value["incarnation"] not in (me.incarnation, former):
        text = f"node id {node_id} is in use by another broker with a copy of this data directory"
        raise RegistrationRefused(f"{text}, or by one that was killed, until its lease ends")
    conditions = [(keys.id_of(node_id), table.revision_of("ids", node_id))]
    conditions.append((keys.member_of(node_id), table.revision_of("members", node_id)))
    conditions.append((keys.adoption_of(me.node_uuid), adoption_revision(table, me.node_uuid)))
    own_core = {"core": core} if core else {}
    value = value_of(uuid=me.node_uuid, incarnation=me.incarnation, state=state, **own_core)
    operations: list[Put | Delete] = [Put(keys.member_of(node_id), value, True)]
    if own is None or (own.value["name"], own.value["address"]) != (me.name, me.address):
        operations.append(Put(keys.id_of(node_id), value_of(name=me.name, address=me.address, uuid=me.node_uuid)))
    if not table.meta:
        conditions.append((keys.meta, 0))
        operations.append(Put(keys.meta, value_of(uuid=me.cluster)))
        for key, value in settings:
            conditions.append((keys.setting_of(key), 0))
            operations.append(Put(keys.setting_of(key), value))
    if table.row("gone", node_id) is not None:
        operations.append(Delete(keys.gone_of(node_id)))
    return Change(tuple(conditions), tuple(operations))


def removal(table: CoreTable, node_id: int, by: str, since_s: int, forget: bool = False) -> Change | None:
    """Returns the change that removes a node without a lease; with `forget` its id is free. None: the node is not known."""
    keys, node = table.keys, table.view().node(node_id)
    if node is None:
        return None
    conditions = ((keys.member_of(node_id), 0), (keys.id_of(node_id), table.revision_of("ids", node_id)))
    operations: list[Put | Delete] = [Put(keys.gone_of(node_id), value_of(uuid=node.uuid, by=by, since=since_s))]
    if forget:
        operations.append(Delete(keys.id_of(node_id)))
    return Change(conditions, tuple(operations))


@dataclass
class Cleaner:
    """Finds nodes that have had neither a lease nor a link to this node for `after_ms`, as far as it has seen: its clock is the
    monotonic one."""

    node_id: int
    after_ms: int

    def __post_init__(self) -> None:
        self._absent_ms: dict[int, int] = {}

    def due(self, table: CoreTable, linked: Collection[int], now_ms: int) -> list[int]:
        """Returns the nodes to remove: none unless this node is the member with the lowest id."""
        view = table.view()
        absent = [node.node_id for node in view.nodes if not node.incarnation and not node.is_gone]
        found = [node_id for node_id in absent if node_id not in linked]
        self._absent_ms = {node_id: self._absent_ms.get(node_id, now_ms) for node_id in found}
        own = view.node(self.node_id)
        if own is None or own.state != UP or self.node_id != min(view.owners, default=0):
            return []
        return [node_id for node_id, since_ms in self._absent_ms.items() if now_ms - since_ms >= self.after_ms]
