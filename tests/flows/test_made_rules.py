"""Rules made with `ctl` while a broker with two workers runs: in force once answered, refused with a reason, kept over kills."""

import json
import re
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from shardbroker.deploy.backup import backup, restore
from shardbroker.journal.follow import Batch, Follower
from shardbroker.journal.schema import Kind, MessageFlag
from tests.harness import Broker, Client, Publish, client_id_on, until

pytestmark = pytest.mark.own_broker
SQL = 'SELECT payload, clientid FROM "in/#"'
REPUBLISH = json.dumps([{"function": "republish", "args": {"topic": "out/${clientid}", "qos": 1}}])
WORKERS = 2


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        yield Path(name)


@pytest.fixture
def broker(data_dir: Path) -> Iterator[Broker]:
    with Broker(WORKERS, {}, data_dir) as broker:
        yield broker


def call(broker: Broker, verb: str, **params: Any) -> Any:
    with Control(broker.data_dir) as control:
        return control.call(verb, **params)


def create(broker: Broker, id: str = "copy", sql: str = SQL, actions: str = REPUBLISH, **more: Any) -> Any:
    return call(broker, "rules create", id=id, sql=sql, actions=actions, **more)


def ids(broker: Broker) -> list[str]:
    return [row["id"] for row in call(broker, "rules list")["data"]]


def fed(broker: Broker) -> int:
    """Messages in the journals that rules should see."""
    found = 0
    for worker in range(WORKERS):
        follower = Follower(broker.data_dir / "journal" / str(worker), kinds=(Kind.MESSAGE,))
        while not follower.at_end:
            for part in follower.read():
                assert isinstance(part, Batch), part
                found += sum(bool(record[5] & MessageFlag.FED) for record in part.records)  # type: ignore[operator]
    return found


def publisher(broker: Broker, worker: int) -> Client:
    return Client(broker.address, 5, client_id_on(worker, WORKERS, f"p{worker}x"))


def test_a_rule_sees_each_message_published_after_the_answer(broker: Broker) -> None:
    """Two publishers never pause; what each sent after the answer arrives."""
    stop, answered = threading.Event(), threading.Event()
    sent: list[bytes] = []

    def publish(worker: int) -> None:
        with publisher(broker, worker) as client:
            for number in count():
                if stop.is_set():
                    return
                after = answered.is_set()
                payload = b"%d %d" % (worker, number)
                client.publish("in/a", payload, 1)
                if after:
                    sent.append(payload)

    with Client(broker.address, 5, "sub") as subscriber:
        subscriber.subscribe("out/#", 1)
        threads = [threading.Thread(target=publish, args=(worker,)) for worker in range(WORKERS)]
        for thread in threads:
            thread.start()
        try:
            create(broker)
            answered.set()
            until(lambda: len(sent) >= 200)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        missing = set(sent)
        while missing:
            missing.discard(subscriber.expect(Publish).payload)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"sql": "SELECT FROM"}, "sql: "),
        ({"sql": 'SELECT * FROM "$events/client/none"'}, "sql: FROM: no event $events/client/none"),
        ({"sql": 'SELECT * FROM "a/#/b"'}, "sql: FROM: "),
        ({"actions": "{}"}, "actions: must be a JSON array"),
        ({"actions": "["}, "actions: must be a JSON array"),
        ({"actions": "[" * 100_000}, "actions: must be a JSON array"),
        ({"actions": '[{"function": "console", "args": {"x": "\\ud800"}}]'}, "actions: must be a JSON array, got 'utf-8'"),
        ({"actions": '[{"function": "console", "args": {"x": NaN}}]'}, "actions: must be a JSON array, got Out of range"),
        ({"actions": "[" * 500 + "]" * 500}, "actions: must be nested at most 20"),
        ({"actions": '[{"function": "no_such"}]'}, "actions.function: must be console, republish"),
        ({"actions": '[{"function": "republish", "args": {}}]'}, "republish.topic: must be a text"),
        ({"actions": json.dumps(["a:b"] * 101)}, "actions: must be at most 100"),
        ({"id": "first"}, "id: must be new"),
        ({"id": "a/b"}, "id"),
    ],
)
def test_a_wrong_rule_is_refused_and_not_kept(shared_rules: Broker, params: dict[str, Any], reason: str) -> None:
    kept = (shared_rules.data_dir / "flows.json").read_text()
    with pytest.raises(ControlError, match=re.escape(reason)) as refused:
        create(shared_rules, **{"id": "wrong", **params})
    assert refused.value.code == "BAD_REQUEST"
    assert ids(shared_rules) == ["first"]
    assert json.loads((shared_rules.data_dir / "flows.json").read_text())["rules"] == json.loads(kept)["rules"]


