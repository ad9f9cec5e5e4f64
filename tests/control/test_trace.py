"""Traces against running brokers with three workers: what is in their files is what clients and broker did."""

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.cli.ctl import main
from shardbroker.control import Control, ControlError
from tests.harness import Broker, Client, Publish, client_id_on, until

pytestmark = pytest.mark.own_broker
WORKERS = 3


@pytest.fixture(scope="module")
def own() -> Iterator[Broker]:
    with Broker(WORKERS, {"acl.sources": '["builtin"]', "acl.no_match": "allow", "mqtt.max_mqueue_len": 2}) as broker:
        yield broker


@pytest.fixture
def asked(own: Broker) -> Iterator[Control]:
    """A connection to that broker; what a test leaves behind is deleted."""
    with Control(own.data_dir) as control:
        yield control
        control.call("trace clear")


def text_of(control: Control, name: str) -> str:
    text = b""
    while part := control.call("trace read", name=name, position=len(text))["data"]:
        text += part
    return text.decode()


def wait_for(control: Control, name: str, *words: str) -> list[str]:
    """The lines of a trace once there is one with all of these words."""
    until(lambda: [line for line in text_of(control, name).splitlines() if all(word in line for word in words)])
    return text_of(control, name).splitlines()


def begin(control: Control, name: str, kind: str, value: str, **options: Any) -> None:
    """A trace that every worker knows of: commands and messages go through the same rings in order."""
    control.call("trace start", name=name, type=kind, value=value, **options)
    control.call("journal status")  # asks each worker behind it


def events(lines: list[str]) -> list[str]:
    """What happened, without the when and the who."""
    return [" ".join(word for word in line.split()[1:3] if "=" not in word) for line in lines]


# --- what is traced ---------------------------------------------------------------------------------------------------------------


def test_a_client_is_traced_from_connect_to_disconnect_over_workers(own: Broker, asked: Control) -> None:
    name, other = client_id_on(0, WORKERS, "traced"), client_id_on(1, WORKERS, "other")
    begin(asked, "whole", "clientid", name)
    with Client(own.address, 5, other) as subscriber:
        subscriber.subscribe("tr/a", 1)
        with Client(own.address, 5, name, username="ann", password="geheim-7") as client:
            client.subscribe("back", 2)
            client.publish("tr/a", b"21.5 degrees", qos=1)
            subscriber.expect(Publish)
            subscriber.publish("back", b"thanks", qos=2)
            client.expect(Publish)
            client.ping()
            client.disconnect()
        lines = wait_for(asked, "whole", " disconnected ")
    found = events(lines)
    for event in (
        "received CONNECT", "sent CONNACK", "connected", "received SUBSCRIBE", "sent SUBACK", "received PUBLISH", "forwarded",
        "sent PUBACK", "sent PUBLISH", "received PUBREC", "sent PUBREL", "received PUBCOMP", "received PINGREQ", "sent PINGRESP",
        "received DISCONNECT", "disconnected",
    ):  # fmt: skip
        assert event in found, (event, found)
    assert found.index("received PUBLISH") < found.index("forwarded") < found.index("sent PUBACK")
    text = "\n".join(lines)
    assert "geheim" not in text and f"clientid={other}" not in text
    (publish,) = (line for line in lines if "received PUBLISH" in line)
    for word in ("username=ann", "peer=127.0.0.1:", "topic=tr/a", "qos=1", "retain=false", 'payload="21.5 degrees"', "size=12"):
        assert word in publish
    assert "to_worker=1" in next(line for line in lines if " forwarded " in line)
    last = next(line for line in lines if " disconnected " in line)
    assert "reason=normal_disconnection" in last and "side=client" in last
    assert re.match(r"20\d\d-\d\d-\d\dT[\d:]{8}\.\d{6}Z ", lines[0])


