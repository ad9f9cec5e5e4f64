"""Kills over several nodes with partitions: `python -m tests.cluster.real.torture --seed 1 --kills 200`, as root.

Each node has a namespace of its own, publishers of QoS 1 and 2, and a session that stays at it. Two further clients change their
node all the time. At random moments a process of a node is killed, or all of its processes, or the network between nodes is cut for
a while: in halves, one node, one pair, one direction. After the last kill everything heals. Then each message that was acknowledged
has to be at each client, and none of QoS 2 twice. A message whose publisher had no answer, since its node was killed, may be there
or not.

Kinds `replace` and `upgrade` move a worker, or a node, to new processes, half of the time with a kill in the middle. Without kills
(`--kind replace,upgrade --interrupted 0`) no client that stays at its node may be disconnected.

The choices follow from the seed, the moments do not: processes need more or less time to be there again.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from shardbroker.control import Control, ControlError
from tests.cluster.real.network import Network, why_not
from tests.cluster.real.nodes import HOST, Nodes
from tests.harness import Client, Closed, wire
from tests.harness.faults import KILLED
from tests.torture.killer import aimed_at

__all__ = ["Outcome", "run"]

KINDS = "worker", "link", "manager", "node", "cut"
MOVES = "replace", "upgrade"
MOVE_SHARE = 0.3
"""Moves among all that is done, if other kinds are chosen too."""
INTERRUPTED = 0.5
"""Moves with a kill in the middle."""
INTERRUPT_S = 0.0, 0.6
LONGEST_S = 120.0
"""Of a move: an upgrade has to start all processes."""
KEPT = {"session_expiry_interval": 3600}
MOVERS = 2
WAIT = "wait:50s"
"""`cluster.lost_session`: a client that moves waits for a node that is down, so its session stays one."""
JOIN = "5s"
"""`cluster.join_timeout`: a node serves without having seen a peer since its start, by the routes that it has stored."""
PUBLISH_PAUSE_S = 0.03
ACK_S = 20.0
REFUSED = 0x80
"""Reason codes from here on refuse a message."""
STAY_S = 0.5, 3.0
"""How long a client that moves stays at a node."""
KILL_PAUSE_S = 0.05, 0.5
CUT_S = 0.2, 6.0
CUT_SHARE = 0.1
"""Cuts among all faults."""
WHOLE_SHARE = 0.04
"""Kills of a whole node among all kills."""
DOWN_S = 0.0, 3.0
STARTS = 5
"""Attempts to start a node."""
FAULT_SHOWN = 4000
"""Characters of a failure that are printed."""
BEFORE_S, AFTER_S = 30.0, 15.0
"""Of the events that are printed before and after the acknowledgement of a lost message."""
EVENTS_SHOWN = 2000
HEAL_S = 240.0
"""Until all messages have arrived, on a machine with other work on it."""


class Publisher(threading.Thread):
    """Sends numbers to a topic of its own, and connects again if its node ends."""

    def __init__(self, nodes: Nodes, node: int, qos: int) -> None:
        super().__init__(daemon=True)
        self.nodes, self.node, self.qos = nodes, node, qos
        self.topic = f"t/{qos}/{node}"
        self.acknowledged: dict[int, float] = {}
        """When each was, on the clock of the run."""
        self.ended = threading.Event()
        self.unanswered = 0
        self.codes: Counter[int] = Counter()
        """Reason codes of acknowledgements other than 0."""

    def run(self) -> None:
        numbers = count()
        while not self.ended.is_set():
            try:
                with self.nodes.connect(self.node, f"publisher-{self.node}-{self.qos}", timeout=ACK_S) as client:
                    for number in numbers:
                        if self.ended.is_set():
                            return
                        self.unanswered += 1
                        answer = client.publish(self.topic, b"%d" % number, qos=self.qos)
                        assert answer is not None
                        if answer.code:
                            # No subscriber (0x10): each topic has some, so that is a fault. Others refuse the message.
                            self.codes[answer.code] += 1
                        if answer.code < REFUSED:
                            self.acknowledged[number] = time.monotonic()
                        self.unanswered -= 1
                        time.sleep(PUBLISH_PAUSE_S)
            except (OSError, AssertionError, Closed):
                time.sleep(0.1)


class Receiver(threading.Thread):
    """A client with a session that stays, at one node or at any, which keeps its half of QoS 2."""

    def __init__(self, nodes: Nodes, name: str, home: int | None, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.nodes, self.name_, self.home, self.rng = nodes, name, home, rng
        self.received: Counter[tuple[str, int]] = Counter()
        self.new_sessions = -1
        """CONNECTs behind the first one that have found no session."""
        self.moves = 0
        self.lost = 0
        """Connections that have ended while the client stays at its node."""
        self.ended, self.is_ready, self.stays = threading.Event(), threading.Event(), threading.Event()
        self.connects: list[tuple[float, str]] = []
        """When, and what was found."""
        self._unreleased: set[int] = set()
        self._is_subscribed = False

    def run(self) -> None:
        while not self.ended.is_set():
            node = self.home or self.rng.choice([*self.nodes.brokers])
            try:
                with self.nodes.connect(node, self.name_, clean=False, timeout=60, properties=KEPT, auto_ack=False) as client:
                    self._serve(client, node)
                self.lost += self.home is not None and not self.ended.is_set()
            except (OSError, AssertionError, Closed):
                self.lost += self._is_subscribed and self.home is not None
                time.sleep(0.1)

    def _serve(self, client: Client, node: int) -> None:
        if client.connack is None or client.connack.code:
            time.sleep(0.2)
            return
        self.moves += 1
        found = "session" if client.connack.session_present else "no session"
        self.connects.append((time.monotonic(), f"{self.name_} at node {node}: {found}"))
        if not client.connack.session_present:
            self.new_sessions += 1
            self._unreleased.clear()
            self._is_subscribed = False
        if not self._is_subscribed:
            client.subscribe([("t/#", 2)])
            self._is_subscribed = True
            self.is_ready.set()
        until = time.monotonic() + self.rng.uniform(*STAY_S)
        while not self.ended.is_set() and (self.home or self.stays.is_set() or time.monotonic() < until):
            packet = client.recv(0.1)
            if isinstance(packet, wire.Pubrel):
                self._unreleased.discard(packet.packet_id)
                client.send_raw(wire.pubcomp(packet.packet_id))
            elif isinstance(packet, wire.Publish):
                assert packet.packet_id is not None
                if packet.qos == 1 or packet.packet_id not in self._unreleased:
                    self.received[packet.topic, int(packet.payload)] += 1
                elif not self.received[packet.topic, int(packet.payload)]:
                    text = f"taken for an earlier message: {packet.topic} {packet.payload!r}, id {packet.packet_id}, at node {node}"
                    self.connects.append((time.monotonic(), text))
                if packet.qos == 2:
                    self._unreleased.add(packet.packet_id)
                client.send_raw((wire.puback if packet.qos == 1 else wire.pubrec)(packet.packet_id))
            elif packet is not None:
                return


@dataclass
class Outcome:
    """What a run has shown."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    cuts: int = 0
    acknowledged: int = 0
    unanswered: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    """Reason codes of acknowledgements other than 0."""
    history: list[tuple[float, str]] = field(default_factory=list)
    """When something was killed, cut, healed or started."""
    moves: int = 0
    new_sessions: int = 0
    replaced: Counter[str] = field(default_factory=Counter)
    """Moves by what has become of them."""
    interrupted: int = 0
    disconnects: int = 0
    """Of clients that stay at their node."""
    missing: dict[str, int] = field(default_factory=dict)
    twice: dict[str, int] = field(default_factory=dict)
    """Messages of QoS 2."""
    faults: list[str] = field(default_factory=list)
    """What the nodes have printed that says of a crash."""

    @property
    def is_good(self) -> bool:
        return not self.missing and not self.twice and not self.faults

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(self.kills.items()))
        codes = f", reason codes {dict(self.codes)}" if self.codes else ""
        text = f"seed {self.seed}: {self.kills.total()} kills ({kinds}), {self.cuts} cuts, "
        text += f"{self.acknowledged} messages acknowledged, {self.unanswered} unanswered{codes}, "
        text += f"{self.moves} connects, {self.new_sessions} of them without a session; "
        if self.replaced:
            moved = ", ".join(f"{name} {number}" for name, number in sorted(self.replaced.items()))
            text += f"moved: {moved}, {self.interrupted} with a kill; {self.disconnects} disconnects of clients that stay; "
        text += f"missing {self.missing or 0}, QoS 2 twice {self.twice or 0}"
        return text + "".join(f"\n{fault}" for fault in self.faults)


