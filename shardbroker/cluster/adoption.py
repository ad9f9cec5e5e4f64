"""Which node has the data directory of a node that died: `adopted/<uuid>` in the core.

    uuid, name, id       of the data directory and of the node that died
    owner, owner_uuid    the node that adopts it
    term                 grows with each owner
    since                Unix s
    done                 its sessions are at the owner, and the node is forgotten

A broker with that data directory registers only for the adoption of the same term, and nothing registers once it is done. Each
change, and each registration, is carried out only if the row is still the one that was read.
"""

from typing import Any, NamedTuple

from shardbroker.cluster.changes import Change, Delete, Put
from shardbroker.cluster.core import CoreTable, value_of
from shardbroker.cluster.handshake import Identity

__all__ = ["AdoptionRefused", "Claim", "adopter", "adoption_revision", "claim", "completion", "release"]


class AdoptionRefused(Exception):
    """A data directory cannot be adopted; the text names why."""


class Claim(NamedTuple):
    """What an adoption has in the core."""

    node_id: int
    term: int
    """0: it is done."""
    change: Change | None
    """None: the core has it already."""


def adopter(table: CoreTable, uuid: bytes, term: int = 0) -> str | None:
    """Returns the owner of a data directory that a broker must not serve; None: it may. `term`: of its adoption."""
    row = table.adoptions.get(uuid)
    if row is None or (not row.value["done"] and row.value["term"] == term):
        return None
    return str(row.value["owner"])


def adoption_revision(table: CoreTable, uuid: bytes) -> int:
    """Returns the revision of the row of a data directory; 0: without a row."""
    row = table.adoptions.get(uuid)
    return row.mod_revision if row is not None else 0


def claim(table: CoreTable, me: Identity, name: str, uuid: bytes, now_s: int) -> Claim:
    """Returns what makes this node the owner of a data directory. Raises AdoptionRefused."""
    if table.meta != me.cluster:
        raise AdoptionRefused("cluster.name: in etcd it is another cluster than that of this node")
    row = table.adoptions.get(uuid)
    known = row.value if row is not None else None
    is_own = known is not None and known["owner_uuid"] == me.node_uuid
    if known is not None and known["done"]:
        if is_own:
            return Claim(known["id"], 0, None)
        raise AdoptionRefused(f"the data directory was adopted by node {known['owner']}: there is nothing left to adopt")
    node_id, found = _node(table, name)
    if found["uuid"] != uuid:
        text = f"the data directory has the uuid {uuid.hex()}, and node {name} has {found['uuid'].hex()}"
        raise AdoptionRefused(f"{text}: it belongs to another node")
    if is_own and known is not None:
        return Claim(node_id, known["term"], None)
    if known is not None and _is_running(table, known["owner_uuid"]):
        raise AdoptionRefused(f"node {name} is being adopted by node {known['owner']}: see ctl cluster adoptions there")
    if table.row("members", node_id) is not None:
        raise AdoptionRefused(f"node {name} is running: it has a lease in the core")
    term = (known["term"] if known is not None else 0) + 1
    value = value_of(
        uuid=uuid, name=name, id=node_id, owner=me.name, owner_uuid=me.node_uuid, term=term, since=now_s, done=False
    )  # fmt: skip
    keys = table.keys
    conditions = (
        (keys.id_of(node_id), table.revision_of("ids", node_id)), (keys.member_of(node_id), 0),
        (keys.adoption_of(uuid), adoption_revision(table, uuid)),
    )  # fmt: skip
    return Claim(node_id, term, Change(conditions, (Put(keys.adoption_of(uuid), value),)))


def completion(table: CoreTable, me: Identity, uuid: bytes, now_s: int) -> Change | None:
    """Returns the change that ends an adoption: the node is gone, its id free, and its data directory fenced for ever. None: it
    has ended. Raises AdoptionRefused."""
    row = _own_row(table, me, uuid)
    if row.value["done"]:
        return None
    keys, node_id = table.keys, row.value["id"]
    if table.row("members", node_id) is not None:
        raise AdoptionRefused(f"node {row.value['name']} has a lease in the core still")
    conditions = [(keys.adoption_of(uuid), row.mod_revision), (keys.member_of(node_id), 0)]
    operations: list[Put | Delete] = [Put(keys.adoption_of(uuid), value_of(**{**row.value, "done": True}))]
    found = table.row("ids", node_id)
    if found is not None and found.value["uuid"] == uuid:
        conditions.append((keys.id_of(node_id), found.mod_revision))
        operations += [Put(keys.gone_of(node_id), value_of(uuid=uuid, by="adopt", since=now_s)), Delete(keys.id_of(node_id))]
    return Change(tuple(conditions), tuple(operations))


def release(table: CoreTable, me: Identity, uuid: bytes) -> Change:
    """Returns the change by which the node may start with its data directory again. Raises AdoptionRefused."""
    row = _own_row(table, me, uuid)
    if row.value["done"]:
        raise AdoptionRefused("the adoption has ended: its sessions are at this node")
    keys = table.keys
    return Change(((keys.adoption_of(uuid), row.mod_revision),), (Delete(keys.adoption_of(uuid)),))


def _own_row(table: CoreTable, me: Identity, uuid: bytes) -> Any:
    row = table.adoptions.get(uuid)
    if row is None:
        raise AdoptionRefused("the core has no adoption of this data directory")
    if row.value["owner_uuid"] != me.node_uuid:
        raise AdoptionRefused(f"the adoption belongs to node {row.value['owner']} now")
    return row


def _node(table: CoreTable, name: str) -> tuple[int, dict[str, Any]]:
    """Returns the id and the row of a node by its name. Raises AdoptionRefused."""
    for (kind, node_id), row in table.rows.items():
        if kind == "ids" and row.value["name"] == name:
            return node_id, row.value
    names = ", ".join(sorted(str(row.value["name"]) for (kind, _), row in table.rows.items() if kind == "ids"))
    raise AdoptionRefused(f"node {name} is not known: it was forgotten, or was never a member; the core has {names}")


def _is_running(table: CoreTable, uuid: bytes) -> bool:
    return any(kind == "members" and row.value["uuid"] == uuid for (kind, _), row in table.rows.items())
