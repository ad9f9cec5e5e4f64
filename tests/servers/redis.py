"""Redis from Debian: one server, a master with a replica and a sentinel, a cluster."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers.processes import account, answers, folder, quietly
from tests.servers.service import Service, service

__all__ = ["PASSWORD", "Watched", "cli", "cluster", "redis", "redis_server", "watched"]

PASSWORD = "dbsecret"
WAIT_S = 60.0


@contextmanager
def redis(*commands: list[str]) -> Iterator[int]:
    """A server without files, after some commands; yields its port."""
    with redis_server("--save", "") as server:
        for words in commands:
            quietly([*_cli(server.port), *words])
        yield server.port


@contextmanager
def redis_server(*options: str, port: int = 0, password: str = PASSWORD) -> Iterator[Service]:
    with folder() as where:
        port = port or free_port()
        command = [needed("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(where)]
        if password:
            command += ["--requirepass", password, "--masterauth", password]
        with service([*command, *options], port, lambda: answers(port), where) as one:
            yield one


def _cli(port: int) -> list[str]:
    return [needed("redis-cli"), "-p", str(port), "-a", PASSWORD, "--no-auth-warning"]


def cli(port: int, *words: str, options: tuple[str, ...] = ()) -> Any:
    """The answer that redis-cli shows for a command; the text of an error is not raised."""
    command = [*_cli(port), "-3", "--json", *options, *words]
    done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape")
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        return json.loads(done.stdout)
    except ValueError:
        return done.stdout.strip()


class Watched(NamedTuple):
    master: Service
    replica: Service
    sentinel: Service
    name: str


@contextmanager
def watched(name: str = "main") -> Iterator[Watched]:
    """A master and its replica, watched by one sentinel."""
    with ExitStack() as stack:
        master = stack.enter_context(redis_server("--save", ""))
        options = ["--save", "", "--replicaof", f"127.0.0.1 {master.port}", "--repl-diskless-sync-delay", "0"]
        replica = stack.enter_context(redis_server(*options))
        where = stack.enter_context(folder())
        port = free_port()
        config = where / "sentinel.conf"
        config.write_text(f"""port {port}
bind 127.0.0.1
dir {where}
sentinel monitor {name} 127.0.0.1 {master.port} 1
sentinel auth-pass {name} {PASSWORD}
sentinel down-after-milliseconds {name} 1000
sentinel failover-timeout {name} 5000
""")
        _give(config)
        command = [needed("redis-server"), str(config), "--sentinel"]
        sentinel = stack.enter_context(service(command, port, lambda: answers(port), where))
        _wait(lambda: "master_link_status:up" in str(cli(replica.port, "INFO", "replication")))
        _wait(lambda: f"port={replica.port}" in _sentinel(port, "REPLICAS", name))
        yield Watched(master, replica, sentinel, name)


def _sentinel(port: int, *words: str) -> str:
    done = subprocess.run([needed("redis-cli"), "-p", str(port), "SENTINEL", *words], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    return " ".join(f"{name}={value}" for name, value in zip(lines[::2], lines[1::2], strict=False))


@contextmanager
def cluster(nodes: int = 3) -> Iterator[list[Service]]:
    """Masters that share the slots, without replicas."""
    with ExitStack() as stack:
        options = ["--save", "", "--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]
        found = [stack.enter_context(redis_server(*options, port=_cluster_port())) for _ in range(nodes)]
        addresses = [f"127.0.0.1:{one.port}" for one in found]
        quietly([*_cli(found[0].port), "--cluster", "create", *addresses, "--cluster-yes"])
        _wait(lambda: all("cluster_state:ok" in str(cli(one.port, "CLUSTER", "INFO")) for one in found))
        yield found


def _cluster_port() -> int:
    """The bus of a node is 10,000 above."""
    while True:
        if (port := free_port()) < 55000 and not answers(port + 10000):
            return port


def _give(file: Path) -> None:
    if account():
        subprocess.run(["chown", "nobody", str(file)], check=True)


def _wait(until: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not until():
        assert time.monotonic() < deadline, "the servers have not found each other"
        time.sleep(0.1)
