"""Named streams with two workers: `$stream/<name>` and `$s/<period>/<filter>`, made and changed while the broker runs."""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from tests.flows.test_replays import KEPT, WORKERS, by_publisher, kill, on, payloads, publish, two_publishers, without_repeats
from tests.harness import Broker, Client, Publish, until

pytestmark = pytest.mark.own_broker
INVALID, NOT_KEPT, DENIED = 0x8F, 0x83, 0x87
SETTINGS: dict[str, Any] = {"streams.all.topic_filter": "log/#"}


def since(period: str) -> dict[str, Any]:
    """Properties of a SUBSCRIBE."""
    return {"user_property": [("stream-offset", period)]}


EARLIEST = since("earliest")


@contextmanager
def running(settings: dict[str, Any]) -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, Broker(WORKERS, settings, Path(name)) as broker:
        yield broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with running(SETTINGS) as broker:
        yield broker


@pytest.fixture
def bare() -> Iterator[Broker]:
    """Without a stream."""
    with running({}) as broker:
        yield broker


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with running(SETTINGS) as broker:
        yield broker


def of_topic(client: Client, topic: str, many: int) -> list[bytes]:
    """Takes messages until so many are of a topic, since streams have those of other tests, too."""
    found: list[bytes] = []
    while len(found) < many:
        message = client.expect(Publish)
        found += [message.payload] if message.topic == topic else []
    return found


def refused(client: Client, filter: str, **arguments: Any) -> tuple[int, str]:
    """Returns the code and the reason of a subscription that is refused."""
    answer = client.subscribe(filter, 1, check=False, **arguments)
    return answer.codes[0], str((answer.properties or {}).get("reason_string", ""))


# --- what a subscription gets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filter", ["$stream/all", "$stream/all/log/#", "$stream/all/log/past/+", "$stream/all/#"])
def test_the_past_and_then_the_present(shared: Broker, filter: str) -> None:
    topic = f"log/past/{len(filter)}"
    past = publish(shared, 0, 50, topic)
    with on(shared, 0, f"sub{len(filter)}") as client:
        client.subscribe(filter, 1, properties=EARLIEST)
        assert by_publisher(of_topic(client, topic, 100)) == by_publisher(past)
        present = publish(shared, 50, 60, topic)
        assert by_publisher(of_topic(client, topic, 20)) == by_publisher(present)
        client.fence()
        client.expect_none()


