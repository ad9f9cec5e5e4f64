"""The driver of MQTT against mosquitto; messages are read by mosquitto_sub."""

import asyncio
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shardbroker.config.sinks.mqtt import MqttAction, MqttConnector, MqttSource
from shardbroker.connectors.connector import Identity
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.flows.drivers.mqtt import connect, make, make_source
from shardbroker.flows.drivers.mqtt_book import Book, read_books
from shardbroker.flows.drivers.mqtt_properties import VIA
from shardbroker.flows.sinks.driver import Unusable
from shardbroker.flows.sinks.row import Row
from tests.flows.drivers.delivery import deliver, run, some_rows
from tests.flows.sources.harness import Taker
from tests.harness import until
from tests.harness.needed import needed
from tests.servers.mosquitto import PASSWORD, mosquitto_server, subscriptions
from tests.servers.service import Service

pytestmark = pytest.mark.own_broker
needed("mosquitto", "mosquitto_sub", "mosquitto_pub")
IDENTITY = Identity("n1", "0f" * 16, 0, 1)
VERSIONS = pytest.mark.parametrize("version", ["v3", "v4", "v5"])


@pytest.fixture(scope="module")
def server() -> Iterator[Service]:
    with mosquitto_server("max_queued_messages 0", "max_packet_size 100000", login="mqtt") as one:
        yield one


def connector(server: Service, data_dir: Path, identity: Identity | None = IDENTITY, **more: Any) -> Any:
    settings = {"server": f"127.0.0.1:{server.port}", "username": "mqtt", "password": PASSWORD, "timeout": 3, **more}
    found: Any = connect(MqttConnector.model_validate(settings), "connectors.mqtt.x")
    found.data_dir, found.identity = data_dir, identity
    return found


def driver(over: Any, **parameters: Any) -> Any:
    found = make(MqttAction.model_validate({"parameters": parameters}), over, "mqtt:x")
    found.cursor_key = "key"
    return found


@contextmanager
def subscriber(server: Service, file: Path, filter: str, *options: str) -> Iterator[Path]:
    """mosquitto_sub with its output in a file, one line for each message."""
    login = ["-u", "mqtt", "-P", PASSWORD]
    before = subscriptions(server, filter)
    with file.open("wb") as out:
        command = ["mosquitto_sub", "-p", str(server.port), *login, "-V", "5", "-t", filter, "-q", "2", *options]
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            until(lambda: subscriptions(server, filter) > before, server.log)
            yield file
        finally:
            process.kill()
            process.wait()


def lines_of(file: Path, count: int) -> list[str]:
    def look() -> list[str]:
        found = file.read_text(errors="replace").splitlines()
        return found if len(found) >= count else []

    until(look, lambda: file.read_text(errors="replace")[-500:], 20)
    time.sleep(0.2)
    return look()


def written(over: Any, rows: Sequence[Row], **parameters: Any) -> list[tuple[int, str, bool]]:
    async def scenario() -> Any:
        one = driver(over, **parameters)
        await one.open()
        return [tuple(failure) for failure in await one.write(rows)]

    return run(scenario(), over)  # type: ignore[no-any-return]


# --- connection -------------------------------------------------------------------------------------------------------------------


@VERSIONS
def test_a_wrong_password_is_named(server: Service, tmp_path: Path, version: str) -> None:
    for identity in (IDENTITY, None):
        over = connector(server, tmp_path, identity, proto_ver=version, password="wrong")
        with pytest.raises(Unusable, match=r"the server (rejects username or password|does not authorize this client)") as caught:
            run(over.probe(), over)
        assert "wrong" not in str(caught.value)


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    over: Any = connect(MqttConnector.model_validate({"server": "127.0.0.1:1"}), "connectors.mqtt.x")
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        run(over.probe(), over)
    with pytest.raises(ConnectionSettingError, match=r"connectors.mqtt.x.server: must be HOST:PORT"):
        connect(MqttConnector(), "connectors.mqtt.x")


def test_client_ids_differ_by_place_and_are_short_in_mqtt_31(server: Service, tmp_path: Path) -> None:
    ids = set()
    for version in ("v3", "v4"):
        for number in range(2):
            for node in ("node-1@127.0.0.1", "node-2@127.0.0.1"):
                over = connector(server, tmp_path, Identity(node, "0f", number, 2), proto_ver=version, clientid_prefix="plant")
                ids.add(over.client_id(0))
                assert over.client_id(0) == over.client_id(0)
                assert over.client_id(0).startswith("plant")
                assert version == "v4" or len(over.client_id(0)) <= 23
    assert len(ids) == 8
    probe = connector(server, tmp_path, None)
    assert probe.client_id(0) != probe.client_id(0)


