"""What becomes of rows that fail, and of rows that wait while definitions change, over a real broker with two workers."""

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardbroker.control import Control
from tests.flows.sinks.broker import SinksBroker
from tests.flows.sinks.publishing import numbered, publish_all
from tests.flows.sinks.service import Service
from tests.harness import until

pytestmark = pytest.mark.own_broker
WORKERS = 2
SQL = 'SELECT payload.c as c, payload.n as n, payload.kind as kind FROM "in/#"'


def sections(service: Service, **options: Any) -> dict[str, dict[str, Any]]:
    opts = {"batch_size": 500, "health_check_interval": "1s", **options}
    return {
        "connectors.http.service": {"url": service.url, "timeout": "2s"},
        "connectors.disk_log.file": {"filepath": "failed.log"},
        "actions.http.rows": {"connector": "service", "parameters": {"batch": True}, "resource_opts": opts},
        "rules.hot": {"sql": SQL, "actions": ["http:rows"]},
    }


def done(broker: SinksBroker, id: str, count: int) -> dict[str, Any]:
    """Returns the figures of an action once so many rows are written or have failed."""
    figures: dict[str, Any] = {}

    def look() -> bool:
        nonlocal figures
        figures = broker.action(id)
        return figures.get("success", 0) + figures.get("failed", 0) >= count and not figures["queuing"]

    until(look, lambda: f"{figures} {broker.output[-5:]}", 30)
    return figures


def in_file(broker: SinksBroker, name: str) -> list[dict[str, Any]]:
    path = broker.data_dir / "disk_log" / name
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def test_a_poison_row_fails_alone_and_goes_to_the_fallback(place: Path, service: Service) -> None:
    definitions = sections(service)
    definitions["actions.disk_log.failed"] = {"connector": "file"}
    definitions["actions.http.rows"]["fallback_actions"] = ["file:failed"]
    payloads = numbered("c", range(2000))
    payloads[700] = json.dumps({"c": "c", "n": 700, "kind": "poison"}).encode()
    with SinksBroker(WORKERS, place / "data", definitions) as broker:
        publish_all(broker.address, 0, WORKERS, payloads)
        figures = done(broker, "http:rows", 2000)
        until(lambda: in_file(broker, "failed.log"))
        until(lambda: broker.action("http:rows")["lag_records"] == 0)
        (failed,) = in_file(broker, "failed.log")
        (line,) = until(lambda: [one for one in broker.output if "row not written" in one])
    assert (figures["success"], figures["failed"]) == (1999, 1)
    assert [row["n"] for row in service.rows()] == [n for n in range(2000) if n != 700]
    assert failed["n"] == 700
    assert f'position={failed["position"].rpartition("/")[2]}' in line
    assert 'reason="status 400"' in line and "action=http:rows" in line
    assert "poison" not in line


def test_a_failed_row_is_not_lost_while_its_fallback_cannot_be_used(place: Path, service: Service) -> None:
    """The cursor stays before it: a kill of everything repeats it."""
    definitions = sections(service)
    definitions["connectors.disk_log.file"]["filepath"] = str(place / "missing" / "failed.log")
    definitions["actions.disk_log.failed"] = {"connector": "file"}
    definitions["actions.http.rows"]["fallback_actions"] = ["disk_log:failed"]
    with SinksBroker(WORKERS, place / "data", definitions) as broker:
        publish_all(broker.address, 0, WORKERS, [b'{"c": "c", "n": 0, "kind": "poison"}', *numbered("c", range(1, 50))])
        done(broker, "http:rows", 50)
        until(lambda: broker.action("disk_log:failed").get("status") == "disconnected")
        assert "No such file" in broker.action("disk_log:failed")["error"]
        assert broker.action("http:rows")["lag_records"] >= 50
        broker.kill()
        (place / "missing").mkdir()
        broker.start()
        path = place / "missing" / "failed.log"
        until(lambda: path.exists() and path.read_bytes())
        until(lambda: broker.action("http:rows").get("lag_records") == 0)
    assert {json.loads(line)["n"] for line in path.read_bytes().splitlines()} == {0}


@pytest.mark.parametrize("what", ["loop", "template"])
def test_a_wrong_action_is_reported_and_others_work(place: Path, service: Service, what: str) -> None:
    definitions = sections(service)
    definitions["actions.http.other"] = {"connector": "service"}
    definitions["rules.hot"]["actions"] = ["http:rows", "http:other"]
    other = definitions["actions.http.other"]
    if what == "loop":
        definitions["actions.http.third"] = {"connector": "service", "fallback_actions": ["http:other"]}
        other["fallback_actions"] = ["webhook:third"]
        reason = "fallback_actions: must not lead back"
    else:
        other["parameters"] = {"batch": True, "path": "/${clientid}"}
        reason = "parameters.batch: must be false"
    with SinksBroker(WORKERS, place / "data", definitions) as broker:
        publish_all(broker.address, 0, WORKERS, numbered("c", range(10)))
        done(broker, "http:rows", 10)
        assert broker.action("http:other")["error"].startswith(reason)
        until(lambda: any("action not loaded" in line and "http:other" in line for line in broker.output))
        until(lambda: broker.rule_figures("hot", ["actions.success", "actions.failed.out_of_service"]) == [10, 10])


