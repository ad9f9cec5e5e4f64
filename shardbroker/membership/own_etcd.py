"""The etcd of a node or a witness as a member of the core: started, joined, started again, and set aside once it is removed."""

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shardbroker.config.cluster import Cluster, core_url, etcd_program
from shardbroker.logs.phrases import log_line
from shardbroker.membership.changes import peer_of
from shardbroker.membership.core_file import CorePlan, endpoints_of, etcd_dir, has_data, own_member, read_plan, write_plan
from shardbroker.membership.etcd import Etcd, EtcdError, Member
from shardbroker.membership.managed import ManagedEtcd, Report

__all__ = ["JOIN_S", "OwnEtcd"]

JOIN_S = 1.0
"""Interval in which a node without an etcd looks whether the core has added it."""
NOT_STORED = "core members not stored"

Failed = Callable[[str, Exception], None]
"""Takes the phrase of a log line and the error."""
Recovered = Callable[[str], None]
"""The failure of this phrase is over."""


class OwnEtcd:
    """etcd: a client of the core."""

    def __init__(
        self, cluster: Cluster, name: str, data_dir: Path, etcd: Etcd, report: Report, failed: Failed, recovered: Recovered
    ) -> None:
        self._cluster, self._name, self._data_dir, self._etcd = cluster, name, data_dir, etcd
        self._report, self._failed, self._recovered = report, failed, recovered
        self.managed = ManagedEtcd(cluster, name, data_dir, report)
        self._run: asyncio.Task[None] | None = None
        self._arguments: tuple[str, ...] = ()
        """For the next start alone."""

    @property
    def is_wanted(self) -> bool:
        """Returns whether it is a member of the core."""
        return self.managed.is_wanted

    @property
    def address(self) -> str:
        """Returns HOST:PORT where it serves, or would; empty: it cannot run here."""
        if self._cluster.role == "replicant" or etcd_program() is None:
            return ""
        own = own_member(self._cluster, self._name)
        return f"{f'[{own.host}]' if ':' in own.host else own.host}:{own.port}"

    @property
    def url(self) -> str:
        """Returns where clients reach it."""
        own = own_member(self._cluster, self._name)
        return core_url(self._cluster, own.host, own.port)

    @property
    def _peer(self) -> str:
        own = own_member(self._cluster, self._name)
        return peer_of(self._cluster, own.host, own.port)

    async def run(self) -> None:
        """Has it running as long as it is a member of the core."""
        while True:
            if not self.managed.is_wanted:
                await asyncio.sleep(JOIN_S)
                await self._look_for_place()
                continue
            if await self._is_removed():
                self._set_aside()
                continue
            arguments, self._arguments = self._arguments, ()
            self._run = asyncio.create_task(self.managed.run(*arguments))
            try:
                await asyncio.wait([self._run])
            finally:
                self._run.cancel()
                await asyncio.gather(self._run, return_exceptions=True)
            if not self._run.cancelled():
                self._run.result()  # an error ends the process
            if self.managed.is_removed:
                self._set_aside()

    async def restart(self, *arguments: str) -> None:
        """Has it started again, once with further arguments."""
        self._arguments = arguments
        if self._run is not None:
            self._run.cancel()
            await asyncio.gather(self._run, return_exceptions=True)

    async def follow_members(self) -> None:
        """Uses the members that etcd has, and notes them for the next start. Raises EtcdError."""
        found = [one.client_urls[0] for one in await self._etcd.members() if one.client_urls and not one.is_learner]
        plan = read_plan(self._data_dir)
        known = CorePlan(tuple(sorted(found)), plan.initial, plan.is_removed)
        if not found or known == plan:
            return
        try:
            write_plan(self._data_dir, known)
            self._recovered(NOT_STORED)
        except OSError as error:
            self._failed(NOT_STORED, error)
        await self._etcd.use(endpoints_of(self._cluster, self._name, known))

    async def _others(self) -> list[Member]:
        """Returns the members of etcd as the other endpoints have them, if one of these has a leader; empty: none answers."""
        for url in self._etcd.endpoints:
            if url != self.url:
                with suppress(EtcdError):
                    if (await self._etcd.status_of(url)).leader:
                        return await self._etcd.members(url)
        return []

    async def _is_removed(self) -> bool:
        """Returns whether the core has removed it while it was down: it must not decide with others that were."""
        if not has_data(self._data_dir):
            return False
        members = await self._others()
        return bool(members) and not any(self._peer in one.peer_urls for one in members)

    async def _look_for_place(self) -> None:
        """Joins the core if that has added it."""
        if not self.address:
            return
        members = await self._others()
        if not any(self._peer in one.peer_urls for one in members):
            return
        initial = ",".join(f"{one.name or self._name}={one.peer_urls[0]}" for one in members)
        plan = read_plan(self._data_dir)
        try:
            write_plan(self._data_dir, CorePlan(plan.endpoints, initial))
        except OSError as error:
            self._failed(NOT_STORED, error)

    def _set_aside(self) -> None:
        """Keeps the data of an etcd that the core has removed from being used again."""
        where = etcd_dir(self._data_dir)
        kept = where.with_name(f"{where.name}.removed")
        try:
            shutil.rmtree(kept, ignore_errors=True)
            if where.exists():
                where.rename(kept)
            write_plan(self._data_dir, CorePlan(read_plan(self._data_dir).endpoints, is_removed=True))
            self._report("warning", log_line("etcd removed from core", kept=kept))
        except OSError as error:
            self._failed(NOT_STORED, error)
