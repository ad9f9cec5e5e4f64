"""Recommended settings for a machine, with reasons, and the obstacles to a given number of connections and rate.

They are calculated from the costs in costs.py, which were measured on other machines: a load test on the machine itself is more
accurate.
"""

from dataclasses import dataclass
from pathlib import Path

from shardbroker.config.settings import PROCESSES_MAX
from shardbroker.deploy.costs import BUSY_MESSAGE_US, CONNECT_US, CONNECTION_BYTES, SOCKET_BYTES, SPARSE_MESSAGE_US, TLS_BYTES
from shardbroker.deploy.machine import Cpu, Machine
from shardbroker.stores.files import replace_file

__all__ = ["Finding", "Proposal", "Wanted", "apply", "apply_to", "check", "propose"]

NEW_MODE = 0o644
"""Mode of a new file, as an editor would set it: secrets belong in files of their own."""

WORKER_SHARE = 0.7
"""Most utilization of a core by a worker: above it, waiting times grow quickly."""
SPARE_DESCRIPTORS = 1_000
"""Descriptors of a process for purposes other than clients."""
RING_LEAST, RING_MOST = 1 << 16, 4 << 20
RINGS_SHARE = 8
"""All rings together take at most this fraction of /dev/shm."""
MEMORY_SHARE = 0.7
"""The default of overload.memory_high_water."""
SMALL, LARGE = 4, 16
"""Numbers of physical cores from which one, or one in eight, is left to the kernel, the manager and other processes."""
PAGE = 4096


@dataclass(frozen=True)
class Proposal:
    """One line of the configuration, with its reason."""

    key: str
    value: str | int
    why: str


@dataclass(frozen=True)
class Wanted:
    """The load that the machine is to carry."""

    connections: int = 0
    rate: int = 0
    """Delivered messages a second."""
    connects: int = 0
    """Connects a second."""
    tls: bool = False


@dataclass(frozen=True)
class Finding:
    """Whether a resource is sufficient, and the remedy if it is not."""

    enough: bool
    text: str
    remedy: str = ""


