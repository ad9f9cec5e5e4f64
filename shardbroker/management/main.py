"""Entry point of the manager, and its wiring: each part has a module, and never delays a message.

    ManagerInbox    records of other processes: answers, log lines, traces, events      Notices       log lines of acceptors
    ClientEvents    log lines and $SYS messages about clients, bans                     SysPublisher  heartbeat and statistics
    AlarmWatch      conditions, alarms                                                  Traces        trace files
    ControlServer   verbs of `ctl` and REST                                             ScrapeServer  metrics for Prometheus
    Telemetry       metrics and spans for OpenTelemetry
"""

import asyncio
import json
import signal
import time
from contextlib import suppress
from functools import partial
from typing import Any

import uvloop

from shardbroker.access.auth_client import publish_rules
from shardbroker.access.files import FileError
from shardbroker.config import Settings
from shardbroker.config.listeners import parse_address
from shardbroker.config.sinks.definition import ACTIONS, CONNECTORS, SOURCES
from shardbroker.control import ControlError
from shardbroker.journal.retention import age_limit_us
from shardbroker.journal.retired import look_after_retired
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import Line, log_line
from shardbroker.management import handlers  # noqa: F401 - registers them
from shardbroker.management.access import AccessAdmin, AccessError
from shardbroker.management.adopting import Adopter
from shardbroker.management.alarm_watch import AlarmWatch
from shardbroker.management.audit import Audit
from shardbroker.management.client_events import ClientEvents
from shardbroker.management.client_topics import ClientTopics
from shardbroker.management.cluster_settings import ClusterSettings
from shardbroker.management.configuration import Configuration
from shardbroker.management.context import HANDLERS, Context
from shardbroker.management.core_calls import CoreCalls
from shardbroker.management.definitions import Definitions
from shardbroker.management.evacuation import Evacuator
from shardbroker.management.families import gather, plain
from shardbroker.management.feed import Feed
from shardbroker.management.flapping import FlappingBans
from shardbroker.management.handlers.listeners import call_supervisor
from shardbroker.management.hold_alarms import hold_uses
from shardbroker.management.inbox import ManagerInbox
from shardbroker.management.joining import admit
from shardbroker.management.nodes import Nodes
from shardbroker.management.notices import Notices
from shardbroker.management.preflight import Refused, check
from shardbroker.management.prometheus import render
from shardbroker.management.rollout import Rollout
from shardbroker.management.rules import RuleKind, Rules, fed
from shardbroker.management.scheduled_snapshots import take_snapshots
from shardbroker.management.scrape import ScrapeServer
from shardbroker.management.server import ControlServer
from shardbroker.management.sinks import SinkKind, Sinks
from shardbroker.management.streams import Streams
from shardbroker.management.sys_publisher import SYS_WORKER, SysPublisher
from shardbroker.management.telemetry import Taken, Telemetry
from shardbroker.management.topic_metrics import SAMPLE_S, TopicMetrics
from shardbroker.management.tracing import Traces
from shardbroker.management.workers import Workers
from shardbroker.stores.exclusive import ExclusiveTable
from shardbroker.stores.registry import Registry
from shardbroker.stores.replicated import retained_store
from shm.counters import Counter, Counters, ProcessState
from shm.epochs import Epochs
from shm.roles import FLOWS
from shm.routes import RouteTable
from shm.topology import Topology
from shm.view import ViewSegment

__all__ = ["run"]

SECRETS = ("payload", "password", "secret", "correlation_data", "setting", "definition")
"""Parameters that the audit log leaves out."""

AUDIT_MAX = 2000
"""Characters of parameters in a line of the audit log."""

WATCH_S = 1.0
"""Between two checks of the alarms."""

HOLDS_S = 5.0
"""Between two looks at the holds of journals, which read directories of the disk."""


