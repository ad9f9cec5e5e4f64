"""`ctl rules test --past` and `ctl rules past` over the journals of a broker with two workers, which runs or is stopped."""

import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shardbroker.cli.main import main
from shardbroker.control import Control, ControlError
from shardbroker.flows.past import Past
from shardbroker.journal import open_journal
from shardbroker.journal.encode import log_for_test
from shardbroker.journal.schema import Kind, encode
from shardbroker.rules.values import UNDEFINED
from tests.harness import Broker, Client, Publish, client_id_on, until

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
        with Control(broker.data_dir) as control:  # what has waited in a ring is in the journal, too
            until(lambda: control.call("sessions show", clientid=client_id_on(1, WORKERS, "queue"))["mqueue_len"] == 35)
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


def recently(broker: Broker, sql: str, last: int = 100) -> Any:
    with Control(broker.data_dir) as control:
        return control.call("rules past", sql=sql, last=last)


def test_the_last_messages_of_a_running_broker(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    sql = 'SELECT payload.t AS t, username FROM "in/#" WHERE payload.t >= 10'
    expected, summary, _ = tried(broker, sql, "1h", capsys)
    found = recently(broker, sql)
    assert f"read: {found['read']}, matched: {found['matched']}, results: {len(found['data'])}, failed: 0" == summary
    assert [json.loads(one["result"]) for one in found["data"]] == [one["result"] for one in expected]
    assert len(expected) >= 10
    every = 'SELECT payload.t AS t FROM "in/#"'
    last = [one["result"] for one in tried(broker, every, "1h", capsys)[0][-3:]]
    assert [json.loads(one["result"]) for one in recently(broker, every, 3)["data"]] == last
    assert [one["topic"] for one in recently(broker, 'SELECT 1 + no AS x FROM "queued/x"')["data"]] == ["queued/x"] * 5
    assert recently(broker, 'SELECT * FROM "none"')["data"] == []
    for wrong in ("SELECT", "SELECT * FROM"):
        with pytest.raises(ControlError, match="sql: "):
            recently(broker, wrong)


def test_a_rule_without_an_end_is_ended(broker: Broker) -> None:
    """The child ends, and the manager answers the next request."""
    sql = f'SELECT {", ".join(f"sha256(pad(payload, 900000)) AS x{number}" for number in range(1000))} FROM "in/#"'
    with pytest.raises(ControlError, match="sql: must end within 5 s and 256 MB"):
        recently(broker, sql)
    assert recently(broker, 'SELECT * FROM "in/#"')["matched"] >= 30


def test_the_end_of_a_long_journal_is_found(tmp_path: Path) -> None:
    """Publishers before the end are known, and what is read is bounded."""
    directory = tmp_path / "0"
    directory.mkdir()
    writer = open_journal(directory)
    message = {"topic": b"in/x", "flags": 0x41, "expires_ms": 0, "properties": b"", "publisher": b"me"}
    writer.append(encode(Kind.PUBLISHER, client_id=b"me", details={2: b"ann"}))
    for number in range(2000):
        log_for_test(writer, "MESSAGE", {"id": number.to_bytes(16, "big"), "payload": b"%d" % number, **message})
        writer.seal(1_000_000 + number)
    writer.close()
    rule = Past('SELECT payload, username FROM "in/#"')
    found = rule.last(tmp_path, 10, 20_000)
    assert [one.result for one in found] == [{"payload": str(number), "username": "ann"} for number in range(1990, 2000)]
    assert 10 <= rule.read < 300
    whole = Past('SELECT payload FROM "in/#"')
    assert len(whole.last(tmp_path, 3000, 1 << 30)) == whole.read == 2000


def test_the_record_that_names_the_publisher_is_taken(tmp_path: Path) -> None:
    """The journal of a subscriber's worker has the message a little earlier, and does not tell who has published it."""
    message = {"id": bytes(15) + b"\1", "topic": b"in/x", "payload": b"1", "expires_ms": 0, "properties": b"", "publisher": b"me"}
    other = {**message, "id": bytes(15) + b"\2", "payload": b"2"}
    for worker, flags in enumerate((0x01, 0x41)):
        (tmp_path / str(worker)).mkdir()
        writer = open_journal(tmp_path / str(worker))
        if flags & 0x40:
            writer.append(encode(Kind.PUBLISHER, client_id=b"me", details={2: b"ann"}))
        log_for_test(writer, "MESSAGE", {**message, "flags": flags})
        writer.seal(1_000_000 + worker)
        log_for_test(writer, "MESSAGE", {**other, "flags": flags})
        writer.seal(9_000_000 + 3_000_000 * worker)
        writer.close()
    rule = Past('SELECT payload, username FROM "in/#"')
    assert [one.result for one in rule.results(tmp_path, 0)] == [
        {"payload": "1", "username": "ann"}, {"payload": "2", "username": UNDEFINED},  # 3 s apart: it is not waited for
    ]  # fmt: skip
