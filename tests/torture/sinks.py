"""Kills under load of what lies between a publisher and a row: `python -m tests.torture.sinks --type pgsql --once --seed 1`.

Two publishers at QoS 1; processes flows, workers, the broker and the server of the action are killed, the server is also stopped by
SIGSTOP for a while. Each acknowledged message has to be a row: once with --once, at least once otherwise.
"""

import argparse
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.flows.kills import MESSAGES_MAX, WORKERS, publish
from tests.flows.sinks.broker import SinksBroker
from tests.flows.sinks.kinds import KINDS, ROWS, Sink
from tests.harness import until
from tests.harness.waiting import stopped

PAUSE_S = 0.7
"""Mean time between two kills."""
STOPPED_S = (1.0, 5.0)
"""How long the server is killed or stopped, at least and at most."""
SPANS_MAX = 20
"""Of missing rows, that are printed."""
QUIET_S = 30.0
"""Without a new row for so long, none comes any more."""
ONCE = ("kafka", "mysql", "pgsql", "pulsar", "timescale")
"""Types with exactly_once."""
FLUSH_S = 0.5
"""For a stand-in to store what it has answered."""


def harm(broker: SinksBroker, sink: Sink, victims: list[str]) -> None:
    """Kills and stops in turn."""
    for victim in victims:
        time.sleep(PAUSE_S * (0.5 + random.random()))
        if victim == "broker":
            broker.kill()
            broker.start()
        elif victim == "server":
            kill_server(broker, sink)
            time.sleep(random.uniform(*STOPPED_S))
            sink.start()
        elif victim == "pause":
            sink.pause()
            time.sleep(random.uniform(*STOPPED_S))
            sink.resume()
        else:
            until(lambda victim=victim: broker.child_pids(victim))  # type: ignore[misc]
            broker.kill_process(random.choice(broker.child_pids(victim)))


def kill_server(broker: SinksBroker, sink: Sink) -> None:
    """Kills the server; for a stand-in that loses rows then, nothing is written while it is looked at and killed."""
    with ExitStack() as stack:
        if sink.forgets:
            for pid in broker.child_pids("flows-0"):
                stack.enter_context(stopped(pid))
            time.sleep(FLUSH_S)
        sink.kill()


def settled(sink: Sink, expected: set[tuple[int, int]]) -> Counter[tuple[int, int]]:
    """Returns how often each row is there, once none is missing or nothing has come for a while."""
    rows, quiet_s = Counter(sink.rows()), time.monotonic()
    while expected - rows.keys() and time.monotonic() - quiet_s < QUIET_S:
        time.sleep(1.0)
        now = Counter(sink.rows())
        if len(now) != len(rows):
            quiet_s = time.monotonic()
        rows = now
    return rows


def spans(found: set[tuple[int, int]]) -> str:
    """Returns the first spans of rows, as `publisher: first-last`: what was under way together is lost together."""
    shown: list[list[int]] = []
    for publisher, number in sorted(found):
        if shown and shown[-1][0] == publisher and shown[-1][2] == number - 1:
            shown[-1][2] = number
        else:
            shown.append([publisher, number, number])
    return ", ".join([f"{publisher}: {first}-{last}" for publisher, first, last in shown[:SPANS_MAX]])


def run(kind: str, once: bool, victims: list[str], rate: float, place: Path) -> bool:
    """Returns whether all is as it has to be."""
    data_dir = place / "data"
    acknowledged = [multiprocessing.RawArray("B", MESSAGES_MAX) for _ in range(WORKERS)]
    stop = multiprocessing.RawValue("L", 0)
    options = {"batch_size": 500, "buffer_records": 5000, "health_check_interval": "1s"}
    with KINDS[kind].serve(place) as sink:
        # Without a key where a repeat is to be seen.
        parameters = {**(sink.once or sink.parameters), **({"exactly_once": True} if once else {})}
        action = {"connector": "main", "parameters": parameters, "resource_opts": options}
        sections = {
            f"connectors.{kind}.main": {**sink.connector, "timeout": "2s"} if "timeout" in sink.connector else sink.connector,
            f"actions.{kind}.rows": action,
            "rules.all": {"sql": ROWS.replace("{topic}", "in/a"), "actions": [f"{kind}:rows"]},
        }
        with_server = [one for one in victims if sink.server is not None or one not in ("server", "pause")]
        with SinksBroker(WORKERS, data_dir, sections, {"log.level": "warning"}) as broker:
            start = multiprocessing.get_context("fork").Process
            publishers = [
                start(target=publish, args=(broker.address, worker, rate / WORKERS, acknowledged[worker], stop))
                for worker in range(WORKERS)
            ]
            for process in publishers:
                process.start()
            try:
                harm(broker, sink, with_server)
            finally:
                stop.value = 1
                for process in publishers:
                    process.join(30)
                    process.kill()
            expected = {(worker, n) for worker in range(WORKERS) for n, flag in enumerate(bytes(acknowledged[worker])) if flag}
            rows = settled(sink, expected)
            if lost := expected - rows.keys():
                print(f"missing {spans(lost)}; {broker.action(f'{kind}:rows')}")
    missing, doubled = len(expected - rows.keys()), sum(rows.values()) - len(rows)
    kinds = ", ".join(f"{with_server.count(one)} of {one}" for one in sorted(set(with_server)))
    print(f"{kind}{' once' if once else ''}: {kinds}; {len(expected)} acknowledged, {missing} missing, {doubled} repeated")
    return not missing and bool(expected) and not (once and doubled)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.sinks", description=__doc__.partition("\n")[0])
    parser.add_argument("--type", choices=tuple(KINDS), default="pgsql")
    parser.add_argument("--once", action="store_true", help="with exactly_once")
    parser.add_argument("--seed", type=int, default=1)
    for name, number in (("flows", 10), ("workers", 10), ("brokers", 3), ("servers", 5), ("pauses", 5)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--rate", type=float, default=4000, help="messages a second")
    given = parser.parse_args()
    if given.once and given.type not in ONCE:
        parser.error(f"--once: must be with {', '.join(ONCE)}")
    random.seed(given.seed)
    victims = ["flows-0"] * given.flows + ["worker"] * given.workers + ["broker"] * given.brokers
    victims += ["server"] * given.servers + ["pause"] * given.pauses
    random.shuffle(victims)
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        return 0 if run(given.type, given.once, victims, given.rate, Path(name)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