@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_period_in_the_filter(shared: Broker, version: int) -> None:
    topic = f"log/since{version}"
    times, sent = [], []
    for part in range(2):
        times.append(time.time_ns() // 1_000_000)
        time.sleep(0.02)
        sent.append(publish(shared, part, part + 1, topic))
        time.sleep(0.02)
    periods = {"earliest": 0, "latest": 2, str(times[1]): 1, str(times[1] * 1000): 1, "1h": 0, str(times[0]): 0}
    for number, (period, first) in enumerate(periods.items()):
        wanted = [payload for part in sent[first:] for payload in part]
        with on(shared, number % WORKERS, f"since{version}{number}x", version=version) as client:
            client.subscribe(f"$s/{period}/{topic}", 1)
            assert by_publisher(payloads(client, len(wanted))) == by_publisher(wanted), period
            client.fence()
            client.expect_none()


def test_the_period_in_a_property(shared: Broker) -> None:
    topic = "log/property"
    first = publish(shared, 0, 1, topic)
    time.sleep(0.02)
    now_ms = time.time_ns() // 1_000_000
    time.sleep(0.02)
    second = publish(shared, 1, 2, topic)
    time.sleep(0.02)
    given: list[tuple[Any, list[bytes]]] = [
        (None, []),
        (since("latest"), []),
        (EARLIEST, first + second),
        (since(str(now_ms)), second),
        (since(str(now_ms * 1000)), second),
        ({"user_property": [("other", "1"), ("stream-offset", "earliest"), ("stream-offset", "latest")]}, first + second),
        ({"user_property": [("$stream.start-from", "earliest")]}, first + second),
    ]
    for number, (properties, wanted) in enumerate(given):
        with on(shared, number % WORKERS, f"prop{number}x") as client:
            client.subscribe(f"$stream/all/{topic}", 1, properties=properties)
            assert by_publisher(payloads(client, len(wanted))) == by_publisher(wanted), properties
            client.fence()
            client.expect_none()


@pytest.mark.parametrize(
    "filter",
    [
        "$stream/",
        "$stream/none",
        "$stream/none/log/#",
        "$stream//log/a",
        "$stream/all/",
        "$stream/+",
        "$stream/#",
        "$stream/+/log/a",
        "$stream/al",
        "$stream/all /log/a",
        "$stream/al\u200bl",
        "$stream/\U0001f600",
        "$stream/../all",
        "$stream/" + "a" * 60_000,
        "$stream/all/other/#",
        "$stream/all/+/a",
        "$stream/all/log/#/a",
        "$stream/all/$share/g/log/a",
        "$stream/all/$stream/all",
        "$stream/all/$replay/1h/log/a",
        "$share/g/$stream/all",
        "$share/g/$s/earliest/log/a",
        "$queue/$stream/all",
        "$exclusive/$stream/all",
        "$replay/1h/$stream/all",
        "$s/earliest",
        "$s/earliest/",
        "$s//log/a",
        "$s/soon/log/a",
        "$s/-1/log/a",
        "$s/earliest/other",
        "$s/earliest/#",
        "$s/earliest/$s/earliest/log/a",
    ],
)
def test_what_is_refused(shared: Broker, filter: str) -> None:
    with on(shared, 0, "refused") as client:
        assert refused(client, filter)[0] == INVALID
        client.ping()


@pytest.mark.parametrize(
    ("filter", "period", "reason"),
    [
        ("$stream/none", "earliest", "name of a stream"),
        ("$stream/all/other", "earliest", "covered by the filter of the stream"),
        ("$s/earliest/other", "earliest", "a filter that a stream covers"),
        ("$s/soon/log/a", "earliest", "$s/<period>: must be a time such as"),
        ("$stream/all", "soon", "stream-offset: must be a time such as"),
        ("$stream/all", "", "stream-offset: must be a time such as"),
        ("$stream/all", "9" * 19, "stream-offset: must be a time such as"),
    ],
)
def test_a_refusal_says_what_is_allowed(shared: Broker, filter: str, period: str, reason: str) -> None:
    with on(shared, 1, "reasons") as client:
        code, text = refused(client, filter, properties=since(period))
        assert code == INVALID and reason in text and text.startswith("filter 1: ")
        assert client.subscribe([("log/a", 1), (filter, 1)], check=False, properties=since(period)).codes == (1, INVALID)


def test_replays_of_what_streams_keep(shared: Broker) -> None:
    sent = publish(shared, 0, 2, "log/replayed")
    with on(shared, 0, "replayed") as client:
        client.subscribe("$replay/1h/log/replayed", 1)
        assert by_publisher(payloads(client, 4)) == by_publisher(sent)
        assert refused(client, "$replay/1h/other")[0] == NOT_KEPT


def test_listed_and_ended_as_any_subscription(shared: Broker) -> None:
    with on(shared, 0, "listed") as client, Control(shared.data_dir) as control:
        client.subscribe("$stream/all", 1)
        client.subscribe("$s/latest/log/x", 1)
        rows = control.call("subscriptions list", clientid=client.client_id)["data"]
        assert sorted(row["topic"] for row in rows) == ["$s/latest/log/x", "$stream/all"]
        until(lambda: control.call("streams show", name="all")["subscribers"] == 2)
        client.unsubscribe("$stream/all")
        publish(shared, 0, 1, "log/y")
        client.fence()
        client.expect_none()
    with Control(shared.data_dir) as control:
        until(lambda: control.call("streams show", name="all")["subscribers"] == 0)


def test_routes_of_streams_are_no_subscriptions(shared: Broker) -> None:
    with Control(shared.data_dir) as control:
        assert control.call("metrics")["routes.count"] == 0
        assert control.call("topics list")["data"] == []


# --- kills ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["flows-0", "worker-0", "worker-1", "broker"])
def test_no_seam_over_kills(broker: Broker, victim: str) -> None:
    """Two publishers go on while a process is killed again and again; the stream was made at run time."""
    with Control(broker.data_dir) as control:
        control.call("streams add", name="kills", topic_filter="kill/#")
    found: list[bytes] = []
    with two_publishers(broker, "kill/k") as sent:
        for _ in range(3):
            with on(broker, 0, "kill-sub", properties=KEPT, clean=False, auto_ack=False) as client:
                client.subscribe("$stream/kills", 1, properties=EARLIEST)
                found += payloads(client, 30)
                kill(broker, victim)
                if victim in ("flows-0", "worker-1"):
                    found += payloads(client, 30)
    everything = {payload for of_worker in sent.values() for payload in of_worker}
    with on(broker, 0, "kill-sub", properties=KEPT, clean=False, auto_ack=False) as client:
        client.subscribe("$stream/kills", 1, properties=EARLIEST)
        while everything - set(found):
            found += payloads(client, 1)
    for worker, of_worker in sent.items():
        assert [payload for payload in without_repeats(found) if payload.startswith(b"%d " % worker)] == of_worker


# --- streams that are made, changed and removed -----------------------------------------------------------------------------------


def test_made_at_run_time_and_kept_over_a_restart(bare: Broker) -> None:
    """A process that reads journals is started by the first stream. It has what is published after the answer."""
    publish(bare, 0, 1)
    with Control(bare.data_dir) as control, on(bare, 1, "late") as client:
        assert refused(client, "$stream/made")[0] == INVALID
        made = control.call("streams add", name="made", topic_filter="log/#", description="of a test")
        assert (made["origin"], made["status"], made["age"], made["bytes"]) == ("runtime", "enabled", "7d", "1GB")
        sent = publish(bare, 1, 3)
        client.subscribe("$stream/made", 1, properties=EARLIEST)
        assert by_publisher(payloads(client, 4)) == by_publisher(sent)
    bare.terminate()
    bare.stop()
    bare.start()
    with Control(bare.data_dir) as control, on(bare, 0, "again") as client:
        assert control.call("streams show", name="made")["description"] == "of a test"
        sent += publish(bare, 3, 4)
        client.subscribe("$stream/made", 1, properties=EARLIEST)
        assert by_publisher(payloads(client, 6)) == by_publisher(sent)


def test_a_removed_stream_and_its_subscribers(bare: Broker) -> None:
    """They keep their connection and get nothing more, until there is a stream of this name that covers them: then they go on."""
    with Control(bare.data_dir) as control, on(bare, 0, "left", properties=KEPT) as client:
        control.call("streams add", name="gone", topic_filter="log/#")
        first = publish(bare, 0, 2)
        client.subscribe("$stream/gone", 1, properties=EARLIEST)
        assert by_publisher(payloads(client, 4)) == by_publisher(first)
        control.call("streams delete", name="gone")
        publish(bare, 2, 4)
        client.fence()
        client.expect_none()
        with on(bare, 1, "new") as other:
            assert refused(other, "$stream/gone")[0] == INVALID
        control.call("streams add", name="gone", topic_filter="log/b")
        publish(bare, 4, 5, "log/b")
        client.fence()
        client.expect_none()  # it was allowed more than the stream now has, and gets nothing of another
        control.call("streams delete", name="gone")
        control.call("streams add", name="gone", topic_filter="log/#")
        assert payloads(client, 2) == [b"0 4", b"1 4"]
        second = publish(bare, 5, 6)
        assert by_publisher(payloads(client, 2)) == by_publisher(second)


def test_disabled(bare: Broker) -> None:
    with Control(bare.data_dir) as control, on(bare, 0, "disabled") as client:
        control.call("streams add", name="off", topic_filter="log/#", enable=False)
        publish(bare, 0, 1)
        assert refused(client, "$stream/off")[0] == INVALID
        control.call("streams change", name="off", enable=True)
        sent = publish(bare, 1, 2)
        client.subscribe("$stream/off", 1, properties=EARLIEST)
        assert by_publisher(payloads(client, 2)) == by_publisher(sent)
        control.call("streams change", name="off", enable=False)
        publish(bare, 2, 3)
        client.fence()
        client.expect_none()


def test_those_of_the_configuration_are_changed_by_a_reload(broker: Broker) -> None:
    with Control(broker.data_dir) as control, on(broker, 0, "reload") as client:
        for verb in ("change", "delete"):
            with pytest.raises(ControlError, match="is in the configuration"):
                control.call(f"streams {verb}", name="all")
        control.call("config set", key="streams.more.topic_filter", value="more/#")
        sent = publish(broker, 0, 2, "more/a")
        client.subscribe("$stream/more", 1, properties=EARLIEST)
        assert by_publisher(payloads(client, 4)) == by_publisher(sent)
        assert control.call("streams show", name="more")["origin"] == "configuration"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": "a b"}, "letters, digits"),
        ({"name": "../a"}, "letters, digits"),
        ({"name": "$SYS"}, "letters, digits"),
        ({"name": "all"}, "must be new"),
        ({"topic_filter": "a/#/b"}, "topic_filter: allowed is a topic filter"),
        ({"topic_filter": "$share/g/a"}, "without a prefix"),
        ({"topic_filter": "$stream/a"}, "without a prefix"),
        ({"age": "soon"}, "retention.age"),
        ({"bytes": "1KB"}, "retention.bytes"),
        ({"key": "constant"}, "key: allowed is a template"),
        ({"key": "${username}"}, "key: allowed is a template"),
    ],
)
def test_wrong_streams(shared: Broker, fields: dict[str, Any], text: str) -> None:
    with Control(shared.data_dir) as control:
        with pytest.raises(ControlError, match=text.replace("$", r"\$")):
            control.call("streams add", **{"name": "wrong", "topic_filter": "a", **fields})
        assert [row["name"] for row in control.call("streams list")["data"]] == ["all"]


