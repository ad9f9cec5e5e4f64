"""What `auto_subscribe.sources` cost: `python -m tests.access.bench_subscriptions [--rounds 4] [--seconds 4]`.

Connections a second, and CPU for each, in turn with authentication by PostgreSQL alone, with two subscriptions of each client that
the configuration has, and with two that the same server has. In 50 places clients connect, subscribe and disconnect. CPU is that
of the process integrations, of PostgreSQL, and of all: the broker, PostgreSQL and the clients. Where all share the cores, the
ratio of all CPU is that of the rates, and differs less from run to run.
"""

import argparse
import hashlib
import resource
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from typing import NamedTuple

import psutil

from tests.access.guarded import Guarded
from tests.servers.postgresql import Postgresql, postgresql

CLIENTS = 50
SQL = (
    "CREATE TABLE mqtt_user (username TEXT PRIMARY KEY, password_hash TEXT, salt TEXT, is_superuser BOOLEAN);"
    f"INSERT INTO mqtt_user VALUES ('ada', '{hashlib.sha256(b'saltsecret').hexdigest()}', 'salt', false);"
    "CREATE TABLE mqtt_sub (clientid TEXT, topic TEXT, qos INTEGER, PRIMARY KEY (clientid, topic));"
    "INSERT INTO mqtt_sub SELECT 'c' || n, 'to/' || n || '/' || k, 1 FROM generate_series(0, 99) n, generate_series(1, 2) k;"
)


class Cost(NamedTuple):
    """Connections a second, and µs of CPU for each."""

    rate: float
    integrations_us: float
    server_us: float
    all_us: float
    statements: float
    """Statements of PostgreSQL for each."""

    def __str__(self) -> str:
        return (
            f"{self.rate:,.0f}/s, {self.integrations_us:.0f} us of integrations, {self.server_us:.0f} us of PostgreSQL, "
            f"{self.all_us:.0f} us of all, {self.statements:.2f} statements"
        )


def cpu_s(pid: int) -> dict[int, float]:
    """Returns the CPU time of a process and those below it, by pid."""
    process, found = psutil.Process(pid), {}
    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # a session of PostgreSQL that has ended
            found[one.pid] = sum(one.cpu_times()[:2])
    return found


def connects(broker: Guarded, server: Postgresql, seconds: float) -> Cost:
    (integrations,) = broker.child_pids("integrations")
    assert server.server.process is not None
    parents = broker.pid, server.server.process.pid
    statements, clients = statements_of(server), children_s()
    before, count = [cpu_s(pid) for pid in parents], broker.count("client.connected")
    command = [
        sys.executable, "-m", "perf.cli", "reconnect", "-p", str(broker.address[1]), "--clients", str(CLIENTS), "-u", "ada",
        "-P", "secret", "--seconds", str(seconds), "--quiet", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = broker.count("client.connected") - count
    used = [{one: value - old.get(one, 0.0) for one, value in cpu_s(pid).items()} for pid, old in zip(parents, before, strict=True)]
    all_s = children_s() - clients + sum(sum(one.values()) for one in used)
    per_connect_us = 1e6 / made
    return Cost(
        made / seconds,
        used[0][integrations] * per_connect_us,
        sum(used[1].values()) * per_connect_us,
        all_s * per_connect_us,
        (statements_of(server) - statements) / made,
    )


def statements_of(server: Postgresql) -> int:
    """Returns how many statements have run; sessions note them a second late."""
    time.sleep(1.1)
    return int(server.psql("SELECT xact_commit FROM pg_stat_database WHERE datname = 'mqtt'"))


def children_s() -> float:
    """Returns the CPU time of the children of this process that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        server = stack.enter_context(postgresql(SQL))
        keys = f'server = "127.0.0.1:{server.port}"\nusername = "mqtt"\n'
        query = "SELECT topic, qos FROM mqtt_sub WHERE clientid = 'c0' AND ${clientid} <> ''"
        secrets = f'[auth.postgresql]\n{keys}[auto_subscribe.postgresql]\n{keys}query = "{query}"\n'
        settings = {"auth.chain": ["postgresql"]}
        topics = '[{topic = "to/0/1", qos = 1}, {topic = "to/0/2", qos = 1}]'
        kinds = [settings, {**settings, "auto_subscribe.topics": topics}, {**settings, "auto_subscribe.sources": ["postgresql"]}]
        brokers = [stack.enter_context(Guarded(one, secrets=secrets)) for one in kinds]
        found = [[connects(broker, server, arguments.seconds) for broker in brokers] for _ in range(arguments.rounds)]
    names = ("authentication alone", "subscriptions of the configuration", "subscriptions of the server")
    for one in found:
        print("; ".join(f"{name}: {cost}" for name, cost in zip(names, one, strict=True)))
    for place, name in enumerate(names[:2]):
        rates = statistics.median(one[2].rate / one[place].rate for one in found)
        costs = statistics.median(one[place].all_us / one[2].all_us for one in found)
        print(f"median ratio to {name}: {rates:.2f} by rate, {costs:.2f} by CPU of all")


if __name__ == "__main__":
    main()
