"""Each verb of `ctl` against a running broker with three workers, and what it answers to bad input."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardbroker.cli.ctl import app
from shardbroker.cli.ctl_reference import reference
from shardbroker.cli.main import COMPLETE_VARIABLE
from shardbroker.control import VERBS, Control, ControlError
from shardbroker.control.protocol import SOCKET_NAME, Frames, encode_frame
from shardbroker.management.context import HANDLERS
from tests.control.conftest import Run
from tests.harness import Broker, Client, Disconnect, Publish, client_id_on, until, worker_of
from tests.harness.waiting import stopped

Connect = Callable[..., Client]
pytestmark = pytest.mark.own_broker


def listed(control: Control, **filters: Any) -> list[str]:
    return [row["clientid"] for row in control.pages("clients list", **filters)]


# --- the table ----------------------------------------------------------------------------------------------------------------


def test_every_verb_has_a_handler_and_a_command() -> None:
    import shardbroker.management.handlers  # noqa: F401

    assert set(HANDLERS) == set(VERBS)
    for name in VERBS:
        words = name.split()
        command: Any = app
        for word in words:
            command = command.commands[word]
        assert command.help


def test_the_page_of_verbs_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "ctl.md"
    assert page.read_text() == reference(), "make docs"


def completed(line: str) -> list[str]:
    """What bash offers for the last word of a line."""
    program = Path(sys.executable).with_name("shardbroker")
    asked = {COMPLETE_VARIABLE: "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run([program], capture_output=True, text=True, env=os.environ | asked)
    return [word.partition(",")[2] for word in done.stdout.split()]


def test_completion_names_verbs_options_and_keys() -> None:
    program = Path(sys.executable).with_name("shardbroker")
    done = subprocess.run([program, "ctl", "completion", "bash"], capture_output=True, text=True, check=True)
    assert COMPLETE_VARIABLE in done.stdout
    assert completed("shardbroker ctl clients k") == ["kick", "kick-all"]
    assert {"serve", "install", "uninstall", "tune", "export", "top", "perf", "ctl", "config"} <= set(completed("shardbroker "))
    assert completed("shardbroker config c") == ["check"]
    assert "verify" in completed("shardbroker journal ")
    assert completed("shardbroker perf fan") == ["fanin", "fanout"]
    assert completed("shardbroker serve --wor") == ["--workers"]
    assert completed("shardbroker serve --set mqtt.max_infl") == ["mqtt.max_inflight"]
    assert completed("shardbroker ctl config set mqtt.max_infl") == ["mqtt.max_inflight"]


# --- node ---------------------------------------------------------------------------------------------------------------------


def test_status_counts_what_is_there(ctl: Run, connect: Connect, broker: Broker) -> None:
    connect()
    code, status, _ = ctl("status")
    assert code == 0
    assert status["running"] is True and status["workers"] == status["workers_ready"] == 3
    assert status["connections"] >= 1 and status["pid"] == broker.pid


def test_status_for_people_is_a_table(ctl: Run) -> None:
    code, text, _ = ctl("status", text=True)
    assert code == 0 and "uptime_ms" in text and "0d 00:" in text


def test_workers_are_listed_with_their_pids(ctl: Run, broker: Broker) -> None:
    _, result, _ = ctl("workers", "list")
    rows = {row["name"]: row for row in result["data"]}
    assert [row["pid"] for name, row in rows.items() if name.startswith("worker-")] == broker.child_pids("worker")
    assert rows["manager"]["state"] == "ready" and rows["acceptor-0"]["pid"] in broker.child_pids("acceptor")


def test_a_restarted_worker_sends_its_clients_away_and_serves_again(broker_with: Callable[..., Broker]) -> None:
    broker = broker_with(log__level="warning")
    with Control(broker.data_dir) as control, Client(broker.address, 5, client_id_on(1, 3, "restarted")) as client:
        before = control.call("workers list")["data"][1]
        assert control.call("workers restart", worker=1)["pid"] == before["pid"]
        assert client.expect(Disconnect).code == 0x8B
        after = until(lambda: (row := control.call("workers list")["data"][1])["starts"] > before["starts"] and row)
        assert after["pid"] != before["pid"]
        until(lambda: control.call("workers list")["data"][1]["state"] == "ready")
        with Client(broker.address, 5, client_id_on(1, 3, "restarted")):
            pass
        line = f"INFO supervisor: process ended process=worker-1 pid={before['pid']} age="
        until(lambda: line in "".join(broker.output))


def test_metrics_say_what_the_clients_saw(control: Control, connect: Connect, topic: str) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic, 1)
    before = control.call("metrics")
    for number in range(10):
        publisher.publish(topic, str(number).encode(), qos=1)
        subscriber.expect(Publish)
    after = control.call("metrics")
    assert after["messages.qos1.received"] - before["messages.qos1.received"] == 10
    assert after["messages.qos1.sent"] - before["messages.qos1.sent"] == 10
    of_workers = [control.call("metrics", worker=worker)["messages.qos1.received"] for worker in range(3)]
    assert sum(of_workers) == after["messages.qos1.received"]


def test_listeners_are_listed_with_their_connections(ctl: Run, connect: Connect, broker: Broker) -> None:
    connect()
    _, result, _ = ctl("listeners", "list")
    (row,) = result["data"]
    assert row["bind"] == f"127.0.0.1:{broker.address[1]}"
    assert row["current_connections"] >= 1 and row["max_connections"] == "infinity"


def test_the_log_level_changes_at_once(ctl: Run) -> None:
    assert ctl("log", "level")[1] == {"level": "info"}
    assert ctl("log", "level", "debug")[1] == {"level": "debug"}
    assert ctl("log", "level", "info")[1] == {"level": "info"}


# --- clients ------------------------------------------------------------------------------------------------------------------


def test_clients_are_found_by_what_is_known_of_them(control: Control, connect: Connect, new_id: Callable[..., str]) -> None:
    names = [new_id() + word for word in ("first", "second")]
    connect(client_id=names[0], username="anna", version=5)
    connect(client_id=names[1], username="bert", version=4).disconnect()
    stays = new_id() + "stays"
    connect(client_id=stays, version=4, clean=False).disconnect()
    until(lambda: listed(control, clientid=names[0]) == [names[0]])
    assert listed(control, like_clientid=names[0][2:]) == [names[0]]
    assert names[0] in listed(control, username="anna", proto_ver=5, conn_state="connected", ip_address="127.0.0.1")
    assert names[0] not in listed(control, username="anna", proto_ver=4)
    assert names[0] not in listed(control, ip_address="127.0.0.2")
    until(lambda: listed(control, like_clientid=names[1]) == [])
    until(lambda: listed(control, clientid=stays, conn_state="disconnected") == [stays])
    assert listed(control, clientid=stays, conn_state="connected") == []


def test_a_list_is_paged_by_a_cursor_and_each_client_comes_once(
    control: Control, connect: Connect, new_id: Callable[..., str]
) -> None:
    mark = new_id()
    names = {f"{mark}-{number}" for number in range(25)}
    for name in names:
        connect(client_id=name)
    until(lambda: len(listed(control, like_clientid=mark)) == 25)
    page = control.call("clients list", like_clientid=mark, limit=10)
    assert len(page["data"]) == 10 and page["cursor"]
    found = listed(control, like_clientid=mark, limit=7)
    assert len(found) == 25 and set(found) == names
    assert {worker_of(name, 3) for name in names} == {row["worker"] for row in control.pages("clients list", like_clientid=mark)}


def test_one_client_is_shown_with_its_queue_and_window(
    control: Control, connect: Connect, new_id: Callable[..., str], topic: str
) -> None:
    name = new_id()
    client = connect(client_id=name, username="clara", clean=False, properties={"session_expiry_interval": 3600}, auto_ack=False)
    client.subscribe(topic, 1)
    connect().publish(topic, b"x", qos=1)
    client.expect(Publish)
    shown = control.call("clients show", clientid=name)
    assert (shown["clientid"], shown["username"], shown["connected"]) == (name, "clara", True)
    assert (shown["subscriptions_cnt"], shown["inflight_cnt"], shown["mqueue_len"]) == (1, 1, 0)
    assert shown["expiry_interval"] == 3600 and shown["durable"] is True
    client.disconnect()
    publisher = connect()
    for _ in range(3):
        publisher.publish(topic, b"y", qos=1)
    shown = control.call("sessions show", clientid=name)
    assert (shown["connected"], shown["inflight_cnt"], shown["mqueue_len"]) == (False, 1, 3)
    control.call("clients kick", clientids=[name])


def test_a_kicked_client_is_told_so_and_its_session_ends(
    ctl: Run, control: Control, connect: Connect, new_id: Callable[..., str]
) -> None:
    name = new_id()
    client = connect(client_id=name, clean=False, properties={"session_expiry_interval": 3600})
    client.subscribe("kicked/#", 1)
    assert ctl("clients", "kick", name)[1] == {"kicked": [name]}
    assert client.expect(Disconnect).code == 0x98
    code, _, error = ctl("sessions", "show", name)
    assert code == 1 and error.startswith("CLIENTID_NOT_FOUND")
    again = connect(client_id=name, clean=False, properties={"session_expiry_interval": 3600})
    assert again.connack is not None and not again.connack.session_present
    control.call("clients kick", clientids=[name])


def test_bulk_kick_takes_those_that_fit_and_no_others(control: Control, connect: Connect, new_id: Callable[..., str]) -> None:
    mark = new_id()
    doomed = [connect(client_id=f"{mark}-doomed-{number}") for number in range(20)]
    other = connect(client_id=f"{mark}-other")
    until(lambda: len(listed(control, like_clientid=mark)) == 21)
    items = list(control.stream("clients kick-all", like_clientid=f"{mark}-doomed"))
    assert items[-1] == {"kicked": 20, "done": True}
    for client in doomed:
        assert client.expect(Disconnect).code == 0x98
    other.ping()


def test_bulk_kick_without_a_filter_is_refused(ctl: Run, connect: Connect) -> None:
    client = connect()
    code, _, error = ctl("clients", "kick-all")
    assert code == 1 and "everybody" in error
    client.ping()


# --- subscriptions --------------------------------------------------------------------------------------------------------------


def test_subscriptions_are_listed_by_client_filter_and_topic(ctl: Run, control: Control, connect: Connect, topic: str) -> None:
    one, two = connect(), connect()
    one.subscribe(f"{topic}/a", 1)
    one.subscribe(f"{topic}/#", 0)
    two.subscribe(f"$share/g/{topic}/a", 2)
    until(lambda: len(listed(control, clientid=two.client_id)) == 1)
    found = control.call("subscriptions list", clientid=one.client_id)["data"]
    assert {(row["topic"], row["qos"]) for row in found} == {(f"{topic}/a", 1), (f"{topic}/#", 0)}
    by_filter = control.call("subscriptions list", topic=f"$share/g/{topic}/a")["data"]
    assert [(row["clientid"], row["qos"]) for row in by_filter] == [(two.client_id, 2)]
    by_topic = list(control.pages("subscriptions list", match_topic=f"{topic}/a"))
    assert sorted(row["topic"] for row in by_topic) == sorted([f"{topic}/a", f"{topic}/#", f"$share/g/{topic}/a"])
    by_group = list(control.pages("subscriptions list", share_group="g", match_topic=f"{topic}/a"))
    assert [row["clientid"] for row in by_group] == [two.client_id]
    code, rows, _ = ctl("subscriptions", "list", "--all", "--match-topic", f"{topic}/a")
    assert code == 0 and len(rows) == 3


def test_many_subscriptions_of_one_client_are_paged(control: Control, connect: Connect, topic: str) -> None:
    client = connect()
    for number in range(30):
        client.subscribe(f"{topic}/{number}", 0)
    until(lambda: listed(control, clientid=client.client_id))
    expected = {f"{topic}/{number}" for number in range(30)}
    by_client = [row["topic"] for row in control.pages("subscriptions list", clientid=client.client_id, limit=7)]
    assert len(by_client) == 30 and set(by_client) == expected
    everything = [row["topic"] for row in control.pages("subscriptions list", limit=7)]
    assert expected <= set(everything)
    assert len([one for one in everything if one in expected]) == 30


def test_an_administrator_subscribes_and_unsubscribes_a_client(ctl: Run, connect: Connect, topic: str) -> None:
    client = connect()
    code, added, _ = ctl("subscriptions", "add", client.client_id, topic, "--qos", "1")
    assert code == 0 and added["qos"] == 1
    connect().publish(topic, b"for you", qos=1)
    assert client.expect(Publish).payload == b"for you"
    assert ctl("subscriptions", "delete", client.client_id, topic)[0] == 0
    assert ctl("subscriptions", "delete", client.client_id, topic)[2].startswith("NOT_FOUND")
    connect().publish(topic, b"not for you", qos=1)
    client.expect_none()


def test_topics_and_routes_name_the_workers(ctl: Run, control: Control, connect: Connect, topic: str) -> None:
    for worker in (0, 2):
        connect(client_id=client_id_on(worker, 3, f"{topic.replace('/', '')}r")).subscribe(f"{topic}/+", 0)
    connect(client_id=client_id_on(1, 3, f"{topic.replace('/', '')}r")).subscribe(f"$share/g/{topic}/x", 0)
    _, result, _ = ctl("topics", "list", "--topic", f"{topic}/+")
    assert result["data"][0]["destinations"] == ["worker-0", "worker-2"]
    rows = [row for row in control.pages("routes list", limit=3) if row["topic"].startswith(topic)]
    assert {(row["topic"], row["destination"], row["group"]) for row in rows} == {
        (f"{topic}/+", "worker-0", None),
        (f"{topic}/+", "worker-2", None),
        (f"{topic}/x", "worker-1", "g"),
    }


# --- messages -------------------------------------------------------------------------------------------------------------------


def test_publish_reaches_subscribers_on_all_workers(ctl: Run, connect: Connect, topic: str) -> None:
    clients = [connect(client_id=client_id_on(worker, 3, f"{topic.replace('/', '')}p")) for worker in range(3)]
    for client in clients:
        client.subscribe(topic, 2)
    options = ["--qos", "1", "--content-type", "text/plain", "--user-properties", "a=b", "--clientid", "me"]
    code, answer, _ = ctl("publish", topic, "hello", *options)
    assert code == 0 and answer["matched"] is True and len(answer["id"]) == 32
    for client in clients:
        message = client.expect(Publish)
        assert (message.payload, message.qos) == (b"hello", 1)
        assert message.properties is not None and message.properties["content_type"] == "text/plain"
    assert ctl("publish", f"{topic}/nobody", "x")[1]["matched"] is False


def test_a_large_payload_goes_through_a_file(control: Control, connect: Connect, topic: str) -> None:
    client = connect()
    client.subscribe(topic, 1)
    payload = os.urandom(900_000)
    control.call("publish", topic=topic, payload=payload, qos=1)
    assert client.expect(Publish).payload == payload


def test_retained_messages_are_listed_shown_and_deleted(ctl: Run, control: Control, connect: Connect, topic: str) -> None:
    for number in range(5):
        connect().publish(f"{topic}/{number}", b"kept", qos=1, retain=True)
    rows = list(control.pages("retained list", topic=f"{topic}/+", limit=2))
    assert sorted(row["topic"] for row in rows) == [f"{topic}/{number}" for number in range(5)]
    _, shown, _ = ctl("retained", "show", f"{topic}/3")
    assert (shown["payload"], shown["qos"], shown["payload_size"]) == ("a2VwdA==", 1, 4)
    assert ctl("retained", "delete", f"{topic}/3")[0] == 0
    assert ctl("retained", "show", f"{topic}/3")[2].startswith("NOT_FOUND")
    assert len(list(control.pages("retained list", topic=f"{topic}/+"))) == 4
    for number in (0, 1, 2, 4):
        control.call("retained delete", topic=f"{topic}/{number}")


# --- journals -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["process", "machine"])
def test_sealing_closes_the_segments_so_that_the_next_block_starts_new_ones(broker_with: Callable[..., Broker], level: str) -> None:
    broker = broker_with(journal__capture="#", durability__level=level)
    with Control(broker.data_dir) as control, Client(broker.address, 5, "sealer") as client:
        client.publish("sealed/1", b"x", qos=1)
        sealed = control.call("journal seal")["data"]
        assert [row["worker"] for row in sealed] == [0, 1, 2]
        owner = worker_of("sealer", 3)
        directory = Path(sealed[owner]["directory"])
        before = sorted(directory.glob("*.sbj"))
        assert control.call("journal seal")["data"][owner]["segments"] == sealed[owner]["segments"]  # nothing new: nothing to close
        client.publish("sealed/2", b"x", qos=1)
        after = sorted(directory.glob("*.sbj"))
        assert len(after) == len(before) + 1 and set(before) < set(after)
        status = control.call("journal status")["data"]
        assert status[owner]["problem"] is None and status[owner]["durable"] == status[owner]["next_sequence"]


# --- bad input --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["clients", "show", "nobody-has-this-id"], "CLIENTID_NOT_FOUND"),
        (["clients", "kick", "nobody-has-this-id"], "CLIENTID_NOT_FOUND"),
        (["clients", "list", "--cursor", "rubbish"], "BAD_REQUEST"),
        (["clients", "list", "--cursor", "gwGB"], "BAD_REQUEST"),
        (["clients", "list", "--limit", "10001"], "BAD_REQUEST"),
        (["clients", "list", "--limit", "0"], "BAD_REQUEST"),
        (["clients", "list", "--worker", "-1"], "BAD_REQUEST"),
        (["sessions", "show", "nobody-has-this-id"], "CLIENTID_NOT_FOUND"),
        (["subscriptions", "list", "--clientid", "nobody-has-this-id"], "CLIENTID_NOT_FOUND"),
        (["subscriptions", "list", "--topic", "a/#/b", "--cursor", "x"], "BAD_REQUEST"),
        (["subscriptions", "add", "nobody-has-this-id", "a"], "CLIENTID_NOT_FOUND"),
        (["subscriptions", "delete", "nobody-has-this-id", "a"], "CLIENTID_NOT_FOUND"),
        (["topics", "list", "--cursor", "???"], "BAD_REQUEST"),
        (["routes", "list", "--cursor", "???"], "BAD_REQUEST"),
        (["retained", "list", "--topic", "a/#/b"], "BAD_REQUEST"),
        (["retained", "show", "not/there"], "NOT_FOUND"),
        (["retained", "delete", "not/there"], "NOT_FOUND"),
        (["publish", "a/+/b", "x"], "BAD_REQUEST"),
        (["publish", "a", "x", "--message-expiry-interval", "-1"], "BAD_REQUEST"),
        (["metrics", "--worker", "99"], "NOT_FOUND"),
        (["workers", "restart", "99"], "NOT_FOUND"),
        (["config", "get", "no.such.key"], "NOT_FOUND"),
        (["config", "set", "mqtt.max_inflight", "many"], "BAD_REQUEST"),
        (["config", "set", "mqtt.no_such_key", "1"], "BAD_REQUEST"),
        (["config", "set", "process.data_dir", "/tmp"], "BAD_REQUEST"),
        (["config", "reset", "mqtt.max_inflight"], "NOT_FOUND"),
    ],
)
def test_bad_input_is_refused_with_a_code_and_changes_nothing(ctl: Run, argv: list[str], code: str) -> None:
    before = ctl("config", "get", "mqtt")[1]
    exit_code, printed, error = ctl(*argv)
    assert exit_code == 1 and error.startswith(f"{code}: ") and printed == []
    assert ctl("config", "get", "mqtt")[1] == before


@pytest.mark.parametrize("argv", [["clients", "show"], ["log", "level", "loud"], ["publish", "a", "--qos", "3"], ["no-such-verb"]])
def test_wrong_usage_is_exit_code_2(ctl: Run, argv: list[str]) -> None:
    assert ctl(*argv)[0] == 2


def test_without_a_broker_it_says_so(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("shardbroker")
    done = subprocess.run([program, "ctl", "--data-dir", str(tmp_path), "status"], capture_output=True, text=True)
    assert done.returncode == 3 and done.stderr.startswith("BROKER_DOWN: ")


def test_what_is_no_request_is_refused_and_the_manager_goes_on(broker: Broker, control: Control) -> None:
    for rubbish in (
        b"\xff\xff\xff\xff",
        b"\0\0\0\1\xff",
        encode_frame({"id": 1}),
        encode_frame({"id": 2, "verb": "status", "params": {"x": 1}}),
    ):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(5)
            raw.connect(str(broker.data_dir / SOCKET_NAME))
            raw.sendall(rubbish)
            answer = next(iter(Frames().feed(raw.recv(65536))))
            assert answer["error"][0] in ("BAD_REQUEST", "NOT_FOUND")
    assert control.call("status")["running"] is True


def test_the_socket_is_the_owners_alone(broker: Broker) -> None:
    assert (broker.data_dir / SOCKET_NAME).stat().st_mode & 0o777 == 0o600


# --- a worker that does not answer ------------------------------------------------------------------------------------------------


def test_a_worker_that_stands_still_is_an_error_in_bounded_time(broker_with: Callable[..., Broker]) -> None:
    broker = broker_with(log__level="warning")
    with Control(broker.data_dir) as control:
        pid = control.call("workers list")["data"][2]["pid"]
        name = client_id_on(2, 3, "still")
        with stopped(pid):
            with pytest.raises(ControlError) as caught:
                control.call("clients show", clientid=name)
            assert caught.value.code == "WORKER_TIMEOUT"
            assert control.call("status")["running"] is True

        def code() -> str:
            with pytest.raises(ControlError) as caught:
                control.call("clients show", clientid=name)
            return caught.value.code

        assert until(lambda: (found := code()) != "WORKER_TIMEOUT" and found, timeout_s=60) == "CLIENTID_NOT_FOUND"