def test_rows_wait_over_live_changes(place: Path, service: Service) -> None:
    with SinksBroker(WORKERS, place / "data", sections(service), {"flows.processes": 1}) as broker:
        publish_all(broker.address, 0, WORKERS, numbered("c", range(10)))
        done(broker, "http:rows", 10)
        service.kill()
        publish_all(broker.address, 0, WORKERS, numbered("c", range(10, 1000)))
        until(lambda: broker.action("http:rows")["queuing"] == 990)
        both = {"sql": SQL, "actions": ["http:rows", "disk_log:more"]}
        broker.change(actions__disk_log__more={"connector": "file"}, rules__hot=both)
        publish_all(broker.address, 0, WORKERS, numbered("c", range(1000, 1100)))
        assert done(broker, "disk_log:more", 100)["success"] == 100
        figures = broker.action("http:rows")
        assert (figures["queuing"], figures["success"]) == (1090, 10), "the other action is what it was"
        assert [row["n"] for row in in_file(broker, "failed.log")] == [*range(1000, 1100)], "it begins with what follows"
        broker.change(
            actions__http__rows={"connector": "service", "parameters": {"batch": True}, "resource_opts": {"batch_size": 100}},
            actions__disk_log__more=None,
            rules__hot={"sql": SQL, "actions": ["http:rows"]},
        )
        until(lambda: "disk_log:more" not in broker.figures()["actions"])
        until(lambda: broker.action("http:rows").get("queuing") == 1090, lambda: str(broker.action("http:rows")))
        service.start()
        done(broker, "http:rows", 1090)
        assert list(dict.fromkeys(row["n"] for row in service.rows())) == [*range(1100)]
        broker.change(actions__http__rows={"connector": "service", "enable": False})
        publish_all(broker.address, 0, WORKERS, numbered("c", range(1100, 1200)))
        until(lambda: broker.rule_figures("hot", ["actions.failed.out_of_service"]) == [100])
        holds = [one.name for one in (broker.data_dir / "holds").glob("action-*")]
    assert not holds, "nothing is kept for an action that is not enabled"


def test_rows_wait_for_a_connector_that_is_not_enabled(place: Path, service: Service) -> None:
    definitions = sections(service)
    connector = definitions["connectors.http.service"]
    with SinksBroker(WORKERS, place / "data", definitions, {"flows.processes": 1}) as broker:
        publish_all(broker.address, 0, WORKERS, numbered("c", range(10)))
        done(broker, "http:rows", 10)
        broker.change(connectors__http__service={**connector, "enable": False})
        until(lambda: "is not enabled" in broker.action("http:rows")["error"])
        publish_all(broker.address, 0, WORKERS, numbered("c", range(10, 500)))
        until(lambda: broker.rule_figures("hot", ["actions.failed.out_of_service"]) == [490])
        broker.kill()
        broker.start()
        assert [one.name for one in (broker.data_dir / "holds").glob("action-*")] == ["action-http:rows-0.json"]
        broker.change(connectors__http__service=connector)
        done(broker, "http:rows", 490)
    assert list(dict.fromkeys(row["n"] for row in service.rows())) == [*range(500)]


def test_a_server_that_is_gone_costs_bounded_memory_and_time_of_others(place: Path, service: Service) -> None:
    """100,000 rows wait in the journals; a second action has them at once, and memory does not grow with the first one's lag."""
    definitions = sections(service, buffer_records=1000)
    definitions["actions.disk_log.all"] = {"connector": "file"}
    definitions["rules.hot"] = {"sql": 'SELECT payload.n as n FROM "in/#"', "actions": ["http:rows", "disk_log:all"]}
    with SinksBroker(WORKERS, place / "data", definitions, {"flows.processes": 1}) as broker:
        publish_all(broker.address, 0, WORKERS, numbered("c", range(5000)))
        done(broker, "disk_log:all", 5000)
        done(broker, "http:rows", 5000)
        service.pause()
        process = psutil.Process(broker.child_pids("flows-0")[0])
        before = process.memory_info().rss
        for begin in range(0, 100_000, 10_000):
            publish_all(broker.address, begin // 10_000 % 2, WORKERS, numbered("c", range(begin, begin + 10_000)))
        done(broker, "disk_log:all", 105_000)
        figures = broker.action("http:rows")
        grown = process.memory_info().rss - before
        service.resume()
        done(broker, "http:rows", 105_000)
        after = broker.action("http:rows")
    assert figures["queuing"] + figures["inflight"] <= 1000 and figures["lag_records"] >= 99_000
    assert grown < 40 << 20
    assert after["matched"] == 105_000 and after["dropped"] == 0


def test_a_trial_reaches_the_sink(place: Path, service: Service) -> None:
    with SinksBroker(WORKERS, place / "data", sections(service)) as broker:
        context = json.dumps({"topic": "in/a", "payload": '{"c": "c", "n": 1}', "clientid": "c1"})
        with Control(broker.data_dir) as control:
            tried = control.call("rules try", id="hot", context=context, carry_out=True)
        assert tried["actions"] == [{"action": "http:rows", "rendered": {"row": tried["result"]}, "success": True}]
        done(broker, "http:rows", 1)
    assert [row["n"] for row in service.rows()] == [1]
