"""Lays out a broker before its processes start: lock, segments, descriptors, listening sockets.

All of it is made by the supervisor and inherited by fork, so a process that is killed and started again finds everything as it was:
connections wait in the listening sockets, handed-over sockets in the channels, messages in the rings.
"""

import fcntl
import os
import socket
from hashlib import sha256
from pathlib import Path

import psutil
from shm.counters import Counters
from shm.epochs import Epochs
from shm.ring import Inbox

from shardbroker.config import Settings
from shardbroker.config.settings import parse_address
from shm.cleanup import cleanup
from shm.topology import ListenerSockets, Topology

__all__ = ["StartError", "lay_out", "lock_data_dir", "tear_down"]

RUNTIME_ROOT = Path("/dev/shm")
BACKLOG = 4096
"""Connections that may wait to be accepted on one socket; the kernel caps it with net.core.somaxconn."""
HANDOVER_BYTES = 4 << 20
"""Send buffer of a hand-over channel: about 10,000 sockets on their way to a busy worker."""
RING_MAX, RING_MIN, RINGS_TOTAL = 4 << 20, 1 << 16, 512 << 20
"""Bytes of one ring at most and at least, and of all rings together when `process.ring_size` is auto."""


class StartError(Exception):
    """The broker cannot start; the text says what is in the way."""


def lock_data_dir(data_dir: Path) -> int:
    """Takes the data directory for this broker; returns the descriptor that holds the lock. Raises StartError."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(f"data directory {data_dir}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 32, 0).decode().strip()
        os.close(lock)
        raise StartError(f"data directory {data_dir} is in use by the broker with pid {owner}; choose another --data-dir") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def lay_out(settings: Settings, usable_cores: list[int]) -> Topology:
    """Creates everything that the processes share. The caller holds the lock of the data directory. Raises StartError."""
    process = settings.process
    data_dir = process.data_dir.resolve()
    instance = sha256(str(data_dir).encode()).hexdigest()[:12]
    runtime_dir = RUNTIME_ROOT / f"shardbroker-{instance}"
    workers = len(usable_cores) if process.workers == "auto" else int(process.workers)
    acceptors = min(2, len(usable_cores)) if process.acceptors == "auto" else int(process.acceptors)
    cleanup(instance, runtime_dir)
    listeners = tuple(_listen(name, listener.bind, acceptors) for name, listener in settings.listeners.items())
    runtime_dir.mkdir(mode=0o700)
    topology = Topology(
        instance=instance,
        runtime_dir=runtime_dir,
        data_dir=data_dir,
        workers=workers,
        acceptors=acceptors,
        cores=tuple(usable_cores[i % len(usable_cores)] for i in range(workers)),
        ring_bytes=_ring_bytes(process.ring_size, workers),
        doorbells=tuple(os.eventfd(0, os.EFD_NONBLOCK) for _ in range(workers + 1)),
        handover=tuple(tuple(_channel() for _ in range(workers)) for _ in range(acceptors)),
        listeners=listeners,
        settings=settings,
        node_id=settings.node.id,
        node_name=settings.node.name,
    )
    topology.spill_dir.mkdir(mode=0o700)
    Counters.create(topology.counters_name, topology.processes + acceptors)
    Epochs.create(topology.epochs_name)
    for number in range(topology.processes):
        Inbox.create(topology.inbox_name(number), topology.processes, topology.ring_bytes)
    return topology


def tear_down(topology: Topology) -> None:
    """Removes what lay_out made in shared memory and closes its descriptors."""
    cleanup(topology.instance, topology.runtime_dir)
    for listener in topology.listeners:
        for descriptor in listener.descriptors:
            os.close(descriptor)
    for descriptor in topology.doorbells:
        os.close(descriptor)
    for channels in topology.handover:
        for ends in channels:
            os.close(ends[0])
            os.close(ends[1])


def usable_cores() -> list[int]:
    """Cores that this process may run on."""
    return sorted(psutil.Process().cpu_affinity() or [0])


def _ring_bytes(setting: int | str, workers: int) -> int:
    wanted = int(setting) if setting != "auto" else max(RING_MIN, min(RING_MAX, RINGS_TOTAL // (workers + 1) ** 2))
    size = 1 << (wanted.bit_length() - 1)
    if size < RING_MIN:
        raise StartError(f"process.ring_size = {setting}: allowed is {RING_MIN} or more")
    return size


def _channel() -> tuple[int, int]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, HANDOVER_BYTES)
    for end in (near, far):
        end.setblocking(False)
        end.set_inheritable(True)
    return near.detach(), far.detach()


def _listen(name: str, bind: str, acceptors: int) -> ListenerSockets:
    """A listening socket per acceptor on one address; with port 0 all get the port that the first was given."""
    host, port = parse_address(bind)
    descriptors: list[int] = []
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        for _ in range(acceptors):
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if not descriptors:
                # SO_REUSEPORT would let two brokers share a port without a word: see whether it is taken first.
                probe = socket.socket(family, socket.SOCK_STREAM)
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with probe:
                    probe.bind(address)
                    address = probe.getsockname()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
            descriptors.append(listener.detach())
    except OSError as error:
        raise StartError(f"listener {name}: cannot listen on {bind}: {error.strerror or error}") from None
    return ListenerSockets(name, "tcp", tuple(descriptors))
