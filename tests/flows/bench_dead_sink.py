"""Latency of clients that have nothing to do with a sink, while its server works and while it does not.

    python -m tests.flows.bench_dead_sink [--type pgsql] [--rounds 20] [--buffer 10000]

One broker with two workers. A client of the one publishes 2,000 messages a second for rows; the round trip of a ping-pong on
another topic is measured at the other. The server works, is stopped by SIGSTOP, works, refuses connections, in turn, in slices of
one run. Before each slice the rows that wait are written, or the server has been away for a while. Ratios are to the slices with a
server; those of its two kinds show what is chance. --buffer: rows in memory; with few of them the action has left the live stream
without a server.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

from tests.flows.bench_replay import cpu_s, p99, ping_pong
from tests.flows.kills import MESSAGES_MAX, WORKERS, publish
from tests.flows.sinks.broker import SinksBroker
from tests.flows.sinks.kinds import KINDS, ROWS, Sink
from tests.harness import Client, client_id_on, until

SLICE_S, SETTLE_S = 1.0, 0.3
AWAY_S = 2.0
"""From the loss of the server to the slice: longer than a request waits for its answer."""
WORKS, STOPPED, AGAIN, REFUSES = "works", "is stopped", "works again", "refuses"
TURNS = (WORKS, STOPPED, AGAIN, REFUSES)


def lose(sink: Sink, state: str) -> None:
    """Stops the server, or ends it."""
    if state == STOPPED:
        sink.pause()
    elif state == REFUSES:
        sink.kill()


def restore(sink: Sink, state: str) -> None:
    if state == STOPPED:
        sink.resume()
    elif state == REFUSES:
        sink.start()


def slices(broker: SinksBroker, sink: Sink, id: str, rounds: int) -> None:
    found: dict[str, list[float]] = {state: [] for state in TURNS}
    of_rounds: dict[str, list[float]] = {state: [] for state in TURNS}
    used_s = dict.fromkeys(TURNS, 0.0)
    with Client(broker.address, 4, client_id_on(1, WORKERS, "pong"), timeout=60) as client:
        client.subscribe("live/a", 0)
        for number in range(rounds * len(TURNS)):
            state = TURNS[number % len(TURNS)]
            lose(sink, state)
            if state in (WORKS, AGAIN):
                until(lambda: broker.action(id).get("lag_seconds", 1) < 0.5, lambda: str(broker.action(id)), 60)
            else:
                time.sleep(AWAY_S)
            client.ping()
            time.sleep(SETTLE_S)
            before_s = cpu_s(broker, "flows")
            values = ping_pong(client, SLICE_S)
            used_s[state] += cpu_s(broker, "flows") - before_s
            found[state] += values
            of_rounds[state].append(p99(values))
            restore(sink, state)
    base = p99(found[WORKS] + found[AGAIN]), statistics.median(of_rounds[WORKS] + of_rounds[AGAIN])
    for state in TURNS:
        values, cpu = found[state], used_s[state] / (rounds * SLICE_S)
        ratio, middle = p99(values) / base[0], statistics.median(of_rounds[state]) / base[1]
        print(
            f"server {state}: {len(values)} round trips, p50 {statistics.median(values):.0f} us, p99 {p99(values):.0f} us,"
            f" ratio {ratio:.2f}, of the medians of slices {middle:.2f}; flows {cpu * 100:.1f} % of a core",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.flows.bench_dead_sink", description=__doc__.partition("\n")[0])
    parser.add_argument("--type", choices=tuple(KINDS), default="pgsql")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rate", type=float, default=2000, help="messages a second for rows")
    parser.add_argument("--buffer", type=int, default=10_000, help="buffer_records of the action")
    given = parser.parse_args()
    id = f"{given.type}:rows"
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, KINDS[given.type].serve(Path(name)) as sink:
        opts = {"buffer_records": given.buffer, "health_check_interval": "1s"}
        sections = {
            f"connectors.{given.type}.main": sink.connector,
            f"actions.{given.type}.rows": {"connector": "main", "parameters": sink.parameters, "resource_opts": opts},
            "rules.all": {"sql": ROWS.replace("{topic}", "in/a"), "actions": [id]},
        }
        with SinksBroker(WORKERS, Path(name) / "data", sections, {"flows.processes": 1}) as broker:
            acknowledged, stop = multiprocessing.RawArray("B", MESSAGES_MAX), multiprocessing.RawValue("L", 0)
            arguments = (broker.address, 0, given.rate, acknowledged, stop)
            publisher = multiprocessing.get_context("fork").Process(target=publish, args=arguments)
            publisher.start()
            try:
                until(lambda: broker.action(id).get("success", 0) > given.rate, lambda: str(broker.action(id)), 60)
                slices(broker, sink, id, given.rounds)
            finally:
                stop.value = 1
                publisher.join(30)
                publisher.kill()


if __name__ == "__main__":
    main()
