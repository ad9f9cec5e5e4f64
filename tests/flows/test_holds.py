"""Rules that stand still: alarms and a counter, before and after their hold gives way."""

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control
from shardbroker.journal.holds import read_holds, set_hold
from shardbroker.journal.layout import segment_paths, segment_start
from tests.flows.broker import RulesBroker, rule
from tests.harness import Client, client_id_on, until
from tests.harness.segments import journal_bytes
from tests.harness.waiting import stopped

pytestmark = pytest.mark.own_broker
SETTINGS = {"journal.segment_bytes": "64KB", "journal.cycle_bytes": "128KB", "journal.retention.bytes": "1MB"}
HELD_BYTES = 2 << 20
WORKERS, STOPPED = 2, 1
"""Journal 1 grows while its reader is stopped; journal 0 does not."""
LONG_S = 60.0


def call(broker: RulesBroker, verb: str) -> Any:
    with Control(broker.data_dir) as control:
        return control.call(verb)


def alarm_of(broker: RulesBroker, name: str) -> dict[str, Any] | None:
    return next((alarm for alarm in call(broker, "alarms list")["data"] if alarm["name"] == name), None)


def counted(broker: RulesBroker) -> int:
    return int(call(broker, "metrics")["journal.hold_exceeded"])


def publish_until(client: Client, done: Callable[[], Any]) -> Any:
    def step() -> Any:
        for _ in range(20):
            client.publish("in/t", bytes(5000), 1)
        return done()

    return until(step, timeout_s=LONG_S)


def test_a_stopped_consumer_is_an_alarm_before_and_after_its_hold_gives_way() -> None:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, RulesBroker(WORKERS, Path(name), SETTINGS) as broker:
        broker.define(rule("one", 'SELECT clientid FROM "in/#"'))
        journal = broker.data_dir / "journal" / str(STOPPED)
        with Client(broker.address, 5, client_id_on(STOPPED, WORKERS, "holds")) as client:
            client.publish("in/t", b"x", 1)
            until(lambda: broker.rule_figures("one", ["matched"]) == [1])
            hold = until(lambda: next((hold for hold in read_holds(broker.data_dir) if str(STOPPED) in hold.positions), None))
            (flows,) = broker.child_pids("flows-0")
            with stopped(flows):
                set_hold(broker.data_dir, replace(hold, max_bytes=HELD_BYTES))
                held_from = hold.positions[str(STOPPED)]
                while journal_bytes(journal) < 0.9 * HELD_BYTES:
                    client.publish("in/t", bytes(5000), 1)
                nearly = until(lambda: alarm_of(broker, "hold_nearly_full"), timeout_s=LONG_S)
                assert counted(broker) == 0 and alarm_of(broker, "hold_exceeded") is None
                assert f"rules-0 needs {nearly['details']['holds'][0]['bytes']} bytes of journal {STOPPED}, " in nearly["message"]
                (held,) = nearly["details"]["holds"]
                assert (held["consumer"], held["journal"], held["max_bytes"]) == ("rules-0", str(STOPPED), HELD_BYTES)
                assert held["bytes"] >= 0.8 * HELD_BYTES and held["missing"] == 0

                publish_until(client, lambda: counted(broker) >= 3)
                exceeded = until(lambda: alarm_of(broker, "hold_exceeded"), timeout_s=LONG_S)
                first = segment_start(segment_paths(journal)[0])
                assert first > held_from
                (short,) = exceeded["details"]["holds"]
                assert (short["consumer"], short["journal"]) == ("rules-0", str(STOPPED)) and 0 < short[
                    "missing"
                ] <= first - held_from
                assert 0 < exceeded["details"]["segments"] <= counted(broker)
                by_worker = r'^shardbroker_worker_journal_hold_exceeded.worker="(.)". (.+)$'
                scraped = re.findall(by_worker, call(broker, "prometheus"), re.MULTILINE)
                assert [int(value) >= 3 for _, value in sorted(scraped)] == [worker == STOPPED for worker in range(WORKERS)]
            until(lambda: broker.rule_figures("one", ["matched"])[0] > 1)
            until(lambda: alarm_of(broker, "hold_nearly_full") is None, timeout_s=LONG_S)


def test_what_rules_have_read_is_removed_uncounted() -> None:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, RulesBroker(WORKERS, Path(name), SETTINGS) as broker:
        broker.define(rule("one", 'SELECT clientid FROM "in/#"'))
        journal = broker.data_dir / "journal" / str(STOPPED)
        with Client(broker.address, 5, client_id_on(STOPPED, WORKERS, "holds")) as client:
            publish_until(client, lambda: segment_start(segment_paths(journal)[0]) > 0)
        assert counted(broker) == 0
        assert alarm_of(broker, "hold_exceeded") is None
