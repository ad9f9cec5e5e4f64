"""Entry point of the manager: logs clients that go and publishes $SYS. It never stands in the way of a message."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import uvloop
from shm.counters import HISTOGRAMS, Counter, Counters, ProcessState
from shm.epochs import Epochs
from shm.events import KIND_CONNECTED, KIND_DISCONNECTED, KIND_FLAPPING, EventError, kind_of, unpack_event
from shm.records import ANSWER, DAMAGE, EVENT, NOTE, TRACE, encode_publish, note_of, open_record
from shm.ring import Inbox

from acceptor.notices import NOTICE_BYTES, read_notice
from shardbroker.access.auth_client import publish_rules
from shardbroker.access.failing import failing
from shardbroker.access.files import FileError
from shardbroker.config import Settings
from shardbroker.config.listeners import parse_address
from shardbroker.control import ControlError
from shardbroker.control.losses import lost
from shardbroker.logs.lines import client_line
from shardbroker.logs.log import Log
from shardbroker.management import handlers  # noqa: F401 - registers them
from shardbroker.management.access import AccessAdmin, AccessError
from shardbroker.management.alarms import Alarm, AlarmList, LossAlarm, MemoryAlarm, StandingAlarm
from shardbroker.management.audit import Audit
from shardbroker.management.client_topics import ClientTopics
from shardbroker.management.configuration import Configuration
from shardbroker.management.context import HANDLERS, Context
from shardbroker.management.disk_alarms import DiskAlarms
from shardbroker.management.handlers.listeners import ask_supervisor
from shardbroker.management.preflight import check
from shardbroker.management.prometheus import render
from shardbroker.management.rollout import Rollout
from shardbroker.management.scrape import ScrapeServer
from shardbroker.management.server import ControlServer
from shardbroker.management.snapshots import newest_us, take
from shardbroker.management.sys_topics import SysTopics
from shardbroker.management.topic_metrics import SAMPLE_S, TopicMetrics
from shardbroker.management.tracing import Traces
from shardbroker.management.workers import Workers
from shardbroker.stores.exclusive import ExclusiveTable
from shardbroker.stores.registry import Registry
from shardbroker.stores.retained import RetainedStore, RetainedStoreFull, RetainedStoreRefused
from shm.routes import RouteTable
from shm.topology import Topology

__all__ = ["run"]

SYS_WORKER = 0
"""The worker through which $SYS is published."""

EVENTS_A_PASS = 1000
"""Records taken from one worker before the others get their turn."""

SECRETS = ("payload", "password", "secret", "correlation_data", "setting")
"""Parameters that the audit log leaves out."""

AUDIT_MAX = 2000
"""Characters of parameters in a line of the audit log."""
NOTICES_A_PASS = 100
"""Notices of acceptors that are read before others get their turn."""

RETRY_S = 0.05
"""Between two looks at a full ring; $SYS can wait."""

ALARM_S = 1.0
"""Between two looks at what workers say about their memory."""

INTERVAL_LOOK_S = 1.0
"""Between two looks at an interval that may be changed meanwhile."""

EXPIRED_A_PASS = 50_000
"""Expired retained messages cleared per round, as EMQX's msg_clear_limit."""