def propose(machine: Machine) -> list[Proposal]:
    """Returns proposals in the order in which they are explained."""
    cores = machine.cores
    spare = 0 if len(cores) < SMALL else 1 if len(cores) < LARGE else len(cores) // 8
    acceptors = 1 if len(cores) == 1 else 2 if len(cores) < LARGE else min(16, max(2, len(cores) // 8))
    network = set(machine.network_cpus)
    # Interrupts of the network card get the spared cores first: a worker would share its core with them.
    ranked = sorted(cores, key=lambda core: bool({cpu.number for cpu in core} & network))
    chosen = sorted(ranked[: len(cores) - spare], key=lambda core: core[0].number)
    left = [core for core in cores if core not in chosen]
    most = _workers_by_rings(machine)
    workers = min(len(chosen), most, PROCESSES_MAX)
    if workers < len(chosen):
        left += chosen[workers:]
        chosen = chosen[:workers]
    found = [
        Proposal("process.workers", workers, _why_workers(machine, cores, spare, len(chosen), most)),
        Proposal(
            "process.worker_cores",
            _ranges([core[0].number for core in chosen]),
            "one worker to a physical core, on its first hardware thread: siblings share what computes, so a second worker "
            "takes from the first" + (f"; network interrupts go to {_ranges(sorted(network))}" if network and left else ""),
        ),
        Proposal(
            "process.acceptors",
            acceptors,
            f"a client that connects, subscribes and disconnects costs {CONNECT_US:g} µs, most of it in its worker; 5 µs are "
            "the hand-over. A TLS handshake is made there too: more of them if many TLS clients connect at a time",
        ),
    ]
    places = _acceptor_places(chosen, left)
    if places:
        found.append(
            Proposal(
                "process.acceptor_cores",
                _ranges([cpu.number for cpu in places]),
                "siblings of the workers' cores and cores left over: handshakes of TLS take no worker's turn there",
            )
        )
    ring = RING_MOST
    while ring > RING_LEAST and ring * (workers + 1) ** 2 > machine.shared_memory // RINGS_SHARE:
        ring //= 2
    found.append(
        Proposal(
            "process.ring_size",
            f"{ring >> 10}KB",
            f"{(workers + 1) ** 2} rings, one for each pair of processes, are {ring * (workers + 1) ** 2 >> 20} MB at most of the "
            f"{machine.shared_memory >> 20} MB of /dev/shm; a larger ring takes longer bursts before publishers wait",
        )
    )
    carried = _carried(machine, workers)
    found.append(
        Proposal(
            "listeners.default.max_connections",
            carried,
            f"{_kilo(CONNECTION_BYTES)} of the broker and {_kilo(SOCKET_BYTES)} of the kernel for an idle one: {carried:,} fit "
            f"into {MEMORY_SHARE:.0%} of {machine.memory >> 20} MB and {machine.descriptors:,} descriptors of each worker",
        )
    )
    return found


def check(machine: Machine, wanted: Wanted) -> list[Finding]:
    """Returns all findings."""
    workers = next(int(one.value) for one in propose(machine) if one.key == "process.workers")
    found = []
    if wanted.connections:
        found += _check_connections(machine, wanted, workers)
    if wanted.rate:
        possible = round(workers * WORKER_SHARE * 1e6 / SPARSE_MESSAGE_US)
        most = round(workers * WORKER_SHARE * 1e6 / BUSY_MESSAGE_US[1])
        text = (
            f"{wanted.rate:,} messages a second: {workers} workers at {WORKER_SHARE:.0%} deliver {possible:,} that each wake a "
            f"connection ({SPARSE_MESSAGE_US:g} µs), up to {most:,} of QoS 1 if many arrive at a time ({BUSY_MESSAGE_US[1]:g} µs)"
        )
        enough = wanted.rate <= possible
        remedy = "enough only if few connections carry most of it: try shardbroker perf" if wanted.rate <= most else "more cores"
        found.append(Finding(enough, text, "" if enough else remedy))
    if wanted.connects:
        most = round(workers * WORKER_SHARE * 1e6 / CONNECT_US)
        enough = wanted.connects <= most
        found.append(Finding(enough, f"{wanted.connects:,} connects per second: {most:,} can", "" if enough else "more cores"))
    return found


def apply(text: str, proposals: list[Proposal]) -> str:
    """Returns the configuration with the proposed lines in their sections, in place of existing ones; the rest is unchanged."""
    lines = text.splitlines()
    for proposal in proposals:
        section, _, key = proposal.key.rpartition(".")
        value = proposal.value if isinstance(proposal.value, int) else f'"{proposal.value}"'
        line = f"{key} = {value}"
        start = next((number for number, one in enumerate(lines) if one.split("#")[0].strip() == f"[{section}]"), None)
        if start is None:
            lines += ["", f"[{section}]", line]
            continue
        end = next((number for number in range(start + 1, len(lines)) if lines[number].startswith("[")), len(lines))
        body = lines[start + 1 : end]
        same = [number for number, one in enumerate(body) if one.split("=")[0].strip() == key]
        if same:
            body[same[0]] = line
        else:
            body.insert(0, line)
        lines[start + 1 : end] = body
    return "\n".join(lines).strip("\n") + "\n"


def apply_to(path: Path, proposals: list[Proposal]) -> None:
    """Replaces the file atomically. Raises OSError."""
    if path.exists():
        status = path.stat()
        old, mode, owner = path.read_text(), status.st_mode & 0o7777, (status.st_uid, status.st_gid)
    else:
        old, mode, owner = "", NEW_MODE, None
    replace_file(path, apply(old, proposals).encode(), mode=mode, owner=owner)


def _check_connections(machine: Machine, wanted: Wanted, workers: int) -> list[Finding]:
    count = wanted.connections
    found = []
    each = CONNECTION_BYTES + SOCKET_BYTES + (TLS_BYTES if wanted.tls else 0)
    need = count * each
    enough = need <= machine.memory * MEMORY_SHARE
    there = f"{MEMORY_SHARE:.0%} of {machine.memory >> 20:,} MB may be taken"
    text = f"memory: {count:,} connections take {need >> 20:,} MB ({_kilo(each)} each), {there}"
    found.append(Finding(enough, text, "" if enough else f"{-(-need // int(MEMORY_SHARE * (1 << 30)))} GB of memory"))
    per_process = round(count / workers * 1.1) + SPARE_DESCRIPTORS  # shares of workers are never quite even
    enough = per_process <= machine.descriptors
    text = f"descriptors: {per_process:,} in one process, {machine.descriptors:,} allowed"
    found.append(Finding(enough, text, "" if enough else f"LimitNOFILE={_up(per_process)} in the service, fs.nr_open no less"))
    for name, need_there, what in (
        ("fs.file-max", count + 100_000, "open files of the machine"),
        ("fs.nr_open", per_process, "open files of a process"),
        ("net.core.somaxconn", min(65_535, max(4_096, count // 20)), "connections to be accepted when all connect at once"),
        ("net.netfilter.nf_conntrack_max", count + count // 4, "connections that the firewall remembers"),
    ):
        if machine.sysctls.get(name):
            value = machine.sysctls[name][0]
            enough = value >= need_there
            text = f"{name}: {value:,}, {need_there:,} wanted ({what})"
            found.append(Finding(enough, text, "" if enough else f"sysctl {name}={_up(need_there)}"))
    if len(machine.sysctls.get("net.ipv4.tcp_mem", [])) == 3:
        buffers = machine.sysctls["net.ipv4.tcp_mem"][2] * PAGE
        # Idle sockets hold no buffers; one in ten with a page each way is already a high load.
        need = count // 10 * 2 * PAGE
        enough = buffers >= need
        text = f"net.ipv4.tcp_mem: {buffers >> 20:,} MB for TCP buffers, {need >> 20:,} MB if one in ten is busy"
        found.append(Finding(enough, text, "" if enough else f"a third number of net.ipv4.tcp_mem of {_up(need // PAGE)}"))
    return found


def _workers_by_rings(machine: Machine) -> int:
    """Returns the largest number of workers whose rings fit at their smallest size."""
    workers = 1
    while RING_LEAST * (workers + 2) ** 2 <= machine.shared_memory // RINGS_SHARE:
        workers += 1
    return workers


def _carried(machine: Machine, workers: int) -> int:
    by_memory = int(machine.memory * MEMORY_SHARE) // (CONNECTION_BYTES + SOCKET_BYTES)
    by_descriptors = int(max(1, machine.descriptors - SPARE_DESCRIPTORS) * workers / 1.1)
    return max(1, min(by_memory, by_descriptors, 2**31 - 1) // 1000 * 1000 or 1)


def _why_workers(machine: Machine, cores: list[list[Cpu]], spare: int, chosen: int, most: int) -> str:
    nodes = len({cpu.node for cpu in machine.cpus})
    threads = f" with {len(machine.cpus)} hardware threads" if len(machine.cpus) != len(cores) else ""
    on_nodes = f" on {nodes} NUMA nodes" if nodes > 1 else ""
    text = f"{len(cores)} physical core{'s' if len(cores) > 1 else ''}{threads}{on_nodes}"
    text += f", {spare} left to the kernel's network work, the acceptors and the manager" if spare else ""
    if chosen == most and chosen < len(cores) - spare:
        text += f"; more than {most} would need rings of more than an eighth of /dev/shm"
    busy = round(1 / (BUSY_MESSAGE_US[1] / 1e6) * WORKER_SHARE / 1000) * 1000
    rate = f"a worker delivers up to {busy:,} messages a second of QoS 1 ({BUSY_MESSAGE_US[1]:g} µs each)"
    return f"{text}. At {WORKER_SHARE:.0%} of its core {rate}"


def _acceptor_places(chosen: list[list[Cpu]], left: list[list[Cpu]]) -> list[Cpu]:
    """Returns the hardware threads to which no worker is pinned."""
    return sorted([cpu for core in left for cpu in core] + [cpu for core in chosen for cpu in core[1:]], key=lambda cpu: cpu.number)


def _ranges(numbers: list[int]) -> str:
    """Returns ascending numbers as `0-3,8`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _kilo(count: int) -> str:
    return f"{count / 1000:g} KB"


def _up(number: int) -> int:
    """Returns the next power of two, as is usual for limits."""
    return 1 << (number - 1).bit_length()