def test_without_journals() -> None:
    with running({"durability.level": "none"}) as broker, Control(broker.data_dir) as control, on(broker, 0, "none") as client:
        with pytest.raises(ControlError, match="streams need a journal"):
            control.call("streams add", name="none", topic_filter="a")
        with pytest.raises(ControlError, match="streams need a journal"):
            control.call("config set", key="streams.none.topic_filter", value="a")
        assert refused(client, "$stream/none")[0] == INVALID
        assert control.call("streams list")["data"] == []


def test_without_replays(broker: Broker) -> None:
    with Control(broker.data_dir) as control, on(broker, 0, "off") as client:
        control.call("config set", key="replay.max_replays", value="0")
        code, reason = refused(client, "$stream/all")
        assert code == NOT_KEPT and "replay.max_replays" in reason


def test_a_filter_that_several_streams_cover(broker: Broker) -> None:
    """That with exactly this filter is taken, here with last values."""
    with Control(broker.data_dir) as control, on(broker, 0, "several") as client:
        control.call("streams add", name="exact", topic_filter="log/one", last_value=True, key="${topic}")
        publish(broker, 0, 3, "log/one")
        client.subscribe("$s/earliest/log/one", 1)
        assert payloads(client, 1) == [b"1 2"]
        client.fence()
        client.expect_none()


