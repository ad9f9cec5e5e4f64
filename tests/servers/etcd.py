"""etcd from Debian: one member, or three of one cluster, on ports of their own."""

import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers.processes import answers, folder
from tests.servers.service import Service, service

__all__ = ["etcd", "etcd_cluster", "etcd_command", "etcdctl", "url_of"]

TIMES = ["--heartbeat-interval", "50", "--election-timeout", "500"]
"""Milliseconds: half of etcd's own, since tests wait for elections."""


def url_of(server: Service, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{server.port}"


def etcd_command(name: str, where: Path, client: str, peer: str, cluster: str, *options: str) -> list[str]:
    """Returns the command of one member; `client`, `peer`: its URLs, `cluster`: all members as name=URL."""
    return [
        needed("etcd"), "--name", name, "--data-dir", str(where / "data"), "--logger", "zap", "--log-level", "warn", *TIMES,
        "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster, *options,
    ]  # fmt: skip


@contextmanager
def etcd(*options: str, scheme: str = "http", host: str = "127.0.0.1") -> Iterator[Service]:
    """One member. `options`: further arguments. host: another address, in the network namespace of this thread."""
    with folder() as where:
        port, peer = free_port(), f"http://127.0.0.1:{free_port()}"
        client = ",".join(f"{scheme}://{one}:{port}" for one in dict.fromkeys((host, "127.0.0.1")))
        command = etcd_command("e1", where, client, peer, f"e1={peer}", *options)
        with service(command, port, lambda: answers(port), where) as one:
            yield one


@contextmanager
def etcd_cluster(count: int = 3) -> Iterator[Sequence[Service]]:
    """Members of one cluster. They start together: a member answers once it has found a majority."""
    with ExitStack() as stack:
        wheres = [stack.enter_context(folder()) for _ in range(count)]
        ports = [free_port() for _ in wheres]
        peers = [f"http://127.0.0.1:{free_port()}" for _ in wheres]
        cluster = ",".join(f"e{number}={peer}" for number, peer in enumerate(peers, 1))
        servers = []
        for number, (where, port, peer) in enumerate(zip(wheres, ports, peers, strict=True), 1):
            command = etcd_command(f"e{number}", where, f"http://127.0.0.1:{port}", peer, cluster)
            servers.append(Service(command, port, partial(answers, port), where))
            stack.callback(servers[-1].stop)
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(Service.start, servers))
        yield servers


def etcdctl(server: Service, *words: str, user: str = "", scheme: str = "http", options: Sequence[str] = ()) -> str:
    """Returns what etcd's own client prints."""
    login = ["--user", user] if user else []
    done = subprocess.run(
        [needed("etcdctl"), "--endpoints", url_of(server, scheme), *login, *options, *words],
        capture_output=True, text=True, env={"ETCDCTL_API": "3", "PATH": "/usr/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
