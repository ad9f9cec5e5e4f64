"""What every sink has to show: types, no row lost while its server is gone or the broker restarts, and rows that are rejected.

    python -m tests.flows.sinks.acceptance --type pgsql --type redis
    make acceptance-sinks SINKS="--type pgsql --type redis"

100,000 messages while the server is stopped by SIGSTOP for 20 s and then gone for 20 s, a restart of the broker with 50,000 rows
waiting, and one row that is rejected among 10,000. `test_acceptance.py` does the same with fewer messages and shorter times.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.api.rest import ApiBroker, Rest
from tests.flows.sinks.kinds import KINDS, ROWS, TYPED, TYPED_PAYLOAD, Rows, Sink
from tests.flows.sinks.publishing import publish_all
from tests.harness import until

__all__ = ["Outage", "Trial", "broker_of_trials", "trial"]

WORKERS = 2
QUIET_S = 60.0
"""Without a new row for so long, none comes any more: an attempt may be 15 s away, and the server slow after its start."""
LOOK_S = 0.1
POISONED = 10_000
"""Rows of which one is rejected."""
FALLBACK = "disk_log:rejected"


class Outage(NamedTuple):
    """Messages of all publishers, and how long the server is stopped, and gone."""

    messages: int
    seconds: float


class Trial:
    """A broker with REST beside a sink of a type. Each check has actions and publishers of its own."""

    def __init__(self, kind: str, sink: Sink, broker: ApiBroker) -> None:
        self.kind, self.sink, self.broker = kind, sink, broker
        self.rest = Rest.logged_in(broker)
        self._publishers = 0

    # --- definitions ----------------------------------------------------------------------------------------------------------

    def probe(self, settings: dict[str, Any]) -> str:
        """Returns the error of a probe; empty: there is none."""
        status, answer = self.rest("POST", "/connectors_probe", {"type": self.kind, "name": "new", **settings})
        return "" if status < 300 else str(answer["message"])

    @contextmanager
    def action(self, name: str, parameters: dict[str, Any], sql: str, **more: Any) -> Iterator[str]:
        """Makes connector, action and rule by REST; yields the id of the action."""
        id = f"{self.kind}:{name}"
        self.rest.good("POST", "/connectors", {"type": self.kind, "name": name, **self.sink.connector})
        opts = {"health_check_interval": "1s"}
        action = {"type": self.kind, "name": name, "connector": name, "parameters": parameters, "resource_opts": opts, **more}
        self.rest.good("POST", "/actions", action)
        rule = f"{self.kind}-{name}"
        self.rest.good("POST", "/rules", {"id": rule, "sql": sql.replace("{topic}", f"in/{name}"), "actions": [id]})
        try:
            yield id
        finally:
            self.rest.good("DELETE", f"/rules/{rule}")
            self.rest.good("DELETE", f"/connectors/{id}", also_delete_dep_actions="true")

    @contextmanager
    def fallback(self) -> Iterator[None]:
        """Makes the action that gets rows that are rejected."""
        self.rest.good("POST", "/connectors", {"type": "disk_log", "name": "rejected", "filepath": self.kind})
        self.rest.good("POST", "/actions", {"type": "disk_log", "name": "rejected", "connector": "rejected"})
        try:
            yield
        finally:
            self.rest.good("DELETE", f"/connectors/{FALLBACK}", also_delete_dep_actions="true")

    def rejected(self) -> list[dict[str, Any]]:
        """Returns the rows that it has got."""
        file = self.broker.data_dir / "disk_log" / self.kind
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def shown(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.rest.good("GET", f"/actions/{id}")
        return found

    def figures(self, id: str) -> dict[str, int]:
        found: dict[str, int] = self.rest.good("GET", f"/actions/{id}/metrics")["metrics"]
        return found

    # --- rows -----------------------------------------------------------------------------------------------------------------

    def publishers(self) -> list[int]:
        """Returns new numbers of publishers, one for each worker."""
        self._publishers += WORKERS
        return [*range(self._publishers - WORKERS, self._publishers)]

    def publish(self, topic: str, publishers: list[int], numbers: range) -> None:
        """Each publisher publishes the numbers; returns when all are acknowledged."""
        for worker, w in enumerate(publishers):
            self.publish_payloads(topic, worker, [{"w": w, "n": n} for n in numbers])

    def publish_payloads(self, topic: str, worker: int, payloads: list[dict[str, Any]]) -> None:
        texts = [json.dumps(one).encode() for one in payloads]
        publish_all(self.broker.address, worker, WORKERS, texts, f"in/{topic}".encode())

    def rows(self, publishers: list[int]) -> Rows:
        return [row for row in self.sink.rows() if row[0] in publishers]

    def wait_for(self, publishers: list[int], numbers: Iterable[int]) -> Rows:
        """Returns the rows of publishers once all these numbers of each are there."""
        expected = {(w, n) for n in numbers for w in publishers}
        rows, moved_s = self.rows(publishers), time.monotonic()
        while missing := expected - set(rows):
            waited_s = time.monotonic() - moved_s
            assert waited_s < QUIET_S, f"{len(missing)} rows are missing, such as {min(missing)}: {self.broker.output[-8:]}"
            time.sleep(LOOK_S)
            now = self.rows(publishers)
            if len(now) != len(rows):
                moved_s = time.monotonic()
            rows = now
        return rows

    def wait_for_figures(self, id: str, **least: int) -> dict[str, int]:
        """Returns the figures of an action once they are at least these."""
        found: dict[str, int] = {}

        def look() -> bool:
            nonlocal found
            found = self.figures(id)
            return all(found[name] >= number for name, number in least.items()) and not found["queuing"]

        until(look, lambda: f"{found} {self.broker.output[-8:]}", 60)
        return found

    def assert_in_order(self, rows: Rows) -> None:
        """Asserts that rows of each publisher were written in order; repeats of a batch are of no matter."""
        if self.sink.last is not None:
            written = self.sink.last()
            for w in {w for w, _ in rows}:
                assert written[w] == max(n for publisher, n in rows if publisher == w)
            return
        for w in {w for w, _ in rows}:
            firsts = list(dict.fromkeys(n for publisher, n in rows if publisher == w))
            assert firsts == sorted(firsts), f"publisher {w}"

    # --- checks ---------------------------------------------------------------------------------------------------------------

    def types(self) -> None:
        """A connector is refused with the reason, then all are made by REST; a row keeps the types of its values."""
        sink = self.sink
        error = self.probe(sink.refused)
        assert sink.reason in error, error
        assert self.probe(sink.connector) == ""
        with self.action("typed", sink.typed, TYPED) as id:
            for verb in ("stop", "start"):
                self.rest.good("POST", f"/actions/{id}/{verb}")
            self.publish_payloads("typed", 0, [TYPED_PAYLOAD])
            figures = self.wait_for_figures(id, success=1)
            assert (figures["matched"], figures["success"], figures["failed"], figures["dropped"]) == (1, 1, 0, 0)
            assert self.shown(id)["status"] == "connected"
            assert (stored := sink.stored()) == sink.shown, stored

    def outage(self, outage: Outage) -> str:
        """No row is missing after the server was stopped and then gone; returns what happened."""
        each = outage.messages // WORKERS
        bounds = [each * part // 4 for part in range(5)]
        publishers = self.publishers()
        with self.action("outage", self.sink.parameters, ROWS):
            self.publish("outage", publishers, range(bounds[1]))
            self.wait_for(publishers, range(bounds[1]))
            self.sink.pause()
            self.publish("outage", publishers, range(bounds[1], bounds[2]))
            time.sleep(outage.seconds)
            self.sink.kill()
            self.publish("outage", publishers, range(bounds[2], bounds[3]))
            time.sleep(outage.seconds)
            self.sink.start()
            back_s = time.monotonic()
            self.publish("outage", publishers, range(bounds[3], bounds[4]))
            rows = self.wait_for(publishers, range(each))
            took_s = time.monotonic() - back_s
            self.assert_in_order(rows)
        repeated = len(rows) - len(set(rows))
        assert not repeated or not self.sink.keyed
        return f"{each * WORKERS} messages, 0 missing, {repeated} repeated, in order, all there {took_s:.1f} s after the start"

    def restart(self, waiting: int) -> str:
        """A restart of the broker loses no row that waits; a rewind writes all again, which keys make a no-op."""
        each = waiting // WORKERS
        publishers = self.publishers()
        with self.action("restart", self.sink.parameters, ROWS) as id:
            if self.sink.server is not None:
                self.sink.kill()
            self.publish("restart", publishers, range(each))
            self.broker.stop()
            if self.sink.server is not None:
                self.sink.start()
            written = len(self.rows(publishers))  # a file may take some before its disk is full
            self.broker.start()
            self.rest = Rest.logged_in(self.broker)
            rows = self.wait_for(publishers, range(each))
            self.assert_in_order(rows)
            assert len(rows) == waiting, "while nothing is lost, nothing is repeated"
            before = self.wait_for_figures(id, success=waiting - written)["success"]
            if not self.sink.rewinds:
                assert self.rest("PUT", f"/actions/{id}/cursor", {"at": "5m"})[0] == 400
                return f"{waiting} waiting, 0 missing; a rewind is refused"
            self.rest.good("PUT", f"/actions/{id}/cursor", {"at": "5m"})
            again = self.wait_for_figures(id, success=before + waiting)["success"] - before
            rows = self.rows(publishers)
            if self.sink.last is None and not self.sink.keyed:
                assert sorted(rows) == sorted((w, n) for w in publishers for n in range(each) for _ in range(2))
            else:
                assert sorted(rows) == sorted((w, n) for w in publishers for n in range(each))
        return f"{waiting} waiting, 0 missing; after a rewind {again} written again, {len(rows)} rows"

    def poison(self, count: int = POISONED) -> str:
        """One row that is rejected fails alone, with its position in the log."""
        wrong = KINDS[self.kind].poison
        assert wrong is not None
        publishers = self.publishers()
        bad = count * 2 // 3
        payloads: list[dict[str, Any]] = [{"w": publishers[0], "n": n, "x": 1} for n in range(count)]
        payloads[bad] |= wrong
        with self.fallback(), self.action("poison", self.sink.parameters, ROWS, fallback_actions=[FALLBACK]) as id:
            said = len(self.broker.output)
            self.publish_payloads("poison", 0, payloads)
            good = [n for n in range(count) if n != bad]
            rows = self.wait_for(publishers[:1], good)
            assert sorted(n for _, n in rows) == good
            figures = self.wait_for_figures(id, success=count - 1, failed=1)
            assert (figures["success"], figures["failed"]) == (count - 1, 1)
            (line,) = until(lambda: [one for one in self.broker.output[said:] if "row not written" in one])
            until(self.rejected)
            (failed,) = self.rejected()
        assert f"action={id}" in line and f"position={failed['position'].rpartition('/')[2]}" in line
        assert failed["n"] == payloads[bad]["n"]
        return f"{len(rows)} of {count} there, 1 failed: {line.partition('row not written ')[2].strip()}"


@contextmanager
def broker_of_trials() -> Iterator[ApiBroker]:
    """A broker without definitions."""
    with (
        tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name,
        ApiBroker(WORKERS, {"flows.processes": 1}, Path(name) / "data") as broker,
    ):
        yield broker


@contextmanager
def trial(kind: str, broker: ApiBroker) -> Iterator[Trial]:
    """A server of the type, for a broker that has no definitions of it."""
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, KINDS[kind].serve(Path(name)) as sink:
        yield Trial(kind, sink, broker)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.flows.sinks.acceptance", description=__doc__.partition("\n")[0])
    parser.add_argument("--type", action="append", choices=tuple(KINDS), help="may be repeated; all")
    parser.add_argument("--messages", type=int, default=100_000, help="while the server is gone")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which it is stopped, and then gone")
    parser.add_argument("--waiting", type=int, default=50_000, help="rows at the restart of the broker")
    given = parser.parse_args()
    for kind in given.type or KINDS:
        with broker_of_trials() as broker, trial(kind, broker) as one:
            one.types()
            if one.sink.server is not None:
                print(f"{kind}: outage: {one.outage(Outage(given.messages, given.seconds))}", flush=True)
            print(f"{kind}: restart: {one.restart(given.waiting)}", flush=True)
            if KINDS[kind].poison is not None:
                print(f"{kind}: poison: {one.poison()}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
