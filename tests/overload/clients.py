"""Clients in processes of their own: one that measures round trips, and many that flood.

The flooding ones run at the lowest priority. On a machine with few cores they share them with the broker, and would otherwise
measure the scheduler and not the broker.
"""

import contextlib
import multiprocessing
import os
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from types import TracebackType

from tests.harness import wire
from tests.harness.client import Address, Client

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["tests.overload.clients"])
INTERVAL_S = 0.002
"""Between two round trips."""
LOST_S = 5.0
"""A round trip that takes longer counts as so long."""
START_S = 30.0
UNREAD_BYTES = 16384
"""Receive buffer of clients that do not read: the kernel takes less off the broker."""
END_S = 30.0


@dataclass(frozen=True)
class RoundTrips:
    """Latencies of one measuring client, seconds."""

    count: int
    p50: float
    p99: float
    longest: float
    work_p99: float
    """CPU time of the workers on the way during 99 of 100 of them: what a busy machine adds to a latency does not count."""

    @classmethod
    def of(cls, trips: list[tuple[float, float]]) -> "RoundTrips":
        """`trips`: latency and CPU time of each."""
        ordered = sorted(latency for latency, _ in trips) or [LOST_S]
        work = sorted(cpu_s for _, cpu_s in trips) or [LOST_S]
        most = int(len(ordered) * 0.99)
        return cls(len(trips), ordered[len(ordered) // 2], ordered[most], ordered[-1], work[most])

    def __str__(self) -> str:
        figures = f"p50 {self.p50 * 1e3:.2f} p99 {self.p99 * 1e3:.1f} max {self.longest * 1e3:.0f} ms"
        return f"{figures}, p99 of the workers' CPU time {self.work_p99 * 1e3:.1f} ms (n={self.count})"


def cpu_s(pids: Sequence[int]) -> float:
    """CPU seconds that these processes have taken so far, to the nanosecond."""
    # The clock id of a process, as clock_getcpuclockid(3) makes it.
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


class Background:
    """A function in a process of its own, from `with` to its end: run(stop, pipe, *arguments) says once when it is ready."""

    def __init__(self, *arguments: object) -> None:
        self._stop = FORKED.Event()
        self._ours, theirs = FORKED.Pipe()
        self._process = FORKED.Process(target=self.run, args=(self._stop, theirs, *arguments), daemon=True)
        self.result: object = None

    @staticmethod
    def run(stop: Event, pipe: Connection, *arguments: object) -> None:
        raise NotImplementedError

    def __enter__(self) -> "Background":
        self._process.start()
        assert self._ours.poll(START_S), f"{type(self).__name__} is not ready"
        self._ours.recv()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._ours.poll(END_S):
            with contextlib.suppress(EOFError):
                self.result = self._ours.recv()
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    @property
    def done(self) -> bool:
        """Whether it has ended by itself."""
        return self._ours.poll()


class Pinger(Background):
    """Round trips of QoS 0 messages from one client to another; `workers` are the pids of their workers.

    `result` is a list of latencies with the CPU time of these workers, which is LOST_S where nothing arrived.
    """

    def __init__(self, address: Address, publisher_id: str, subscriber_id: str, workers: set[int]) -> None:
        super().__init__(address, publisher_id, subscriber_id, sorted(workers))

    @staticmethod
    def run(stop: Event, pipe: Connection, *arguments: object) -> None:
        address, publisher_id, subscriber_id, workers = arguments
        assert isinstance(address, tuple) and isinstance(workers, list)
        trips: list[tuple[float, float]] = []
        topic = f"ping/{subscriber_id}"
        frame = wire.publish(topic, b"x" * 16, version=4)
        with (
            Client(address, 4, str(subscriber_id), timeout=20) as subscriber,
            Client(address, 4, str(publisher_id), timeout=20) as publisher,
        ):
            subscriber.subscribe(topic, 0)
            pipe.send("ready")
            subscriber.socket.settimeout(LOST_S)
            while not stop.is_set():
                started, used_s = time.perf_counter(), cpu_s(workers)
                publisher.socket.sendall(frame)
                got = 0
                try:
                    while got < len(frame):
                        data = subscriber.socket.recv(len(frame) - got)
                        if not data:
                            raise ConnectionError("the broker has closed a measuring client's connection")
                        got += len(data)
                except TimeoutError:
                    got = 0
                took_s = time.perf_counter() - started
                trips.append((took_s, cpu_s(workers) - used_s if got else LOST_S))
                time.sleep(INTERVAL_S)
            pipe.send(trips)

    @property
    def trips(self) -> RoundTrips:
        assert isinstance(self.result, list), "the measuring client ended early"
        return RoundTrips.of(self.result)


class Flood(Background):
    """Clients that write a block of packets again and again as fast as they are let; `result`: blocks written.

    `blocks` limits how many each client writes; `rate` is blocks a second of all clients together. With `read` the answers are
    taken and thrown away, without it they pile up. With `answers` a client is done when it has so many bytes of them.
    """

    def __init__(
        self,
        address: Address,
        client_ids: Sequence[str],
        blocks: Sequence[bytes],
        *,
        limit: int = 0,
        rate: float = 0,
        read: bool = True,
        answers: int = 0,
    ) -> None:
        super().__init__(address, list(client_ids), list(blocks), limit, rate, read, answers)

    @staticmethod
    def run(stop: Event, pipe: Connection, *arguments: object) -> None:
        address, client_ids, blocks, limit, rate, read, answers = arguments
        assert isinstance(address, tuple) and isinstance(client_ids, list) and isinstance(blocks, list)
        assert isinstance(limit, int) and isinstance(rate, int | float) and isinstance(answers, int)
        os.nice(19)
        selector = selectors.DefaultSelector()
        clients = [Client(address, 4, one, keepalive=0, timeout=20) for one in client_ids]
        writers: dict[socket.socket, _Writer] = {}
        for number, client in enumerate(clients):
            client.socket.setblocking(False)
            if not read:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UNREAD_BYTES)
            writers[client.socket] = _Writer(client.socket, blocks[number % len(blocks)], limit, answers)
            selector.register(client.socket, selectors.EVENT_WRITE | (selectors.EVENT_READ if read else 0))
        pipe.send("ready")
        started = time.monotonic()
        while not stop.is_set() and not all(writer.done for writer in writers.values()):
            allowed = (time.monotonic() - started) * rate if rate else float("inf")
            for key, events in selector.select(0.05):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                writer = writers[one]
                try:
                    if events & selectors.EVENT_READ:
                        writer.read()
                    if (
                        events & selectors.EVENT_WRITE
                        and not writer.all_written
                        and sum(w.written for w in writers.values()) < allowed
                    ):
                        writer.write()
                except BlockingIOError:
                    pass
                except ConnectionError:
                    writer.done = True
                if writer.done:
                    selector.unregister(one)
                elif writer.all_written:
                    selector.modify(one, selectors.EVENT_READ)
            if rate:
                time.sleep(0.001)
        pipe.send(sum(writer.written for writer in writers.values()))
        for client in clients:
            client.close()


class _Writer:
    def __init__(self, target: socket.socket, block: bytes, limit: int, answers: int) -> None:
        self._socket = target
        self._block = memoryview(block)
        self._at = 0
        self._limit = limit
        self._answers = answers
        self.written = 0
        self.done = False
        self.all_written = False

    def write(self) -> None:
        self._at += self._socket.send(self._block[self._at :])
        if self._at == len(self._block):
            self._at = 0
            self.written += 1
            self.all_written = 0 < self._limit <= self.written
            self.done = self.all_written and not self._answers

    def read(self) -> None:
        size = len(self._socket.recv(1 << 18))
        if not size:
            raise ConnectionError("closed by the broker")
        if self._answers:
            self._answers -= min(size, self._answers)
            self.done = self.all_written and not self._answers
