"""One run of the crash test: `python -m tests.torture.torture --seed 1 --kills 200 --workers 3 --acceptors 2`.

Publishers send to `t/...` (subscriptions that stay), `m/...` (subscriptions that come and go), `g/...` (shared groups) and `r/...`
(retained messages); wills go to `w/...`. Of `d/...` they are delayed, and `x/...` has exclusive subscriptions.
Kinds `replace` and `upgrade` move workers and the whole broker to new processes, under connections of all transports.
After the last kill all clients come back and stay, what is unacknowledged is acknowledged, a last message goes to every topic, and
when nothing comes any more the checker looks at what came.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness import Broker, client_id_on
from tests.harness.faults import KILLED
from tests.torture.checker import EXCLUSIVE, RESIZE, SHARE, Fault, History, Kind, Seen, check, report, seen
from tests.torture.client import Client, Contender, Network, Publisher, Reader, Subscriber, Testator
from tests.torture.killer import KINDS, POWER, Killer
from tests.torture.mover import MOVES, Mover
from tests.torture.overflows import Witness
from tests.torture.power import Power
from tests.torture.transports import Listening

PUBLISHERS = 6
SUBSCRIBERS = 9
TESTATORS = 6
STEADY = tuple(f"t/{number}" for number in range(6))
MOVING = tuple(f"m/{number}/{leaf}" for number in range(4) for leaf in "ab")
RETAINED = tuple(f"r/{number}" for number in range(12))
STEADY_FILTERS = (("t/0", "t/1"), ("t/+",), ("t/#",), ("t/2", "t/3"), ("t/0", "t/4", "t/5"), ("t/+",))
"""Of the subscribers in turn. Filters of one subscriber do not overlap: whether such a message comes once is up to the broker."""
MOVING_FILTERS = (("m/0/a", "m/1/+"), ("m/+/a", "m/+/b"), ("m/2/#", "m/3/b"), ("m/0/+", "m/1/b", "m/3/#"))
SHARED = tuple(f"g/{number}" for number in range(4))
GROUPS = (("$share/one/g/+", (0, 1, 2, 3, 4), (5,)), ("$share/two/g/#", (6, 7), (8,)))
"""Filter, subscribers that stay members, and those that come and go. Nobody is in two groups."""
WILLS_FILTER = "w/#"
HEIRS = (0, 4)
"""Subscribers that get all wills."""
DELAYED = {f"d/{delay_s}": delay_s for delay_s in (1, 2, 5)}
"""Topics and their delays: those of one topic are due in the order in which they were published."""
DELAYED_FILTER = "d/#"
DELAYED_SUBSCRIBERS = ((2, 2), (6, 1))
"""Their numbers and QoS."""
CONTENDERS = 5
CONTESTED = ("x/0", "x/1", "x/+/y")
"""Filters of exclusive subscriptions."""
CONTESTED_TOPICS = ("x/0", "x/1", "x/a/y", "x/b/y")
CHANGES_PER_S = 4.0
"""Subscriptions that come or go."""
START_TIMEOUT_S = 20.0
HEAL_TIMEOUT_S = 60.0
QUIET_S = 2.0
"""Without anything arriving, until nothing is expected to arrive any more."""


PUSH_BACK = {
    "mqtt.mqueue_overflow": "push_back", "mqtt.push_back_timeout": "5s", "mqtt.max_mqueue_len": 20, "mqtt.max_inflight": 2,
}  # fmt: skip
"""Settings of --push-back: queues get full, and few of them stall, since a lazy subscriber takes 2 messages in 5 s too."""
OWED_NOTHING = ("w/", "d/")
"""Wills and delayed messages: no publisher waits for them, so a full queue drops them."""


@dataclass
class Options:
    seed: int
    kills: int = 200
    seconds: float = 0.0
    """The run ends after so long if the kills are not done before; 0: it does not."""
    workers: int = 3
    acceptors: int = 2
    kinds: tuple[str, ...] = KINDS
    level: str = ""
    """durability.level; empty: the broker's default."""
    rate: float = 400.0
    """Messages a second, of all publishers together."""
    resize: bool = False
    """Another number of workers, with other weights, at each start of the whole broker."""
    small: bool = False
    """Journals that turn over every second."""
    push_back: bool = False
    """Queues are short, and publishers wait for them."""
    exclusive: bool = True
    """Clients that contend for exclusive subscriptions."""
    everywhere: bool = False
    """Connections of all transports, not of TCP alone."""
    log: Path | None = None
    """Where the broker's log is kept."""