def run(topology: Topology) -> None:
    """Serves until SIGTERM."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Manager(topology).serve())


class _Manager:
    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._counters = Counters.attach(topology.counters_name)
        self._slot = self._counters.slot(topology.manager)
        self._inbox = Inbox.attach(topology.inbox_name(topology.manager))
        self._retained = RetainedStore(topology.retained_dir, sync=topology.settings.durability.level == "machine")
        self._routes = RouteTable(topology.routes_dir)
        self._rollout = Rollout(
            topology, self._counters, lambda: ask_supervisor(self._context, {"verb": "settings"}), self._complain
        )
        self._configuration = Configuration(topology, self._rollout, self._on_configured, check, self._prepare)
        settings = self._configuration.settings
        self._log = Log(settings.log.level)
        self._flapping: list[str] = []
        self._topics = SysTopics(topology.node_name, time.monotonic())
        self._workers = Workers(topology, self._counters)
        self._outbox = self._workers.outboxes[SYS_WORKER]
        self._client_topics = ClientTopics(
            topology.node_name,
            settings.sys.event_messages,
            settings.mqtt.max_topic_levels,
            {listener.number: listener.port for listener in topology.listeners},
            self._routes,
            Epochs.attach(topology.epochs_name),
        )
        self._memory_alarm = MemoryAlarm(topology.node_name)
        self._loss_alarm = LossAlarm(topology.node_name)
        self._disk_alarms = DiskAlarms(
            topology.node_name,
            topology.data_dir,
            settings.durability.on_disk_error == "continue",
            first=not self._counters.serving,
        )
        self._damage_alarm = StandingAlarm(topology.node_name, "files_damaged", "error")
        self._backend_alarm = StandingAlarm(topology.node_name, "backend_unusable", "error")
        self._damaged = 0
        self._notices = socket.socket(fileno=os.dup(topology.receiving_ends("notices")[0]))
        self._connected_logged = False
        self._unpublished = 0
        self._events_lost = self._counters.totals()["events.dropped"]
        self._stop = asyncio.Event()
        self._audits = Audit(topology.data_dir)
        self._traces = Traces(topology, self._workers, self._log, settings.trace.max_file_size)
        self._topic_metrics = TopicMetrics(self._workers)
        self._topic_metrics.configure(settings.topic_metrics.topics)
        self._alarms = AlarmList(topology.node_name)
        self._context = context = Context(
            topology,
            self._counters,
            self._retained,
            self._routes,
            ExclusiveTable(topology.exclusive_dir),
            self._workers,
            self._log,
            self._configuration,
            self._audits,
            self._traces,
            self._topic_metrics,
            self._alarms,
            [Registry(topology.registry_dir(worker)) for worker in range(topology.workers)],
        )
        self._control = ControlServer(
            topology.data_dir, {verb: partial(handler, context) for verb, handler in HANDLERS.items()}, self._audit
        )

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        bell = self._topology.doorbells[self._topology.manager]
        loop.add_reader(bell, self._on_bell, bell)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        self._rollout.resume()
        await self._control.start()
        loop.add_reader(self._notices, self._on_notices)
        self._counters.set_state(self._topology.manager, ProcessState.READY)
        try:
            for text in self._topology.damage:
                self._tell_damage(text)
            self._traces.load(time.time_ns() // 1_000_000)
            self._take_events()
            await self._until_stopped()
        finally:
            await self._control.close()
            loop.remove_reader(bell)
            loop.remove_reader(self._notices)
            self._take_events()
            self._on_notices()
            await self._traces.close(time.time_ns() // 1_000_000)
            self._audits.close()
            self._log.close()
        self._counters.set_state(self._topology.manager, ProcessState.DOWN)

    async def _until_stopped(self) -> None:
        """Runs $SYS until SIGTERM. What goes wrong in it ends the process, and the supervisor starts another."""
        settings = self._configuration
        stop = asyncio.create_task(self._stop.wait())
        tasks = [
            stop,
            asyncio.create_task(self._every(lambda: settings.settings.sys.heartbeat_interval, self._topics.heartbeat)),
            asyncio.create_task(self._every(lambda: settings.settings.sys.msg_interval, self._statistics)),
            asyncio.create_task(self._watch()),
            asyncio.create_task(self._take_snapshots()),
            asyncio.create_task(self._count_topics()),
        ]
        bind = settings.settings.prometheus.bind
        if bind != "disabled":
            server = ScrapeServer(*parse_address(bind), partial(render, self._context), self._complain)
            tasks.append(asyncio.create_task(server.serve()))
        done, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()
        for task in done:
            task.result()

    def _on_signal(self, number: int) -> None:
        # An interrupt from the terminal reaches the whole group: the supervisor says when it is our turn.
        if number == signal.SIGTERM:
            self._stop.set()

    def _complain(self, text: str) -> None:
        self._log.add("error", text)
        self._log.flush()

    def _on_reload(self) -> None:
        """SIGHUP."""
        self._reloaded = asyncio.create_task(self._reload())

    async def _reload(self) -> None:
        """As `ctl config reload`; what is wrong is logged, and nothing changes then. The supervisor is told in any case."""
        problem = ""
        try:
            done = await self._configuration.reload()
        except ControlError as error:
            problem = str(error)
            self._log.add("error", f"configuration not reloaded: {problem}")
        else:
            text = f"applied: {', '.join(done['applied']) or 'nothing'}"
            if done["needs_restart"]:
                text += f"; needs a restart: {', '.join(done['needs_restart'])}"
            self._log.add("info", f"configuration reloaded; {text}")
        try:
            with AccessAdmin(self._configuration.settings, self._topology.data_dir, self._counters) as admin:
                admin.reload()
        except AccessError as error:
            problem = problem or str(error)
            self._log.add("error", f"rules and passwords not reloaded: {error}")
        self._log.flush()
        await self._configuration.behind()
        await self._workers.caught_up()
        with suppress(ControlError):  # it stops waiting by itself
            await ask_supervisor(self._context, {"verb": "reloaded", "problem": problem.partition("\n")[0]})

    def _on_configured(self, settings: Settings) -> None:
        """Applies all keys that reach the manager."""
        self._log.level = settings.log.level
        self._traces.max_file_size = settings.trace.max_file_size
        self._topic_metrics.configure(settings.topic_metrics.topics)
        self._client_topics.want(settings.sys.event_messages)
        self._client_topics.max_levels = settings.mqtt.max_topic_levels

    def _prepare(self, settings: Settings) -> None:
        """Rules of a file are put where workers read them if settings name other ones; those of the same file are read again by a
        reload only, in all workers. Raises ControlError."""
        if settings.acl == self._configuration.settings.acl:
            return
        try:
            publish_rules(settings, self._topology.runtime_dir)
        except FileError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None

    def _audit(self, by: str, verb: str, params: dict[str, Any], code: str) -> None:
        """Who changed what. Payloads are not for the log."""
        shown = {name: value for name, value in params.items() if name not in SECRETS}
        text = json.dumps(shown, default=str, ensure_ascii=False)[:AUDIT_MAX]
        self._log.add("info", f"audit by={by!r} verb={verb!r} code={code} params={text}")
        problem = self._audits.add(by, verb, shown, code)
        if problem:
            self._log.add("error", f"audit log: {problem}")
        self._log.flush()

    def _on_bell(self, bell: int) -> None:
        try:
            os.eventfd_read(bell)
        except BlockingIOError:
            pass
        self._take_events()

    def _on_notices(self) -> None:
        """What acceptors say of connections that no worker has seen."""
        for _ in range(NOTICES_A_PASS):
            try:
                level, text, unsent = read_notice(self._notices.recv(NOTICE_BYTES))
            except BlockingIOError:
                break
            if unsent:
                self._log.add("warning", f"{unsent} more connections refused without a line: too many at a time")
            self._log.add(level, text)
        self._log.flush()

    def _take_events(self) -> None:
        """Logs what came, then sleeps; goes on at once if more came meanwhile."""
        more = True
        while more:
            for producer, lane in enumerate(self._inbox.lanes):
                self._log_events(lane.take_many(EVENTS_A_PASS))
                if lane.give_back():
                    os.eventfd_write(self._topology.doorbells[producer], 1)
            self._log.flush()
            self._traces.flush()
            self._ring_bell()
            more = not self._inbox.go_to_sleep()

    def _on_note(self, level: str, text: str) -> None:
        """What a worker has to say."""
        if level == DAMAGE:
            self._tell_damage(text)
        else:
            self._log.add(level, text)

    def _tell_damage(self, text: str) -> None:
        """It stays until somebody repairs it, so the alarm does not end."""
        self._damaged += 1
        alarm = self._damage_alarm.look(self._damaged, text, time.time_ns() // 1_000_000)
        if alarm is not None:
            self._tell(alarm)

    def _log_events(self, records: list[bytes]) -> None:
        listened_to = self._look_who_listens()
        connected = self._configuration.settings.log.client_connected
        lines = []
        for record in records:
            kind, spilled, event = open_record(record)
            if kind == ANSWER:
                self._workers.on_answer(spilled, event)
            elif kind == NOTE:
                self._on_note(*note_of(record))
            elif kind == TRACE:
                self._traces.take(event)
            if kind != EVENT:
                continue
            try:
                what = kind_of(event)
                line = client_line(event, connected.upper().encode())
                if self._log.enabled({KIND_CONNECTED: connected, KIND_FLAPPING: "warning"}.get(what, "info")):
                    lines.append(line)
                if what == KIND_FLAPPING:
                    self._flapping.append(unpack_event(event).client_id.decode(errors="replace"))
                elif listened_to and what in (KIND_CONNECTED, KIND_DISCONNECTED):
                    self._publish_event(event)
            except EventError as error:
                self._log.add("error", f"event that cannot be read: {error}")
        self._log.add_lines(lines)

    def _look_who_listens(self) -> bool:
        """Whether anybody subscribes to messages about clients; lets the workers know what events they need not send."""
        topics = self._client_topics
        wanted = self._log.enabled(self._configuration.settings.log.client_connected)
        if topics.refresh() or wanted != self._connected_logged:
            self._connected_logged = wanted
            self._counters.want_connected(topics.listened_to or wanted, topics.epoch)
        return topics.listened_to

    def _publish_event(self, event: bytes) -> None:
        """Nothing waits here: while a worker takes no more, messages about clients are dropped and counted."""
        message = self._client_topics.message(unpack_event(event))
        if message is None:
            return
        try:
            sent = self._outbox.lanes[self._topology.manager].put(encode_publish(*message))
        except ValueError:
            sent = False  # client ids and user names of 64 KiB do not fit into a small ring
        self._unpublished += not sent

    async def _every(self, seconds: Callable[[], float], make: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """A change of the interval counts from the next round on, at the latest after INTERVAL_LOOK_S."""
        while True:
            began = time.monotonic()
            await self._publish(make())
            while (left := began + seconds() - time.monotonic()) > 0:
                await asyncio.sleep(min(left, INTERVAL_LOOK_S))

    def _statistics(self) -> Iterable[tuple[str, str]]:
        with suppress(RetainedStoreFull, RetainedStoreRefused):  # then a later round clears them; the alarm is told
            self._retained.clear_expired(time.time_ns() // 1_000_000, EXPIRED_A_PASS)
        self._count_retained()
        # Every worker tells the same level: a sum of them would tell nothing.
        totals = self._counters.totals()
        totals |= {"messages.lost": lost(totals), "overload.level.count": self._overload_level()}
        self._report_lost(totals["events.dropped"])
        yield from self._topics.identity()
        yield from self._topics.statistics(totals, self._routes.count())
        for name in HISTOGRAMS:
            yield from self._topics.latencies(name, self._counters.buckets(name))

    def _count_retained(self) -> None:
        """The gauge: workers write into one store, and none of them knows what the others have added."""
        self._slot.add(Counter.RETAINED_COUNT, self._retained.count() - self._counters.of(self._topology.manager)["retained.count"])

    async def _watch(self) -> None:
        """Looks for alarms, and waits for nobody in telling them."""
        while True:
            self._look_who_listens()
            self._count_retained()
            self._store_flapping()
            self._look_for_alarms()
            self._traces.look(time.time_ns() // 1_000_000)
            await asyncio.sleep(ALARM_S)

    async def _count_topics(self) -> None:
        while True:
            await self._topic_metrics.sample()
            await asyncio.sleep(SAMPLE_S)

    async def _take_snapshots(self) -> None:
        """Every `snapshot.interval`, counted from the newest one that there is. One that cannot be taken is told, and the next one
        is tried an interval later."""
        last = newest_us(self._topology.data_dir) / 1e6
        while True:
            await asyncio.sleep(INTERVAL_LOOK_S)
            interval = self._configuration.settings.snapshot.interval
            if time.time() - last < interval or not self._counters.serving:
                continue
            last = time.time()
            try:
                async for _ in take(self._context):
                    pass
            except ControlError as error:
                self._log.add("warning", f"no snapshot was taken: {error}")
                self._log.flush()

    def _look_for_alarms(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        totals = self._counters.totals()
        memory = self._memory_alarm.look(self._overload_level(), totals["memory.bytes.count"], now_ms)
        loss = self._loss_alarm.look(totals, self._configuration.settings.alarm.lost_messages, now_ms)
        workers = [self._counters.of(worker) for worker in range(self._topology.workers)]
        failing_now = failing(self._topology.runtime_dir)
        backends = self._backend_alarm.look(tuple(failing_now), "; ".join(failing_now) or "all back ends can be asked", now_ms)
        for alarm in (memory, loss, backends, *self._disk_alarms.look(workers, now_ms)):
            if alarm is not None:
                self._tell(alarm)

    def _tell(self, alarm: Alarm) -> None:
        """Each worker gets it for its own subscribers: one that waits for the disk passes nothing on to others."""
        self._alarms.note(alarm)
        self._log.add(alarm.level, alarm.line)
        self._log.flush()
        record = encode_publish(alarm.topic.encode(), alarm.payload.encode(), originate=False)
        for worker, outbox in enumerate(self._workers.outboxes):
            if outbox.lanes[self._topology.manager].put(record) and outbox.take_bell():
                os.eventfd_write(self._topology.doorbells[worker], 1)

    def _store_flapping(self) -> None:
        """Bans that workers have decided on, so that ctl shows them and a worker that starts again knows them: all in one go."""
        settings = self._configuration.settings
        names, self._flapping = dict.fromkeys(self._flapping), []
        if names:
            try:
                with AccessAdmin(settings, self._topology.data_dir, self._counters) as admin:
                    admin.ban_many("clientid", names, seconds=settings.flapping_detect.ban_time, by="flapping detector")
            except AccessError as error:
                self._log.add("error", f"bans of flapping clients cannot be kept: {error}")

    def _overload_level(self) -> int:
        return max(int(self._counters.of(worker)["overload.level.count"]) for worker in range(self._topology.workers))

    def _report_lost(self, events_dropped: int) -> None:
        lost = events_dropped - self._events_lost
        if lost:
            self._log.add("warning", f"{lost} clients came or went without a line: too many at a time")
            self._log.flush()
        self._events_lost = events_dropped
        if self._unpublished:
            self._log.add("warning", f"{self._unpublished} $SYS messages about clients dropped: too many at a time")
            self._log.flush()
            self._unpublished = 0

    async def _publish(self, messages: Iterable[tuple[str, str]]) -> None:
        lane = self._outbox.lanes[self._topology.manager]
        for topic, payload in messages:
            record = encode_publish(topic.encode(), payload.encode(), retain=True)
            while not lane.put(record):
                self._ring_bell()
                await asyncio.sleep(RETRY_S)
        self._ring_bell()

    def _ring_bell(self) -> None:
        if self._outbox.take_bell():
            os.eventfd_write(self._topology.doorbells[SYS_WORKER], 1)