def test_a_topic_is_traced_through_all_workers_as_json_with_hidden_payloads(own: Broker, asked: Control) -> None:
    publisher, subscriber, away = (client_id_on(worker, WORKERS, f"topic{worker}") for worker in range(WORKERS))
    with Client(own.address, 5, away, clean=False, properties={"session_expiry_interval": 60}) as gone:
        gone.subscribe("seen/#", 1)
    begin(asked, "topic", "topic", "seen/+", payload_encode="hidden", formatter="json")
    with Client(own.address, 5, publisher) as one, Client(own.address, 5, subscriber) as two:
        two.subscribe("seen/x", 1)
        one.publish("seen/x", b"secret", qos=1)
        one.publish("unseen", b"secret", qos=1)
        two.expect(Publish)
        until(lambda: '"queued"' in text_of(asked, "topic") and '"sent"' in text_of(asked, "topic"))
    rows = [json.loads(line) for line in text_of(asked, "topic").splitlines()]
    found = {(row["event"], row["clientid"]) for row in rows}
    assert {("received", publisher), ("forwarded", publisher), ("sent", subscriber), ("queued", away)} <= found
    assert {row["worker"] for row in rows if row["event"] == "arrived"} == {1, 2}
    (received,) = (row for row in rows if row["event"] == "received" and row["packet"] == "PUBLISH")
    assert (received["topic"], received["qos"], received["size"], received["payload"]) == ("seen/x", 1, 6, "******")
    assert "secret" not in text_of(asked, "topic") and "unseen" not in text_of(asked, "topic")
    assert ("received", subscriber) in found  # its SUBSCRIBE
    with Client(own.address, 5, away):
        pass


def test_an_address_and_a_user_name_are_traced_and_nobody_else(own: Broker, asked: Control) -> None:
    begin(asked, "address", "ip_address", "127.0.0.7")
    begin(asked, "user", "username", "ursula", payload_encode="hex", payload_limit=2)

    def dial() -> socket.socket:
        return socket.create_connection(own.address, 5, source_address=("127.0.0.7", 0))

    with (
        Client(own.address, 5, "from-seven", dial=dial) as seven,
        Client(own.address, 4, "of-ursula", username="ursula") as ursula,
        Client(own.address, 5, "nobody-traced") as third,
    ):
        for one in (seven, ursula, third):
            one.publish("who", b"\x01\x02\x03", qos=1)
        address = wait_for(asked, "address", "sent PUBACK")
        user = wait_for(asked, "user", "sent PUBACK")
    assert all("clientid=from-seven" in line for line in address)
    assert all("clientid=of-ursula" in line for line in user)
    assert 'payload="0102... (3 bytes)"' in next(line for line in user if "received PUBLISH" in line)


def test_what_is_not_allowed_and_what_is_dropped_is_told(own: Broker, asked: Control) -> None:
    name, away = client_id_on(2, WORKERS, "denied"), client_id_on(0, WORKERS, "away")
    asked.call("acl add", kind="clientid", name=name, permission="deny", action="all", topic="not/yours")
    with Client(own.address, 5, away, clean=False, properties={"session_expiry_interval": 60}) as gone:
        gone.subscribe("fill", 1)
    begin(asked, "denied", "clientid", name)
    begin(asked, "dropped", "clientid", away)
    with Client(own.address, 5, name) as client:
        assert client.publish("not/yours", b"x", qos=1).code == 0x87  # type: ignore[union-attr]
        client.subscribe("not/yours", 0, check=False)
        client.publish("nobody/listens", b"x", qos=1)
        for number in range(4):
            client.publish("fill", b"%d" % number, qos=1)
    denied = wait_for(asked, "denied", " disconnected ")
    assert sum("not_authorized" in line and "action=publish" in line and "topic=not/yours" in line for line in denied) == 1
    assert sum("not_authorized" in line and "action=subscribe" in line for line in denied) == 1
    assert any("dropped" in line and "reason=no_subscribers" in line and "topic=nobody/listens" in line for line in denied)
    dropped = wait_for(asked, "dropped", "reason=queue_full")
    assert sum(" queued " in line for line in dropped) == 4
    asked.call("acl delete", kind="clientid", name=name)


def test_a_refused_connect_is_in_the_trace_without_its_password(own: Broker, asked: Control) -> None:
    asked.call("banned add", kind="clientid", value="villain")
    begin(asked, "refused", "clientid", "villain")
    with pytest.raises(AssertionError), Client(own.address, 5, "villain", username="v", password="geheim-8"):
        pass
    lines = wait_for(asked, "refused", " disconnected ")
    assert events(lines)[:2] == ["received CONNECT", "sent CONNACK"] and "reason=banned" in lines[1]
    assert "geheim" not in "\n".join(lines)
    asked.call("banned delete", kind="clientid", value="villain")