def test_a_damaged_file_is_kept(bare: Broker) -> None:
    bare.terminate()
    bare.stop()
    path = bare.data_dir / "streams.json"
    path.write_text('{"streams": {"a": {"topic_filter": 7}}}')
    bare.start()
    with Control(bare.data_dir) as control, pytest.raises(ControlError, match="before this is mended"):
        control.call("streams add", name="b", topic_filter="b")
    assert json.loads(path.read_text())["streams"]["a"]["topic_filter"] == 7


# --- last values ------------------------------------------------------------------------------------------------------------------


LAST_VALUES: dict[str, Any] = {
    "streams.state.topic_filter": "state/#",
    "streams.state.last_value": True,
    "streams.state.key": "${payload.id}",
    "journal.segment_bytes": 65536,
}


def publish_states(broker: Broker, worker: int, states: list[tuple[str, int]], topic: str = "state/a") -> None:
    with on(broker, worker, "state-pub") as client:
        for id, value in states:
            client.publish(topic, json.dumps({"id": id, "value": value, "fill": "x" * 200}).encode(), 1)


def states(client: Client, many: int) -> list[tuple[str, int]]:
    found = [json.loads(payload) for payload in payloads(client, many)]
    return [(state["id"], state["value"]) for state in found]


def test_last_values() -> None:
    """Of the past only the newest message of each key; then each message as it is published."""
    with running(LAST_VALUES) as broker:
        publish_states(broker, 0, [(f"d{number % 10}", number) for number in range(500)])
        publish_states(broker, 1, [(f"d{number % 5}", 1000 + number) for number in range(500)])
        expected = [(f"d{number}", 490 + number) for number in range(5, 10)] + [
            (f"d{number}", 1495 + number) for number in range(5)
        ]
        with on(broker, 0, "state") as client, on(broker, 1, "plain", version=4) as plain:
            client.subscribe("$stream/state", 1, properties=EARLIEST)
            plain.subscribe("$s/earliest/state/a", 1)
            assert sorted(states(client, 10)) == sorted(states(plain, 10)) == sorted(expected)
            publish_states(broker, 1, [("d0", 1), ("d0", 2), ("d0", 3)])
            assert states(client, 3) == states(plain, 3) == [("d0", 1), ("d0", 2), ("d0", 3)]
            for one in (client, plain):
                one.fence()
                one.expect_none()


