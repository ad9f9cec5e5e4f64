"""A first figure for speed: broker CPU per million delivered messages, beside mosquitto, in one run.

    python -m perf.first_figure [--rounds 3] [--messages 200000]

Both brokers run in turn on core 0 with one worker, this program on core 1. Publishers send packets made beforehand in large writes,
bounded by a window of messages on their way; subscribers count bytes (QoS 0) or acknowledge by packet id (QoS 1). So this program
measures the broker's cost, not its own. The load tool proper is an issue of its own.
"""

import argparse
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

PAYLOAD = b"x" * 64
PAIRS = 5
BATCH = {0: 100, 1: 50}
"""Messages that a publisher sends at a time, by QoS."""
WINDOW = {0: 400, 1: 100}
"""Messages of a publisher on their way at most; with five pairs 2,000 at QoS 0."""
TIME_LIMIT_S = 60.0


def _connect(port: int, name: str) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    body = b"\0\4MQTT\4\2\0\0" + len(name).to_bytes(2, "big") + name.encode()
    client.sendall(bytes((0x10, len(body))) + body)
    if client.recv(4) != b"\x20\2\0\0":
        raise RuntimeError(f"{name}: the broker on port {port} refused the connection")
    return client


def _subscribe(client: socket.socket, topic: bytes, qos: int) -> None:
    body = b"\0\1" + len(topic).to_bytes(2, "big") + topic + bytes((qos,))
    client.sendall(bytes((0x82, len(body))) + body)
    client.recv(5, socket.MSG_WAITALL)


def _packet(topic: bytes, qos: int, packet_id: int) -> bytes:
    body = len(topic).to_bytes(2, "big") + topic + (packet_id.to_bytes(2, "big") if qos else b"") + PAYLOAD
    return bytes((0x30 | qos << 1, len(body))) + body


class _Pair:
    """A publisher and its subscriber."""

    def __init__(self, port: int, number: int, qos: int, total: int) -> None:
        topic = b"bench/%d" % number
        self.qos, self.total = qos, total
        self.subscriber = _connect(port, f"sub{number}")
        _subscribe(self.subscriber, topic, qos)
        self.publisher = _connect(port, f"pub{number}")
        self.subscriber.setblocking(False)
        self.publisher.setblocking(False)
        self.size = len(_packet(topic, qos, 1))
        batch = BATCH[qos]
        self.batches = [
            b"".join(_packet(topic, qos, first + i + 1) for i in range(batch)) for first in range(0, 10 * batch, batch)
        ]
        self.sent = self.received = self.batch_number = 0
        self.rest = self.unsent = b""

    def pump(self) -> None:
        while not self.unsent and self.sent < self.total and self.sent - self.received + BATCH[self.qos] <= WINDOW[self.qos]:
            self.unsent = self.batches[self.batch_number % 10]
            self.batch_number += 1
            self.sent += BATCH[self.qos]
            self._send()
        if self.unsent:
            self._send()

    def _send(self) -> None:
        try:
            done = self.publisher.send(self.unsent)
        except BlockingIOError:
            return
        self.unsent = self.unsent[done:]

    def read_publisher(self) -> None:
        self.publisher.recv(1 << 18)

    def read_subscriber(self) -> None:
        data = self.rest + self.subscriber.recv(1 << 18)
        whole = len(data) // self.size
        self.received += whole
        self.rest = data[whole * self.size :]
        if self.qos and whole:
            at = self.size - len(PAYLOAD) - 2
            acks = b"".join(b"\x40\2" + data[i + at : i + at + 2] for i in range(0, whole * self.size, self.size))
            self.subscriber.setblocking(True)
            self.subscriber.sendall(acks)
            self.subscriber.setblocking(False)


def _run(port: int, qos: int, messages: int) -> None:
    pairs = [_Pair(port, number, qos, messages // PAIRS) for number in range(PAIRS)]
    with selectors.DefaultSelector() as selector:
        for pair in pairs:
            selector.register(pair.subscriber, selectors.EVENT_READ, pair.read_subscriber)
            selector.register(pair.publisher, selectors.EVENT_READ, pair.read_publisher)
        deadline = time.monotonic() + TIME_LIMIT_S
        while any(pair.received < pair.total for pair in pairs):
            for pair in pairs:
                pair.pump()
            for key, _ in selector.select(0.01):
                key.data()
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {sum(pair.received for pair in pairs)} of {messages} came in {TIME_LIMIT_S} s")
    for pair in pairs:
        pair.publisher.close()
        pair.subscriber.close()


def _cpu_s(process: psutil.Process) -> float:
    return sum(
        sum(one.cpu_times()[:2]) for one in [process, *process.children(recursive=True)]
    )


@contextmanager
def _broker(command: list[str], port: int) -> Iterator[psutil.Process]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=_on_core_0)
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        time.sleep(1)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


def _on_core_0() -> None:
    os.sched_setaffinity(0, {0})


def main() -> None:
    """Prints a row per QoS: CPU seconds per million of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=200_000)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {1} if (os.cpu_count() or 1) > 1 else {0})
    with tempfile.TemporaryDirectory() as folder:
        conf = Path(folder, "mosquitto.conf")
        conf.write_text(
            "listener 18901 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\npersistence false\n"
            "max_inflight_messages 0\nmax_queued_messages 0\nlog_type none\n"
        )
        brokers = {
            "mosquitto": (["mosquitto", "-c", str(conf)], 18901),
            "shardbroker": (
                [str(Path(sys.executable).with_name("shardbroker")), "serve", "--listen", "tcp://127.0.0.1:18902", "--workers", "1",
                 "--acceptors", "1", "--data-dir", str(Path(folder, "data")), "--set", "mqtt.max_inflight=1000"],
                18902,
            ),
        }
        print(f"{PAIRS} -> {PAIRS}, {len(PAYLOAD)} bytes, CPU seconds per million delivered, median of {arguments.rounds} rounds")
        for qos in (0, 1):
            results: dict[str, list[float]] = {name: [] for name in brokers}
            for _ in range(arguments.rounds):
                for name, (command, port) in brokers.items():
                    with _broker(command, port) as process:
                        before = _cpu_s(process)
                        _run(port, qos, arguments.messages)
                        results[name].append((_cpu_s(process) - before) / arguments.messages * 1e6)
            ours, theirs = statistics.median(results["shardbroker"]), statistics.median(results["mosquitto"])
            print(f"QoS {qos}: mosquitto {theirs:.2f}, shardbroker {ours:.3f}, ratio {theirs / ours:.1f}", flush=True)


if __name__ == "__main__":
    main()
