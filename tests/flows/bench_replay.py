"""Figures of replays: messages a second and CPU of the processes, and the latency of other clients beside a replay.

    python -m tests.flows.bench_replay [--messages 1000000] [--rounds 5]

One broker with two workers. QoS 0 to a subscriber that only counts bytes; then the round trip of a ping-pong on another topic, in
turn without and beside a replay, in slices of one run.
"""

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

import psutil

from tests.harness import Broker, Client, Publish, client_id_on, wire

TOPIC, PAYLOAD = "log/site/17", b"x" * 64
WORKERS, BATCH = 2, 1000
SLICE_S = 2.0


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


def drain(client: Client, size: int, stop: threading.Event | None = None) -> int:
    """Reads so many bytes, or until told; returns how many were read."""
    read = 0
    buffer = bytearray(1 << 18)
    client.socket.settimeout(1.0)
    while read < size and not (stop is not None and stop.is_set()):
        try:
            read += client.socket.recv_into(buffer)
        except TimeoutError:
            if stop is None and read:
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


def ping_pong(broker: Broker, seconds: float) -> list[float]:
    found = []
    with Client(broker.address, 4, client_id_on(1, WORKERS, "pong")) as client:
        client.subscribe("live/a", 0)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            begin_s = time.perf_counter()
            client.publish("live/a", b"x", 0)
            client.expect(Publish)
            found.append((time.perf_counter() - begin_s) * 1e6)
            time.sleep(0.0005)
    return found


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def beside(broker: Broker, rounds: int, rate: int) -> None:
    ratios = []
    for _ in range(rounds):
        alone = p99(ping_pong(broker, SLICE_S))
        stop = threading.Event()
        with Client(broker.address, 4, client_id_on(0, WORKERS, "beside"), timeout=60) as client:
            client.subscribe("$replay/1h/log/#", 0)
            reader = threading.Thread(target=drain, args=(client, 1 << 60, stop))
            reader.start()
            both = p99(ping_pong(broker, SLICE_S))
            stop.set()
            reader.join()
        ratios.append(both / alone)
        print(f"p99 of a round trip: {alone:.0f} us alone, {both:.0f} us beside a replay of {rate or 'any'} messages/s")
    print(f"median ratio {statistics.median(ratios):.2f}")


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
