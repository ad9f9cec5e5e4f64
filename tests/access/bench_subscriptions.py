"""What `auto_subscribe.sources` cost: `python -m tests.access.bench_subscriptions [--rounds 4]`.

Connections a second, and CPU of the process integrations for each, in turn with authentication by PostgreSQL alone, with two
subscriptions of each client that the configuration has, and with two that the same server has. In 50 places clients connect,
subscribe and disconnect.
"""

import argparse
import hashlib
import statistics
import subprocess
import sys
from contextlib import ExitStack

import psutil

from tests.access import servers
from tests.access.guarded import Guarded

CLIENTS, SECONDS = 50, 4.0
SQL = (
    "CREATE TABLE mqtt_user (username TEXT PRIMARY KEY, password_hash TEXT, salt TEXT, is_superuser BOOLEAN);"
    f"INSERT INTO mqtt_user VALUES ('ada', '{hashlib.sha256(b'saltsecret').hexdigest()}', 'salt', false);"
    "CREATE TABLE mqtt_sub (clientid TEXT, topic TEXT, qos INTEGER, PRIMARY KEY (clientid, topic));"
    "INSERT INTO mqtt_sub SELECT 'c' || n, 'to/' || n || '/' || k, 1 FROM generate_series(0, 99) n, generate_series(1, 2) k;"
)


def integrations_s(broker: Guarded) -> float:
    (pid,) = broker.child_pids("integrations")
    return sum(psutil.Process(pid).cpu_times()[:2])


def connects(broker: Guarded) -> tuple[float, float]:
    """Returns connections a second, and µs of CPU of integrations for each."""
    before, count = integrations_s(broker), broker.count("client.connected")
    command = [
        sys.executable, "-m", "perf.cli", "reconnect", "-p", str(broker.address[1]), "--clients", str(CLIENTS), "-u", "ada",
        "-P", "secret", "--seconds", str(SECONDS), "--quiet", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = broker.count("client.connected") - count
    return made / SECONDS, (integrations_s(broker) - before) / made * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    rounds = parser.parse_args().rounds
    with ExitStack() as stack:
        port = stack.enter_context(servers.postgresql(SQL))
        keys = f'server = "127.0.0.1:{port}"\nusername = "mqtt"\n'
        query = "SELECT topic, qos FROM mqtt_sub WHERE clientid = 'c0' AND ${clientid} <> ''"
        secrets = f'[auth.postgresql]\n{keys}[auto_subscribe.postgresql]\n{keys}query = "{query}"\n'
        settings = {"auth.chain": ["postgresql"]}
        topics = '[{topic = "to/0/1", qos = 1}, {topic = "to/0/2", qos = 1}]'
        kinds = [settings, {**settings, "auto_subscribe.topics": topics}, {**settings, "auto_subscribe.sources": ["postgresql"]}]
        brokers = [stack.enter_context(Guarded(one, secrets=secrets)) for one in kinds]
        found = [[connects(broker) for broker in brokers] for _ in range(rounds)]
    for one in found:
        shown = [f"{rate:,.0f}/s and {cost_us:.0f} us" for rate, cost_us in one]
        print(f"authentication alone {shown[0]}, with subscriptions of the configuration {shown[1]}, of the server {shown[2]}")
    for name, place in (("authentication alone", 0), ("subscriptions of the configuration", 1)):
        print(f"median ratio to {name}: {statistics.median(one[2][0] / one[place][0] for one in found):.2f}")


if __name__ == "__main__":
    main()
