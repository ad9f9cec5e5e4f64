"""Kills under load of what lies between a publisher and a row: `python -m tests.torture.sinks --type pgsql --once --seed 1`.

Two publishers at QoS 1; processes flows, workers, the broker and the server of the action are killed, the server is also stopped by
SIGSTOP for a while. Each acknowledged message has to be a row: once with --once, at least once otherwise.
"""

import argparse
import multiprocessing
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.flows.kills import MESSAGES_MAX, WORKERS, publish
from tests.flows.sinks.broker import SinksBroker
from tests.harness import until
from tests.servers.mysql import mariadb
from tests.servers.postgresql import postgresql
from tests.servers.redis import cli, redis_server

PAUSE_S = 0.7
"""Mean time between two kills."""
STOPPED_S = (1.0, 5.0)
"""How long the server is killed or stopped, at least and at most."""
QUIET_S = 30.0
"""Without a new row for so long, none comes any more."""
TABLE = "CREATE TABLE t (w integer, n integer)"
INSERT = "INSERT INTO t (w, n) VALUES (${w}, ${n})"
RULE = 'SELECT payload.w AS w, payload.n AS n FROM "in/a"'
PAIR = re.compile(r"(\d+)\D+(\d+)")


class Target(NamedTuple):
    """server: can be killed and paused; None: there is none. rows: returns a line with w and n for each row."""

    connector: dict[str, Any]
    parameters: dict[str, Any]
    server: Any
    rows: Any


@contextmanager
def target(kind: str, once: bool, data_dir: Path) -> Iterator[Target]:
    """The server of a type, with an empty table or its like."""
    parameters: dict[str, Any] = {"sql": INSERT, "exactly_once": once}
    login = {"username": "mqtt", "password": "dbsecret", "timeout": "2s"}
    if kind == "pgsql":
        with postgresql(TABLE) as pg:
            yield Target({"server": f"127.0.0.1:{pg.port}", **login}, parameters, pg.server, lambda: pg.psql("SELECT w, n FROM t"))
    elif kind == "mysql":
        with mariadb(TABLE, "--innodb-flush-log-at-trx-commit=2") as db:
            connector = {"server": f"127.0.0.1:{db.port}", **login}
            yield Target(connector, parameters, db.server, lambda: db.client("SELECT w, n FROM mqtt.t"))
    elif kind == "redis":
        with redis_server("--save", "", "--appendonly", "yes") as store:
            connector = {"server": f"127.0.0.1:{store.port}", "password": login["password"], "timeout": "2s"}
            command = {"command_template": ["RPUSH", "rows", "${w} ${n}"]}
            yield Target(connector, command, store, lambda: "\n".join(cli(store.port, "LRANGE", "rows", "0", "-1")))
    else:
        path = data_dir / "disk_log" / "rows"
        parameters = {"template": "${w} ${n}"}
        yield Target(
            {"filepath": "rows", "max_file_size": "1GB"}, parameters, None, lambda: path.read_text() if path.exists() else ""
        )


def harm(broker: SinksBroker, server: Any, victims: list[str]) -> None:
    """Kills and stops in turn."""
    for victim in victims:
        time.sleep(PAUSE_S * (0.5 + random.random()))
        if victim == "broker":
            broker.kill()
            broker.start()
        elif victim == "server":
            server.kill()
            time.sleep(random.uniform(*STOPPED_S))
            server.start()
        elif victim == "pause":
            server.pause()
            time.sleep(random.uniform(*STOPPED_S))
            server.resume()
        else:
            until(lambda victim=victim: broker.child_pids(victim))  # type: ignore[misc]
            broker.kill_process(random.choice(broker.child_pids(victim)))


def counted(text: str) -> Counter[tuple[int, int]]:
    """Returns how often each row is there."""
    return Counter((int(w), int(n)) for w, n in PAIR.findall(text))


def settled(found: Target, expected: set[tuple[int, int]]) -> Counter[tuple[int, int]]:
    """Returns the rows, once none is missing or nothing has come for a while."""
    rows, quiet_s = counted(found.rows()), time.monotonic()
    while expected - rows.keys() and time.monotonic() - quiet_s < QUIET_S:
        time.sleep(1.0)
        now = counted(found.rows())
        if len(now) != len(rows):
            quiet_s = time.monotonic()
        rows = now
    return rows


def run(kind: str, once: bool, victims: list[str], rate: float, place: Path) -> bool:
    """Returns whether all is as it has to be."""
    data_dir = place / "data"
    acknowledged = [multiprocessing.RawArray("B", MESSAGES_MAX) for _ in range(WORKERS)]
    stop = multiprocessing.RawValue("L", 0)
    options = {"batch_size": 500, "buffer_records": 5000, "health_check_interval": "1s"}
    with target(kind, once, data_dir) as found:
        action = {"connector": "main", "parameters": found.parameters, "resource_opts": options}
        sections = {
            f"connectors.{kind}.main": found.connector,
            f"actions.{kind}.rows": action,
            "rules.all": {"sql": RULE, "actions": [f"{kind}:rows"]},
        }
        with SinksBroker(WORKERS, data_dir, sections, {"log.level": "warning"}) as broker:
            start = multiprocessing.get_context("fork").Process
            publishers = [
                start(target=publish, args=(broker.address, worker, rate / WORKERS, acknowledged[worker], stop))
                for worker in range(WORKERS)
            ]
            for process in publishers:
                process.start()
            try:
                harm(broker, found.server, victims)
            finally:
                stop.value = 1
                for process in publishers:
                    process.join(30)
                    process.kill()
            expected = {(worker, n) for worker in range(WORKERS) for n, flag in enumerate(bytes(acknowledged[worker])) if flag}
            rows = settled(found, expected)
    missing, doubled = len(expected - rows.keys()), sum(rows.values()) - len(rows)
    kinds = ", ".join(f"{victims.count(one)} of {one}" for one in sorted(set(victims)))
    print(f"{kind}{' once' if once else ''}: {kinds}; {len(expected)} acknowledged, {missing} missing, {doubled} repeated")
    return not missing and bool(expected) and not (once and doubled)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.sinks", description=__doc__.partition("\n")[0])
    parser.add_argument("--type", choices=("pgsql", "mysql", "redis", "disk_log"), default="pgsql")
    parser.add_argument("--once", action="store_true", help="with exactly_once")
    parser.add_argument("--seed", type=int, default=1)
    for name, number in (("flows", 10), ("workers", 10), ("brokers", 3), ("servers", 5), ("pauses", 5)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--rate", type=float, default=4000, help="messages a second")
    given = parser.parse_args()
    if given.once and given.type not in ("pgsql", "mysql"):
        parser.error("--once: must be with pgsql or mysql")
    random.seed(given.seed)
    victims = ["flows-0"] * given.flows + ["worker"] * given.workers + ["broker"] * given.brokers
    if given.type != "disk_log":
        victims += ["server"] * given.servers + ["pause"] * given.pauses
    random.shuffle(victims)
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        return 0 if run(given.type, given.once, victims, given.rate, Path(name)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