def test_messages_without_a_key_are_all_delivered() -> None:
    with running(LAST_VALUES) as broker:
        with on(broker, 0, "keyless") as client:
            for payload in (b"no json", b'{"id": null}', b'{"other": 1}', b"\xff\xfe", b'"text"', b"[1]", b"{" * 100_000):
                client.publish("state/b", payload, 1)
            for value in range(3):
                client.publish("state/b", b'{"id": "a", "n": %d}' % value, 1)
        with on(broker, 1, "keyed") as client:
            client.subscribe("$stream/state", 1, properties=EARLIEST)
            found = payloads(client, 8)
            assert found[0] == b"no json" and found[-1] == b'{"id": "a", "n": 2}' and len(set(found)) == 8
            client.fence()
            client.expect_none()


def test_last_values_over_kills_and_of_a_slow_client() -> None:
    """A session that resumes gets the newest of what it has not got yet, and nothing older than what it has."""
    with running(LAST_VALUES) as broker:
        publish_states(broker, 0, [(f"d{number % 50}", number) for number in range(500)])
        kept = {**KEPT, "receive_maximum": 5}
        with on(broker, 0, "slow", properties=kept, auto_ack=False) as client:
            client.subscribe("$stream/state", 1, properties=EARLIEST)
            found = states(client, 20)
        publish_states(broker, 0, [(f"d{number}", 1000 + number) for number in range(50)])
        kill(broker, "flows-0")
        kill(broker, "worker-0")
        with on(broker, 0, "slow", properties=kept, auto_ack=False, clean=False) as client:
            client.subscribe("$stream/state", 1, properties=EARLIEST)
            while not found or found[-1] != ("d49", 1049):
                found += states(client, 1)
            client.fence()
            client.expect_none()
        newest = dict(found)
        assert newest == {f"d{number}": 1000 + number for number in range(50)}
        assert len(found) <= 20 + 5 + 50


def test_more_keys_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of further keys are all delivered."""
    from shardbroker.flows import last_values
    from shardbroker.flows.last_values import Scan

    monkeypatch.setattr(last_values, "KEYS_MAX", 3)
    records = [(number, 1, b"", b"t", b'{"id": %d}' % (number % 5), 1, 0, b"", b"c") for number in range(10)]
    journal = _Read(records)
    scan = Scan("${payload.id}", [journal], lambda _: True, None)
    found = scan.step(lambda _: True, 0)
    assert found is not None
    # Keys 0, 1, 2 are known: their newest messages are 5, 6, 7; those of keys 3 and 4 are left alone.
    assert [record[0] for record in records if found.delivers(0, record)] == [3, 4, 5, 6, 7, 8, 9]
    assert found.delivers(0, (10, 1, b"", b"t", b'{"id": 0}', 1, 0, b"", b"c"))


class _Read:
    number, at, time_us, read_to = 0, 0, 1, 10

    def __init__(self, records: list[tuple[Any, ...]]) -> None:
        self.records = records


# --- what is kept -----------------------------------------------------------------------------------------------------------------


SMALL: dict[str, Any] = {
    "journal.segment_bytes": 65536,
    "journal.cycle_bytes": 65536,
    "journal.retention.bytes": "1MB",
}


def fill(broker: Broker, megabytes: int) -> None:
    """Publishes to another topic, which is journalled as well."""
    with on(broker, 0, "fill") as client:
        for _ in range(megabytes * 16):
            client.publish("fill/x", b"x" * 65536, 1)


def first_position(broker: Broker) -> int:
    return min(int(path.stem) for path in (broker.data_dir / "journal" / "0").glob("*.sbj"))


def test_kept_beyond_the_retention_of_journals() -> None:
    """The stream's size decides, not that of journals; a stream that is removed holds nothing."""
    with running({**SMALL, "journal.capture": ["fill/#"]}) as broker:
        with Control(broker.data_dir) as control:
            control.call("streams add", name="kept", topic_filter="log/#", bytes="16MB")
        sent = publish(broker, 0, 5)
        fill(broker, 4)
        time.sleep(0.5)
        assert first_position(broker) == 0, "journal.retention.bytes is 1 MB"
        with on(broker, 1, "kept") as client:
            client.subscribe("$stream/kept", 1, properties=EARLIEST)
            assert by_publisher(payloads(client, 10)) == by_publisher(sent)
        with Control(broker.data_dir) as control:
            assert control.call("streams show", name="kept")["held_bytes"] > 4 << 20
        fill(broker, 20)
        until(lambda: fill(broker, 1) or first_position(broker) > 0)  # as the stream's part exceeds 16 MB
        with Control(broker.data_dir) as control:
            assert control.call("streams show", name="kept")["held_bytes"] < 17 << 20
            assert (broker.data_dir / "holds" / "streams.json").exists()
            control.call("streams delete", name="kept")
            assert not (broker.data_dir / "holds" / "streams.json").exists()


