"""Connectors and actions made with `ctl`: checked, in the file that the processes flows read, kept over kills."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shardbroker.control import Control, ControlError
from tests.harness import Broker, until

pytestmark = pytest.mark.own_broker
URL = "http://127.0.0.1:1/in"
PATIENCE_S = 100.0
"""A reload starts an interpreter and a process flows, each with a limit of its own: 1 s, but 30 s were seen on a busy machine."""
CONNECTOR = {"url": URL, "headers": {"Authorization": "s3cret"}, "timeout": "2s"}
ACTION = {"connector": "main", "parameters": {"path": "/a"}, "resource_opts": {"batch_size": 5}}


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        yield Path(name)


@pytest.fixture
def broker(data_dir: Path) -> Iterator[Broker]:
    with Broker(1, {}, data_dir) as broker:
        yield broker


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    """With a connector, an action and a rule of the configuration beside those made at run time."""
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        file = Path(name) / "shardbroker.toml"
        file.write_text(CONFIGURED)
        yield from _shared(Path(name), file)


def _shared(directory: Path, file: Path) -> Iterator[Broker]:
    with Broker(1, {}, directory / "data", arguments=("--config", str(file))) as broker:
        add(broker, "connectors", "http:main", CONNECTOR)
        add(broker, "actions", "http:out", ACTION)
        yield broker


CONFIGURED = """
[connectors.http.fixed]
url = "http://127.0.0.1:1/in"
headers = { Authorization = "s3cret" }

[actions.webhook.fixed]
connector = "fixed"