class Killer:
    """Kills processes of nodes that the run has started, each through a descriptor of the process, and cuts the network."""

    def __init__(
        self, nodes: Nodes, network: Network, outcome: Outcome, workers: int, rng: random.Random, kinds: Sequence[str],
        interrupted: float = INTERRUPTED,
    ) -> None:  # fmt: skip
        self.nodes, self.network, self.outcome, self.rng, self.kinds = nodes, network, outcome, rng, kinds
        self.workers, self.interrupted = workers, interrupted
        self.moving = [kind for kind in MOVES if kind in kinds]
        places = ["manager", "link-0", "link-1", *(f"worker-{number}" for number in range(workers))]
        self.places = [place for place in places if place.partition("-")[0] in kinds]
        self._whole_again: dict[int, threading.Thread] = {}
        self._healed_at = 0.0
        self.failure: BaseException | None = None

    def act(self) -> None:
        """Does one fault, and waits for the next one."""
        now, rng = time.monotonic(), self.rng
        if self._healed_at and now > self._healed_at:
            self.network.heal()
            self._healed_at = 0.0
            self._note("healed")
        if self.moving and (rng.random() < MOVE_SHARE or {*self.kinds} <= {*MOVES}):
            self._move(rng.choice([*self.nodes.brokers]), rng.choice(self.moving))
        elif "cut" in self.kinds and (rng.random() < CUT_SHARE or len(self.kinds) == 1):
            if not self._healed_at:
                self._cut()
                self._healed_at = now + rng.uniform(*CUT_S)
        else:
            is_whole = "node" in self.kinds and (rng.random() < WHOLE_SHARE or not self.places)
            if is_whole or self.places:
                self._kill(rng.choice([*self.nodes.brokers]), is_whole, "" if is_whole else rng.choice(self.places))
        time.sleep(rng.uniform(*KILL_PAUSE_S))

    def _note(self, text: str) -> None:
        self.outcome.history.append((time.monotonic(), text))

    def _move(self, node: int, kind: str) -> None:
        """Replaces a worker, or all processes of a node, with a kill in the middle or without."""
        if node in self._whole_again and self._whole_again[node].is_alive():
            return
        worker, victim = self.rng.randrange(self.workers), self.rng.choice(["link-0", "link-1", "manager", "worker", "successor"])
        pause_s = self.rng.uniform(*INTERRUPT_S)
        self._note(f"{kind} of node {node}, worker {worker}")
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(self._replace, node, worker) if kind == "replace" else pool.submit(self._upgrade, node)
            if self.rng.random() < self.interrupted:
                time.sleep(pause_s)
                if not call.done():
                    self._strike(node, f"worker-{worker}", victim)
            found = call.result()
        self.outcome.replaced[f"{kind}: {found or 'done'}"] += 1
        self._note(f"{kind} of node {node}: {found or 'done'}")

    def _strike(self, node: int, title: str, victim: str) -> None:
        """Kills a process in the middle of a move; that of the worker which was started first, or last."""
        broker = self.nodes.brokers[node]
        pids = sorted(broker.child_pids(title if victim in ("worker", "successor") else victim))
        if not pids or (victim == "successor" and len(pids) < 2):
            return
        with suppress(ProcessLookupError, AssertionError):
            broker.kill_process(pids[-1 if victim == "successor" else 0])
            self.outcome.kills[victim.partition("-")[0]] += 1
            self.outcome.interrupted += 1
            self._note(f"killed {victim} {title} of node {node} in a move")

    def _replace(self, node: int, worker: int) -> str:
        """Returns why a worker was not replaced, or an empty text."""
        broker = self.nodes.brokers[node]
        try:
            with Control(broker.data_dir, timeout_s=LONGEST_S) as control:
                control.call("workers replace", worker=worker)
        except (ControlError, OSError) as error:
            lines = [line for line in broker.output if "worker not replaced" in line]
            known = lines and "the log has" in str(error)
            return lines[-1].partition("reason=")[2].strip()[:100] if known else str(error)[:60]
        return ""

    def _upgrade(self, node: int) -> str:
        """Returns why a node was not upgraded, or an empty text."""
        directory, deadline = self.nodes.brokers[node].data_dir, time.monotonic() + LONGEST_S
        try:
            with Control(directory, timeout_s=LONGEST_S) as control:
                control.call("upgrade", drain=False)
        except (ControlError, OSError) as error:
            return str(error)[:60]
        while time.monotonic() < deadline:
            with suppress(ControlError, OSError), Control(directory, timeout_s=LONGEST_S) as control:  # the manager starts again
                state = control.call("upgrade-state")
                if state["phase"] != "moving":
                    return "" if state["phase"] == "done" else f"{state['phase']}: {state.get('problem', '')}"[:100]
            time.sleep(0.1)
        return "it does not end"

    def _cut(self) -> None:
        nodes = self.rng.sample([*self.nodes.brokers], len(self.nodes.brokers))
        self.outcome.cuts += 1
        kind = self.rng.choice(("halves", "one", "pair", "one way"))
        self._note(f"cut {kind} {nodes}")
        match kind:
            case "halves":
                self.network.split(nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :])
            case "one":
                self.network.split(nodes[:1], nodes[1:])
            case "pair":
                self.network.split(nodes[:1], nodes[1:2])
            case _:
                self.network.cut(*nodes[:2])

    def _kill(self, node: int, is_whole: bool, place: str) -> None:
        broker = self.nodes.brokers[node]
        if node in self._whole_again:
            if self._whole_again[node].is_alive():
                return
            del self._whole_again[node]
        if is_whole:
            with suppress(ProcessLookupError):
                os.killpg(broker.pid, signal.SIGKILL)
            self.outcome.kills["node"] += 1
            self._note(f"killed node {node}")
            self._whole_again[node] = threading.Thread(target=self._start_again, args=(node, self.rng.uniform(*DOWN_S)))
            self._whole_again[node].start()
            return
        with aimed_at(broker.pid, place) as kill:
            if kill is not None:
                with suppress(ProcessLookupError):
                    kill()
                self.outcome.kills[place.partition("-")[0]] += 1
                self._note(f"killed {place} of node {node}")

    def _start_again(self, node: int, pause_s: float) -> None:
        """Starts a node that was killed. On a busy machine it may be ready later than the harness waits: that is one more kill."""
        broker = self.nodes.brokers[node]
        try:
            for left in reversed(range(STARTS)):
                assert broker.process is not None
                broker.process.wait()
                time.sleep(pause_s)
                try:
                    self.nodes.start([node])
                    self._note(f"started node {node}")
                    return
                except AssertionError:
                    if not left:
                        raise
                    broker.kill()
                    self.outcome.kills["node"] += 1
        except BaseException as failure:
            self.failure = failure

    def heal(self) -> None:
        self.network.heal()
        for thread in self._whole_again.values():
            thread.join()
        if self.failure is not None:
            raise self.failure


