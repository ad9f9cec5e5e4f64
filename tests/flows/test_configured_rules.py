"""Rules of the configuration file: in force from the start, changed by a reload, refused where they cannot work."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from shardbroker.flows.cursors import Cursor, Cursors
from shardbroker.flows.feed import JournalFeed
from tests.harness import Broker, Client, Publish, client_id_on, until

pytestmark = pytest.mark.own_broker
WORKERS = 2
HOT = """
[rules.hot]
sql = '''SELECT payload.t AS t FROM "in/#" WHERE payload.t > 30'''
description = "of the file"
actions = [{ function = "republish", args = { topic = "out/hot", payload = "${t}", qos = 1 } }]
"""
COLD = """
[rules.cold]
sql = '''SELECT clientid FROM "$events/client/connected" WHERE clientid =~ 'x'  '''
enable = false
"""


class Configured:
    """A broker with a file of settings."""

    def __init__(self, directory: Path, rules: str) -> None:
        self.file = directory / "shardbroker.toml"
        self.file.write_text(rules)
        self.broker = Broker(WORKERS, {}, directory / "data", arguments=("--config", str(self.file)))

    def call(self, verb: str, **params: Any) -> Any:
        with Control(self.broker.data_dir) as control:
            return control.call(verb, **params)

    def reload(self, rules: str) -> Any:
        self.file.write_text(rules)
        return self.call("config reload")

    def status(self) -> dict[str, tuple[str, str]]:
        return {row["id"]: (row["origin"], row["status"]) for row in self.call("rules list")["data"]}

    def status_or_none(self) -> dict[str, tuple[str, str]] | None:
        """Returns None while the manager starts."""
        try:
            return self.status()
        except ControlError:
            return None

    def gets(self, topic: str, payload: bytes, *expected: tuple[str, bytes]) -> None:
        """Publishes from each worker; exactly the expected messages come, in any order of the workers."""
        with Client(self.broker.address, 5, "gets") as subscriber:
            subscriber.subscribe("out/#", 1)
            for worker in range(WORKERS):
                with Client(self.broker.address, 5, client_id_on(worker, WORKERS, "publisher")) as publisher:
                    publisher.publish(topic, payload, 1)
                    publisher.publish("in/last", b'{"t": 99}', 1)
                for out in (*expected, ("out/hot", b"99")):
                    subscriber.expect(Publish, topic=out[0], payload=out[1])


def is_settled(data_dir: Path) -> bool:
    """Whether the cursors of rules are at the ends of the journals: nothing is repeated after a kill."""
    cursors = Cursors(data_dir / "flows")
    try:
        stored = cursors.all()
    finally:
        cursors.close()
    ends = {str(worker): JournalFeed(data_dir / "journal" / str(worker), None).end() for worker in range(WORKERS)}
    return all(stored.get(("rules", name), Cursor(0)).position == end for name, end in ends.items())


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        yield Path(name)


def test_rules_of_the_file_are_in_force_from_the_start(directory: Path) -> None:
    configured = Configured(directory, HOT + COLD)
    with configured.broker:
        assert configured.status() == {"cold": ("configuration", "disabled"), "hot": ("configuration", "running")}
        configured.gets("in/a", b'{"t": 31}', ("out/hot", b"31"))
        configured.gets("in/a", b'{"t": 30}')
        assert not (configured.broker.data_dir / "flows.json").exists()
        for verb, params in (("rules update", {"enable": False}), ("rules delete", {})):
            with pytest.raises(ControlError, match=r"rule hot is in the configuration \(rules\.hot\)"):
                configured.call(verb, id="hot", **params)
        with pytest.raises(ControlError, match="id: must be new, got hot"):
            configured.call("rules create", id="hot", sql='SELECT * FROM "x"')
        configured.call("rules create", id="made", sql='SELECT * FROM "in/#"', actions='[{"function": "console"}]')
        assert configured.status()["made"] == ("runtime", "running")
        assert [one["id"] for one in json.loads((configured.broker.data_dir / "flows.json").read_text())["rules"]] == ["made"]
        until(lambda: is_settled(configured.broker.data_dir))
        configured.broker.kill()
        configured.broker.start()
        assert sorted(configured.status()) == ["cold", "hot", "made"]
        configured.gets("in/a", b'{"t": 32}', ("out/hot", b"32"))


def test_a_reload_changes_rules(directory: Path) -> None:
    configured = Configured(directory, "")
    with configured.broker:
        assert configured.reload(HOT)["applied"] == ["rules"]
        configured.gets("in/a", b'{"t": 31}', ("out/hot", b"31"))
        other = HOT.replace("rules.hot", "rules.other").replace("out/hot", "out/other").replace("> 30", "< 10")
        configured.reload(HOT + other)
        configured.gets("in/a", b'{"t": 3}', ("out/other", b"3"))
        configured.reload(HOT)
        configured.gets("in/a", b'{"t": 3}')
        assert configured.status() == {"hot": ("configuration", "running")}
        (manager,) = configured.broker.child_pids("manager")
        configured.broker.kill_process(manager)
        until(lambda: configured.broker.child_pids("manager") not in ([], [manager]))
        until(lambda: configured.status_or_none() == {"hot": ("configuration", "running")})
        configured.gets("in/a", b'{"t": 31}', ("out/hot", b"31"))
        configured.call("config set", key="rules.hot.enable", value="false")
        assert configured.status() == {"hot": ("configuration", "disabled")}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("SELECT payload.t", "SELECT FROM"), "rules.hot.sql: "),
        (("in/#", "in/#/x"), "rules.hot.sql: FROM: "),
        (("topic = ", "topics = "), "rules.hot.republish.topic: must be a text"),
        (('"republish"', '"none"'), "rules.hot.actions.function: must be console, republish"),
        (('"${t}"', "nan"), "rules.hot.actions: must be a JSON array"),
        (('"${t}"', "2026-01-01"), "rules.hot.actions: must be a JSON array"),
        (("rules.hot", "rules.'a b'"), "allowed is an id of up to 64 letters"),
        (("description", "descriptions"), "did you mean rules.<name>.description?"),
        (("[rules.hot]", '[durability]\nlevel = "none"\n[rules.hot]'), "allowed is no rule with durability.level = none"),
    ],
)
def test_a_wrong_rule_is_refused(directory: Path, change: tuple[str, str], reason: str) -> None:
    configured = Configured(directory, HOT)
    with configured.broker:
        with pytest.raises(ControlError) as refused:
            configured.reload(HOT.replace(*change))
        assert refused.value.code == "BAD_REQUEST" and reason in str(refused.value), refused.value
        configured.gets("in/a", b'{"t": 31}', ("out/hot", b"31"))
