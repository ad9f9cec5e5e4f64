"""Entry point of the process flows: reads journals, evaluates rules, moves cursors."""

import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from shardbroker.config.flows import DEFINITIONS
from shardbroker.flows.actions import load_functions
from shardbroker.flows.bridge.protocol import site_of_cluster
from shardbroker.flows.cursors import Cursor
from shardbroker.flows.feed import JournalFeed
from shardbroker.flows.lanes import Lanes, Stopped
from shardbroker.flows.lookups import Lookups, Others
from shardbroker.flows.own_actions import own_actions
from shardbroker.flows.persistence.expansion import create_tables
from shardbroker.flows.priority import give_way
from shardbroker.flows.progress import Key, Progress
from shardbroker.flows.replays import Replays
from shardbroker.flows.rule import LoadedRule
from shardbroker.flows.rule_table import RuleTable, read_content
from shardbroker.flows.rule_traces import RuleTraces
from shardbroker.flows.runner import Runner, collect_seldom
from shardbroker.flows.sinks.intake import Intakes
from shardbroker.flows.sinks.sinks import Sinks
from shardbroker.flows.sources.sources import Sources
from shardbroker.flows.trial import try_loaded
from shardbroker.flows.wire import MESSAGE_MAX, SINK_VERBS, SOURCE_VERBS, decode, encode_answer, encode_probed, encode_tried
from shardbroker.journal.errors import JournalError
from shardbroker.journal.schema import MessageFlag
from shardbroker.link.identity import read_cookie
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import Line, log_line, of_process
from shardbroker.stores.files import Stamp, stamp_of
from shm.counters import Counters, ProcessState
from shm.ring import Inbox
from shm.topology import Topology

__all__ = ["run"]

FALLBACK_S = 0.2
"""Longest wait of an idle process: a worker that is killed behind its write does not ring."""
GATHER_S = 0.0003
"""Pause of a process under load behind a read: what arrives meanwhile is read at once, and its workers need not ring."""
BUSY_S = 0.001
"""Sleep from which on a process is not under load: the next message is read without a pause before it."""
FULL_BYTES = 1 << 18
"""Bytes of a turn from which on no pause is made: about 2,000 records, so more are there."""
READING, CLOSING = 0.8, 0.1
"""Shares of process.drain_timeout in which the process reads on, and waits for batches of sinks under way."""
DEFINITIONS_S, LOOK_S = 30.0, 0.01
"""Longest wait for the manager to write the definitions at the start, half of what the supervisor waits; time between two looks."""
TICK_S = 1.0
"""Between two commits of cursors, looks for new journals and files of figures."""


def run(topology: Topology, number: int) -> None:
    """Serves until SIGTERM."""
    give_way()
    service = _Service(topology, number)
    try:
        service.serve()
    finally:
        service.close()


