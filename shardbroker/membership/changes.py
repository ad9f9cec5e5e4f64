"""Changes of the core by command: a node's etcd is added or removed, or goes on alone when the majority is lost for good."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from shardbroker.cluster.core import CoreKeys, CoreTable
from shardbroker.config.cluster import Cluster, core_url
from shardbroker.config.listeners import parse_address
from shardbroker.logs.phrases import log_line
from shardbroker.membership.core_file import CorePlan, has_data, own_member, write_plan
from shardbroker.membership.etcd import Etcd, EtcdError, Member, absent, delete_op, put_op
from shardbroker.membership.managed import Report

__all__ = ["CoreChanges", "CoreRefused", "peer_of"]

PROMOTION_S = 40.0
"""Longest time for a new member to start and to take over all keys."""
RECOVERY_S = 20.0
"""Longest time for an etcd to serve alone."""
SETTLING_S, UNSETTLED = 10.0, "unhealthy cluster"
"""etcd refuses changes with this text until its members have been connected for 5 s."""
PAUSE_S = 0.2
PORT_MAX = 65535
"""The other members reach an etcd at the port behind that for clients."""

T = TypeVar("T")


class CoreRefused(Exception):
    """The core is not changed; the text has what speaks against it."""


def peer_of(cluster: Cluster, host: str, port: int) -> str:
    """Returns the URL of an etcd for the other members, by its address for clients."""
    return core_url(cluster, host, port + 1)


class CoreChanges:
    """`restart`: has this node's etcd started again, with further arguments."""

    def __init__(
        self, cluster: Cluster, keys: CoreKeys, node_name: str, data_dir: Path, report: Report,
        restart: Callable[..., Awaitable[None]],
    ) -> None:  # fmt: skip
        self._cluster, self._keys, self._node_name, self._data_dir = cluster, keys, node_name, data_dir
        self._report, self._restart = report, restart

    async def add(self, etcd: Etcd, table: CoreTable, lease: int, name: str, address: str = "") -> dict[str, Any]:
        """Adds the etcd of a node, or of a witness at an address, first without a vote, and returns the size of the core.

        Raises CoreRefused, EtcdError.
        """
        peer = self._peer_at(table, name, address)
        async with self._locked(etcd, lease):
            members = await etcd.members()
            own = _found(members, name, peer)
            if own is not None and not own.is_learner:
                raise CoreRefused(f"{name} is a member of the core already")
            other = next((one for one in members if one.is_learner and one is not own), None)
            if other is not None:
                raise CoreRefused(f"{other.name or other.peer_urls[0]} is being added: add it again, or remove it")
            if own is None:
                own = await _settled(lambda: etcd.add_learner(peer))
            await self._promote(etcd, own, name)
        self._report("warning", log_line("core changed", added=name))
        return await self._size(etcd)

    def _peer_at(self, table: CoreTable, name: str, address: str) -> str:
        """Returns where an etcd that is to be added is for other members. Raises CoreRefused."""
        row = _row_of(table, name)
        if address:
            if row is not None:
                raise CoreRefused(f"address: must be left out for {name}, which is a node and no witness, got {address}")
            return self._peer_of(address)
        if row is None:
            raise CoreRefused(f"node {name} is not running, or not known; a witness has an address: --address HOST:PORT")
        peer = _peer_of_row(self._cluster, row)
        if peer is None:
            raise CoreRefused(
                f"node {name} cannot run etcd: it has cluster.role = replicant, another cluster.core.mode, or lacks the program "
                "(apt install etcd-server)"
            )
        return peer

    def _peer_of(self, address: str) -> str:
        """Raises CoreRefused."""
        with suppress(ValueError):
            host, port = parse_address(address)
            if 0 < port < PORT_MAX and not host.startswith("/"):
                return peer_of(self._cluster, host, port)
        raise CoreRefused(f"address: must be HOST:PORT with a port from 1 to {PORT_MAX - 1}, got {address}")

    async def _promote(self, etcd: Etcd, member: Member, name: str) -> None:
        try:
            async with asyncio.timeout(PROMOTION_S):
                while True:
                    try:
                        return await etcd.promote(member.id)
                    except EtcdError as error:
                        problem = error
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            text = f"the etcd of {name} has not caught up within {PROMOTION_S:g} s, and has no vote: {problem}"
            raise CoreRefused(f"{text}; see its log, then repeat the command, or remove it") from None

    async def remove(self, etcd: Etcd, table: CoreTable, lease: int, name: str, address: str = "") -> dict[str, Any]:
        """Removes the etcd of a node or a witness, running or not, and returns the size of the core.

        Raises CoreRefused, EtcdError.
        """
        async with self._locked(etcd, lease):
            members = await etcd.members()
            row = _row_of(table, name)
            peer = self._peer_of(address) if address else _peer_of_row(self._cluster, row) if row is not None else None
            own = _found(members, name, peer)
            if own is None:
                raise CoreRefused(f"{name} is no member of the core")
            if not own.is_learner and sum(not one.is_learner for one in members) == 1:
                raise CoreRefused(f"{name} is the only member of the core: add another one first")
            await _settled(lambda: etcd.remove_member(own.id))
        self._report("warning", log_line("core changed", removed=name))
        return await self._size(etcd)

    async def recover(self, etcd: Etcd) -> dict[str, Any]:
        """Makes this node's etcd the only member of the core, and returns its size. Raises CoreRefused, EtcdError."""
        if not has_data(self._data_dir):
            raise CoreRefused("this node has no data of etcd: recover on a node that was a member of the core")
        with suppress(EtcdError):
            await etcd.range(self._keys.meta)
            raise CoreRefused("the core has a majority, so there is nothing to recover: remove members that are lost")
        own = own_member(self._cluster, self._node_name)
        url = core_url(self._cluster, own.host, own.port)
        await etcd.use([url])
        self._report("warning", log_line("core recovery begins", endpoint=url))
        await self._restart("--force-new-cluster")
        await self._alone(etcd, url)
        await self._restart()
        await self._alone(etcd, url)
        write_plan(self._data_dir, CorePlan((url,)))
        self._report("warning", log_line("core changed", recovered=self._node_name))
        return await self._size(etcd)

    async def _alone(self, etcd: Etcd, url: str) -> None:
        """Waits until the own etcd is the only member and serves."""
        problem = "it does not answer"
        try:
            async with asyncio.timeout(RECOVERY_S):
                while True:
                    with suppress(EtcdError):
                        if (await etcd.status_of(url)).leader and len(await etcd.members()) == 1:
                            await etcd.range(self._keys.meta)
                            return
                        problem = "it has other members or no leader"
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            raise CoreRefused(f"the etcd of this node does not serve alone: {problem}; see the log") from None

    async def _size(self, etcd: Etcd) -> dict[str, Any]:
        voters = sum(not one.is_learner for one in await etcd.members())
        return {"members": voters, "may_be_lost": (voters - 1) // 2}

    @asynccontextmanager
    async def _locked(self, etcd: Etcd, lease: int) -> AsyncIterator[None]:
        """Keeps other changes of the core out, as long as the lease of this node lasts. Raises CoreRefused, EtcdError."""
        name = self._node_name.encode()
        if not (await etcd.txn([absent(self._keys.lock)], [put_op(self._keys.lock, name, lease)])).succeeded:
            found = (await etcd.range(self._keys.lock)).kvs
            if not found or found[0].lease != lease:  # an attempt that was repeated finds its own lock
                holder = found[0].value.decode(errors="replace") if found else "another node"
                raise CoreRefused(f"the core is being changed by {holder}: try again when that has ended")
        try:
            yield
        finally:
            with suppress(EtcdError):  # the lease ends it otherwise
                await etcd.txn([], [delete_op(self._keys.lock)])


async def _settled(change: Callable[[], Awaitable[T]]) -> T:
    """Carries out a change once etcd allows it. Raises EtcdError."""
    for _ in range(round(SETTLING_S / PAUSE_S)):
        try:
            return await change()
        except EtcdError as error:
            if UNSETTLED not in str(error):
                raise
        await asyncio.sleep(PAUSE_S)
    return await change()


def _row_of(table: CoreTable, name: str) -> dict[str, Any] | None:
    """Returns what a running node says of itself; None: no running node has this name."""
    node = next((one for one in table.view().nodes if one.name == name), None)
    row = table.row("members", node.node_id) if node is not None else None
    return None if row is None else row.value


def _peer_of_row(cluster: Cluster, value: dict[str, Any]) -> str | None:
    """Returns where a node's etcd is for other members; None: the node cannot run one."""
    try:
        return peer_of(cluster, *parse_address(str(value.get("core", ""))))
    except ValueError:
        return None


def _found(members: list[Member], name: str, peer: str | None) -> Member | None:
    return next((one for one in members if one.name == name or (peer is not None and peer in one.peer_urls)), None)