@contextmanager
def _clients(nodes: Nodes, seed: int) -> Iterator[tuple[list[Publisher], list[Receiver]]]:
    """Clients that are connected and subscribed."""
    homes = [(f"stays-{node}", node) for node in nodes.brokers]
    names: list[tuple[str, int | None]] = [*homes, *((f"moves-{number}", None) for number in range(MOVERS))]
    receivers = [Receiver(nodes, name, home, random.Random(f"{seed}/{name}")) for name, home in names]
    publishers = [Publisher(nodes, node, qos) for node in nodes.brokers for qos in (1, 2)]
    try:
        for receiver in receivers:
            receiver.start()
        for receiver in receivers:
            assert receiver.is_ready.wait(30), f"{receiver.name_} is not subscribed"
        for publisher in publishers:
            publisher.start()
        yield publishers, receivers
    finally:
        for one in (*publishers, *receivers):
            one.ended.set()
        for one in (*publishers, *receivers):
            one.join(ACK_S)


def run(
    seed: int, kills: int, seconds: float, count_: int = 3, workers: int = 2, level: str = "process", kinds: Sequence[str] = KINDS,
    keep: Path | None = None, interrupted: float = INTERRUPTED,
) -> Outcome:  # fmt: skip
    """Makes one run, of so many kills or so many seconds, with these kinds of faults.

    With `keep`, what the nodes have on disk and have printed, and what happened to them, is there after a run that is not good.
    """
    outcome, rng = Outcome(seed), random.Random(seed)
    settings = {
        "cluster.registry": "on", "cluster.lost_session": WAIT, "cluster.join_timeout": JOIN, "mqtt.max_mqueue_len": 0,
        "durability.level": level,
    }  # fmt: skip
    with closing(Network(count_)) as network, tempfile.TemporaryDirectory(prefix="shardbroker-torture-") as directory:
        nodes = Nodes(Path(directory), count_, workers, network=network, **settings)
        try:
            for broker in nodes.brokers.values():
                broker.expects(KILLED)
            nodes.start()
            _await_links(nodes)
            with _clients(nodes, seed) as (publishers, receivers):
                killer = Killer(nodes, network, outcome, workers, rng, kinds, interrupted)
                end = time.monotonic() + (seconds or float("inf"))
                while (not kills or outcome.kills.total() < kills) and time.monotonic() < end and killer.failure is None:
                    killer.act()
                killer.heal()
                for receiver in receivers:
                    receiver.stays.set()
                for publisher in publishers:
                    publisher.ended.set()
                for publisher in publishers:
                    publisher.join(ACK_S + 5)
                _await_links(nodes)
                _collect(publishers, receivers, outcome)
            for broker in nodes.brokers.values():
                broker.stop()
        except AssertionError as failure:
            outcome.faults.append(str(failure)[:FAULT_SHOWN])
        finally:
            for broker in nodes.brokers.values():
                with suppress(AssertionError):
                    broker.kill()
                broker.clear_shared()
        if keep is not None and not outcome.is_good:
            shutil.copytree(directory, keep)
            for number, broker in nodes.brokers.items():
                (keep / f"node-{number}.log").write_text("".join(broker.output))
            began = time.time() - time.monotonic()
            times = [datetime.fromtimestamp(began + at, UTC).isoformat(timespec="milliseconds") for at, _ in outcome.history]
            lines = (f"{at} {text}\n" for at, (_, text) in zip(times, outcome.history, strict=True))
            (keep / "history.log").write_text("".join(lines))
    return outcome


