"""A witness: a member of the core that serves no client, such as the third of two nodes (`cluster.role = witness`).

It runs etcd and nothing else: no shared memory, no links, no node id. It holds keys of the cluster, and no message or session.
"""

import asyncio
import os
import signal
import time
from contextlib import suppress

from shardbroker import __version__
from shardbroker.config import Settings
from shardbroker.config.cluster import missing_etcd
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import Line, log_line, of_process
from shardbroker.membership.enrolment import client_of
from shardbroker.membership.etcd import Etcd, EtcdError
from shardbroker.membership.own_etcd import OwnEtcd
from shardbroker.supervisor.layout import StartError, lock_data_dir
from shardbroker.supervisor.notify import Notifier

__all__ = ["run"]

CORE_S = 5.0
"""Interval of looks at the members of the core."""
REPEAT_S = 60.0
"""Interval between two log lines about the same failure."""
TITLE = "witness"


def run(settings: Settings) -> int:
    """Serves until SIGTERM or SIGINT. Raises StartError."""
    cluster = settings.cluster
    problem = cluster.missing or missing_etcd(cluster, settings.node.name)
    if problem is not None:
        raise StartError(problem)
    lock = lock_data_dir(settings.process.data_dir)
    try:
        asyncio.run(_Witness(settings).serve())
    finally:
        os.close(lock)
    return 0


class _Witness:
    def __init__(self, settings: Settings) -> None:
        self._settings, self._name = settings, settings.node.name
        self._data_dir = settings.process.data_dir.resolve()
        self._log = Log(settings.log.level)
        self._logged: dict[str, float] = {}
        """Failures, and when they were logged."""

    async def serve(self) -> None:
        """Runs etcd, and notes the members of the core for the next start."""
        cluster, name = self._settings.cluster, self._name
        try:
            etcd = client_of(cluster, name, self._data_dir)
        except EtcdError as error:
            raise StartError(f"cluster.tls: {error}") from None
        own = OwnEtcd(cluster, name, self._data_dir, etcd, self._add, self._failed, self._recovered)
        notifier, stop = Notifier(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        tasks = [asyncio.create_task(one) for one in (own.run(), self._follow(etcd, own), stop.wait())]
        text = f"witness {name} of the cluster {cluster.name}, etcd {own.url}"
        print(f"shardbroker {__version__} ready: {text}, pid {os.getpid()}", flush=True)
        notifier.ready(text)
        if not own.is_wanted:
            hint = f"ctl cluster core add {name} --address {own.address}"
            self._add("warning", log_line("witness waits for the core", until=hint))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # an error ends the process, and the service manager starts another
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await etcd.close()
            self._log.close()

    async def _follow(self, etcd: Etcd, own: OwnEtcd) -> None:
        while True:
            with suppress(EtcdError):  # alone, it has no majority: etcd's log says so
                await own.follow_members()
            self._log.flush()
            await asyncio.sleep(CORE_S)

    def _failed(self, phrase: str, error: Exception) -> None:
        now = time.monotonic()
        if phrase not in self._logged or now - self._logged[phrase] >= REPEAT_S:
            self._logged[phrase] = now
            self._add("error", log_line("core members not stored", reason=getattr(error, "strerror", None) or error))

    def _recovered(self, phrase: str) -> None:
        self._logged.pop(phrase, None)

    def _add(self, level: str, line: Line) -> None:
        self._log.add(level, of_process(TITLE, line))
        self._log.flush()