class _Service:
    def __init__(self, topology: Topology, number: int) -> None:
        place = topology.places_of("flows")[number]
        self._topology, self._slot, self._title = topology, place.slot, place.title
        self._counters = Counters.attach(topology.counters_name)
        self._stop_s: float | None = None
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides when to stop this process
        self._log = Log(topology.settings.log.level)
        self._inbox = Inbox.attach(topology.inbox_name(place.slot))
        self._bell = topology.doorbells[place.slot]
        self._channel = socket.socket(fileno=os.dup(topology.receiving_ends("flows", number)[0]))
        self._lanes = Lanes(topology, place.slot, self._is_over)
        payload_max = int(topology.settings.mqtt.max_packet_size)
        intakes = Intakes(topology.node_name)
        self._table = RuleTable(own_actions(self._lanes, payload_max, lambda line: self._write("info", line), intakes))
        for problem in load_functions():
            self._write("error", log_line("rule function not loaded", reason=problem))
        self._runner = Runner(self._table, topology.node_name, self._write, intakes)
        self._traces = RuleTraces(topology, place.slot, self._table)
        processes, synced = len(topology.places_of("flows")), topology.settings.durability.level == "machine"
        self._progress = Progress(topology, number, processes, self._table, self._lanes, self._write)
        stored, is_damaged = self._progress.stored, self._progress.is_damaged
        data_dir, node, end_of = topology.data_dir, topology.node_name, self._progress.end_of
        self._sources = Sources(number, processes, self._lanes, payload_max, self._table, self._wake)
        self._sinks = Sinks(
            data_dir, node, number, processes, synced, self._table, self._runner, intakes, stored, is_damaged, end_of, self._wake,
            self._sources,
        )  # fmt: skip
        cluster = topology.settings.cluster
        if cluster.enable:
            self._sinks.site = site_of_cluster(cluster.name, read_cookie(Path(cluster.cookie_file)))
        self._progress.of_sinks = lambda: self._sinks.figures(self._progress.known_feeds)
        others = Others(data_dir / "journal", number, processes, self._progress.written) if processes > 1 else None
        self._lookups = Lookups(self._sinks, self._lanes, self._progress.present_feeds, others, self._write)
        self._replays = Replays(topology, number, self._lanes, self._write, self._lookups)
        self._definitions = topology.runtime_dir / DEFINITIONS
        self._seen: Stamp | None = None
        self._is_loaded = False
        self._feeds = 0
        """Journals that actions have begun."""
        self._tick_s = 0.0
        self._stops_sources = False
        self._is_busy = False
        """Whether the last sleep was short."""

    # --- the loop -------------------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Runs until all is read after SIGTERM, or process.drain_timeout is over."""
        self._load_first()
        if not self._is_loaded and not self._counters.serving:
            self._progress.remember_ends()
        self._counters.set_state(self._slot, ProcessState.READY)
        while not self._counters.serving and self._stop_s is None:  # workers drop records before that
            self._wait()
            self._answer_requests()
            self._replays.take_orders()
        try:
            while not self._is_over():
                moved = self._turn()
                self._answer_requests()
                if time.monotonic() >= self._tick_s:
                    self._tick()
                if self._progress.figures.is_under_way:
                    self._progress.figures.step()
                if self._stop_s is not None and not self._stops_sources:
                    self._stops_sources = True
                    self._sources.stop()
                if not moved and self._stop_s is not None and not self._sources.is_busy:
                    break
                if moved and self._is_busy:
                    if moved < FULL_BYTES:
                        time.sleep(GATHER_S)
                elif moved < FULL_BYTES:
                    self._wait(True)
        except Stopped:
            pass

    def close(self) -> None:
        """Commits what is done. What workers have not taken is seen again."""
        self._replays.close()
        self._sinks.close(self._topology.settings.process.drain_timeout * CLOSING)
        self._take_from_runner()
        self._progress.close(self._sinks.cursors())
        self._log.close()
        self._counters.set_state(self._slot, ProcessState.DOWN)

    def _turn(self) -> int:
        """Reads once from each journal, and sends to replays; returns about how many bytes it read, 0 only if there was nothing."""
        moved = 0
        if self._sources.turn(self._progress.complain):
            self._lanes.ring()
            moved = FULL_BYTES
        if self._stop_s is None:  # workers have the positions of replays, which begin again with the next process
            self._replays.take_orders()
            if self._replays.turn():
                moved = FULL_BYTES
            try:
                if self._lookups.turn():
                    moved = FULL_BYTES
            except (OSError, JournalError) as error:
                self._progress.complain("lookups", error)
        feeds = self._progress.feeds() if self._is_loaded else []
        if len(feeds) > self._feeds:
            self._feeds = len(feeds)
            self._progress.note(self._sinks.open_journals(self._progress.known_feeds))
            self._want_messages()
        for feed in feeds:
            try:
                moved += self._read(feed)
            except (OSError, JournalError) as error:
                self._progress.complain(feed.name, error)
            self._lanes.ring()
            self._sinks.ring()
        if self._stop_s is None and self._sinks.turn(self._progress.known_feeds, self._progress.complain):
            moved = FULL_BYTES
        self._sinks.ring()
        return moved

    def _read(self, feed: JournalFeed) -> int:
        before = feed.follower.place
        self._sinks.defer(feed)
        for batch in feed.read():
            self._runner.read(batch, feed)
        if feed.follower.place == before:
            return 0
        self._progress.passed(feed)
        self._sinks.passed(feed)
        after = feed.follower.place
        same = before is not None and after is not None and before.segment == after.segment
        return max(after.offset - before.offset, 1) if same else 1

    def _wait(self, look: bool = False) -> None:
        """Sleeps until a bell. look: reads once more first, since workers ring only for a process that is about to sleep."""
        self._lanes.ring()
        events = int(MessageFlag.FED) | (int(MessageFlag.CAPTURED) if self._replays else 0)
        timeout_s = 0.0
        if self._inbox.go_to_sleep(events) and not (look and self._turn()):
            timeout_s = 0.0 if self._progress.figures.is_under_way else self._sources.wait_s(self._replays.wait_s(FALLBACK_S))
        begin_s = time.monotonic()
        ready, _, _ = select.select([self._bell, self._channel.fileno(), *self._replays.descriptors], [], [], timeout_s)
        self._is_busy = time.monotonic() - begin_s < BUSY_S
        if self._bell in ready:
            _drain(self._bell)
        self._inbox.take_bell()  # producers need not ring while it works
        self._log.flush()

    def _tick(self) -> None:
        self._tick_s = time.monotonic() + TICK_S
        if stamp_of(self._definitions) != self._seen:
            self._load()
        self._traces.look()
        self._progress.settle(self._sinks.cursors(), self._sinks.held if self._is_loaded else None)
        self._sinks.ring()
        self._progress.figures.begin()

    # --- definitions ----------------------------------------------------------------------------------------------------------

    def _load_first(self) -> None:
        """Loads the definitions before the broker serves: where new rules begin is on the disk before the first message is."""
        give_up_s = time.monotonic() + DEFINITIONS_S
        while True:
            is_written = self._counters.serving or self._counters.state(self._topology.manager) == ProcessState.READY
            self._load()
            if self._seen is not None or is_written or self._stop_s is not None or time.monotonic() >= give_up_s:
                return
            time.sleep(LOOK_S)

    def _load(self) -> None:
        self._seen = stamp_of(self._definitions)
        try:
            content = read_content(self._definitions)
            self._progress.prepare()
            new = self._table.take(content)
            changed, removed = self._sinks.load(content, self._progress.known_feeds)
        except FileNotFoundError:
            return  # the manager has not written it yet: nothing is read, so that no cursor passes over a message
        except (OSError, ValueError) as error:
            self._write("error", log_line("rules not loaded", reason=error))
            return
        self._begin(new, list(self._table.problems), changed, removed)
        for id, problem in self._sinks.problems.items():
            self._write("error", log_line("action not loaded", action=id, reason=problem[:300]))
        for id, problem in self._sources.problems.items():
            self._write("error", log_line("source not loaded", source=id.removeprefix("source "), reason=problem[:300]))

    def _change(self, request: dict[str, Any]) -> list[str]:
        """Takes over what has changed, or reads the definitions; returns the rules that may have problems."""
        changed, removed = request.get("changed"), request.get("removed")
        if not self._is_loaded or changed is None or removed is None or request.get("base") != self._table.generation:
            self._load()
            return list(self._table.problems)
        self._table.set_engine(request.get("engine") or {})
        self._progress.prepare()
        new = self._table.change(request["generation"], changed, removed)
        self._seen = tuple(request["stamp"])
        ids = [one["id"] for one in changed]
        self._begin(new, ids)
        return ids

    def _begin(
        self, new: list[LoadedRule], changed: list[str], cursors: dict[Key, Cursor] | None = None, gone: list[Key] | None = None
    ) -> None:
        self._progress.begin(new, cursors or {}, gone or [], self._sinks.held())
        self._traces.look()
        self._traces.follow()
        self._sources.follow_rules()
        self._sinks.follow_rules()
        self._want_messages()
        self._is_loaded = True
        collect_seldom()
        for rule in changed:
            if rule in self._table.problems:
                self._write("error", log_line("rule not loaded", rule=rule, reason=self._table.problems[rule][:300]))

    def _want_messages(self) -> None:
        """Has messages decoded only if a rule sees them: an action that ships them has a reader of its own."""
        wanted = self._table.evaluates_messages
        for feed in self._progress.known_feeds.values():
            feed.follower.want_messages(wanted)

    def _answer_requests(self) -> None:
        for request in self._requests():
            named = list(self._table.problems)
            if request.get("verb") in ("probe", "create_tables"):
                self._probe(request)
                continue
            if request.get("verb") in SOURCE_VERBS:
                id = str(request.get("source"))
                problem = self._sources.order(str(request["verb"]).removeprefix("source_"), id)
                self._answer(encode_answer(request["id"], self._table.generation, {id: problem} if problem else {}))
                continue
            if request.get("verb") in SINK_VERBS:
                self._answer(encode_answer(request["id"], self._table.generation, self._ordered(request)))
                continue
            if request.get("verb") == "load":
                named = self._change(request)
            elif request.get("verb") == "reset" and (rule := self._table.rules.get(str(request.get("rule")))) is not None:
                rule.reset()
            elif request.get("verb") == "traces":
                self._traces.look()
            problems = {rule: self._table.problems[rule] for rule in named if rule in self._table.problems}
            problems |= self._sinks.problems | self._sources.problems
            answer = encode_answer(request["id"], self._table.generation, problems)
            if request.get("verb") == "try":
                answer = encode_tried(request["id"], self._tried(request))
            self._answer(answer)
        self._take_from_runner()

    def _answer(self, answer: bytes) -> None:
        try:
            self._channel.send(answer)
        except OSError as error:  # the manager asks again
            self._write("error", log_line("rules not answered", reason=error))

    def _take_from_runner(self) -> None:
        """Writes lines and sends answers of the thread of sinks."""
        runner = self._sinks.runner
        while runner is not None and runner.lines:
            self._write(*runner.lines.popleft())
        while runner is not None and runner.answers:
            self._answer(runner.answers.popleft())

    def _probe(self, request: dict[str, Any]) -> None:
        """Tries a connector, and an action over it, or creates the tables of a preset."""
        number, kind = request["id"], str(request.get("type"))
        work = partial(create_tables, kind) if request["verb"] == "create_tables" else None
        settings, action, source = request.get("settings"), request.get("action"), request.get("source")
        self._sinks.probe(kind, settings, action, lambda error: encode_probed(number, error), work, source)

    def _ordered(self, request: dict[str, Any]) -> dict[str, str]:
        """Carries out an order for an action; returns problems."""
        verb, id = str(request["verb"]).removeprefix("sink_"), str(request.get("sink"))
        problem = self._sinks.order(verb, id) if verb != "rewind" else self._rewound(id, request.get("at_us"))
        return {id: problem} if problem else {}

    def _rewound(self, id: str, at: object) -> str:
        problem, changed = self._sinks.rewind(id, at, self._progress.known_feeds)
        if changed:
            self._progress.prepare()
            self._progress.begin([], changed, [], self._sinks.held())
        return problem

    def _wake(self) -> None:
        """Called by the thread of sinks."""
        os.eventfd_write(self._bell, 1)

    def _tried(self, request: dict[str, Any]) -> dict[str, Any] | None:
        rule, context = self._table.rules.get(str(request.get("rule"))), request.get("context")
        if rule is None or not isinstance(context, dict):
            return None
        return try_loaded(rule, context, request.get("carry_out") is True)

    def _requests(self) -> Iterator[dict[str, Any]]:
        while True:
            try:
                message = self._channel.recv(MESSAGE_MAX, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            if not message:
                return
            try:
                yield decode(message)
            except ValueError as error:
                self._write("error", log_line("rules not answered", reason=error))

    # --- the end --------------------------------------------------------------------------------------------------------------

    def _on_stop(self, *_: object) -> None:
        self._stop_s = self._stop_s or time.monotonic()

    def _is_over(self) -> bool:
        drain_s: float = self._topology.settings.process.drain_timeout
        return self._stop_s is not None and time.monotonic() > self._stop_s + drain_s * READING

    def _write(self, level: str, line: Line) -> None:
        self._log.add(level, of_process(self._title, line))
        self._log.flush()


def _drain(bell: int) -> None:
    try:
        os.eventfd_read(bell)
    except BlockingIOError:
        pass
