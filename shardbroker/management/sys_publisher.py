"""Publication of $SYS topics: heartbeat, statistics, and messages about clients, through the ring of one worker."""

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from shardbroker.control.losses import lost
from shardbroker.management.alarms import overload_level
from shardbroker.management.configuration import Configuration
from shardbroker.management.sys_topics import SysTopics
from shardbroker.stores.retained import RetainedStore, RetainedStoreFull, RetainedStoreRefused
from shm.counters import HISTOGRAMS, Counter, Counters
from shm.records import encode_publish
from shm.ring import Inbox
from shm.topology import Topology

__all__ = ["SYS_WORKER", "SysPublisher"]

SYS_WORKER = 0
"""The worker through which $SYS is published."""

RETRY_S = 0.05
"""Between two attempts to put a record into a full ring; $SYS can wait."""

INTERVAL_LOOK_S = 1.0
"""Between two looks at an interval that may be changed meanwhile."""

EXPIRED_A_PASS = 50_000
"""Expired retained messages cleared per round, as EMQX's msg_clear_limit."""


class SysPublisher:
    """outbox: the inbox of SYS_WORKER."""

    def __init__(
        self,
        topology: Topology,
        outbox: Inbox,
        counters: Counters,
        retained: RetainedStore,
        count_routes: Callable[[], int],
        configuration: Configuration,
    ) -> None:
        self._topology = topology
        self._outbox = outbox
        self._lane = outbox.lanes[topology.manager]
        self._counters = counters
        self._slot = counters.slot(topology.manager)
        self._retained = retained
        self._count_routes = count_routes
        self._configuration = configuration
        self._topics = SysTopics(topology.node_name, time.monotonic())

    async def run_heartbeat(self) -> None:
        """Publishes the heartbeat every `sys.heartbeat_interval`."""
        await self._every(lambda: self._configuration.settings.sys.heartbeat_interval, self._topics.heartbeat)

    async def run_statistics(self, on_events_dropped: Callable[[int], None]) -> None:
        """Publishes statistics every `sys.msg_interval`; on_events_dropped gets the counter of dropped events each time."""
        await self._every(
            lambda: self._configuration.settings.sys.msg_interval, lambda: self._statistics(on_events_dropped)
        )

    async def _every(self, seconds: Callable[[], float], make: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """A change of the interval takes effect from the next round on, at the latest after INTERVAL_LOOK_S."""
        while True:
            began = time.monotonic()
            await self._publish(make())
            while (left := began + seconds() - time.monotonic()) > 0:
                await asyncio.sleep(min(left, INTERVAL_LOOK_S))

    def _statistics(self, on_events_dropped: Callable[[int], None]) -> Iterable[tuple[str, str]]:
        with suppress(RetainedStoreFull, RetainedStoreRefused):  # a later round clears them; there is an alarm
            self._retained.clear_expired(time.time_ns() // 1_000_000, EXPIRED_A_PASS)
        self.count_retained()
        # Every worker has the same level: a sum of them would mean nothing.
        totals = self._counters.totals()
        totals |= {
            "messages.lost": lost(totals),
            "overload.level.count": overload_level(self._counters, self._topology.workers),
        }
        on_events_dropped(totals["events.dropped"])
        yield from self._topics.identity()
        yield from self._topics.statistics(totals, self._count_routes())
        for name in HISTOGRAMS:
            yield from self._topics.latencies(name, self._counters.buckets(name))

    def count_retained(self) -> None:
        """Sets the gauge of retained messages: workers share one store, and no worker knows what the others have added."""
        counted = self._counters.of(self._topology.manager)["retained.count"]
        self._slot.add(Counter.RETAINED_COUNT, self._retained.count() - counted)

    async def _publish(self, messages: Iterable[tuple[str, str]]) -> None:
        for topic, payload in messages:
            record = encode_publish(topic.encode(), payload.encode(), retain=True)
            while not self._lane.put(record):
                self.ring_bell()
                await asyncio.sleep(RETRY_S)
        self.ring_bell()

    def try_publish(self, topic: bytes, payload: bytes) -> bool:
        """Publishes a message that is not retained, with the next `ring_bell()`. False: the ring has no room."""
        try:
            return bool(self._lane.put(encode_publish(topic, payload)))
        except ValueError:
            return False  # client ids and user names of 64 KiB do not fit into a small ring

    def ring_bell(self) -> None:
        """Wakes the worker if it sleeps."""
        if self._outbox.take_bell():
            os.eventfd_write(self._topology.doorbells[SYS_WORKER], 1)