@pytest.fixture(scope="module")
def shared_rules() -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, Broker(WORKERS, {}, Path(name)) as broker:
        create(broker, "first")
        yield broker


def test_a_wrong_change_leaves_the_rule_in_force(shared_rules: Broker) -> None:
    with pytest.raises(ControlError, match=r"republish\.topic"):
        call(shared_rules, "rules update", id="first", actions='[{"function": "republish", "args": {}}]')
    with Client(shared_rules.address, 5, "sub-first") as subscriber, publisher(shared_rules, 0) as client:
        subscriber.subscribe("out/#", 1)
        client.publish("in/a", b"still", 1)
        subscriber.expect(Publish, payload=b"still")
    until(lambda: call(shared_rules, "rules show", id="first")["metrics"]["actions.success"] >= 1)
    call(shared_rules, "rules reset", id="first")
    until(lambda: call(shared_rules, "rules show", id="first")["metrics"]["actions.success"] == 0)
    with pytest.raises(ControlError, match="no rule 'other'") as missing:
        call(shared_rules, "rules delete", id="other")
    assert missing.value.code == "NOT_FOUND"


def test_a_rule_in_force_is_tried(shared_rules: Broker) -> None:
    payload = "${payload} of ${clientid}"
    args = {"topic": "out/${clientid}", "qos": 1, "payload": payload}
    actions = [{"function": "republish", "args": args}, {"function": "console"}]
    create(shared_rules, "tried", 'SELECT payload, clientid FROM "in/#" WHERE qos < 2', json.dumps([*actions, "mqtt:none"]))
    context = json.dumps({"topic": "in/a", "payload": "x", "clientid": "c1", "qos": 1})
    flows = shared_rules.child_pids("flows-0")
    shown = call(shared_rules, "rules try", id="tried", context=context)
    row = {"payload": "x", "clientid": "c1"}
    message = {"topic": "out/c1", "payload": "x of c1", "qos": 1, "retain": False, "properties": {}}
    assert shown["result"] == row
    assert shown["actions"][0] == {"action": "republish", "rendered": message}
    assert json.loads(shown["actions"][1]["rendered"]["row"]) == row
    assert shown["actions"][2] == {"action": "mqtt:none", "rendered": {"row": row}}
    with Client(shared_rules.address, 5, "sub-tried") as subscriber:
        subscriber.subscribe("out/#", 1)
        done = call(shared_rules, "rules try", id="tried", context=context, carry_out=True)
        subscriber.expect(Publish, topic="out/c1", payload=b"x of c1")
        assert [one.get("success", one.get("error")) for one in done["actions"]] == [True, True, "action mqtt:none: no such action"]
        subscriber.expect_none()
    figures = call(shared_rules, "rules show", id="tried")["metrics"]
    assert figures.get("matched", 0) == figures.get("actions.total", 0) == 0
    for id, given, code in (
        ("tried", '{"topic": "b"}', "NOT_MATCH"),
        ("tried", '{"topic": "in/b", "qos": 2}', "NOT_MATCH"),
        ("tried", '{"topic": "in/b", "qos": {}}', "NOT_MATCH"),
        ("tried", "[]", "BAD_REQUEST"),
        ("tried", '{"payload": {"$bytes": "?"}}', "BAD_REQUEST"),
        ("tried", '{"$bytes": "eHg="}', "BAD_REQUEST"),
        ("tried", '{"$undefined": true}', "BAD_REQUEST"),
        ("none", "{}", "NOT_FOUND"),
    ):
        with pytest.raises(ControlError) as refused:
            call(shared_rules, "rules try", id=id, context=given)
        assert refused.value.code == code, (given, refused.value)
    assert shared_rules.child_pids("flows-0") == flows, "no trial ends the process"
    call(shared_rules, "rules update", id="tried", enable=False)
    with pytest.raises(ControlError, match="rule tried is not in force"):
        call(shared_rules, "rules try", id="tried", context=context)
    call(shared_rules, "rules delete", id="tried")


