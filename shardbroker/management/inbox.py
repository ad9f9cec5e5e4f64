"""The manager's inbox: events, log lines, traces and answers that other processes put into its rings."""

import os
from collections.abc import Callable

from shardbroker.logs.log import Log
from shardbroker.logs.phrases import Line
from shardbroker.management.alarm_watch import AlarmWatch
from shardbroker.management.client_events import ClientEvents
from shardbroker.management.tracing import Traces
from shardbroker.management.workers import Workers
from shm.records import ANSWER, DAMAGE, EVENT, NOTE, TRACE, note_of, open_record
from shm.ring import Inbox
from shm.topology import Topology

__all__ = ["ManagerInbox"]

RECORDS_A_PASS = 1000
"""Records taken from one process before the others get their turn."""


class ManagerInbox:
    """`after_pass` is called after each pass over all rings."""

    def __init__(
        self,
        topology: Topology,
        log: Log,
        workers: Workers,
        traces: Traces,
        events: ClientEvents,
        alarms: AlarmWatch,
        after_pass: Callable[[], None],
    ) -> None:
        self._inbox = Inbox.attach(topology.inbox_name(topology.manager))
        self._doorbells = topology.doorbells
        self.bell = topology.doorbells[topology.manager]
        """Readable when records have arrived."""
        self._log = log
        self._workers = workers
        self._traces = traces
        self._events = events
        self._alarms = alarms
        self._after_pass = after_pass

    def on_bell(self) -> None:
        """Takes what has arrived."""
        try:
            os.eventfd_read(self.bell)
        except BlockingIOError:
            pass
        self.drain()

    def drain(self) -> None:
        """Takes all records, then sleeps; continues if more have arrived meanwhile."""
        more = True
        while more:
            for producer, lane in enumerate(self._inbox.lanes):
                self._take(lane.take_many(RECORDS_A_PASS))
                if lane.give_back():
                    os.eventfd_write(self._doorbells[producer], 1)
            self._log.flush()
            self._traces.flush()
            self._after_pass()
            more = not self._inbox.go_to_sleep()

    def _take(self, records: list[bytes]) -> None:
        events = []
        for record in records:
            kind, spilled, contents = open_record(record)
            if kind == ANSWER:
                self._workers.on_answer(spilled, contents)
            elif kind == NOTE:
                self._take_note(*note_of(record))
            elif kind == TRACE:
                self._traces.take(contents)
            elif kind == EVENT:
                events.append(contents)
        self._events.take(events)

    def _take_note(self, level: str, text: str) -> None:
        if level == DAMAGE:
            self._alarms.add_damage(text)
        else:
            self._log.add(level, Line(text))
