"""Nodes of a cluster: real brokers that are linked over loopback, or over a network with faults (network.py)."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from shm.ring import Inbox, Ring
from tests.cluster.real.network import Network
from tests.edge.certificates import Authority
from tests.harness import Client
from tests.harness.broker import Broker, free_port
from tests.harness.waiting import until
from tests.torture.power import Power

COOKIE = b"a secret of the nodes"
HOST = "127.0.0.1"
LINKED_S = 20.0


class Nodes:
    """Brokers with the node ids 1, 2 and so on; `each` has settings of one node by its id, over those of all.

    The nodes `powered` can lose what they have not synced, with `power_cut`.
    """

    def __init__(
        self,
        directory: Path,
        count: int,
        workers: int = 1,
        each: Mapping[int, Mapping[str, Any]] | None = None,
        network: Network | None = None,
        powered: Sequence[int] = (),
        endpoints: Sequence[str] = (),
        cores: Sequence[int] = (),
        members: Mapping[str, str] | None = None,
        **common: Any,
    ) -> None:
        """endpoints: of etcd, which then has the members and allots the ids; those of nodes started together have any order. cores:
        nodes that run it instead; members: with others, by name and address."""
        self.directory = directory
        self.cores = {number: f"{network.host(number)}:12379" if network else f"{HOST}:{free_pair()}" for number in cores}
        self.members = members or {}
        self.network = network
        self.endpoints = endpoints
        numbers = range(1, count + 1)
        self.addresses = [network.address(number) if network else f"{HOST}:{free_port()}" for number in numbers]
        self.cookie = self.write_cookie("cookie", COOKIE)
        self.brokers: dict[int, Broker] = {}
        for number in numbers:
            own = {**self.settings(number), **common, **(each or {}).get(number, {})}
            self.brokers[number] = Broker(workers, own, directory / f"node-{number}")
        self._power: dict[int, Power] = {}
        for number in powered:
            place = directory / f"power-{number}"
            place.mkdir()
            self.brokers[number].data_dir.mkdir()
            self._power[number] = Power(self.brokers[number], place)

    def write_cookie(self, name: str, cookie: bytes) -> Path:
        path = self.directory / name
        path.write_bytes(cookie)
        path.chmod(0o600)
        return path

    def settings(self, number: int) -> dict[str, Any]:
        if self.cores:
            members = [f"{self.name(core)}={address}" for core, address in self.cores.items()]
            members += [f"{name}={address}" for name, address in self.members.items()]
            bind = self.cores.get(number) or (f"{self.network.host(number)}:12379" if self.network else f"{HOST}:{free_pair()}")
            return {
                "node.name": self.name(number), "cluster.enable": "true", "cluster.core.members": json.dumps(members),
                "cluster.core.bind": bind, "cluster.cookie_file": self.cookie, "cluster.join_timeout": "20s",
                "cluster.link.bind": self.addresses[number - 1], "cluster.lease": "2s",
            }  # fmt: skip
        if self.endpoints:
            return {
                "node.name": self.name(number), "cluster.enable": "true", "cluster.core.mode": "external",
                "cluster.etcd.endpoints": json.dumps([*self.endpoints]), "cluster.cookie_file": self.cookie,
                "cluster.link.bind": self.addresses[number - 1], "cluster.join_timeout": "20s", "cluster.lease": "2s",
            }  # fmt: skip
        return {
            "node.id": number, "node.name": self.name(number), "cluster.enable": "true", "cluster.core.mode": "none",
            "cluster.discovery": "static", "cluster.static.seeds": json.dumps(self.addresses), "cluster.cookie_file": self.cookie,
            "cluster.link.bind": self.addresses[number - 1], "cluster.join_timeout": "5s",
        }  # fmt: skip

    def name(self, number: int) -> str:
        return f"n{number}@{HOST}"

    def start(self, numbers: Sequence[int] = ()) -> None:
        """Starts nodes at the same time: each one waits for the routes of the others."""
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            for started in [pool.submit(self._start, number) for number in numbers or self.brokers]:
                started.result()

    def _start(self, number: int) -> None:
        with self.network.entered(number) if self.network else nullcontext():
            self.brokers[number].start()

    def power_cut(self, number: int, rng: Random) -> None:
        """Ends all processes of a node; shared memory is gone, and with `powered` what chance takes of unsynced files."""
        broker, power = self.brokers[number], self._power.get(number)
        if power is None:
            broker.kill()
            broker.clear_shared()
            return
        power.switch_off()
        broker.kill()
        print(f"power cut of node {number}: {power.cut(rng)}")

    def connect(self, number: int, name: str, **arguments: Any) -> Client:
        """Returns a client of a node, over the loopback of its namespace."""
        address, network = self.brokers[number].address, self.network
        dial = {} if network is None else {"dial": lambda: network.dial(number, address)}
        return Client(address, 5, name, **dial, **arguments)

    def status(self, number: int) -> dict[str, Any]:
        with Control(self.brokers[number].data_dir) as control:
            found: dict[str, Any] = control.call("cluster status")
        return found

    def links(self, number: int) -> dict[str, str]:
        """State of the link to each peer, by its name; empty while the node does not answer."""
        with suppress(ControlError, OSError):
            return {peer["name"]: peer["link"] for peer in self.status(number)["peers"]}
        return {}

    def await_links(self, number: int, **expected: str) -> None:
        """Waits for states of links: n2="up"."""
        wanted = {f"{name}@{HOST}": state for name, state in expected.items()}

        def describe() -> str:
            return f"{self.links(number)}\n{self.output(number)}"

        until(lambda: wanted.items() <= self.links(number).items(), describe, LINKED_S)

    def await_line(self, number: int, text: str) -> None:
        until(lambda: text in self.output(number), lambda: self.output(number), LINKED_S)

    def output(self, number: int) -> str:
        return "".join(self.brokers[number].output)

    def counters(self, number: int) -> dict[str, int]:
        with Control(self.brokers[number].data_dir) as control:
            found: dict[str, int] = control.call("metrics")
        return found

    def processes(self, number: int) -> dict[int, str]:
        """Returns the processes of a node by pid."""
        return {child.pid: child.name() for child in self.brokers[number].children()}

    def kill_link(self, number: int, link: int = 0) -> int:
        """Kills a link process, and returns its pid."""
        broker = self.brokers[number]
        (pid,) = broker.child_pids(f"link-{link}")
        broker.kill_process(pid)
        return pid


def tls_of(authority: Authority, *numbers: int) -> dict[int, dict[str, Any]]:
    """Returns the settings of nodes with TLS between them, by number."""
    return {
        number: {
            "cluster.tls.enable": "true", "cluster.tls.cacertfile": authority.cafile,
            "cluster.tls.certfile": authority.issue(f"n{number}", f"n{number}@{HOST}", (HOST,)),
        }
        for number in numbers
    }  # fmt: skip


def free_pair() -> int:
    """Returns the first of two ports on which nothing listens."""
    port = free_port()
    while (following := free_port()) != port + 1:
        port = following
    return port


def rings_to(nodes: Nodes, number: int, peer: int) -> list[Ring]:
    """Returns the rings of the workers of a node to a peer."""
    (rings,) = [path / "rings" for path in nodes.brokers[number].leftovers() if (path / "rings").is_dir()]
    return Inbox.attach(str(rings / f"peer-{peer}-1")).lanes


@contextmanager
def _disk(path: Path, size: str) -> Iterator[None]:
    """A tmpfs of a size."""
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a small tmpfs: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


@contextmanager
def running(
    count: int, disks: Mapping[int, str] | None = None, prepare: Callable[[Nodes], None] = lambda nodes: None, **arguments: Any
) -> Iterator[Nodes]:
    """Nodes that are started, and stopped at the end; `disks` has the sizes of own disks. `prepare` is called before the start."""
    with tempfile.TemporaryDirectory(prefix="shardbroker-cluster-") as directory, ExitStack() as stack:
        for number, size in (disks or {}).items():
            stack.enter_context(_disk(Path(directory) / f"node-{number}", size))
        nodes = Nodes(Path(directory), count, **arguments)
        prepare(nodes)
        try:
            nodes.start()
            yield nodes
            for broker in nodes.brokers.values():
                broker.stop()
        finally:
            for broker in nodes.brokers.values():
                broker.kill()
                broker.clear_shared()
