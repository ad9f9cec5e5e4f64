"""`ctl rules test --past` over the journals of a broker with two workers, which runs or is stopped."""

import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shardbroker.cli.main import main
from shardbroker.control import Control
from tests.harness import Broker, Client, Publish, client_id_on

pytestmark = pytest.mark.own_broker
WORKERS = 2
KEPT = {"session_expiry_interval": 300}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """30 messages below `in/` that a rule needs, 5 below `queued/` that a session has, and a client that connected."""
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, Broker(WORKERS, {}, Path(name)) as broker:
        with Control(broker.data_dir) as control:
            control.call("rules create", id="one", sql='SELECT * FROM "in/#", "$events/client/connected"')
        with Client(broker.address, 5, client_id_on(1, WORKERS, "queue"), properties=KEPT) as away:
            away.subscribe("queued/#", 1)
            away.subscribe("in/#", 1)
        for worker in range(WORKERS):
            with Client(broker.address, 5, client_id_on(worker, WORKERS, "past"), username="ann") as client:
                for number in range(15):
                    client.publish(f"in/{worker}", b'{"t": %d}' % number, 1)
                client.publish("free", b"{}", 1)
        with Client(broker.address, 5, client_id_on(0, WORKERS, "other")) as client:
            for number in range(5):
                client.publish("queued/x", b'{"t": %d}' % (100 + number), 1)
        yield broker


def tried(broker: Broker, sql: str, past: str, capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, object]], str, int]:
    """Returns the lines of results, the last line of errors, and the exit code."""
    capsys.readouterr()
    code = main(["ctl", "--data-dir", str(broker.data_dir), "rules", "test", sql, "--past", past])
    captured = capsys.readouterr()
    return [json.loads(line) for line in captured.out.splitlines()], captured.err.strip(), code


def test_messages_of_all_workers_each_once(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    sql = 'SELECT payload.t AS t, username, clientid FROM "in/#" WHERE payload.t >= 10'
    found, summary, code = tried(broker, sql, "1h", capsys)
    assert (summary, code) == ("read: 39, matched: 30, results: 10, failed: 0", 0)
    assert [one["topic"] for one in found] == ["in/0"] * 5 + ["in/1"] * 5
    assert [one["result"]["t"] for one in found] == [*range(10, 15)] * 2  # type: ignore[index]
    assert found[0]["result"] == {"t": 10, "username": "ann", "clientid": client_id_on(0, WORKERS, "past")}
    assert [one["time"] for one in found] == sorted(str(one["time"]) for one in found)


def test_messages_of_sessions_and_events(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    found, _, _ = tried(broker, 'SELECT payload.t AS t FROM "queued/+"', "1h", capsys)
    assert [one["result"] for one in found] == [{"t": 100 + number} for number in range(5)]
    found, _, _ = tried(broker, 'SELECT clientid FROM "$events/client_connected" WHERE username = \'ann\'', "1h", capsys)
    assert [one["event"] for one in found] == ["client.connected"] * WORKERS


def test_failures_and_nothing(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    found, summary, code = tried(broker, 'SELECT 1 + no AS x FROM "queued/x"', "1h", capsys)
    assert len(found) == 5 and all("error" in one for one in found)
    assert (summary.partition("matched")[2], code) == (": 5, results: 0, failed: 5", 1)
    assert tried(broker, 'SELECT * FROM "in/#"', "2099-01-01", capsys) == ([], "read: 0, matched: 0, results: 0, failed: 0", 1)
    assert tried(broker, "SELECT", "1h", capsys)[1].startswith("parse: ")
    assert "--past: must be a time" in tried(broker, 'SELECT * FROM "in/#"', "soon", capsys)[1]


def test_a_broker_that_is_stopped(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    broker.stop()
    stopped_at = datetime.now(UTC).isoformat()
    broker.start()
    with Client(broker.address, 5, client_id_on(0, WORKERS, "past")) as client, Client(broker.address, 5, "sees") as sees:
        sees.subscribe("in/late", 1)
        client.publish("in/late", b"{}", 1)
        sees.expect(Publish)
    broker.stop()
    try:
        found, summary, _ = tried(broker, 'SELECT qos FROM "in/#"', "1h", capsys)
        assert len(found) == 31 and found[-1]["topic"] == "in/late" and "results: 31" in summary
        found, _, _ = tried(broker, 'SELECT qos FROM "in/#"', stopped_at, capsys)
        assert [one["topic"] for one in found] == ["in/late"]
    finally:
        broker.start()