[rules.fixed]
sql = 'SELECT * FROM "fixed"'
actions = ["webhook:fixed", "http:none"]
"""


def call(broker: Broker, verb: str, **params: Any) -> Any:
    with Control(broker.data_dir, timeout_s=PATIENCE_S) as control:
        return control.call(verb, **params)


def add(broker: Broker, kind: str, id: str, settings: dict[str, Any]) -> Any:
    return call(broker, f"{kind} add", id=id, definition=json.dumps(settings))


def change(broker: Broker, kind: str, id: str, settings: dict[str, Any], **more: Any) -> Any:
    return call(broker, f"{kind} change", id=id, definition=json.dumps(settings), **more)


def ids(broker: Broker, kind: str) -> list[str]:
    return [row["id"] for row in call(broker, f"{kind} list")["data"]]


def in_force(broker: Broker) -> dict[str, Any]:
    (runtime_dir,) = [path for path in broker.leftovers() if path.is_dir()]
    found: dict[str, Any] = json.loads((runtime_dir / "flows.json").read_bytes())
    return found


def of(broker: Broker, kind: str) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in in_force(broker)[kind]}


def test_they_are_in_force_with_secrets_in_clear_and_shown_masked(shared: Broker) -> None:
    connector = of(shared, "connectors")["http:main"]
    assert connector["type"], connector["name"] == ("http", "main")
    assert connector["settings"]["headers"] == {"Authorization": "s3cret"}
    assert connector["settings"]["timeout"] == 2.0 and connector["settings"]["enable"] is True
    action = of(shared, "actions")["http:out"]
    assert action["settings"]["resource_opts"]["batch_size"] == 5
    row = call(shared, "connectors show", id="http:main")
    assert row["settings"]["headers"] == {"Authorization": "******"}
    assert (row["settings"]["timeout"], row["origin"], row["actions"]) == ("2s", "runtime", ["http:out"])
    assert ids(shared, "connectors") == ["http:fixed", "http:main"]
    assert "s3cret" not in json.dumps(call(shared, "connectors list")) + json.dumps(call(shared, "config get", key="connectors"))


def test_those_of_the_configuration_are_in_force_and_not_changed_here(shared: Broker) -> None:
    assert of(shared, "connectors")["http:fixed"]["origin"] == "configuration"
    assert call(shared, "actions show", id="webhook:fixed")["rules"] == ["fixed"]
    for verb, more in (("change", {"definition": "{}"}), ("delete", {}), ("disable", {})):
        with pytest.raises(ControlError, match=r"connector http:fixed is in the configuration \(connectors\.http\.fixed\)"):
            call(shared, f"connectors {verb}", id="http:fixed", **more)
    with pytest.raises(ControlError, match="id: must be new, got http:fixed"):
        add(shared, "connectors", "http:fixed", CONNECTOR)


def test_a_rule_shows_the_status_of_its_actions(shared: Broker) -> None:
    rule = call(shared, "rules show", id="fixed")
    assert rule["actions"] == ["http:fixed", "http:none"]
    assert rule["action_details"][1] == {"type": "http", "name": "none", "status": "unavailable"}
    assert rule["action_details"][0]["status"] != "unavailable"


@pytest.mark.parametrize(
    ("kind", "id", "settings", "reason"),
    [
        ("connectors", "none:main", {}, "id: type must be "),
        ("connectors", "http:a/b", {}, "id"),
        ("connectors", "http:main", CONNECTOR, "id: must be new, got http:main"),
        ("connectors", "webhook:main", CONNECTOR, "id: must be new, got http:main"),
        ("connectors", "http:x", {"url": "ftp://a"}, "url: must be http://HOST/PATH or https://HOST/PATH"),
        ("connectors", "http:x", {"url": URL, "pool_size": 0}, "pool_size: must be an integer from 1 to 1024, got 0"),
        ("connectors", "http:x", {"url": URL, "nothing": 1}, "nothing: unknown key; allowed are "),
        ("connectors", "http:x", {"headers": {"a": "file:/none"}}, "headers.a: must be text, or file:PATH of a file"),
        ("connectors", "http:x", {"headers": {"a": "******"}}, "headers.a: must be a value, since there is none before"),
        ("connectors", "http:x", {"headers": ["s3cret"]}, 'headers: must be a table of text = text, got "******"'),
        ("actions", "http:x", {"connector": "none"}, "connector: must exist, and there is no http:none"),
        ("actions", "http:x", {**ACTION, "parameters": {"method": "x"}}, "parameters.method: must be 'post'"),
        ("actions", "http:x", {**ACTION, "resource_opts": {"batch_size": 0}}, "resource_opts.batch_size: must be an integer"),
        ("actions", "http:x", {**ACTION, "fallback_actions": ["http:none"]}, "fallback_actions: must be other actions that exist"),
        ("actions", "http:x", {**ACTION, "fallback_actions": ["http:x"]}, "fallback_actions: must be other actions that exist"),
        ("actions", "http:x", {**ACTION, "fallback_actions": [3]}, "fallback_actions: must be type:name"),
    ],
)
def test_a_wrong_one_is_refused_and_not_kept(shared: Broker, kind: str, id: str, settings: dict[str, Any], reason: str) -> None:
    before = ids(shared, kind), of(shared, kind)
    with pytest.raises(ControlError, match=re.escape(reason)) as refused:
        add(shared, kind, id, settings)
    assert refused.value.code == "BAD_REQUEST"
    assert "s3cret" not in str(refused.value)
    assert (ids(shared, kind), of(shared, kind)) == before


@pytest.mark.parametrize("text", ["[]", "{", "3", "[" * 100_000, '{"a": "\\ud800"}', '{"timeout": NaN}'])
def test_settings_that_are_no_object_are_refused(shared: Broker, text: str) -> None:
    with pytest.raises(ControlError) as refused:
        call(shared, "connectors add", id="http:x", definition=text)
    assert refused.value.code == "BAD_REQUEST", refused.value


def test_a_masked_secret_sent_back_is_the_one_before(broker: Broker) -> None:
    add(broker, "connectors", "http:main", CONNECTOR)
    row = call(broker, "connectors show", id="http:main")
    settings = row.pop("settings")
    change(broker, "connectors", "http:main", {**row, **settings, "pool_size": 3}, replace=True)
    settings = of(broker, "connectors")["http:main"]["settings"]
    assert (settings["headers"], settings["pool_size"]) == ({"Authorization": "s3cret"}, 3)


def test_a_change_keeps_what_is_not_given_and_a_replacement_does_not(broker: Broker) -> None:
    made = add(broker, "connectors", "http:main", CONNECTOR)
    changed = change(broker, "connectors", "http:main", {"headers": {"More": "x"}})
    assert changed["settings"]["timeout"] == "2s" and [*changed["settings"]["headers"]] == ["Authorization", "More"]
    assert changed["created_at"] == made["created_at"] and changed["last_modified_at"] >= made["last_modified_at"]
    replaced = change(broker, "connectors", "http:main", {"url": URL}, replace=True)
    assert (replaced["settings"]["timeout"], replaced["settings"]["headers"]) == ("5s", {})
    call(broker, "connectors disable", id="http:main")
    assert call(broker, "connectors show", id="http:main")["status"] == "stopped"
    assert of(broker, "connectors")["http:main"]["settings"]["enable"] is False
    with pytest.raises(ControlError, match="connector http:main is disabled: enable it before"):
        call(broker, "connectors start", id="http:main")


def test_what_is_used_is_not_deleted_unless_its_users_are(broker: Broker) -> None:
    add(broker, "connectors", "http:main", CONNECTOR)
    add(broker, "actions", "http:last", ACTION)
    add(broker, "actions", "http:out", {**ACTION, "fallback_actions": ["webhook:last"]})
    call(broker, "rules create", id="r", sql='SELECT * FROM "t"', actions='["webhook:out", {"function": "console"}]')
    for kind, id, users in (
        ("connectors", "http:main", "connector http:main is used by action http:last, action http:out"),
        ("actions", "http:out", "action http:out is used by rule r"),
        ("actions", "http:last", "action http:last is used by action http:out"),
    ):
        with pytest.raises(ControlError, match=users) as refused:
            call(broker, f"{kind} delete", id=id)
        assert refused.value.code == "BAD_REQUEST"
    call(broker, "actions delete", id="http:last", also_delete_dep_actions=True)
    assert of(broker, "actions")["http:out"]["settings"]["fallback_actions"] == []
    call(broker, "connectors delete", id="http:main", also_delete_dep_actions=True)
    assert (ids(broker, "connectors"), ids(broker, "actions")) == ([], [])
    assert call(broker, "rules show", id="r")["actions"] == [{"function": "console"}]


def test_they_are_kept_over_kills_and_restarts(data_dir: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("one\n")
    with Broker(1, {}, data_dir) as broker:
        add(broker, "connectors", "http:main", {"url": URL, "headers": {"a": f"file:{secret}"}})
        add(broker, "actions", "http:out", ACTION)
        assert of(broker, "connectors")["http:main"]["settings"]["headers"] == {"a": "one"}
        broker.kill_process(broker.child_pids("manager")[0])
        until(lambda: answers(broker))
        assert ids(broker, "actions") == ["http:out"]
        assert broker.child_pids("flows-0")
    assert f"file:{secret}" in (data_dir / "flows.json").read_text()
    assert (data_dir / "flows.json").stat().st_mode & 0o777 == 0o600
    secret.write_text("two\n")
    with Broker(1, {}, data_dir) as broker:
        assert of(broker, "connectors")["http:main"]["settings"]["headers"] == {"a": "two"}
        assert [*of(broker, "actions")] == ["http:out"]
    secret.unlink()
    with Broker(1, {}, data_dir) as broker:
        assert (of(broker, "connectors"), of(broker, "actions")) == ({}, {})
        row = call(broker, "actions show", id="http:out")
        assert row["status"] == "disconnected"
        assert re.match(r"connector http:main: headers\.a: must be text, or file:PATH", row["status_reason"]), row
        change(broker, "connectors", "http:main", {"url": URL}, replace=True)
        assert [*of(broker, "actions")] == ["http:out"]


def answers(broker: Broker) -> bool:
    try:
        return bool(call(broker, "status"))
    except ControlError:
        return False


def test_a_reload_takes_those_of_the_file(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "shardbroker.toml"
    file.write_text("")
    with Broker(1, {}, data_dir, arguments=("--config", str(file))) as broker:
        file.write_text(f'[connectors.webhook.main]\nurl = "{URL}"\n[actions.http.out]\nconnector = "main"\n')
        done = call(broker, "config reload")
        assert sorted(done["applied"]) == ["actions", "connectors"]
        assert [*of(broker, "connectors")] == ["http:main"] and [*of(broker, "actions")] == ["http:out"]
        until(lambda: broker.child_pids("flows-0"))
        file.write_text('[actions.http.out]\nconnector = "main"\n')
        with pytest.raises(ControlError, match=r"actions\.http\.out\.connector names 'main'"):
            call(broker, "config reload")
        file.write_text(f'[connectors.http.main]\nurl = "{URL}"\n')
        call(broker, "config reload")
        add(broker, "actions", "http:made", ACTION)
        assert [*of(broker, "actions")] == ["http:made"]
        file.write_text("")
        call(broker, "config reload")
        assert (of(broker, "connectors"), of(broker, "actions")) == ({}, {})
        row = call(broker, "actions show", id="http:made")
        assert (row["status"], row["status_reason"]) == ("disconnected", "connector: must exist, and there is no http:main")
        with pytest.raises(ControlError, match="connector: must exist"):
            call(broker, "actions start", id="http:made")
        add(broker, "connectors", "http:main", CONNECTOR)
        assert [*of(broker, "actions")] == ["http:made"]


def test_a_probe_needs_no_definition(broker: Broker) -> None:
    assert broker.child_pids("flows-0") == []
    try:
        call(broker, "connectors probe", id="http:none", definition=json.dumps({"url": URL}))
    except ControlError as error:
        assert error.code == "TEST_FAILED", error
    assert broker.child_pids("flows-0")
    assert ids(broker, "connectors") == [] and not (broker.data_dir / "flows.json").exists()
    with pytest.raises(ControlError, match="no connector 'http:none'"):
        call(broker, "connectors probe", id="http:none")


def test_they_are_scraped(shared: Broker) -> None:
    families = {family.name: family for family in text_string_to_metric_families(call(shared, "prometheus"))}
    for name in ("matched", "dropped_queue_full", "retried", "lag_records", "lag_seconds", "inflight", "enable", "status"):
        ids = [one.labels["id"] for one in families[f"shardbroker_action_{name}"].samples]
        assert ids == ["http:fixed", "http:out"], name
    assert [one.value for one in families["shardbroker_connector_enable"].samples] == [1, 1]
    assert "shardbroker_connector_status" in families


def ctl(broker: Broker, *words: str) -> tuple[int, str]:
    program = Path(sys.executable).with_name("shardbroker")
    done = subprocess.run([program, "ctl", "--data-dir", str(broker.data_dir), *words], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_verbs_of_the_command_line(broker: Broker) -> None:
    assert ctl(broker, "connectors", "add", "webhook:main", json.dumps(CONNECTOR))[0] == 0
    assert ctl(broker, "actions", "add", "http:out", json.dumps(ACTION))[0] == 0
    assert ctl(broker, "actions", "change", "http:out", '{"parameters": {"method": "put"}}')[0] == 0
    assert of(broker, "actions")["http:out"]["settings"]["parameters"]["path"] == "/a"
    code, listed = ctl(broker, "actions", "list")
    assert code == 0 and "http:out" in listed and "runtime" in listed
    assert json.loads(ctl(broker, "--json", "actions", "cursor", "http:out", "--rewind", "1h")[1])["id"] == "http:out"
    code, refused = ctl(broker, "actions", "cursor", "http:out", "--rewind", "soon")
    assert (code, "at: must be a time such as 15m" in refused) == (1, True), refused
    assert ctl(broker, "actions", "metrics", "http:out")[0] == 0
    for words in (("connectors", "disable"), ("connectors", "enable"), ("actions", "stop"), ("actions", "start")):
        assert ctl(broker, *words, "http:main" if words[0] == "connectors" else "http:out")[0] == 0
    code, refused = ctl(broker, "connectors", "delete", "http:main")
    assert (code, "connector http:main is used by action http:out" in refused) == (1, True)
    assert ctl(broker, "connectors", "delete", "http:main", "--also-delete-dep-actions")[0] == 0
    (audited,) = [row for row in call(broker, "audit list")["data"] if row["verb"] == "connectors add"]
    assert "s3cret" not in json.dumps(audited) + "".join(broker.output)


def test_they_need_a_journal(data_dir: Path) -> None:
    with Broker(1, {"durability.level": "none"}, data_dir) as broker:
        for verb, more in (("add", {"definition": json.dumps(CONNECTOR)}), ("probe", {"definition": json.dumps(CONNECTOR)})):
            with pytest.raises(ControlError, match=r"need a journal: durability\.level must be process or machine, got none"):
                call(broker, f"connectors {verb}", id="http:main", **more)
