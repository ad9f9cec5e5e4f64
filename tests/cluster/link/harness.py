"""Nodes with the rings, routes and files of a broker, whose workers are the test. Only their data processes are real."""

import os
import secrets
import signal
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shardbroker.cluster.handshake import Identity, cluster_uuid
from shardbroker.cluster.inbound import StreamPositions
from shardbroker.cluster.outbound import Level, OutboundSettings
from shardbroker.cluster.view import LinkState
from shardbroker.link.data import DataProcess, Setup
from shardbroker.link.distribution import Distribution
from shardbroker.link.frames import PREFACE_BYTES
from shardbroker.link.lanes import PeerRing
from shm.destinations import worker_destination
from shm.epochs import Epochs
from shm.records import encode_publish
from shm.ring import Inbox
from shm.routes import RouteChange, RouteTable

__all__ = ["Arrived", "Node", "Row", "connect", "pump", "record", "until"]

ARRIVAL = struct.Struct("<IIQQ")
HEADER = struct.Struct("<BBBBIIIIIIIQQQQ")
QOS, SPILLED, KEEP = 3, 16, 9
LANE_BYTES = 1 << 16


class Row(NamedTuple):
    """A row of the view, as shm.view.ViewNode."""

    address: str
    incarnation: int
    is_new: int = 0
    gone: int = 0
    is_member: bool = True
    link: int = LinkState.UP


class Arrived(NamedTuple):
    """A record in the ring of a worker."""

    origin: int
    identity: int
    position: int
    qos: int
    topic: bytes
    payload: bytes


def record(number: int, qos: int = 1, topic: bytes = b"t/1", size: int = 20) -> bytes:
    """Returns a record with a number in its payload."""
    return encode_publish(topic, b"%d " % number + b"x" * size, qos=qos, originate=False)


@dataclass
class Limits:
    level: Level = Level.PROCESS
    workers: int = 2
    peer_bytes: int = LANE_BYTES
    inbox_bytes: int = LANE_BYTES
    spool_bytes: int = 1 << 30
    grace_ms: int = 250
    stall_ms: int = 5_000


