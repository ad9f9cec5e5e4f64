"""Facts of a machine: cores, their siblings and nodes, memory, interrupts of the network card, limits of the kernel.

`read_machine` reads those of this machine; a description in JSON replaces them: `tune --describe` prints it, `tune --machine` reads
it.
"""

import os
import re
import resource
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = ["SYSCTLS", "Cpu", "Machine", "MachineError", "parse_machine", "read_machine"]

CPUS_MAX = 8192
"""As NR_CPUS of distributions' kernels."""
SYSCTLS = (
    "fs.file-max",
    "fs.nr_open",
    "net.core.somaxconn",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_mem",
    "net.netfilter.nf_conntrack_max",
)
"""Limits to read; a missing one sets no limit."""
Number = Annotated[int, Field(ge=0, lt=CPUS_MAX)]


class MachineError(Exception):
    """The description is inconsistent."""


class Cpu(BaseModel):
    """One hardware thread. Threads of the same package and core are siblings."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    number: Number
    core: Number
    package: Number = 0
    node: Number = 0


class Machine(BaseModel):
    """The input of `tune`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    cpus: Annotated[list[Cpu], Field(min_length=1, max_length=CPUS_MAX)]
    """Hardware threads that the broker may run on."""
    memory: Annotated[int, Field(ge=256 << 20)]
    """Bytes."""
    shared_memory: Annotated[int, Field(ge=1)]
    """Size of /dev/shm, bytes."""
    descriptors: Annotated[int, Field(ge=64)]
    """Most descriptors of one process, as set by the service."""
    network_cpus: list[Number] = []
    """Hardware threads that serve interrupts of network cards."""
    sysctls: dict[str, list[int]] = {}

    @property
    def cores(self) -> list[list[Cpu]]:
        """Returns hardware threads by physical core, in the order of their first ones."""
        found: dict[tuple[int, int], list[Cpu]] = {}
        for cpu in sorted(self.cpus, key=lambda cpu: cpu.number):
            found.setdefault((cpu.package, cpu.core), []).append(cpu)
        return list(found.values())


def parse_machine(text: str) -> Machine:
    """Parses a description. Raises MachineError."""
    try:
        machine = Machine.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise MachineError(f"{'.'.join(str(part) for part in first['loc']) or 'the description'}: {first['msg']}") from None
    if len({cpu.number for cpu in machine.cpus}) != len(machine.cpus):
        raise MachineError("cpus: must not have a number twice")
    return machine


def read_machine(root: Path = Path("/")) -> Machine:
    """Reads this machine from /sys and /proc below `root`."""
    status = os.statvfs(root / "dev/shm")
    usable = os.sched_getaffinity(0)
    return Machine(
        cpus=[_cpu(root, number) for number in sorted(usable)],
        memory=_memory(root),
        shared_memory=status.f_frsize * status.f_blocks,
        descriptors=_descriptors(root),
        network_cpus=sorted(_network_cpus(root) & usable),
        sysctls={name: values for name in SYSCTLS if (values := _sysctl(root, name))},
    )


def _descriptors(root: Path) -> int:
    """Returns the descriptor limit of the installed service; without a service that of this process."""
    try:
        found = re.search(r"^LimitNOFILE=(\d+)$", (root / "etc/systemd/system/shardbroker.service").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return int(found[1]) if found else resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def _cpu(root: Path, number: int) -> Cpu:
    folder = root / f"sys/devices/system/cpu/cpu{number}"
    nodes = [int(path.name[4:]) for path in folder.glob("node[0-9]*")]
    return Cpu(
        number=number,
        core=_number(folder / "topology/core_id", number),
        package=_number(folder / "topology/physical_package_id", 0),
        node=nodes[0] if nodes else 0,
    )


def _memory(root: Path) -> int:
    match = re.search(r"MemTotal:\s+(\d+) kB", (root / "proc/meminfo").read_text())
    return int(match[1]) << 10 if match else 0


def _network_cpus(root: Path) -> set[int]:
    """Returns the targets of network cards' interrupts: lines of /proc/interrupts have the name of the card, or virtio's number."""
    names = set()
    for card in (root / "sys/class/net").glob("*"):
        device = card / "device"
        if device.exists():
            names |= {card.name, device.resolve().name}
    found: set[int] = set()
    try:
        lines = (root / "proc/interrupts").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        number, _, rest = line.partition(":")
        if number.strip().isdecimal() and any(re.search(rf"\b{re.escape(name)}\b", rest) for name in names):
            try:
                found |= _list((root / f"proc/irq/{number.strip()}/effective_affinity_list").read_text())
            except (OSError, ValueError):
                continue
    return found


def _list(text: str) -> set[int]:
    """Returns `0-3,8` as numbers. Raises ValueError."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _number(path: Path, otherwise: int) -> int:
    try:
        return max(0, int(path.read_text()))
    except (OSError, ValueError):
        return otherwise


def _sysctl(root: Path, name: str) -> list[int]:
    try:
        return [int(word) for word in (root / "proc/sys" / name.replace(".", "/")).read_text().split()]
    except (OSError, ValueError):
        return []