@dataclass
class Outcome:
    options: Options
    history: History
    faults: list[Fault] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """Moves are among them."""
        return self.history.done

    @property
    def unseen(self) -> list[Seen]:
        """What did not happen, so that the run shows nothing about it."""
        return [what for what, number in seen(self.history).items() if not number]

    def __str__(self) -> str:
        return f"seed {self.options.seed}: {report(self.history, self.faults)}"


class Run:
    """All clients and their traffic."""

    def __init__(self, options: Options, place: Listening, history: History) -> None:
        self.history = history
        self.network = Network(place, history)
        self._options = options
        self._rng = random.Random(options.seed)
        self._next_publish = self._next_change = 0.0
        seed = options.seed
        self.publishers = [Publisher(self.network, self._name("p", number), 4 + number % 2, seed) for number in range(PUBLISHERS)]
        self.subscribers = [
            Subscriber(self.network, self._name("s", number), 5 - number // 3 % 2, seed) for number in range(SUBSCRIBERS)
        ]
        self.testators = [
            Testator(self.network, self._name("w", number), 5 - number // 3 % 2, seed, f"w/{number}", 1 + number % 2)
            for number in range(TESTATORS)
        ]
        self.contenders = [
            Contender(self.network, self._name("x", number), 5 - number % 2, seed, CONTESTED)
            for number in range(CONTENDERS if options.exclusive else 0)
        ]
        self.readers = [Reader(self.network, f"reader{version}", version, seed, "r/#") for version in (4, 5)]
        self._owners = {topic: self.publishers[number % PUBLISHERS] for number, topic in enumerate(RETAINED)}
        """The only publisher of each retained message, so that there is a last one."""
        self._moves = [
            (subscriber, topic_filter)
            for number, subscriber in enumerate(self.subscribers)
            for topic_filter in MOVING_FILTERS[number % len(MOVING_FILTERS)]
        ]
        self._moves += [(self.subscribers[number], topic_filter) for topic_filter, _, moving in GROUPS for number in moving]

    def _name(self, prefix: str, number: int) -> str:
        """A client id; the workers in turn."""
        workers = self._options.workers
        return client_id_on(number % workers, workers, f"{prefix}{number}x")

    def begin(self) -> None:
        """Connects all, subscribes what stays."""
        for number, subscriber in enumerate(self.subscribers):
            for topic_filter in STEADY_FILTERS[number % len(STEADY_FILTERS)]:
                subscriber.want(topic_filter, 2 if number % 3 else 1)
        for topic_filter, staying, _ in GROUPS:
            for number in staying:
                self.subscribers[number].want(topic_filter, 2)
        for number in HEIRS:
            self.subscribers[number].want(WILLS_FILTER, 2)
        for number, qos in DELAYED_SUBSCRIBERS:
            self.subscribers[number].want(DELAYED_FILTER, qos)
        if not self._step_until(self._settled, START_TIMEOUT_S):
            raise AssertionError(f"clients cannot begin: {self._unsettled()}")
        for client in self._lasting():
            client.restless = True
        self._next_publish = self._next_change = self.network.now()

    def go_on(self) -> None:
        """A step with traffic."""
        self.network.step()
        now = self.network.now()
        while self._next_publish < now:
            self._next_publish += 1 / self._options.rate
            self._publish()
        while self._next_change < now:
            self._next_change += self._rng.expovariate(CHANGES_PER_S)
            subscriber, topic_filter = self._rng.choice(self._moves)
            subscriber.change(topic_filter, self._rng.choice((1, 2) if topic_filter.startswith(SHARE) else (0, 1, 2)))

    def _publish(self) -> None:
        if self._rng.random() < 0.1:
            number = self._rng.randrange(len(RETAINED))
            topic = RETAINED[number]
            # One QoS for a topic: what is sent again of another may come behind a newer message.
            self._owners[topic].publish(topic, 1 + number % 2, retain=True)
        else:
            (topics,) = self._rng.choices((STEADY, MOVING, SHARED, tuple(DELAYED), CONTESTED_TOPICS), (6, 3, 3, 1, 2))
            topic = self._rng.choice(topics)
            # Of QoS 0 it is only said what becomes of it if it comes to one subscriber at once.
            qos = self._rng.choice((0, 1, 2) if topics in (STEADY, MOVING) else (1, 2))
            self._rng.choice(self.publishers).publish(topic, qos, delay_s=DELAYED.get(topic, 0))

    def heal(self) -> None:
        """All come back and stay; what is under way arrives."""
        for client in self.network.clients:
            client.restless = False
        self._settle()
        self._take_all_contested()
        self._publish_last()
        self._settle()
        for testator in self.testators:
            testator.stay()
        rounds = sum(reader.rounds for reader in self.readers)
        self._step_until(lambda: sum(reader.rounds for reader in self.readers) >= rounds + 4, HEAL_TIMEOUT_S)

    def _publish_last(self) -> None:
        """A message of each publisher to each topic; none any more once one cannot be sent."""
        for publisher in self.publishers:
            for topic in STEADY + MOVING + SHARED + tuple(DELAYED) + CONTESTED_TOPICS:
                for qos in (0, 1, 2) if topic in STEADY + MOVING else (1, 2):
                    if not self._step_until(
                        lambda: publisher.publish(topic, qos, delay_s=DELAYED.get(topic, 0)), HEAL_TIMEOUT_S  # noqa: B023
                    ):
                        self.history.fault(Kind.STUCK, publisher.name, f"no acknowledgement for {HEAL_TIMEOUT_S:g} s")
                        return

    def _take_all_contested(self) -> None:
        """An exclusive subscription that no client has is free."""
        for topic_filter in CONTESTED:
            if self.contenders and not any(contender.has(topic_filter) for contender in self.contenders):
                contender = self._rng.choice(self.contenders)
                contender.want(EXCLUSIVE + topic_filter, 2)
                self._step_until(contender.idle, HEAL_TIMEOUT_S)
                if not contender.has(topic_filter):
                    self.history.fault(Kind.HOLDERS, contender.name, f"{topic_filter} is refused, though no client has it")

    def _lasting(self) -> list[Client]:
        """Clients whose sessions stay."""
        return [*self.publishers, *self.subscribers, *self.testators, *self.contenders]

    def _settle(self) -> None:
        if not self._step_until(self._settled, HEAL_TIMEOUT_S):
            for text in self._unsettled():
                self.history.fault(Kind.STUCK, text, f"not at peace {HEAL_TIMEOUT_S:g} s after the last kill")

    def _step_until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline:
                return False
            self.network.step()
        return True

    def _unsettled(self) -> list[str]:
        return [client.name for client in self._lasting() if not client.connected or not client.idle()]

    def _settled(self) -> bool:
        """Nobody waits for anything, and nothing has come for a while."""
        newest = max((arrivals.at_s[-1] for arrivals in self.history.arrivals.values() if arrivals.at_s), default=0.0)
        newest = max(newest, max(self.history.due_s.values(), default=0.0))
        return self.network.now() - newest > QUIET_S and not self._unsettled()


def run(options: Options) -> Outcome:
    """Runs to the end, and says all that was wrong."""
    start = time.monotonic()
    history = History(lambda: time.monotonic() - start, 0 if options.resize or RESIZE in options.kinds else options.workers)
    settings: dict[str, object] = {
        "process.acceptors": options.acceptors, "mqtt.max_mqueue_len": 0, "mqtt.exclusive_subscription": "true"
    }  # fmt: skip
    if options.small:
        settings |= {"journal.retention.bytes": 1 << 20, "journal.segment_bytes": 1 << 16, "journal.cycle_bytes": 1 << 17}
    if options.push_back:
        history.owed_nothing = OWED_NOTHING
        settings |= PUSH_BACK
    if options.level:
        settings["durability.level"] = options.level
    with _data_dir() as data_dir:
        for name in ("data", "code", "certificates"):
            (data_dir / name).mkdir()
        place = Listening.everywhere(data_dir / "certificates") if options.everywhere else Listening.plain()
        port = place.addresses["tcp"][1]
        witness = Witness(data_dir) if options.push_back else None
        if witness is not None:
            settings |= witness.settings
        broker = Broker(options.workers, settings | dict(place.settings), data_dir / "data", port, place.arguments)
        broker.expects(KILLED)
        mover = None
        if {*MOVES, RESIZE} & set(options.kinds):
            broker.expects(r'process died process=worker-\d+ .*cause="exit code [01]"')  # the other one of a hand-over cut short
            mover = Mover(broker, history, random.Random(f"{options.seed}/mover"), data_dir / "code")
        power = Power(broker, data_dir) if POWER in options.kinds else None
        try:
            broker.start()
            if witness is not None:
                witness.begin(broker)
            _traffic(options, broker, place, history, power, mover)
            if witness is not None:
                print(witness.counters(broker), flush=True)
            broker.stop()
        except AssertionError as error:
            history.fault(Kind.CRASH, "broker", str(error))
        finally:
            with suppress(AssertionError):
                broker.stop()  # whatever happened: nothing is left running, and nothing in shared memory
        try:
            broker.check()
        except AssertionError as error:
            history.fault(Kind.CRASH, "broker", str(error))
        if options.log is not None:
            options.log.write_text("".join(broker.output))
        if witness is not None:
            print(witness.end(broker.data_dir, history, start), flush=True)
        for path in power.damaged() if power is not None else ():
            history.fault(Kind.CRASH, "broker", f"{path.name}: set aside as damaged")
    return Outcome(options, history, check(history))


def _traffic(
    options: Options, broker: Broker, place: Listening, history: History, power: Power | None, mover: Mover | None
) -> None:
    traffic = Run(options, place, history)
    killer = Killer(broker, history, options.seed, options.kinds, options.kills, options.acceptors, options.resize, power, mover)
    with closing(traffic.network):
        traffic.begin()
        killer.start()
        try:
            end = time.monotonic() + (options.seconds or float("inf"))
            while killer.is_alive():
                traffic.go_on()
                if time.monotonic() > end:
                    killer.stop()
        finally:
            killer.stop()
            killer.join()
        if killer.error is not None:
            raise killer.error
        traffic.heal()


@contextmanager
def _data_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="shardbroker-torture-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.torture", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--kills", type=int, default=200, help="kills and moves; 0: without end, see --seconds")
    parser.add_argument("--seconds", type=float, default=0.0, help="end after so long, whatever has been killed")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--acceptors", type=int, default=2)
    parser.add_argument("--kind", default="", help=f"what is killed, and moves, of {', '.join((*KINDS, *MOVES, RESIZE, POWER))}")
    parser.add_argument("--level", choices=("process", "machine"), default="", help="durability.level")
    parser.add_argument("--rate", type=float, default=400.0, help="messages a second")
    parser.add_argument("--resize", action="store_true", help="other workers and weights at each start of the broker")
    parser.add_argument("--tcp", action="store_true", help="connections of TCP alone, not of all transports")
    parser.add_argument("--log", type=Path, help="file that gets the broker's log in the end")
    parser.add_argument("--push-back", action="store_true", help="queues are short, and publishers wait for them")
    parser.add_argument("--small", action="store_true", help="journals that turn over every second")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the broker ends with us
    kinds = tuple(given.kind.split(",")) if given.kind else KINDS if given.resize else (*KINDS, *MOVES)
    if not set(kinds) <= {*KINDS, *MOVES, RESIZE, POWER}:
        parser.error(f"--kind: {given.kind} is not of {', '.join((*KINDS, *MOVES, RESIZE, POWER))}")
    if {*MOVES, RESIZE} & set(kinds) and given.resize:
        parser.error(f"--kind {', '.join((*MOVES, RESIZE))}: not with --resize")
    if POWER in kinds and given.level != "machine":
        parser.error(f"--kind {POWER} needs --level machine")
    print(f"seed {given.seed}", flush=True)
    outcome = run(
        Options(
            given.seed,
            given.kills,
            given.seconds,
            given.workers,
            given.acceptors,
            kinds,
            given.level,
            given.rate,
            given.resize,
            given.small,
            given.push_back,
            everywhere=not given.tcp,
            log=given.log,
        )
    )
    print(outcome)
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
