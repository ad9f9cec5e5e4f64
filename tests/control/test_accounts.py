"""Verbs of accounts, keys and the audit log, and several values of the configuration together."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from shardbroker.control import Control, ControlError
from tests.control.conftest import Run
from tests.harness import Broker

pytestmark = pytest.mark.own_broker


def test_an_account_is_added_changed_and_deleted(ctl: Run, control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbroker.cli.ctl.read_secret", lambda: "a good password")
    for name in ("first", "second"):
        assert ctl("admins", "add", name, "--description", "from a test")[0] == 0
    assert ctl("admins", "add", "first")[2].startswith("ALREADY_EXISTS")
    assert ctl("admins", "update", "second", "--role", "viewer")[1]["role"] == "viewer"
    assert ctl("admins", "passwd", "second")[0] == 0
    rows = control.call("admins list")["data"]
    assert [(row["name"], row["role"]) for row in rows] == [("first", "administrator"), ("second", "viewer")]
    assert ctl("admins", "delete", "first")[2].startswith("NOT_AVAILABLE")  # the last administrator
    assert ctl("admins", "delete", "second")[0] == 0
    assert ctl("admins", "delete", "second")[2].startswith("NOT_FOUND")


def test_a_secret_is_told_once_and_stands_in_no_file(ctl: Run, control: Control, broker: Broker) -> None:
    _, made, _ = ctl("api-keys", "add", "robot", "--role", "viewer")
    assert made["role"] == "viewer" and len(made["api_secret"]) > 40
    stored = b"".join(path.read_bytes() for path in broker.data_dir.glob("a*.sqlite3*"))
    assert made["api_key"].encode() in stored and made["api_secret"].encode() not in stored
    assert "api_secret" not in ctl("api-keys", "list")[1]["data"][0]
    assert ctl("api-keys", "update", "robot", "--no-enable", "--expired-at", "1")[1]["expired"] is True
    assert ctl("api-keys", "delete", "robot")[0] == 0
    assert ctl("api-keys", "delete", "robot")[2].startswith("NOT_FOUND")


def test_the_audit_log_is_paged_from_the_newest_back(ctl: Run, control: Control) -> None:
    for number in range(5):
        with pytest.raises(ControlError):
            control.call("clients kick", clientids=[f"audited-{number}"])
    page = control.call("audit list", limit=3)
    assert [row["params"]["clientids"] for row in page["data"]] == [[f"audited-{number}"] for number in (4, 3, 2)]
    assert {row["code"] for row in page["data"]} == {"CLIENTID_NOT_FOUND"}
    page = control.call("audit list", limit=2, cursor=page["cursor"])
    assert [row["params"]["clientids"] for row in page["data"]] == [["audited-1"], ["audited-0"]]
    assert control.call("audit list", by="nobody")["data"] == []
    with pytest.raises(ControlError, match="cursor"):
        control.call("audit list", cursor="rubbish")


def test_a_publish_is_not_kept(ctl: Run, control: Control) -> None:
    before = control.call("audit list", limit=1)["data"]
    assert ctl("publish", "audited/not", "x")[0] == 0
    assert control.call("audit list", limit=1)["data"] == before


def test_an_audit_log_that_cannot_be_kept_stops_nothing(broker_with: Callable[..., Broker]) -> None:
    broker = broker_with(log__level="info")
    with Control(broker.data_dir) as control:
        for path in broker.data_dir.glob("audit.sqlite3*"):
            path.unlink()
        (broker.data_dir / "audit.sqlite3").mkdir()
        assert control.call("log level", level="info") == {"level": "info"}
        with pytest.raises(ControlError) as caught:
            control.call("audit list")
        assert caught.value.code == "NOT_AVAILABLE"
        (broker.data_dir / "audit.sqlite3").rmdir()


def test_several_values_change_together_or_not_at_all(ctl: Run, control: Control) -> None:
    values = ["--values", "mqtt.max_inflight=9", "--values", "mqtt.retry_interval=30s"]
    assert sorted(ctl("config", "update", *values)[1]["applied"]) == ["mqtt.max_inflight", "mqtt.retry_interval"]
    assert ctl("config", "update", "--values", "mqtt.max_inflight=10", "--values", "mqtt.no_such=1")[2].startswith("BAD_REQUEST")
    assert control.call("config get", key="mqtt.max_inflight")["data"][0]["value"] == "9"
    for key in ("mqtt.max_inflight", "mqtt.retry_interval"):
        assert ctl("config", "reset", key)[0] == 0


def test_files_of_the_owner_alone(ctl: Run, broker: Broker) -> None:
    ctl("api-keys", "list")
    ctl("audit", "list")
    found: list[Path] = sorted(broker.data_dir.glob("a*.sqlite3"))
    assert [path.name for path in found] == ["accounts.sqlite3", "audit.sqlite3"]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in found)
    with sqlite3.connect(found[0]) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