def run(topology: Topology) -> None:
    """Serves until SIGTERM."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Manager(topology).serve())


class _Manager:
    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._counters = Counters.attach(topology.counters_name)
        self._slot = self._counters.slot(topology.manager)
        retained = retained_store(topology)
        routes = RouteTable(topology.routes_dir)
        self._rollout = Rollout(
            topology, self._counters, lambda: call_supervisor(self._context, {"verb": "settings"}), self._complain
        )
        self._configuration = Configuration(topology, self._rollout, self._on_configured, check, self._prepare)
        settings = self._configuration.settings
        self._log = Log(settings.log.level)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._workers = Workers(topology, self._counters)
        self._sys = SysPublisher(
            topology,
            self._workers.outboxes[SYS_WORKER],
            self._counters,
            retained,
            lambda: self._context.route_count(),
            self._configuration,
        )
        epochs = Epochs.attach(topology.epochs_name)
        self._client_topics = ClientTopics(
            topology.node_name,
            settings.sys.event_messages,
            settings.mqtt.max_topic_levels,
            {listener.number: listener.port for listener in topology.listeners},
            routes,
            epochs,
        )
        self._bans = FlappingBans(topology.data_dir, self._counters, self._configuration, self._log)
        self._events = ClientEvents(
            self._client_topics, self._counters, self._configuration, self._log, self._bans, self._sys.try_publish
        )
        view = ViewSegment.attach(topology.view_name) if topology.links else None
        self._feed = feed = Feed(routes, epochs, self._workers, topology.runtime_dir)
        self._alarms = AlarmWatch(
            topology, self._counters, self._configuration, self._workers.outboxes, self._log, view, feed.note
        )
        self._notices = Notices(topology, self._log)
        self._stop = asyncio.Event()
        self._audits = Audit(topology.data_dir)
        self._traces = Traces(topology, self._workers, self._log, settings.trace.max_file_size)
        self._topic_metrics = TopicMetrics(self._workers)
        self._topic_metrics.configure(settings.topic_metrics.topics)
        self._definitions = definitions = Definitions(
            topology,
            settings,
            (SinkKind(CONNECTORS), SinkKind(ACTIONS), SinkKind(SOURCES), RuleKind(topology.started_ms)),
            feed,
            fed,
            lambda needed: call_supervisor(self._context, {"verb": "settings", "needed": [FLOWS] if needed else []}),
            self._complain,
        )
        self._streams = Streams(
            topology,
            settings.streams,
            feed,
            self._workers,
            lambda: call_supervisor(self._context, {"verb": "settings"}),
            self._complain,
        )
        self._inbox = ManagerInbox(
            topology, self._log, self._workers, self._traces, self._events, self._alarms, self._sys.ring_bell
        )
        core = CoreCalls(topology)
        cluster_settings = ClusterSettings(topology, self._configuration, core, self._log)
        self._alarms.cluster_settings = cluster_settings
        self._telemetry = telemetry = Telemetry(topology, settings.opentelemetry, self._figures, self._log, self._spans)
        self._alarms.telemetry = telemetry
        self._context = context = Context(
            topology,
            self._counters,
            retained,
            routes,
            ExclusiveTable(topology.exclusive_dir),
            self._workers,
            self._log,
            self._configuration,
            self._audits,
            self._traces,
            self._topic_metrics,
            self._alarms.listed,
            Rules(definitions),
            Sinks(CONNECTORS, definitions),
            Sinks(ACTIONS, definitions),
            Sinks(SOURCES, definitions),
            self._streams,
            core,
            cluster_settings,
            Evacuator(topology, self._counters, self._workers, view, self._log),
            Adopter(topology, self._configuration, core, view, self._log),
            telemetry,
            [Registry(topology.registry_dir(worker)) for worker in range(topology.workers)],
            view,
        )
        self._control = ControlServer(
            topology.data_dir,
            topology.node_name,
            {verb: partial(handler, context) for verb, handler in HANDLERS.items()},
            self._audit,
        )

        if view is not None:
            self._control.nodes = context.nodes = context.adopter.nodes = Nodes(
                topology, view, lambda: self._configuration.settings, self._control.serve_node, self._log, partial(admit, context)
            )

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        self._traces.load(time.time_ns() // 1_000_000)  # before events are taken
        loop.add_reader(self._inbox.bell, self._inbox.on_bell)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        self._rollout.resume()
        self._definitions.resume()
        self._streams.resume()
        await self._control.start()
        if self._control.nodes is not None:
            self._control.nodes.start(loop)
        loop.add_reader(self._notices.socket, self._notices.drain)
        self._counters.set_state(self._topology.manager, ProcessState.READY)
        try:
            for text in self._topology.damage:
                self._alarms.add_damage(text)
            self._inbox.drain()
            await self._until_stopped()
        finally:
            if self._control.nodes is not None:
                await self._control.nodes.close()
            await self._control.close()
            loop.remove_reader(self._inbox.bell)
            loop.remove_reader(self._notices.socket)
            self._inbox.drain()
            self._notices.drain()
            await self._traces.close(time.time_ns() // 1_000_000)
            self._audits.close()
            self._log.close()
        self._counters.set_state(self._topology.manager, ProcessState.DOWN)

    async def _until_stopped(self) -> None:
        """Runs the periodic work until SIGTERM. An error in it ends the process, and the supervisor starts another."""
        settings = self._configuration
        stop = asyncio.create_task(self._stop.wait())
        tasks = [
            stop,
            asyncio.create_task(self._sys.run_heartbeat()),
            asyncio.create_task(self._sys.run_statistics(self._events.log_dropped)),
            asyncio.create_task(self._watch()),
            asyncio.create_task(self._watch_start()),
            asyncio.create_task(self._watch_holds()),
            asyncio.create_task(take_snapshots(self._context)),
            asyncio.create_task(self._count_topics()),
            asyncio.create_task(self._context.evacuation.run()),
            asyncio.create_task(self._context.adopter.run()),
            asyncio.create_task(self._context.cluster_settings.follow()),
            asyncio.create_task(self._telemetry.run()),
        ]
        bind = settings.settings.prometheus.bind
        if bind != "disabled":
            server = ScrapeServer(*parse_address(bind), partial(render, self._context), self._complain)
            tasks.append(asyncio.create_task(server.serve()))
        done, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)  # stand-ins of adoptions end
        for task in done:
            task.result()

    def _on_signal(self, number: int) -> None:
        # An interrupt from the terminal reaches the whole group: the supervisor says when it is our turn.
        if number == signal.SIGTERM:
            self._stop.set()

    def _complain(self, text: Line) -> None:
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
            self._log.add("error", log_line("configuration not reloaded", reason=problem))
        else:
            fields = {name: ",".join(done[name]) for name in ("applied", "needs_restart")}
            self._log.add("info", log_line("configuration reloaded", **fields))
        try:
            with AccessAdmin(self._configuration.settings, self._topology.data_dir, self._counters) as admin:
                admin.reload()
        except AccessError as error:
            problem = problem or str(error)
            self._log.add("error", log_line("rules and passwords not reloaded", reason=error))
        self._log.flush()
        await self._configuration.behind()
        await self._definitions.settled()
        await self._streams.settled()
        await self._workers.caught_up()
        with suppress(ControlError):  # it stops waiting by itself
            await call_supervisor(self._context, {"verb": "reloaded", "problem": problem.partition("\n")[0]})

    def _on_configured(self, settings: Settings) -> None:
        """Applies all keys that reach the manager."""
        self._log.level = settings.log.level
        self._traces.max_file_size = settings.trace.max_file_size
        self._topic_metrics.configure(settings.topic_metrics.topics)
        self._client_topics.want(settings.sys.event_messages)
        self._client_topics.max_levels = settings.mqtt.max_topic_levels
        self._definitions.configure(settings)
        self._streams.configure(settings.streams)
        self._telemetry.configure(settings.opentelemetry)

    async def _figures(self) -> list[dict[str, Any]]:
        return plain(await gather(self._context))

    async def _spans(self, most: int) -> list[Taken | None]:
        """Takes about `most` bytes of spans from each worker."""
        return await self._workers.call_available("spans", most=most)

    def _prepare(self, settings: Settings) -> None:
        """Rules of a file are put where workers read them if settings name other ones; those of the same file are read again by a
        reload only, in all workers. Raises ControlError."""
        if settings.acl == self._configuration.settings.acl:
            return
        try:
            publish_rules(settings, self._topology.runtime_dir)
        except FileError as error:
            raise Refused(str(error), [("acl.file", str(error))]) from None

    def _audit(self, by: str, verb: str, params: dict[str, Any], code: str) -> None:
        """Who changed what. Payloads are not for the log."""
        shown = {name: value for name, value in params.items() if name not in SECRETS}
        text = json.dumps(shown, default=str, ensure_ascii=False)[:AUDIT_MAX]
        self._log.add("info", log_line("audit", by=by, verb=verb, code=code, params=text))
        problem = self._audits.add(by, verb, shown, code)
        if problem:
            self._log.add("error", log_line("audit file not written", reason=problem))
        self._log.flush()

    async def _watch(self) -> None:
        while True:
            self._events.refresh()
            self._sys.count_retained()
            self._bans.store()
            self._alarms.check()
            self._alarms.check_actions(self._context.actions.states(), self._context.sources.states())
            self._traces.look(time.time_ns() // 1_000_000)
            await asyncio.sleep(WATCH_S)

    async def _watch_start(self) -> None:
        """A worker that does not answer delays no alarm."""
        while True:
            await self._feed.note_start(self._topology.started_ms, time.time_ns() // 1_000_000)
            await asyncio.sleep(WATCH_S)

    async def _watch_holds(self) -> None:
        """A disk that does not answer delays nothing else."""
        while True:
            with suppress(OSError):  # the next look tries again; DiskAlarms report the disk
                await self._streams.hold()
            with suppress(OSError):
                await self._look_after_retired()
            with suppress(OSError):
                self._alarms.check_holds(await asyncio.to_thread(hold_uses, self._topology.data_dir, time.time_ns() // 1_000_000))
            await asyncio.sleep(HOLDS_S)

    async def _look_after_retired(self) -> None:
        """Applies retention to journals of workers that are no more: no worker does. Raises OSError."""
        settings = self._configuration.settings
        if settings.durability.level == "none" or not self._counters.serving:
            return
        kept, now_us = settings.journal.retention, time.time_ns() // 1000
        data_dir = self._topology.data_dir
        needed = await asyncio.to_thread(look_after_retired, data_dir, now_us, age_limit_us(kept.age), kept.bytes)
        self._slot.add(Counter.JOURNAL_HOLD_EXCEEDED, needed)

    async def _count_topics(self) -> None:
        while True:
            await self._topic_metrics.sample()
            await asyncio.sleep(SAMPLE_S)