def test_routes_of_rules_do_not_count(data_dir: Path) -> None:
    with Broker(WORKERS, {"sys.msg_interval": "1s"}, data_dir) as broker, Client(broker.address, 5, "sub") as subscriber:

        def counts() -> list[int]:
            (scraped,) = re.findall(r"^shardbroker_routes_count (\d+)$", call(broker, "prometheus"), re.MULTILINE)
            totals = call(broker, "load")["totals"]
            return [call(broker, "status")["routes"], call(broker, "metrics")["routes.count"], totals["routes.count"], int(scraped)]

        def answers() -> bool:
            try:
                return bool(call(broker, "status"))
            except ControlError:
                return False

        def published() -> bytes:
            return bytes(subscriber.expect(Publish).payload)

        subscriber.subscribe("out/#", 1)
        subscriber.subscribe("$SYS/brokers/+/stats/topics/count", 0)
        assert counts() == [2] * 4
        create(broker, sql='SELECT * FROM "in/#", "more/+", "out/#"')
        create(broker, "other", 'SELECT * FROM "in/#", "$events/client/connected"', "[]")
        assert len(call(broker, "routes list")["data"]) == 2
        assert counts() == [2] * 4
        until(lambda: published() == b"2")  # the first may be of a round before the subscriptions
        assert [published() for _ in range(2)] == [b"2"] * 2
        broker.kill_process(broker.child_pids("manager")[0])
        until(answers)
        assert counts() == [2] * 4, "the next manager knows them too"
        call(broker, "rules update", id="copy", sql='SELECT * FROM "more/+"')
        call(broker, "rules delete", id="other")
        subscriber.subscribe("more/+", 0)
        assert counts() == [3] * 4


def test_rules_are_changed_disabled_and_removed(broker: Broker) -> None:
    create(broker)
    assert create(broker, "other", 'SELECT * FROM "in/b"', "[]")["status"] == "running"
    with publisher(broker, 0) as client, Client(broker.address, 5, "sub") as subscriber:
        subscriber.subscribe("out/#", 1)
        call(broker, "rules update", id="copy", sql='SELECT payload FROM "from/#"')
        client.publish("in/a", b"no rule", 1)
        client.publish("from/a", b"1", 1)
        subscriber.expect(Publish, topic="out/undefined", payload=b"1")
        assert fed(broker) == 1
        assert [row["topic"] for row in call(broker, "routes list")["data"]] == ["out/#"]
        assert [row["topic"] for row in call(broker, "topics list")["data"]] == ["out/#"]
        call(broker, "rules update", id="copy", enable=False)
        assert [row["id"] for row in call(broker, "rules list", enable=False)["data"]] == ["copy"]
        client.publish("from/a", b"2", 1)
        assert fed(broker) == 1
        call(broker, "rules delete", id="copy")
        call(broker, "rules delete", id="other")
        client.publish("in/b", b"3", 1)
        assert (ids(broker), fed(broker)) == ([], 1)


def test_rules_are_in_force_after_kills(data_dir: Path) -> None:
    with Broker(WORKERS, {}, data_dir) as broker:
        create(broker)
        for victim in ("manager", "flows-0", "worker-0", ""):
            if victim:
                broker.kill_process(broker.child_pids(victim)[0])
                until(lambda victim=victim: broker.child_pids(victim))  # type: ignore[misc]
            else:
                broker.kill()
                broker.start()
            with Client(broker.address, 5, "sub") as subscriber:
                subscriber.subscribe("out/#", 1)
                for worker in range(WORKERS):
                    with publisher(broker, worker) as client:
                        payload = f"{victim} {worker}".encode()
                        client.publish("in/a", payload, 1)
                        while subscriber.expect(Publish).payload != payload:
                            pass
        until(lambda: ids(broker) == ["copy"])


def test_rules_are_in_backups(data_dir: Path, tmp_path: Path) -> None:
    with Broker(WORKERS, {}, data_dir) as broker:
        create(broker)
        backup(data_dir, tmp_path / "file.tar")
    restore(tmp_path / "file.tar", tmp_path / "restored")
    with Broker(WORKERS, {}, tmp_path / "restored") as broker, Client(broker.address, 5, "sub") as subscriber:
        subscriber.subscribe("out/#", 1)
        with publisher(broker, 0) as client:
            client.publish("in/a", b"restored", 1)
        subscriber.expect(Publish, payload=b"restored")


def test_a_damaged_file_is_kept_and_named(data_dir: Path) -> None:
    (data_dir / "flows.json").write_text('{"generation": 3, "rules": [{"no": "id"}]}')
    with Broker(WORKERS, {}, data_dir) as broker:
        with pytest.raises(ControlError, match=r"rules cannot be changed before this is mended: .*flows\.json") as refused:
            create(broker)
        assert refused.value.code == "NOT_AVAILABLE"
    assert (data_dir / "flows.json").read_text() == '{"generation": 3, "rules": [{"no": "id"}]}'


