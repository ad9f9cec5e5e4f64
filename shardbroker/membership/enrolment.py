"""The first start of a node: the core allots it a node id, and names the cluster."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

from shardbroker.cluster.core import NODE_ID_MAX, CoreKeys, CoreTable, value_of
from shardbroker.config.cluster import Cluster
from shardbroker.logs.phrases import print_line
from shardbroker.membership.core_file import CorePlan, endpoints_of, read_plan, write_plan
from shardbroker.membership.discovery import DiscoveryError
from shardbroker.membership.etcd import Etcd, EtcdError, EtcdUnavailable, KeyValue, absent, delete_op, get_op, put_op, unchanged
from shardbroker.membership.etcd import end_of_prefix as end_of
from shardbroker.membership.managed import ManagedEtcd
from shardbroker.membership.strategies import discovered
from shardbroker.stores.node_file import Enrolled

__all__ = ["EnrolmentError", "client_of", "enrol", "keys_of", "plain", "read_members", "run_enrolment"]

TRIES = 20
"""Transactions that may find other nodes faster: as many as start at the same time."""
PAUSE_S = 0.5


class EnrolmentError(Exception):
    """A node cannot become a member; the text names the key and what it must be."""


def client_of(cluster: Cluster, node_name: str, data_dir: Path) -> Etcd:
    """Returns a client of the core. Raises EtcdError."""
    endpoints = endpoints_of(cluster, node_name, read_plan(data_dir))
    if cluster.is_managed:
        own = cluster.tls
        return Etcd(endpoints, cacertfile=own.cacertfile, certfile=own.certfile, keyfile=own.keyfile or own.certfile)
    etcd = cluster.etcd
    tls = etcd.tls
    keyfile = tls.keyfile or tls.certfile
    return Etcd(endpoints, etcd.username, etcd.password, tls.cacertfile, tls.certfile, keyfile)


def keys_of(cluster: Cluster) -> CoreKeys:
    """Returns the keys of the cluster."""
    return CoreKeys(cluster.etcd.prefix, cluster.name)


def plain(kvs: Iterable[KeyValue]) -> list[tuple[bytes, bytes, int]]:
    """Returns keys as `CoreTable.load` takes them."""
    return [(kv.key, kv.value, kv.mod_revision) for kv in kvs]


async def read_members(etcd: Etcd, keys: CoreKeys) -> tuple[list[tuple[bytes, bytes, int]], int]:
    """Returns all keys but settings, as `CoreTable.load` takes them, and their revision. Raises EtcdError.

    Whatever is in `config/`, and however much, members are known.
    """
    reads = [get_op(keys.prefix, keys.settings), get_op(end_of(keys.settings), end_of(keys.prefix))]
    done = await etcd.txn([], reads)
    return [row for kvs in done.found for row in plain(kvs)], done.revision


async def enrol(
    etcd: Etcd, keys: CoreKeys, wanted: int, name: str, address: str, uuid: bytes, expected: bytes = b""
) -> Enrolled:  # fmt: skip
    """Returns the id of this node and the uuid of the cluster, both new if they are missing.

    wanted: `node.id`; 0: any. expected: uuid of the cluster; empty: any. Raises EnrolmentError, EtcdError.
    """
    for _ in range(TRIES):
        table = CoreTable(keys)
        table.load(*await read_members(etcd, keys))
        if expected and table.meta != expected:
            place, found = keys.prefix.decode(), table.meta.hex() or "none"
            raise EnrolmentError(f"cluster.name: etcd must have the cluster {expected.hex()} at {place}, got {found}")
        node_id = _id_of(table, wanted, name, address, uuid)
        cluster = table.meta or os.urandom(16)
        own = value_of(name=name, address=address, uuid=uuid)
        conditions = [unchanged(keys.id_of(node_id), table.revision_of("ids", node_id))]
        operations = [put_op(keys.id_of(node_id), own)]
        if not table.meta:
            conditions.append(absent(keys.meta))
            operations.append(put_op(keys.meta, value_of(uuid=cluster)))
        gone = table.row("gone", node_id)
        if gone is not None and gone.value["uuid"] != uuid:
            operations.append(delete_op(keys.gone_of(node_id)))
        # A transaction that is repeated may have been carried out: the next look finds the id.
        if (await etcd.txn(conditions, operations)).succeeded:
            return Enrolled(node_id, cluster, keys.prefix.decode())
    raise EnrolmentError(f"node.id: no id was allotted in {TRIES} attempts, since other nodes changed the core meanwhile")


def _id_of(table: CoreTable, wanted: int, name: str, address: str, uuid: bytes) -> int:
    """Returns the id that a node has or can have. Raises EnrolmentError."""
    taken = {node_id: row.value for (kind, node_id), row in table.rows.items() if kind == "ids"}
    own = next((node_id for node_id, value in taken.items() if value["uuid"] == uuid), 0)
    if own and wanted not in (0, own):
        raise EnrolmentError(f"node.id: must be {own}, as the core has allotted it, or 0, got {wanted}")
    for node_id, value in taken.items():
        if node_id == own:
            continue
        what = f"belongs to node {value['name']} with the id {node_id} and another data directory"
        if node_id == wanted:
            raise EnrolmentError(f"node.id: must be unique or 0, got {wanted}, which {what}")
        is_gone = table.row("gone", node_id) is not None
        if value["name"] == name and not is_gone:
            hint = f"if that is lost: ctl cluster force-leave {name}, on another node"
            raise EnrolmentError(f"node.name: must be unique, got {name}, which {what}; {hint}")
        if value["address"] == address and not is_gone:
            raise EnrolmentError(f"cluster.advertise: must be unique, got {address}, which {what}")
    free = (node_id for node_id in range(1, NODE_ID_MAX + 1) if node_id not in taken)
    found = own or wanted or next(free, 0)
    if not found:
        raise EnrolmentError(f"node.id: all {NODE_ID_MAX} ids are allotted; ctl cluster forget frees those of former nodes")
    return found


def run_enrolment(
    cluster: Cluster, wanted: int, name: str, address: str, uuid: bytes, data_dir: Path, expected: bytes = b""
) -> Enrolled:  # fmt: skip
    """Enrols a node within `cluster.join_timeout`; a core that nodes run has this node's etcd meanwhile. Raises EnrolmentError.

    expected: uuid of the cluster; empty: any. For a process of its own: gRPC has threads.
    """
    return asyncio.run(_run(cluster, wanted, name, address, uuid, data_dir, expected))


async def _run(
    cluster: Cluster, wanted: int, name: str, address: str, uuid: bytes, data_dir: Path, expected: bytes
) -> Enrolled:  # fmt: skip
    server: asyncio.Task[None] | None = None
    managed: ManagedEtcd | None = None
    if cluster.is_managed:
        managed = ManagedEtcd(cluster, name, data_dir, lambda level, line: print_line(level, "enrolment", line))
        server = asyncio.create_task(managed.run()) if managed.is_wanted else None
    try:
        return await _enrol_in_time(cluster, wanted, name, address, uuid, data_dir, expected)
    except EnrolmentError as error:
        problem = managed.problem if managed is not None else ""
        raise EnrolmentError(f"{error}; etcd of this node: {problem}" if problem else str(error)) from None
    finally:
        if server is not None:
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)


async def _discover(etcd: Etcd, cluster: Cluster, name: str, data_dir: Path) -> None:
    """Uses what is found, and notes it for the processes of this start. Raises DiscoveryError, EnrolmentError."""
    plan = CorePlan(tuple(await discovered(cluster)))
    if plan.endpoints == read_plan(data_dir).endpoints:
        return
    try:
        write_plan(data_dir, plan)
    except OSError as error:
        raise EnrolmentError(f"data directory {data_dir}: {error.strerror}") from None
    await etcd.use(endpoints_of(cluster, name, plan))


async def _enrol_in_time(
    cluster: Cluster, wanted: int, name: str, address: str, uuid: bytes, data_dir: Path, expected: bytes
) -> Enrolled:  # fmt: skip
    keys, deadline = keys_of(cluster), asyncio.get_running_loop().time() + cluster.join_timeout
    place, files = ("cluster.core.members", "cluster.tls") if cluster.is_managed else ("cluster.etcd.endpoints", "cluster.etcd.tls")
    place = "cluster.discovery" if cluster.is_discovered else place
    try:
        etcd = client_of(cluster, name, data_dir)
    except EtcdError as error:
        raise EnrolmentError(f"{files}: {error}") from None
    try:
        while True:
            try:
                if cluster.is_discovered:
                    await _discover(etcd, cluster, name, data_dir)
                return await enrol(etcd, keys, wanted, name, address, uuid, expected)
            except (EtcdUnavailable, DiscoveryError) as error:
                if asyncio.get_running_loop().time() >= deadline:
                    text = "the first start of a node needs etcd, and no endpoint has answered within cluster.join_timeout"
                    raise EnrolmentError(f"{place}: {text}: {error}") from None
            except EtcdError as error:
                raise EnrolmentError(f"cluster.etcd: {error}") from None
            await asyncio.sleep(PAUSE_S)
    finally:
        await etcd.close()
