"""Lays out a broker before its processes start: lock, segments, descriptors, listening sockets.

The supervisor makes all of it, and processes inherit it by fork, so a process that is killed and restarted finds everything
unchanged: connections wait in the listening sockets, handed-over sockets in the channels, messages in the rings.
"""

import fcntl
import os
import secrets
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil

from shardbroker.access.auth_client import publish_rules
from shardbroker.access.files import FileError
from shardbroker.config import Loaded, Settings
from shardbroker.config.cluster import own_address
from shardbroker.config.gateways import inner_listeners
from shardbroker.config.listeners import LISTENERS_MAX, Listener, parse_address
from shardbroker.config.settings import PROCESSES_MAX, core_numbers, weight_numbers
from shardbroker.stores.checked_number import read_number, write_number
from shardbroker.stores.files import replace_file, sync_path
from shardbroker.stores.node_file import Enrolled, node_uuid
from shardbroker.stores.retained_check import check_retained
from shardbroker.supervisor.held import HeldListener, HeldSockets
from shardbroker.supervisor.listening import StartError, listen, unlisten
from shm.channels import CHANNELS, SUPERVISOR, Pairs
from shm.cleanup import cleanup, set_aside
from shm.counters import Counters
from shm.epochs import Epochs
from shm.partitions import Division
from shm.ring import Inbox
from shm.roles import ROLES, WORKER, Cores, Place, Role, lay_places
from shm.runtime import ROOT, find_runtime_dir, make_runtime_dir
from shm.topology import PEER_INBOX, RETAINED_DIR, ROLES_FILE, LeftOver, Topology
from shm.view import ViewSegment

__all__ = [
    "UNKNOWN_WORKERS",
    "StartError",
    "check_room",
    "chosen_cores",
    "chosen_weights",
    "clear",
    "journals_written_by",
    "lay_out",
    "lay_out_again",
    "lock_data_dir",
    "set_written_by",
    "tear_down",
    "usable_cores",
]

WORKERS_FILE = "workers"
"""File in the directory of the journals: the number of the division (shm/partitions.py) that wrote them."""
UNKNOWN_WORKERS = PROCESSES_MAX + 1
"""Replaces that number if the file is damaged: no broker has so many workers, so every journal is read."""
HANDOVER_BYTES = 4 << 20
"""Send buffer of a hand-over channel: thousands of sockets in transit to a busy worker."""
SO_SNDBUFFORCE = 32
"""From asm-generic/socket.h: like SO_SNDBUF, but not capped by net.core.wmem_max; privileged processes only."""
RING_MAX, RING_MIN, RINGS_TOTAL = 4 << 20, 1 << 16, 512 << 20
"""Most and least bytes of one ring, and of all rings together when `process.ring_size` is auto."""
RINGS_PART = 2
"""All rings take at most this fraction of ROOT when `process.ring_size` is auto: a process that writes to a page for which there
is no room is killed."""
PEER_RING_MAX, PEERS_EXPECTED = 1 << 20, 32
"""Most bytes of one ring to a peer, and the number of peers that share RINGS_TOTAL when `cluster.ring_size` is auto."""
ENDING_S = 5.0
"""Longest wait for the lock of a supervisor that was killed: the processes that it leaves end at once, but not in no time."""
LINK_BACKLOG = 512
"""Connections of other nodes that wait while the link process is started again."""