def test_static_client_ids_are_shared_out(server: Service, tmp_path: Path) -> None:
    given = [{"node": "n1", "ids": ["a", "b", "c"]}, {"node": "n2", "ids": ["d"]}]
    first = connector(server, tmp_path, Identity("n1", "0f", 0, 2), static_clientids=given)
    second = connector(server, tmp_path, Identity("n1", "0f", 1, 2), static_clientids=given)
    assert [first.client_id(slot) for slot in range(first.size)] == ["a", "c"]
    assert [second.client_id(slot) for slot in range(second.size)] == ["b"]
    third = connector(server, tmp_path, Identity("n3", "0f", 0, 1), static_clientids=given)
    with pytest.raises(ConnectorError, match="static_clientids: must have at least 1 ids for node n3"):
        _ = third.size


# --- messages ---------------------------------------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_values_of_a_message(server: Service, tmp_path: Path, version: str, qos: int) -> None:
    pairs = [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]
    properties = {
        "Content-Type": "text/plain", "User-Property-Pairs": pairs, "Correlation-Data": b"\xff", "Payload-Format-Indicator": 1,
    }  # fmt: skip
    row = Row("0", 5, "c", {"topic": "t/grün", "payload": "€ 𝄞", "qos": qos}, "1F", "n1", properties=properties)
    over = connector(server, tmp_path, proto_ver=version)
    with subscriber(server, tmp_path / "out", "site/#", "-F", "%t|%p|%q|%r|%C|%P") as file:
        assert written(over, [row], topic="site/${topic}", retain=False) == []
        (line,) = lines_of(file, 1)
    *message, content, user = line.split("|")
    assert message == ["site/t/grün", "€ 𝄞", str(qos), "0"]
    if version == "v5":
        assert (content, user) == ("text/plain", f"a:1 a:2 {VIA}:{IDENTITY.origin}")
    else:
        assert (content, user) == ("", "")


def test_a_retained_message_and_a_row_as_json(server: Service, tmp_path: Path) -> None:
    row = Row("0", 5, "c", {"n": 1, "flags": {"retain": True}}, "1F", "n1")
    assert written(connector(server, tmp_path), [row], topic="kept/${n}", qos=1, payload="") == []
    with subscriber(server, tmp_path / "out", "kept/#", "-F", "%t|%p|%r", "--retain-as-published") as file:
        assert lines_of(file, 1) == ['kept/1|{"n":1,"flags":{"retain":true}}|1']


HOSTILE = ["a/#", "+", "", "a\0b", "\ud800", "x" * 65536]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_topics_that_cannot_be_published_to_fail_alone(server: Service, tmp_path: Path, qos: int) -> None:
    rows = [Row("0", at, "c", {"topic": topic, "n": at}, f"{at}", "n1") for at, topic in enumerate(["good/1", *HOSTILE, "good/2"])]
    with subscriber(server, tmp_path / "out", "good/#", "-F", "%t|%p") as file:
        failures = written(connector(server, tmp_path), rows, qos=qos, payload="${n}", retain="false")
        assert lines_of(file, 2)[-2:] == ["good/1|0", f"good/2|{len(rows) - 1}"]
    assert [at for at, _, _ in failures] == list(range(1, len(rows) - 1))
    assert not any(again for _, _, again in failures)
    assert all("x" * 20 not in reason and "#" not in reason for _, reason, _ in failures)