def test_what_is_too_old_is_not_delivered() -> None:
    """It is still in the journal: a replay gets it."""
    with running({**SMALL, "streams.kept.topic_filter": "log/#", "streams.kept.retention.age": "10s"}) as broker:
        publish(broker, 0, 3)
        with on(broker, 1, "before") as client:
            client.subscribe("$stream/kept", 1, properties=EARLIEST)
            assert len(payloads(client, 6)) == 6
        with on(broker, 1, "resumes", properties=KEPT) as client:
            client.subscribe("$stream/kept", 1, properties=EARLIEST)
            assert len(payloads(client, 6)) == 6
        with Control(broker.data_dir) as control:  # until its worker has read DISCONNECT, it would get the next ones
            until(lambda: control.call("streams show", name="kept")["subscribers"] == 0)
        publish(broker, 3, 5)
        time.sleep(10.2)
        sent = publish(broker, 5, 7)
        with on(broker, 1, "resumes", clean=False, properties=KEPT) as client:
            assert by_publisher(payloads(client, 4)) == by_publisher(sent)
        with on(broker, 1, "after") as client:
            client.subscribe("$stream/kept", 1, properties=EARLIEST)
            assert by_publisher(payloads(client, 4)) == by_publisher(sent)
            client.subscribe("$replay/earliest/log/#", 1)
            assert len(payloads(client, 14)) == 14


# --- access rules and mount points ------------------------------------------------------------------------------------------------


def test_access_rules_decide_about_the_topic_filter(tmp_path: Path) -> None:
    rules = tmp_path / "acl.conf"
    rules.write_text('{allow, all, publish, ["#"]}.\n{allow, all, subscribe, ["open/#", "log/mine"]}.\n{deny, all}.\n')
    settings = {
        **SETTINGS,
        "streams.open.topic_filter": "open/#",
        "acl.sources": ["file"],
        "acl.file.path": str(rules),
        "acl.no_match": "deny",
    }
    with running(settings) as broker, on(broker, 0, "rules") as client:
        assert client.subscribe("$stream/open", 1, check=False).codes == (1,)
        assert client.subscribe("$stream/all/log/mine", 1, check=False).codes == (1,)
        assert client.subscribe("$s/earliest/log/mine", 1, check=False).codes == (1,)
        for filter in ("$stream/all", "$stream/all/log/#", "$stream/all/#", "$s/earliest/log/other"):
            assert client.subscribe(filter, 1, check=False).codes == (DENIED,), filter
        assert client.subscribe("$stream/none", 1, check=False).codes == (INVALID,)
        rules.write_text('{allow, all, publish, ["#"]}.\n{allow, all, subscribe, ["log/mine"]}.\n{deny, all}.\n')
        with Control(broker.data_dir) as control:
            control.call("config reload")
            until(lambda: len(control.call("subscriptions list", clientid=client.client_id)["data"]) == 2)
            rows = control.call("subscriptions list", clientid=client.client_id)["data"]
        assert sorted(row["topic"] for row in rows) == ["$s/earliest/log/mine", "$stream/all/log/mine"]


def test_below_a_mount_point() -> None:
    """All of a stream is what is below the mount point."""
    settings = {**SETTINGS, "listeners.default.mountpoint": "log/${clientid}/", "streams.own.topic_filter": "log/mounted-b/+"}
    with running(settings) as broker:
        for name in (b"mounted-a", b"mounted-b"):
            with Client(broker.address, 5, name) as client:
                client.publish("x", name, 1)
        with Client(broker.address, 5, b"mounted-b") as client:
            for filter in ("$stream/all", "$stream/all/x", "$s/earliest/x", "$stream/own"):
                client.subscribe(filter, 1, properties=EARLIEST)
                client.expect(Publish, topic="x", payload=b"mounted-b")
                client.fence()
                client.expect_none()
                client.unsubscribe(filter)
        with Client(broker.address, 5, b"mounted-a") as client:
            assert refused(client, "$stream/own")[0] == INVALID