def lock_data_dir(data_dir: Path) -> int:
    """Locks the data directory for this broker; returns the descriptor that holds the lock. Raises StartError."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(f"data directory {data_dir}: {error.strerror}") from None
    until_s = time.monotonic() + ENDING_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            owner = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            if time.monotonic() < until_s and _has_ended(owner):
                time.sleep(0.01)
                continue
            os.close(lock)
            text = f"data directory {data_dir} is in use by the broker with pid {owner}; choose another --data-dir"
            raise StartError(text) from None
        except OSError as error:
            os.close(lock)
            raise StartError(f"data directory {data_dir}: cannot be locked: {error.strerror}") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _has_ended(pid: str) -> bool:
    """Whether a process is known to have ended: it exists no more, or only until its parent waits for it."""
    try:
        return bool(psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except (ValueError, psutil.Error):
        return False


def lay_out(
    settings: Settings, usable_cores: list[int], loaded: Loaded | None = None, held: HeldSockets | None = None,
    roles: Sequence[Role] = ROLES, node: Enrolled | None = None,
) -> Topology:  # fmt: skip
    """Creates everything that the processes share. The caller holds the lock of the data directory. Raises StartError.

    node: as the core of the cluster has enrolled it. After an error nothing remains.
    """
    process = settings.process
    data_dir = process.data_dir.resolve()
    instance = sha256(str(data_dir).encode()).hexdigest()[:12]
    killed = find_runtime_dir(instance)
    places = _places_of(settings, usable_cores, roles)
    workers, acceptors = (sum(place.role.name == name for place in places) for name in ("worker", "acceptor"))
    keeps = settings.durability.level != "none"
    left_over = set_aside(killed) if keeps and killed is not None else ()
    written_by = journals_written_by(data_dir) if keeps else 0
    weights = chosen_weights(process.worker_weights, workers)
    if killed is not None:
        cleanup(killed)
    try:
        runtime_dir = find_runtime_dir(instance) or make_runtime_dir(instance)
    except OSError as error:
        raise StartError(f"no directory in shared memory: {error}") from None
    with ExitStack() as undo:
        undo.callback(cleanup, runtime_dir)
        listeners = []
        for number, (name, listener) in enumerate(settings.listeners.items()):
            own = held.take(name, listener.bind) if held is not None else HeldListener()
            listeners.append(listen(name, number, listener, acceptors, own.descriptors, own.activated))
            undo.callback(unlisten, listeners[-1])
        for name, listener in inner_listeners(settings, runtime_dir).items():
            listeners.append(listen(name, len(listeners), listener, acceptors, is_internal=True))
            undo.callback(unlisten, listeners[-1])
        if held is not None:
            held.finish(settings.listeners)
        node_fields = {
            "node_id": settings.node.id if node is None else node.node_id,
            "cluster_uuid": b"" if node is None else node.cluster,
            **_lay_cluster(undo, settings, workers),
        }
        topology = _share(
            undo, settings, places, instance=instance, runtime_dir=runtime_dir, data_dir=data_dir, weights=weights,
            listeners=tuple(listeners), loaded=loaded, written_by=written_by, left_over=left_over, **node_fields,
        )  # fmt: skip
        undo.pop_all()
    return topology


def _share(undo: ExitStack, settings: Settings, places: tuple[Place, ...], **known: Any) -> Topology:
    """Makes shared memory and channels for these places. Raises StartError."""
    inboxes = sum(place.role.inbox for place in places)
    try:
        topology = Topology(
            places=places,
            ring_bytes=_ring_bytes(settings.process.ring_size, inboxes, _size_of_shared()),
            doorbells=tuple(_kept(undo, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)) for _ in range(inboxes)),
            channels=_lay_channels(undo, places),
            parse_listener=Listener.model_validate,
            parse_settings=Settings.model_validate,
            settings=settings,
            damage=_find_damage(known["data_dir"], known["written_by"]),
            node_name=settings.node.name,
            **known,
        )
        _create_shared(topology)
        publish_rules(settings, topology.runtime_dir)
    except FileError as error:
        raise StartError(str(error)) from None
    except OSError as error:
        raise StartError(f"cannot set up shared memory and descriptors: {error.strerror or error}") from None
    return topology


def lay_out_again(before: Topology, settings: Settings, left_over: tuple[LeftOver, ...], usable_cores: list[int]) -> Topology:
    """Creates what the processes share for another number of workers. Lock and public listeners are those of `before`, of which
    clear() has removed everything else. No node of a cluster. Raises StartError; after it nothing new remains.
    """
    places = _places_of(settings, usable_cores)
    with ExitStack() as undo:
        try:
            runtime_dir = find_runtime_dir(before.instance) or make_runtime_dir(before.instance)
        except OSError as error:
            raise StartError(f"no directory in shared memory: {error}") from None
        undo.callback(cleanup, runtime_dir)
        listeners = [one for one in before.listeners if not one.is_internal]
        taken = {one.number for one in listeners}
        for name, listener in inner_listeners(settings, runtime_dir).items():
            number = next(number for number in range(LISTENERS_MAX) if number not in taken)
            taken.add(number)
            listeners.append(listen(name, number, listener, before.acceptors, is_internal=True))
            undo.callback(unlisten, listeners[-1])
        workers = sum(place.role.name == WORKER for place in places)
        topology = _share(
            undo, settings, places, instance=before.instance, runtime_dir=runtime_dir, data_dir=before.data_dir,
            weights=chosen_weights(settings.process.worker_weights, workers), listeners=tuple(listeners), loaded=before.loaded,
            written_by=journals_written_by(before.data_dir) if settings.durability.level != "none" else 0, left_over=left_over,
            node_id=before.node_id,
        )  # fmt: skip
        undo.pop_all()
    return topology


def _places_of(settings: Settings, usable_cores: list[int], roles: Sequence[Role] = ROLES) -> tuple[Place, ...]:
    process = settings.process
    worker_cores = chosen_cores("process.worker_cores", process.worker_cores, usable_cores) or usable_cores
    acceptor_cores = chosen_cores("process.acceptor_cores", process.acceptor_cores, usable_cores)
    return lay_places(roles, settings, Cores(usable_cores, worker_cores, acceptor_cores))


def check_room(settings: Settings, usable_cores: list[int]) -> None:
    """Refuses rings that do not fit beside those in use. Raises StartError."""
    inboxes = sum(place.role.inbox for place in _places_of(settings, usable_cores))
    wanted = _ring_bytes(settings.process.ring_size, inboxes, _size_of_shared()) * inboxes**2
    found = os.statvfs(ROOT)
    free = found.f_frsize * found.f_bavail if found.f_blocks else sys.maxsize
    if wanted > free:
        rings = f"{inboxes**2} rings take {wanted >> 20} MB beside those in use, and {free >> 20} MB of {ROOT} are left"
        raise StartError(f"process.ring_size: {rings}: use fewer workers or a smaller ring_size, or enlarge {ROOT}")


def clear(topology: Topology) -> tuple[LeftOver, ...]:
    """Removes shared memory, channels and internal listeners, which no process uses any more. The public listeners stay.

    Returns rings with records of a worker that was killed.
    """
    is_kept = topology.settings.durability.level != "none" and _unread(topology)
    left_over = set_aside(topology.runtime_dir) if is_kept else ()
    cleanup(topology.runtime_dir)
    for listener in topology.listeners:
        if listener.is_internal:
            unlisten(listener)
    _close_pairs(topology)
    return left_over


def _lay_cluster(undo: ExitStack, settings: Settings, workers: int) -> dict[str, Any]:
    """Returns the fields of the topology that a node of a cluster has besides. Raises StartError."""
    cluster = settings.cluster
    if not cluster.enable:
        return {}
    try:
        address = own_address(cluster)
    except ValueError as error:
        raise StartError(f"cluster.advertise: {error}") from None
    wanted = RINGS_TOTAL // (workers * PEERS_EXPECTED)
    auto = max(RING_MIN, min(PEER_RING_MAX, wanted))
    return {
        "link_socket": _kept(undo, _listen_to_peers(cluster.link_bind)),
        "link_address": address,
        "peer_ring_bytes": _power_of_two(auto if cluster.ring_size == "auto" else int(cluster.ring_size)),
    }


def _listen_to_peers(bind: str) -> int:
    """Returns a listening socket. Raises StartError."""
    host, port = parse_address(bind)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(target)
            sock.listen(LINK_BACKLOG)
            sock.setblocking(False)
            return sock.detach()
        finally:
            sock.close()
    except OSError as error:
        raise StartError(f"cluster.link.bind: {bind}: {error.strerror or error}") from None


def _find_damage(data_dir: Path, written_by: int) -> tuple[str, ...]:
    """Returns damage in files that are read before the workers start."""
    found = []
    if written_by == UNKNOWN_WORKERS:
        found.append(f"{data_dir}/journal/{WORKERS_FILE}: damaged, so every journal is read")
    retained = check_retained(data_dir / RETAINED_DIR)
    if retained is not None:
        found.append(retained)
    return tuple(found)


def _create_shared(topology: Topology) -> None:
    topology.rings_dir.mkdir(mode=0o700)
    topology.spill_dir.mkdir(mode=0o700)
    roles = [place.role.name for place in topology.places if place.role.inbox]
    replace_file(topology.rings_dir / ROLES_FILE, "\n".join(roles).encode(), sync=False)
    Counters.create(topology.counters_name, len(topology.places), LISTENERS_MAX)
    Epochs.create(topology.epochs_name)
    for number in range(topology.processes):
        Inbox.create(topology.inbox_name(number), topology.processes, topology.ring_bytes)
    if topology.links:
        try:
            uuid = node_uuid(topology.data_dir)
        except ValueError as error:
            raise StartError(str(error)) from None
        # 53 bits, which JSON holds exactly; 0 means unknown.
        ViewSegment.create(topology.view_name, secrets.randbits(53) or 1, uuid)


def journals_written_by(data_dir: Path) -> int:
    """Returns the number of the division that wrote the journals; 0: there are no journals; UNKNOWN_WORKERS: all existing journals
    must be read. Raises StartError."""
    path = data_dir / "journal" / WORKERS_FILE
    try:
        return read_number(path) or 0
    except ValueError:
        return UNKNOWN_WORKERS
    except OSError as error:
        raise StartError(f"{path}: the number of workers that wrote the journals cannot be read: {error.strerror}") from None


def set_written_by(data_dir: Path, division: Division) -> None:
    """Records that every worker has its sessions in its own journal, and sets aside the journals of workers that no longer exist.

    The record is on the disk when this returns, at any level. Raises OSError.
    """
    journals = data_dir / "journal"
    journals.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_number(journals / WORKERS_FILE, division.number, sync=True)
    for path in journals.iterdir():
        if path.name.isdecimal() and int(path.name) >= division.workers:
            second = time.time_ns() // 10**9
            while (retired := journals / f"{path.name}.retired-{second}").exists():
                second += 1  # the number of workers has changed twice in one second
            path.rename(retired)
    sync_path(journals)


def tear_down(topology: Topology, keep_paths: bool = False) -> None:
    """Removes what lay_out made in shared memory and closes its descriptors; paths of unix sockets only if the service manager does
    not keep them open. Records for a worker that had already ended are kept for the next start."""
    if topology.settings.durability.level != "none" and _unread(topology):
        set_aside(topology.runtime_dir)
    cleanup(topology.runtime_dir)
    for listener in topology.listeners:
        unlisten(listener, keep_paths)
    if topology.link_socket >= 0:
        os.close(topology.link_socket)
    _close_pairs(topology)


def _close_pairs(topology: Topology) -> None:
    for descriptor in topology.doorbells:
        os.close(descriptor)
    for descriptor in {end for senders in topology.channels.values() for pairs in senders for pair in pairs for end in pair}:
        os.close(descriptor)


def usable_cores() -> list[int]:
    """Returns the cores that this process may run on."""
    return sorted(psutil.Process().cpu_affinity() or [0])


def chosen_cores(key: str, text: str, usable: list[int]) -> list[int]:
    """Returns the cores of a setting; empty for auto. Raises StartError for a core that the broker may not run on."""
    chosen = [] if text == "auto" else core_numbers(text)
    strange = [core for core in chosen if core not in usable]
    if strange:
        allowed = ", ".join(map(str, usable))
        raise StartError(f"{key}: must be cores of this broker ({allowed}), got {text}: no core {', '.join(map(str, strange))}")
    return chosen


def chosen_weights(text: str, workers: int) -> tuple[int, ...]:
    """Returns a weight for each worker; empty for auto. Raises StartError."""
    weights = () if text == "auto" else weight_numbers(text)
    if weights and len(weights) != workers:
        raise StartError(
            f"process.worker_weights: must be auto or one weight for each of {workers} workers, got {len(weights)} weights: {text}"
        )
    return weights


def _size_of_shared() -> int:
    """Returns the size of ROOT, bytes; one without a limit counts as the address space."""
    found = os.statvfs(ROOT)
    return found.f_frsize * found.f_blocks or sys.maxsize


def _ring_bytes(setting: int | str, inboxes: int, shared: int) -> int:
    """Returns the capacity of a ring, the largest power of two up to the setting. Raises StartError if all rings are larger than
    `shared`, bytes."""
    rings = inboxes**2
    auto = max(RING_MIN, min(RING_MAX, min(RINGS_TOTAL, shared // RINGS_PART) // rings))
    size = _power_of_two(auto if setting == "auto" else int(setting))
    if size * rings > shared:
        wanted = f"{rings} rings of {size >> 10} KB take {size * rings >> 20} MB, and {ROOT} has {shared >> 20} MB"
        raise StartError(f"process.ring_size: {wanted}: use fewer workers or a smaller ring_size, or enlarge {ROOT}")
    return size


def _power_of_two(wanted: int) -> int:
    """Returns the largest power of two up to a number."""
    return 1 << (wanted.bit_length() - 1)


def _kept(undo: ExitStack, descriptor: int) -> int:
    undo.callback(os.close, descriptor)
    return descriptor


def _lay_channels(undo: ExitStack, places: Sequence[Place]) -> Pairs:
    counts = Counter([SUPERVISOR, *(place.role.name for place in places)])
    laid = {}
    for channel in CHANNELS:
        senders = counts[channel.sender]
        own = [
            tuple(_pair(undo, channel.kind) for _ in range(counts[channel.receiver]))
            for _ in range(1 if channel.shared else senders)
        ]
        laid[channel.name] = tuple(own * senders if channel.shared else own)
    return laid


def _pair(undo: ExitStack, kind: int) -> tuple[int, int]:
    near, far = socket.socketpair(socket.AF_UNIX, kind)
    for end in (near, far):
        try:
            end.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, HANDOVER_BYTES)
        except PermissionError:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, HANDOVER_BYTES)
        end.setblocking(False)
    return _kept(undo, near.detach()), _kept(undo, far.detach())


def _unread(topology: Topology) -> bool:
    """Returns whether a ring between two workers, from a peer to a worker or the other way round still has records; all of these
    processes have ended."""
    senders = [*range(topology.workers), *(place.slot for place in topology.places_of("link"))]
    found = [(topology.inbox_name(worker), senders) for worker in range(topology.workers)]
    found += [(str(path), [*range(topology.workers)]) for path in topology.rings_dir.glob(f"{PEER_INBOX}*")]
    for name, lanes in found:
        try:
            inbox = Inbox.attach(name)
        except FileNotFoundError:
            continue
        try:
            if any(inbox.lanes[lane].fill() for lane in lanes):
                return True
        finally:
            inbox.close()
    return False
