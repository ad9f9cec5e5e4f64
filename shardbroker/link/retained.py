"""Retained messages in link-0: their store, as the driver of a table sees it."""

import time
from collections.abc import Callable, Iterator, Sequence

import lmdb

from shardbroker.cluster.faults import PeerFault
from shardbroker.cluster.messages import RetainedMessages
from shardbroker.link.tables import TableLink
from shardbroker.logs.phrases import Line, log_line
from shardbroker.stores.files import Stamp, stamp_of
from shardbroker.stores.replicated import ReplicatedStore, retained_store
from shardbroker.stores.retained import RetainedStoreFull, RetainedStoreRefused
from shardbroker.stores.retained_stamps import StampedTable
from shm.in_force import read_in_force, settings_file
from shm.topology import Topology

__all__ = ["RetainedLink"]


class _Table(StampedTable):
    """The store as the core sees it. dropped: counts messages that limits refused."""

    name = "retained messages"
    errors = (RetainedStoreRefused, RetainedStoreFull, lmdb.Error, OSError)

    def __init__(self, topology: Topology, dropped: Callable[[int], None]) -> None:
        store = retained_store(topology, bell=False)
        assert isinstance(store, ReplicatedStore)
        super().__init__(store)
        self.store, self._dropped = store, dropped
        self._topology = topology
        self._stamp: Stamp | None = None
        self._max_payload = 0
        self._is_built = False
        self.refused = 0
        """Messages of other nodes that the limits have refused."""
        self._configure(topology.settings)

    def _configure(self, settings: object) -> None:
        retainer = settings.retainer  # type: ignore[attr-defined]
        self.store.max_messages, self.store.max_bytes = retainer.max_messages, retainer.max_total_bytes
        self._max_payload = retainer.max_payload_size

    def follow_settings(self) -> None:
        """Takes limits that were changed."""
        stamp = stamp_of(settings_file(self._topology.runtime_dir))
        if stamp != self._stamp:
            self._stamp = stamp
            self._configure(read_in_force(self._topology)[1])

    def is_ready(self) -> bool:
        self._is_built = self._is_built or self.store.is_built
        return self._is_built

    def rows(self, digests: Sequence[bytes], byte_limit: int) -> tuple[list[bytes], int]:
        return self.store.rows(digests, byte_limit)

    def merge(self, rows: Sequence[bytes]) -> None:
        now_ms = time.time_ns() // 1_000_000
        try:
            _, refused = self.store.merge(rows, now_ms, self._max_payload)
        except RetainedStoreFull:
            _, refused = self.store.merge_each(rows, now_ms, self._max_payload)
        self.refused += refused

    def build(self) -> bool:
        return self.store.build()

    def sweep(self, now_ms: int) -> int:
        return self.store.sweep(now_ms)

    def close(self) -> None:
        self.store.close()

    def notes(self) -> Iterator[tuple[str, Line]]:
        if self.refused:
            self._dropped(self.refused)
            self.refused = 0
        if self.store.too_large:
            yield "warning", log_line("retained messages too large for other nodes", messages=self.store.too_large)
            self.store.too_large = 0

    def failed(self, reason: str, retry_s: float) -> Line:
        return log_line("retained messages not replicated", reason=reason, retry_in=f"{retry_s:g}s")


class RetainedLink(TableLink):
    """The driver of retained messages. dropped: counts messages that limits refused."""

    def __init__(
        self,
        topology: Topology,
        send: Callable[[int, RetainedMessages], None],
        fail: Callable[[int, PeerFault], None],
        dropped: Callable[[int], None],
        log: Callable[[str, Line], None],
    ) -> None:
        """Raises RetainedStoreRefused."""
        super().__init__(_Table(topology, dropped), topology.node_id, send, fail, log)