def test_wrong_values_of_qos_and_retain(server: Service, tmp_path: Path) -> None:
    rows = [Row("0", at, "c", {"topic": "t", "payload": "x", **more}, f"{at}", "n1") for at, more in enumerate(
        [{"qos": 3}, {"qos": "secret"}, {"qos": 1, "flags": {"retain": "secret"}}, {"qos": None}])]  # fmt: skip
    failures = written(connector(server, tmp_path), rows)
    assert [reason for _, reason, _ in failures] == [
        "message not made: qos must be 0, 1 or 2", "message not made: qos must be 0, 1 or 2",
        "message not made: retain must be true or false", "message not made: qos must be 0, 1 or 2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"topic": "a/#"}, r"parameters.topic: must be a topic without wildcards, got 'a/#'"),
        ({"qos": "3"}, r"parameters.qos: must be 0, 1, 2 or one placeholder, got '3'"),
        ({"qos": "1${qos}"}, r"parameters.qos: must be 0, 1, 2 or one placeholder"),
        ({"retain": "maybe"}, r"parameters.retain: must be true, false or one placeholder"),
    ],
)
def test_wrong_parameters(server: Service, tmp_path: Path, parameters: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        driver(connector(server, tmp_path), **parameters)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_the_server_rejects_fails_with_its_reason(tmp_path: Path, qos: int) -> None:
    with mosquitto_server("max_packet_size 1000", acl="topic readwrite in/#\n") as server:
        rows = some_rows(20, lambda n: {"topic": "secret" if n == 7 else "in/a", "payload": "x" * (2000 if n == 9 else 10)})
        over = connector(server, tmp_path, proto_ver="v5", username="", password="")
        failures = written(over, rows, qos=qos, retain=False)
        assert [at for at, _, _ in sorted(failures)] == [7, 9]
        assert sorted(failures)[0][1:] == ("rejected by the server: not authorized (0x87)", False)
        assert sorted(failures)[1][1].startswith("a packet of 20") and "the server takes 1000" in sorted(failures)[1][1]


# --- delivery ---------------------------------------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_many_rows_arrive_in_order_while_the_server_is_stopped(server: Service, tmp_path: Path, version: str, qos: int) -> None:
    count = 2000
    over = connector(server, tmp_path, proto_ver=version, timeout=1)
    one = driver(over, topic="in/${topic}", qos=qos, payload="${n}", retain=False)

    async def scenario() -> Any:
        await one.open()

        def after(batch: int) -> None:
            if batch == 3:
                server.pause()
                asyncio.get_running_loop().call_later(1.8, server.resume)

        return await deliver(one, some_rows(count), 100, after)

    with subscriber(server, tmp_path / "out", "in/#", "-F", "%t %p", "-V", "mqttv311") as file:
        done = run(scenario(), over)
        lines = lines_of(file, count)
    assert done.failed == []
    assert done.attempts
    numbers = [int(line.split()[1]) for line in lines]
    assert set(numbers) == set(range(count))
    assert qos < 2 or len(numbers) == count
    firsts = list(dict.fromkeys(numbers))
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("version", ["v4", "v5"])
@pytest.mark.parametrize("moment", ["sent", "marked"])
def test_qos_2_once_over_a_kill(server: Service, tmp_path: Path, version: str, moment: str) -> None:
    """A kill between two steps of QoS 2, by a client that goes without the next one; the next process has the file alone."""
    rows = some_rows(30)

    async def first() -> None:
        one = driver(over, topic="in/${topic}", qos=2, payload="${n}", retain=False)
        await one.open()
        if moment == "sent":
            one._kept, kept = lambda write: _stop() if write.__name__ == "mark" else kept(write), one._kept
        else:
            over.client_of(0).release = lambda ids: _stop() if ids else asyncio.sleep(0)
        with pytest.raises(_Killed):
            await one.write(rows)

    async def second() -> dict[str, int]:
        one = driver(over, topic="in/${topic}", qos=2, payload="${n}", retain=False)
        await one.open()
        stored: dict[str, int] = dict(await one.stored())
        assert await one.write(rows) == []
        return stored

    with subscriber(server, tmp_path / "out", "in/#", "-F", "%p", "-V", "mqttv311") as file:
        over = connector(server, tmp_path, proto_ver=version)
        run(first(), over)
        over = connector(server, tmp_path, proto_ver=version)
        stored = run(second(), over)
        assert [int(line) for line in lines_of(file, len(rows))] == list(range(len(rows)))
    assert stored == ({} if moment == "sent" else {"0": 19})
    (book,) = read_books(tmp_path, "x", "key", False).values()
    assert book.done == (29, 0)


class _Killed(Exception):
    """In place of a kill."""


async def _stop() -> None:
    raise _Killed


def test_a_book_without_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "flows" / "mqtt" / "x-3"
    book = Book(path, "key", "client", True)
    book.pending, book.done = {(7, 0): 1, (7, 1): 65535}, (5, 0)
    book.save()
    book.done = (7, 0)
    book.mark()
    book.close()
    path.write_bytes(path.read_bytes() + b"[9, ")
    (found,) = read_books(tmp_path, "x", "key", True).values()
    assert (found.done, found.pending, found.client, found.received) == ((7, 0), book.pending, "client", [1])
    assert read_books(tmp_path, "x", "other", True) == {}
    path.write_text("{}\n")
    with pytest.raises(Unusable, match="must be a file of packet ids"):
        read_books(tmp_path, "x", "key", True)


def test_messages_that_were_here_before_are_left_out(server: Service, tmp_path: Path) -> None:
    over = connector(server, tmp_path, proto_ver="v5")
    over.sources = {"$source:mqtt:near"}
    via = {"User-Property-Pairs": [{"key": VIA, "value": IDENTITY.origin}]}
    values = {"topic": "loop/a", "payload": "x"}
    rows = [
        Row("0", 1, "$source:mqtt:near", values),
        Row("0", 2, "$source:mqtt:other", values),
        Row("0", 3, "c", values, properties=via),
        Row("0", 4, "c", values),
    ]
    with subscriber(server, tmp_path / "out", "loop/#", "-F", "%p") as file:
        assert written(over, rows, qos=1, retain=False) == []
        assert lines_of(file, 2) == ["x", "x"]


# --- sources ----------------------------------------------------------------------------------------------------------------------


def source(over: Any, **parameters: Any) -> Any:
    return make_source(MqttSource.model_validate({"parameters": parameters}), over, "mqtt:x")


async def begun(server: Service, taker: Taker, one: Any, filter: str) -> "asyncio.Task[None]":
    """Runs a source; returns once the server has its subscription."""
    before = subscriptions(server, filter)
    task = taker.run(one)
    async with asyncio.timeout(20):
        while subscriptions(server, filter) == before:
            await asyncio.sleep(0.01)
    return task


def publish(server: Service, topic: str, *options: str) -> None:
    login = ["-u", "mqtt", "-P", PASSWORD]
    subprocess.run(["mosquitto_pub", "-p", str(server.port), *login, "-V", "5", "-t", topic, *options], check=True)


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_arrives(server: Service, tmp_path: Path, version: str, qos: int) -> None:
    over = connector(server, tmp_path, proto_ver=version)
    over.sources = {"$source:mqtt:x"}
    one = source(over, topic="up/#", qos=qos, local={"topic": "site/${topic}", "strip_prefix": "up/"})

    async def scenario() -> Taker:
        taker = Taker()
        task = await begun(server, taker, one, "up/#")
        await asyncio.to_thread(
            publish, server, "up/a", "-m", "€", "-q", "2", "-D", "publish", "user-property", "k", "v", "-D", "publish",
            "content-type", "text/plain",
        )  # fmt: skip
        await taker.wait_for(1)
        await asyncio.sleep(0.2)
        task.cancel()
        return taker

    (found,) = run(scenario(), over).received
    assert found.columns["topic"] == "up/a"
    assert (found.columns["payload"], found.columns["qos"]) == ("€".encode(), qos)
    assert (found.message.topic, found.message.payload, found.message.qos) == (b"site/a", "€".encode(), qos)
    assert found.key == b"up/a"
    if version == "v5":
        assert found.columns["pub_props"]["User-Property"] == {"k": "v"}
        assert found.columns["pub_props"]["Content-Type"] == "text/plain"


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_not_done_arrives_again_and_what_is_done_does_not(server: Service, tmp_path: Path, qos: int) -> None:
    count = 5

    async def scenario(over: Any, acknowledges: bool, expected: int) -> list[bytes]:
        over.sources = {"$source:mqtt:x"}
        taker = Taker(acknowledges=acknowledges)
        task = await begun(server, taker, source(over, topic=f"again{qos}/#", qos=qos), f"again{qos}/#")
        if not acknowledges and expected:
            for number in range(count):
                await asyncio.to_thread(publish, server, f"again{qos}/a", "-m", str(number), "-q", str(qos))
        await taker.wait_for(expected)
        await asyncio.sleep(0.5)
        task.cancel()
        return [one.columns["payload"] for one in taker.received]

    expected = [b"%d" % number for number in range(count)]
    for acknowledges, arrive in ((False, count), (True, count), (True, 0)):
        over = connector(server, tmp_path)
        assert run(scenario(over, acknowledges, arrive), over) == expected[:arrive]


def test_a_subscription_that_is_rejected_is_named(server: Service, tmp_path: Path) -> None:
    """mosquitto grants all subscriptions; its answer is replaced."""
    over = connector(server, tmp_path)

    async def answer(topics: Sequence[tuple[bytes, int]]) -> list[int]:
        return [1, 0x87]

    over.client_of(0).subscribe = answer
    one = source(over, topic=["in/#", "secret/#"])
    with pytest.raises(ConnectorError, match=r"the server rejects the subscription to 'secret/#': not authorized"):
        run(one.run(Taker().take), over)


@pytest.mark.parametrize("filter", ["", "a/#/b", "$share/g", "a+"])
def test_a_wrong_filter(server: Service, tmp_path: Path, filter: str) -> None:
    with pytest.raises(ValueError, match=r"parameters.topic: must be"):
        source(connector(server, tmp_path), topic=filter)