def _await_links(nodes: Nodes) -> None:
    for number in nodes.brokers:
        wanted = {f"n{peer}@{HOST}" for peer in nodes.brokers if peer != number}
        deadline = time.monotonic() + 60
        while not wanted <= {name for name, state in nodes.links(number).items() if state == "up"}:
            assert time.monotonic() < deadline, f"node {number}: {nodes.links(number)}\n{nodes.output(number)}"
            time.sleep(0.2)


def _collect(publishers: list[Publisher], receivers: list[Receiver], outcome: Outcome) -> None:
    """Waits for everything that was acknowledged, and notes what is missing or there twice."""
    due = {(one.topic, number) for one in publishers for number in one.acknowledged}
    deadline = time.monotonic() + HEAL_S
    while any(due - receiver.received.keys() for receiver in receivers) and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(2.0)
    outcome.acknowledged = len(due)
    outcome.unanswered = sum(one.unanswered for one in publishers)
    for one in publishers:
        outcome.codes += one.codes
    for receiver in receivers:
        outcome.disconnects += receiver.lost
        outcome.moves += receiver.moves
        outcome.new_sessions += receiver.new_sessions
        if lost := due - receiver.received.keys():
            outcome.missing[receiver.name_] = len(lost)
            print(f"{receiver.name_}, {receiver.new_sessions} new sessions: missing {_ranges(lost, due)}", flush=True)
            found = (at for one in publishers for number, at in one.acknowledged.items() if (one.topic, number) in lost)
            print(_chronicle(receiver, [*found], outcome.history), flush=True)
        twice = [one for one, times in receiver.received.copy().items() if times > 1 and one[0].startswith("t/2/")]
        if twice and not receiver.new_sessions:
            outcome.twice[receiver.name_] = len(twice)
            print(f"{receiver.name_}: twice {sorted(twice)[:10]}", flush=True)