# --- bounds -----------------------------------------------------------------------------------------------------------------------


def test_a_trace_begins_and_ends_by_its_times_and_its_file_stays(own: Broker, asked: Control) -> None:
    now_ms = time.time_ns() // 1_000_000
    asked.call("trace start", name="timed", type="clientid", value="timed", start_at=now_ms + 1500, end_at=now_ms + 4000)
    with Client(own.address, 5, "timed") as client:
        assert asked.call("trace show", name="timed")["status"] == "waiting"
        client.publish("early", b"", qos=1)
        until(lambda: asked.call("trace show", name="timed")["status"] == "running")
        asked.call("journal status")

        def seen() -> bool:
            client.publish("within", b"", qos=1)
            return "within" in text_of(asked, "timed")

        until(seen)
        ended = until(lambda: (row := asked.call("trace show", name="timed"))["status"] == "stopped" and row)
        client.publish("late", b"", qos=1)
    assert (ended["end_at"], ended["stopped_by"]) == (now_ms + 4000, "its end time")
    text = text_of(asked, "timed")
    assert "early" not in text and "late" not in text and " ended by=" in text
    assert ended["events"] == len(text.splitlines()) - 1


def test_a_file_does_not_grow_beyond_its_limit(own: Broker, asked: Control) -> None:
    asked.call("config set", key="trace.max_file_size", value="65536")
    begin(asked, "large", "clientid", "talks-much")
    with Client(own.address, 5, "talks-much") as client:
        for _ in range(200):
            client.publish("talk", b"x" * 900, qos=1)
        row = until(lambda: (row := asked.call("trace show", name="large"))["status"] == "stopped" and row)
    assert "trace.max_file_size" in row["stopped_by"]
    size = until(lambda: (size := asked.call("trace show", name="large")["log_size"]) >= 65536 and size)  # its end is being written
    assert size < 65536 + 4096
    asked.call("config reset", key="trace.max_file_size")


def test_a_flood_holds_nobody_up_and_what_was_left_out_is_counted_and_told(own: Broker, asked: Control) -> None:
    begin(asked, "flood", "topic", "flood/#")
    publisher, subscriber = client_id_on(0, WORKERS, "floods"), client_id_on(1, WORKERS, "drinks")
    count = 20_000
    with Client(own.address, 4, publisher) as one, Client(own.address, 4, subscriber) as two:
        two.subscribe("flood/x", 0)
        before = {row["name"]: row["pid"] for row in asked.call("workers list")["data"]}
        rounds = 0
        while not asked.call("trace show", name="flood")["lost"]:  # a machine that is slow in publishing keeps up with more
            rounds += 1
            one.send_raw(b"\x30\x0a\x00\x07flood/x?" * count)
            for _ in range(count):
                two.expect(Publish)
    count *= rounds
    assert asked.call("trace show", name="flood")["events"] >= 5000
    wait_for(asked, "flood", " lost ", "count=")
    asked.call("trace stop", name="flood")
    row = asked.call("trace show", name="flood")
    # Received, forwarded, arrived and sent, each message of it, and the packets of who subscribed.
    assert 4 * count <= row["events"] + row["lost"] <= 4 * count + 10
    assert {row["name"]: row["pid"] for row in asked.call("workers list")["data"]} == before


# --- processes come and go --------------------------------------------------------------------------------------------------------


def test_traces_go_on_when_processes_die_and_have_ended_when_the_broker_has(tmp_path: Path) -> None:
    name = client_id_on(1, WORKERS, "lives")
    with Broker(WORKERS, {}, tmp_path) as broker:
        with Control(broker.data_dir) as control:
            begin(control, "through", "clientid", name)
        (worker,) = broker.child_pids("sb-worker-1")
        broker.kill_process(worker)
        until(lambda: worker not in broker.child_pids("sb-worker-1") and broker.child_pids("sb-worker-1"))
        with Client(broker.address, 5, name, timeout=60) as client:  # CONNECT waits until the new one has read the journal
            client.publish("after/worker", b"", qos=1)
            with Control(broker.data_dir) as control:
                wait_for(control, "through", "topic=after/worker")
            (manager,) = broker.child_pids("sb-manager")
            broker.kill_process(manager)
            until(lambda: manager not in broker.child_pids("sb-manager") and (broker.data_dir / "ctl.sock").exists())
            until(lambda: answers(broker))
            client.publish("after/manager", b"", qos=1)
            with Control(broker.data_dir) as control:
                wait_for(control, "through", "topic=after/manager")
                assert control.call("trace show", name="through")["status"] == "running"
    with Broker(WORKERS, {}, tmp_path) as broker, Control(broker.data_dir) as control:
        (row,) = control.call("trace list")["data"]
        assert (row["name"], row["status"], row["stopped_by"]) == ("through", "stopped", "the broker was restarted")
        assert "topic=after/manager" in text_of(control, "through")
        with Client(broker.address, 5, name) as client:
            client.publish("next/life", b"", qos=1)
        control.call("journal status")
        assert "next/life" not in text_of(control, "through")
        assert (tmp_path / "trace").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "trace" / "through.log").stat().st_mode & 0o777 == 0o600


