"""The alarms of the manager: all conditions are checked together; each change is listed, logged and published."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardbroker.access.failing import failing
from shardbroker.logs.log import Log
from shardbroker.management.action_alarms import ActionAlarms, ActionState
from shardbroker.management.alarms import Alarm, AlarmList, LossAlarm, MemoryAlarm, StandingAlarm, overload_level
from shardbroker.management.cluster_settings import ClusterSettings
from shardbroker.management.cluster_view import ClusterAlarms, LinkReports, core_state, peers_of
from shardbroker.management.configuration import Configuration
from shardbroker.management.disk_alarms import DiskAlarms
from shardbroker.management.flows_calls import stopped_rules
from shardbroker.management.gateway_state import failed_listeners
from shardbroker.management.hold_alarms import HoldAlarms, HoldUse
from shardbroker.management.telemetry import Telemetry
from shardbroker.stores.evacuation import read_evacuation
from shm.counters import Counters
from shm.records import encode_publish
from shm.ring import Inbox
from shm.topology import Topology
from shm.view import ViewSegment

__all__ = ["AlarmWatch"]


UNUSABLE_SHOWN = 10
"""Settings of all nodes that an alarm names, and characters of each reason."""
REASON_SHOWN = 200
STOPPED_SHOWN = 5
"""Rules that an alarm names."""


class AlarmWatch:
    """outboxes: the inbox of each worker. note: takes events for rules (Feed.note). `listed`: current and past alarms."""

    def __init__(
        self,
        topology: Topology,
        counters: Counters,
        configuration: Configuration,
        outboxes: Sequence[Inbox],
        log: Log,
        view: ViewSegment | None,
        note: Callable[[str, dict[str, Any], int], None],
    ) -> None:
        node = topology.node_name
        self._topology = topology
        self._counters = counters
        self._configuration = configuration
        self._outboxes = outboxes
        self._log = log
        self._note = note
        self.listed = AlarmList(node)
        self._memory = MemoryAlarm(node)
        self._loss = LossAlarm(node)
        self._disk = DiskAlarms(
            node,
            topology.data_dir,
            configuration.settings.durability.on_disk_error == "continue",
            first=not counters.serving,
        )
        self._damage = StandingAlarm(node, "files_damaged", "error")
        self._backends = StandingAlarm(node, "backend_unusable", "error")
        self._rules = StandingAlarm(node, "rules_stopped", "error")
        self._evacuation = StandingAlarm(node, "node_evacuating")
        self._gateways = StandingAlarm(node, "gateway_listener_failed", "error")
        self._exports = StandingAlarm(node, "opentelemetry_failing")
        self._holds = HoldAlarms(node)
        self._actions, self._sources = ActionAlarms(node), ActionAlarms(node, "source")
        self._damaged = 0
        self._view = view
        self.cluster_settings: ClusterSettings | None = None
        self.telemetry: Telemetry | None = None
        self._not_applied = StandingAlarm(node, "config_not_applied", "error")
        self._cluster = ClusterAlarms(node, topology.settings.cluster.has_core)

    def check(self) -> None:
        """Sends the alarms that have begun, changed or ended since the last call."""
        now_ms = time.time_ns() // 1_000_000
        totals = self._counters.totals()
        level = overload_level(self._counters, self._topology.workers)
        memory = self._memory.look(level, totals["memory.bytes.count"], now_ms)
        loss = self._loss.look(totals, self._configuration.settings.alarm.lost_messages, now_ms)
        workers = [self._counters.of(worker) for worker in range(self._topology.workers)]
        failing_now = failing(self._topology.runtime_dir)
        backends = self._backends.look(tuple(failing_now), "; ".join(failing_now) or "all back ends are usable", now_ms)
        stopped = stopped_rules(self._topology.runtime_dir, len(self._topology.places_of("flows")))
        text = "; ".join(f"{id}: {stopped[id]}" for id in sorted(stopped)[:STOPPED_SHOWN])
        rules = self._rules.look(tuple(sorted(stopped)), text or "all rules are running", now_ms, {"count": len(stopped)})
        failed = failed_listeners(self._topology, self._counters, self._configuration.settings)
        gateways = self._gateways.look(tuple(failed), "; ".join(failed) or "all listeners of gateways are open", now_ms)
        wanted = read_evacuation(self._topology.data_dir)
        is_evacuated = wanted is not None and wanted.process == "evacuation"
        text = "clients are turned away until ctl node evacuate stop" if is_evacuated else "clients are accepted"
        evacuation = self._evacuation.look(is_evacuated, text, now_ms)
        failing_exports = self.telemetry.alarm if self.telemetry is not None else ""
        text = failing_exports or "metrics and spans are exported, or need not be"
        exports = self._exports.look(bool(failing_exports), text, now_ms)
        found = (memory, loss, backends, rules, gateways, evacuation, exports)
        # link-0 stores retained messages too, those of other nodes.
        writers = [*workers, *(self._counters.of(place.slot) for place in self._topology.places_of("link"))]
        for alarm in (*found, *self._disk.look(writers, now_ms), *self._look_at_cluster(now_ms)):
            if alarm is not None:
                self._send(alarm)

    def _look_at_cluster(self, now_ms: int) -> list[Alarm | None]:
        if self._view is None:
            return []
        topology, state = self._topology, self._view.read()
        found = self._cluster.look(state.isolated, peers_of(state, topology), now_ms, LinkReports(topology).differing)
        if not topology.settings.cluster.has_core:
            return found
        return [*found, *self._cluster.look_at_core(core_state(topology), now_ms), self._look_at_settings(now_ms)]

    def _look_at_settings(self, now_ms: int) -> Alarm | None:
        """Checks whether all settings of all nodes are in force here."""
        unusable = self.cluster_settings.unusable if self.cluster_settings is not None else {}
        shown = [*unusable.items()][:UNUSABLE_SHOWN]
        more = f"; and {len(unusable) - len(shown)} more" if len(unusable) > len(shown) else ""
        text = "; ".join(f"{key}: {reason[:REASON_SHOWN]}" for key, reason in shown) + more
        details = {"keys": [key for key, _ in shown], "count": len(unusable)}
        return self._not_applied.look(tuple(unusable.items()), text or "all settings of all nodes are applied", now_ms, details)

    def check_holds(self, uses: Sequence[HoldUse]) -> None:
        """Sends the alarms about holds that have begun, changed or ended; `uses` were read from the disk, which takes a thread."""
        removed = self._counters.totals()["journal.hold_exceeded"]
        for alarm in self._holds.look(uses, removed, time.time_ns() // 1_000_000):
            self._send(alarm)

    def check_actions(self, actions: Mapping[str, ActionState], sources: Mapping[str, ActionState]) -> None:
        """Sends the alarms about actions and sources that have begun, changed or ended. Arguments: the enabled ones by id."""
        now_ms = time.time_ns() // 1_000_000
        for alarm in (*self._actions.look(actions, now_ms), *self._sources.look(sources, now_ms)):
            self._send(alarm)

    def add_damage(self, text: str) -> None:
        """Sends an alarm about a damaged file. It does not end: the file stays damaged until it is repaired by hand."""
        self._damaged += 1
        alarm = self._damage.look(self._damaged, text, time.time_ns() // 1_000_000)
        if alarm is not None:
            self._send(alarm)

    def _send(self, alarm: Alarm) -> None:
        """Each worker gets it for its own subscribers: a worker that waits for the disk passes nothing on to others."""
        self.listed.note(alarm)
        self._log.add(alarm.level, alarm.line)
        self._log.flush()
        record = encode_publish(alarm.topic.encode(), alarm.payload.encode(), originate=False)
        for worker, outbox in enumerate(self._outboxes):
            if outbox.lanes[self._topology.manager].put(record) and outbox.take_bell():
                os.eventfd_write(self._topology.doorbells[worker], 1)
        self._note(*alarm.event())