class Node:
    """One node; `start` or `process` begins its data process."""

    def __init__(self, directory: Path, node_id: int, limits: Limits | None = None, **changes: Any) -> None:
        self.limits = limits or Limits(**changes)
        self.node_id, self.dir = node_id, directory / f"n{node_id}"
        self.rings, self.spill, self.spool = self.dir / "rings", self.dir / "rings" / "spill", self.dir / "spool"
        self.spill.mkdir(parents=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        # Not accepted before the preface is there.
        self.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        workers = self.limits.workers
        self.bells = tuple(os.eventfd(0, os.EFD_NONBLOCK) for _ in range(workers))
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.inboxes = [
            Inbox.create(str(self.rings / f"inbox-{worker}"), workers + 1, self.limits.inbox_bytes) for worker in range(workers)
        ]
        self.epochs_path = str(self.dir / "epochs")
        self.epochs = Epochs.create(self.epochs_path)
        self.routes = RouteTable(self.dir / "routes")
        self.me = Identity(node_id, f"n{node_id}", self.address, cluster_uuid("test"), secrets.token_bytes(16), node_id)
        self.rows: dict[int, Row] = {}
        self.version = 0
        self.to: dict[int, Inbox] = {}
        self.positions = [StreamPositions() for _ in range(workers)]
        self.left_over: tuple[tuple[int, Path, Path], ...] = ()
        self.tls: tuple[ssl.SSLContext | None, ssl.SSLContext | None] = (None, None)
        self.lines: list[str] = []
        self.pid = 0
        self.driver: DataProcess | None = None
        self.stops = False

    def subscribe(self, filter: bytes, worker: int, group: bytes = b"") -> None:
        self.routes.update([RouteChange(True, filter, worker_destination(worker), group, 1 if group else 0)])
        self.epochs.bump_of(filter)

    def inbox_of(self, peer: int) -> str:
        return str(self.rings / f"peer-{peer}-1")

    def add_peer(self, other: "Node", **changes: Any) -> None:
        self.rows[other.node_id] = Row(other.address, other.me.incarnation)._replace(**changes)
        if other.node_id not in self.to:
            self.to[other.node_id] = Inbox.create(self.inbox_of(other.node_id), self.limits.workers, self.limits.peer_bytes)
        self.version += 1

    # --- the data process ----------------------------------------------------------------------------------------------

    def take_sockets(self) -> list[socket.socket]:
        found = []
        while True:
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return found
            sock.settimeout(2)
            if len(sock.recv(PREFACE_BYTES, socket.MSG_WAITALL)) == PREFACE_BYTES:
                found.append(sock)

    def setup(self) -> Setup:
        limits = self.limits
        inboxes = [Inbox.attach(inbox.name) for inbox in self.inboxes]
        machine = limits.level == Level.MACHINE
        epochs = Epochs.attach(self.epochs_path)
        distribution = Distribution(self.routes, epochs, inboxes, limits.workers, self.bells, self.spill, machine)
        settings = OutboundSettings(limits.level, limits.grace_ms, limits.stall_ms, limits.spool_bytes)
        return Setup(
            self.me, b"cookie", 1, limits.level, distribution, self.bell, self.bells, self.inbox_of, lambda: self.rows,
            lambda: self.version, self.take_sockets, self.listener.fileno(), self.spool, self.spill,
            lambda level, line: self.lines.append(line), settings, self.left_over, client_tls=self.tls[0], server_tls=self.tls[1],
        )  # fmt: skip

    def process(self) -> DataProcess:
        """Returns a data process in this one, to be driven by `pump`."""
        self.driver = DataProcess(self.setup())
        return self.driver

    def drop_process(self) -> None:
        """Ends the data process in this one without any order, as a kill does."""
        assert self.driver is not None
        for link in [*self.driver._links.values()]:
            link.sock.close()
        if self.driver._sync is not None:
            self.driver._sync.close(0)
        self.driver._epoll.close()
        self.driver = None

    def start(self) -> None:
        """Starts a data process of its own."""
        self.routes.close()
        self.pid = os.fork()
        self.routes = RouteTable(self.dir / "routes")
        if self.pid == 0:
            code = 1
            try:
                stopped: list[int] = []
                signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
                DataProcess(self.setup()).run(lambda: bool(stopped))
                code = 0
            finally:
                os._exit(code)

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Ends the process and returns its status."""
        os.kill(self.pid, number)
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return status

    # --- its workers ---------------------------------------------------------------------------------------------------

    def put(self, peer: int, worker: int, *records: bytes) -> int:
        """Puts records into the ring to a peer as far as there is room; returns how many."""
        lane = self.to[peer].lanes[worker]
        count = 0
        for one in records:
            if not lane.put(one):
                break
            count += 1
        if count and self.to[peer].take_bell():
            os.eventfd_write(self.bell, 1)
        return count

    def put_spilled(self, peer: int, worker: int, whole: bytes, name: str) -> None:
        """Puts a record that is too large for a ring."""
        (self.spill / name).write_bytes(whole)
        note = bytearray(whole[: HEADER.size])
        fields = list(HEADER.unpack(note))
        fields[1] |= SPILLED
        fields[4:10] = [len(name), 0, 0, 0, 0, 0]
        assert self.put(peer, worker, HEADER.pack(*fields) + name.encode())

    def take(self, worker: int, secure: bool = True, most: int = 1_000_000) -> list[Arrived]:
        """Takes what has arrived in the ring of a worker, as the worker would: what is new."""
        lane = self.inboxes[worker].lanes[self.limits.workers]
        new = []
        for data in lane.take_many(most):
            origin, zero, identity, position = ARRIVAL.unpack_from(data)
            assert zero == 0
            body = data[ARRIVAL.size :]
            kind, flags, _, _, *sizes = HEADER.unpack_from(body)[:10]
            if kind == KEEP:
                identities = body[HEADER.size :]
                self.positions[worker].keep(origin, struct.unpack(f"<{len(identities) // 8}Q", identities))
                continue
            if flags & SPILLED:
                path = self.spill / body[HEADER.size :].decode()
                body = path.read_bytes()
                path.unlink()
                flags = body[1]
                sizes = list(HEADER.unpack_from(body)[4:10])
            assert HEADER.size + sum(sizes) == len(body)
            topic, payload = body[HEADER.size : HEADER.size + sizes[0]], body[len(body) - sizes[5] :]
            if self.positions[worker].take(origin, identity, position):
                new.append(Arrived(origin, identity, position, flags & QOS, topic, payload))
        if lane.give_back() and self.bell >= 0:
            os.eventfd_write(self.bell, 1)
        if secure:
            handle = PeerRing(self.inboxes[worker], self.limits.workers, self.spill, self.bell)
            handle.secure(handle.released)
        return new

    def numbers(self, worker: int) -> list[int]:
        """Returns the numbers of the records that are new to a worker."""
        return [int(arrived.payload.split(b" ")[0]) for arrived in self.take(worker)]

    def close(self) -> None:
        if self.pid:
            self.kill()
        if self.driver is not None:
            self.drop_process()
        self.listener.close()
        for fd in (*self.bells, self.bell):
            os.close(fd)


def connect(one: Node, other: Node) -> None:
    """Makes two nodes known to each other."""
    one.add_peer(other)
    other.add_peer(one)


def pump(nodes: Iterable[Node], done: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Drives the data processes of nodes until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {[node.lines for node in nodes]}"
        for node in nodes:
            if node.driver is not None:
                node.driver.one_pass(1)


def until(done: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.002)