def test_a_rule_that_cannot_run_is_an_alarm(data_dir: Path) -> None:
    kept = {"id": "bad", "name": "", "sql": SQL, "from": ["in/#"], "enable": True, "description": ""}
    content = {"generation": 1, "rules": [{**kept, "actions": [{"function": "none"}], "created_ms": 1, "changed_ms": 1}]}
    (data_dir / "flows.json").write_text(json.dumps(content))
    with Broker(WORKERS, {}, data_dir) as broker:
        until(lambda: [alarm["name"] for alarm in call(broker, "alarms list")["data"]] == ["rules_stopped"])
        (alarm,) = call(broker, "alarms list")["data"]
        assert alarm["message"].startswith("bad: actions.function: must be console, republish")
        assert call(broker, "rules show", id="bad")["status"] == "stopped"
        call(broker, "rules update", id="bad", actions="[]")
        until(lambda: call(broker, "alarms list")["data"] == [])


def test_rules_need_a_journal(data_dir: Path) -> None:
    with (
        Broker(WORKERS, {"durability.level": "none"}, data_dir) as broker,
        pytest.raises(ControlError, match=r"rules need a journal: durability\.level must be process or machine, got none"),
    ):
        create(broker)


def test_changes_of_many_clients_are_made_together(broker: Broker) -> None:
    """A hundred clients at once, some with wrong rules: each has its own answer, and what is listed is what runs."""
    made, refused = [f"m{number}" for number in range(80)], [f"w{number}" for number in range(20)]
    create(broker, "kept")

    def make(id: str) -> str:
        wrong = json.dumps([{"function": "republish", "args": {}}])
        try:
            create(broker, id, f'SELECT payload, clientid FROM "in/{id}"', wrong if id in refused else REPUBLISH)
        except ControlError as error:
            return str(error)
        return "made"

    with ThreadPoolExecutor(len(made) + len(refused)) as pool:
        answers = dict(zip(made + refused, pool.map(make, made + refused), strict=True))
        assert {id for id, answer in answers.items() if answer == "made"} == set(made)
        assert all("republish.topic: must be a text" in answers[id] for id in refused), answers
        assert set(ids(broker)) == {"kept", *made}
    generation = json.loads((broker.data_dir / "flows.json").read_text())["generation"]
    assert generation < 80, "several changes are one write"
    with Client(broker.address, 5, "sub") as subscriber, publisher(broker, 1) as client:
        subscriber.subscribe("out/#", 1)
        for id in (*refused, *made):
            client.publish(f"in/{id}", id.encode(), 1)
        got = sorted(subscriber.expect(Publish).payload for _ in range(2 * 80 + 20))
        assert got == sorted([id.encode() for id in made] * 2 + [id.encode() for id in refused])  # `kept` is on in/#


def test_changes_of_one_rule_are_made_in_their_order(broker: Broker) -> None:
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda number: _answer(broker, number), range(20)))
    assert answers.count("made") == 1 and all("id: must be new" in one for one in answers if one != "made")
    call(broker, "rules delete", id="same")
    assert ids(broker) == []


def _answer(broker: Broker, number: int) -> str:
    try:
        create(broker, "same", description=str(number))
    except ControlError as error:
        return str(error)
    return "made"


@pytest.mark.parametrize("role", ["flows", "manager"])
def test_changes_go_on_behind_a_kill(broker: Broker, role: str) -> None:
    """What a process has loaded is unknown then: it reads all rules again."""
    create(broker, "first", 'SELECT payload, clientid FROM "in/1"')
    (pid,) = broker.child_pids(role)
    broker.kill_process(pid)
    until(lambda: created_or_none(broker, "second", 'SELECT payload, clientid FROM "in/2"'))
    call(broker, "rules delete", id="first")
    with Client(broker.address, 5, "sub") as subscriber, publisher(broker, 1) as client:
        subscriber.subscribe("out/#", 1)
        for topic in ("in/1", "in/2"):
            client.publish(topic, topic.encode(), 1)
        assert subscriber.expect(Publish).payload == b"in/2"


def created_or_none(broker: Broker, id: str, sql: str) -> bool:
    """Returns False while the process that was killed starts."""
    try:
        create(broker, id, sql)
    except (ControlError, OSError) as error:
        return "must be new" in str(error)
    return True