def _chronicle(receiver: Receiver, lost: list[float], history: list[tuple[float, str]]) -> str:
    """Returns what happened around the times at which lost messages were acknowledged, in seconds from the first event."""
    events = sorted([*history, *receiver.connects])
    start = events[0][0] if events else 0.0
    near = [event for event in events if any(-BEFORE_S < event[0] - time_ < AFTER_S for time_ in lost)]
    shown = sorted([*near, *((time_, "LOST: acknowledged") for time_ in lost)])
    return "\n".join(f"{time_ - start:10.3f} {text}" for time_, text in shown[:EVENTS_SHOWN])


def _ranges(some: set[tuple[str, int]], all_: set[tuple[str, int]]) -> str:
    """Returns messages as ranges of those that are due. One up to the end may be on its way still, others were lost."""
    found: list[tuple[str, int, int, bool]] = []
    is_open = False
    for topic, number in sorted(all_):
        is_one = (topic, number) in some
        if is_one and is_open and found[-1][0] == topic:
            found[-1] = topic, found[-1][1], number, True
        elif is_one:
            found.append((topic, number, number, True))
        elif is_open and found[-1][0] == topic:
            found[-1] = *found[-1][:3], False
        is_open = is_one
    return ", ".join(f"{topic} {first} to {last}{' (the end)' if is_end else ''}" for topic, first, last, is_end in found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.real.torture", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--kills", type=int, default=200, help="0: without end, see --seconds")
    parser.add_argument("--seconds", type=float, default=0.0, help="end after so long, whatever has been killed")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--level", choices=("process", "machine"), default="process", help="durability.level")
    parser.add_argument("--kind", default=",".join(KINDS), help=f"of %(default)s, {', '.join(MOVES)}")
    parser.add_argument("--interrupted", type=float, default=INTERRUPTED, help="share of moves with a kill in the middle")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="new directory for data and logs of the nodes after a loss")
    given = parser.parse_args()
    kinds = given.kind.split(",")
    if not {*kinds} <= {*KINDS, *MOVES}:
        parser.error(f"--kind: must be of {', '.join((*KINDS, *MOVES))}, got {given.kind}")
    if reason := why_not():
        parser.error(reason)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the nodes end with us
    print(f"seed {given.seed}", flush=True)
    outcome = run(
        given.seed, given.kills, given.seconds, given.nodes, given.workers, given.level, kinds, given.keep, given.interrupted
    )  # fmt: skip
    print(outcome, flush=True)
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
