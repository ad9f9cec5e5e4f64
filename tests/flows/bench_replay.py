"""Figures of replays: messages a second and CPU of the processes, and the latency of other clients beside a replay.

    python -m tests.flows.bench_replay [--messages 1000000] [--rounds 5]

One broker with two workers. QoS 0 to a subscriber that only counts bytes; then the round trip of a ping-pong on another topic, in
turn without and beside a replay, in slices of one run.
"""

import argparse
import os
import statistics
import tempfile
import time
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

import psutil

from tests.harness import Broker, Client, Publish, client_id_on, wire

TOPIC, PAYLOAD = "log/site/17", b"x" * 64
WORKERS, BATCH = 2, 1000
SLICE_S, SETTLE_S, SLICES = 0.5, 0.1, 8
"""Of a measurement, before it, and how many make a round."""
END_S = 0.05
"""Without a message for so long, a replay has reached the present."""
PAUSE_S = 0.0005
"""Between two round trips."""


def fill(broker: Broker, messages: int) -> None:
    """Publishes at QoS 0, as fast as the broker takes it."""
    batch = b"".join(wire.publish(TOPIC, PAYLOAD, version=4) for _ in range(BATCH))
    for worker in range(WORKERS):
        with Client(broker.address, 4, client_id_on(worker, WORKERS, "fill"), timeout=60) as client:
            for _ in range(messages // WORKERS // BATCH):
                client.socket.sendall(batch)
            client.ping()


def cpu_s(broker: Broker, title: str) -> float:
    found = 0.0
    for pid in broker.child_pids(title):
        times = psutil.Process(pid).cpu_times()
        found += times.user + times.system
    return found


def drain(client: Client, size: int) -> int:
    """Reads so many bytes, or until nothing comes; returns how many were read."""
    read = 0
    buffer = bytearray(1 << 18)
    client.socket.settimeout(1.0)
    while read < size:
        try:
            read += client.socket.recv_into(buffer)
        except TimeoutError:
            if read:
                break
    return read


def throughput(broker: Broker, messages: int) -> None:
    size = len(wire.publish(TOPIC, PAYLOAD, version=4)) * messages
    with Client(broker.address, 4, client_id_on(0, WORKERS, "fast"), timeout=60) as client:
        before = cpu_s(broker, "flows"), cpu_s(broker, "worker-0")
        begin_s = time.monotonic()
        client.subscribe("$replay/1h/log/#", 0)
        read = drain(client, size - 100 * BATCH)
        took_s = time.monotonic() - begin_s
        flows_s, worker_s = cpu_s(broker, "flows") - before[0], cpu_s(broker, "worker-0") - before[1]
    count = read * messages / size
    each = f"flows {flows_s / count * 1e6:.2f} us, worker {worker_s / count * 1e6:.2f} us"
    print(f"replay: {count / took_s:,.0f} messages/s; CPU a message: {each}")


def ping_pong(client: Client, seconds: float) -> list[float]:
    """Returns the times of round trips on a topic of its own, µs."""
    found = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        begin_s = time.perf_counter()
        client.publish("live/a", b"x", 0)
        client.expect(Publish)
        found.append((time.perf_counter() - begin_s) * 1e6)
        time.sleep(PAUSE_S)
    return found


def replay_of_a_process(host: str, port: int, go: Event, stop: Event) -> None:
    """Has replays run in turn while `go` is set; a process, as a thread would wait for the interpreter that measures.

    It stands for another machine, so it runs only where no other process wants the core.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    buffer = bytearray(1 << 18)
    while not stop.is_set():
        if not go.wait(0.1):
            continue
        with Client((host, port), 4, client_id_on(0, WORKERS, "beside"), timeout=60) as client, suppress(TimeoutError):
            client.subscribe("$replay/1h/log/#", 0)
            client.socket.settimeout(END_S)
            while go.is_set():
                client.socket.recv_into(buffer)


def beside(broker: Broker, rounds: int, rate: int) -> None:
    """Compares slices in turn: neighbours of the machine disturb both alike.

    The client stands for another machine as well. It has the core of its worker, before others if this is run by root: it would
    else run on the other core in some slices, which takes 20 us to wake in a virtual machine.
    """
    found: dict[bool, list[float]] = {False: [], True: []}
    context, cores = get_context("spawn"), os.sched_getaffinity(0)
    go, stop = context.Event(), context.Event()
    replaying = context.Process(target=replay_of_a_process, args=(*broker.address, go, stop), daemon=True)
    replaying.start()
    try:
        with Client(broker.address, 4, client_id_on(1, WORKERS, "pong"), timeout=60) as client:
            client.subscribe("live/a", 0)
            os.sched_setaffinity(0, os.sched_getaffinity(broker.child_pids("worker-1")[0]))
            with suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, -10)
            for number in range(2 * rounds * SLICES):
                replays = number % 2 == 1
                (go.set if replays else go.clear)()
                time.sleep(SETTLE_S)
                found[replays] += ping_pong(client, SLICE_S)
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        os.sched_setaffinity(0, cores)
        go.clear()
        stop.set()
        replaying.join()
    alone, both = found[False], found[True]
    shown = (
        f"median {statistics.median(alone):.0f} and {statistics.median(both):.0f} us, p99 {p99(alone):.0f} and {p99(both):.0f} us"
    )
    ratio = p99(both) / p99(alone)
    print(f"round trip alone and beside a replay of {rate or 'any'} messages/s: {shown}, ratio of p99 {ratio:.2f}")


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for rate in (0, 50_000):
        settings = {"journal.capture": ["log/#"], "replay.rate": rate}
        with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, Broker(WORKERS, settings, Path(name)) as broker:
            fill(broker, options.messages)
            if not rate:
                for _ in range(options.rounds):
                    throughput(broker, options.messages)
            beside(broker, options.rounds, rate)


if __name__ == "__main__":
    main()