def answers(broker: Broker) -> bool:
    try:
        with Control(broker.data_dir) as control:
            return bool(control.call("status")["running"])
    except ControlError:
        return False


# --- bad input, and the command line ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"name": "there"}, "ALREADY_EXISTS"),
        ({"value": "there"}, "DUPLICATE_CONDITION"),
        ({"name": "../../etc/passwd"}, "BAD_REQUEST"),
        ({"name": "9"}, "BAD_REQUEST"),
        ({"type": "topic", "value": "a/#/b"}, "BAD_REQUEST"),
        ({"type": "ip_address", "value": "localhost"}, "BAD_REQUEST"),
        ({"type": "ip_address", "value": "fe80::1%eth0"}, "BAD_REQUEST"),
        ({"type": "process"}, "BAD_REQUEST"),
        ({"type": "ruleid", "value": "a b"}, "BAD_REQUEST"),
        ({"end_at": 1}, "BAD_REQUEST"),
        ({"start_at": 2**50, "end_at": 2**49}, "BAD_REQUEST"),
        ({"payload_limit": 4097}, "BAD_REQUEST"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_code(asked: Control, options: dict[str, Any], code: str) -> None:
    asked.call("trace start", name="there", type="clientid", value="there")
    with pytest.raises(ControlError) as refused:
        asked.call("trace start", **{"name": "another", "type": "clientid", "value": "another", **options})
    assert refused.value.code == code
    assert [row["name"] for row in asked.call("trace list")["data"]] == ["there"]


def test_there_is_an_end_to_how_many_traces_there_may_be(asked: Control) -> None:
    asked.call("config set", key="trace.max_traces", value="2")
    for number in range(2):
        asked.call("trace start", name=f"n{number}", type="clientid", value=f"n{number}")
    with pytest.raises(ControlError) as refused:
        asked.call("trace start", name="n2", type="clientid", value="n2")
    assert refused.value.code == "EXCEED_LIMIT" and "trace.max_traces = 2" in str(refused.value)
    asked.call("config reset", key="trace.max_traces")


@pytest.mark.parametrize("verb", ["trace show", "trace stop", "trace read", "trace delete"])
def test_a_trace_that_there_is_not_is_not_found(asked: Control, verb: str) -> None:
    with pytest.raises(ControlError) as refused:
        asked.call(verb, name="nowhere")
    assert refused.value.code == "NOT_FOUND"


def test_the_command_line_starts_lists_downloads_and_deletes(
    own: Broker, asked: Control, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ctl(*words: str) -> str:
        assert main(["--data-dir", str(own.data_dir), *words]) == 0
        return capsys.readouterr().out

    ctl("trace", "start", "mine", "clientid", "by-ctl", "--payload-encode", "hidden")
    asked.call("journal status")
    with Client(own.address, 5, "by-ctl") as client:
        client.publish("ctl", b"hide me", qos=1)
    wait_for(asked, "mine", " disconnected ")
    assert "running" in ctl("trace", "list")
    ctl("trace", "stop", "mine")
    ctl("trace", "download", "mine", str(tmp_path / "mine.log"))
    text = (tmp_path / "mine.log").read_text()
    assert "payload=******" in text and "hide me" not in text and " ended by=somebody" in text
    assert ctl("trace", "download", "mine") == text
    ctl("trace", "delete", "mine")
    assert main(["--data-dir", str(own.data_dir), "trace", "download", "mine"]) == 1
    assert not list((own.data_dir / "trace").iterdir())
