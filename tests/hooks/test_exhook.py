"""Programs take part in hooks over gRPC: grpc.aio servers, three workers, real clients."""

import asyncio
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from shardbroker.cli.main import main
from shardbroker.config import exhook as schema
from shardbroker.control import ControlError
from shardbroker.hooks.exhook import ASKED_POINTS, FORWARDED
from tests.api.rest import Rest
from tests.connectors.test_servers import Proxy
from tests.edge.certificates import Authority
from tests.harness import Client, Pubcomp, Publish, Pubrec, Will, client_id_on, free_port, wire
from tests.harness.waiting import stopped, until
from tests.hooks.plugged import Plugged
from tests.hooks.provider import PROTO, Provider, hang, server, servers

pytestmark = pytest.mark.own_broker
Connect = Callable[..., Client]
AUTHENTICATE, AUTHORIZE, PUBLISH = ASKED_POINTS
PAGE = Path(__file__).parents[2] / "docs/exhook.md"


class Outside(Plugged):
    """A broker, and a program that takes part in its hooks: once it is started."""

    def __init__(self) -> None:
        self.provider = Provider()
        super().__init__()
        file = self.data_dir / "given.toml"  # what is set by a file can be changed while the broker runs
        file.write_text("".join(f"{key} = {value}\n" for key, value in servers(server(self.provider)).items()))
        self._arguments = (f"--config={file}",)

    def __exit__(self, *exc: object) -> None:
        try:
            super().__exit__(*exc)
        finally:
            self.provider.stop()

    def configure(self, *tables: str) -> None:
        """Other servers, while it runs."""
        self.control.call("config set", key="exhook.servers", value=str(servers(*tables)["exhook.servers"]))

    def state(self, name: str = "main") -> dict[str, Any]:
        return next((row for row in self.control.call("exhook list")["data"] if row["name"] == name), {})

    def figures(self, point: str, name: str = "main") -> dict[str, Any]:
        rows = self.control.call("exhook hooks")["data"]
        return next((row for row in rows if (row["name"], row["hook"]) == (name, point)), {})

    def until_used(self, program: Provider, name: str = "main") -> None:
        """It is connected, and every worker knows what it wants."""
        def used() -> bool:
            state = self.state(name)
            return state.get("status") == "connected" and {*state["hooks"]} == {*program.hooks}

        until(used, self.report)
        self.control.call("hooks list")  # each worker has had a turn since it was told

    def report(self) -> str:
        return f"{self.control.call('exhook list')}\n{''.join(self.output)}"

    def wants(self, *points: str, **filters: str) -> Provider:
        """The program begins anew, and wants this. `filters`: of message points, `message_publish="a/#"`."""
        program = self.provider
        program.stop()
        until(lambda: self.state().get("status") != "connected", self.report)
        program.hooks = {point: () for point in points} | {point.replace("_", ".", 1): (one,) for point, one in filters.items()}
        program.answers.clear()
        program.calls.clear()
        program.start()
        self.until_used(program)
        return program


@pytest.fixture(scope="module")
def _outside() -> Iterator[Outside]:
    with Outside() as broker:
        yield broker


@pytest.fixture
def outside(_outside: Outside) -> Iterator[Outside]:
    yield _outside
    _outside.unload_all()


# --- the contract -------------------------------------------------------------------------------------------------------------


def test_the_descriptors_are_those_of_the_proto(tmp_path: Path) -> None:
    made = tmp_path / "made.binpb"
    assert protoc.main(["protoc", f"-I{PROTO.parent}", f"--descriptor_set_out={made}", str(PROTO)]) == 0
    kept = descriptor_pb2.FileDescriptorSet.FromString(PROTO.with_suffix(".binpb").read_bytes())
    assert descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()) == kept


def test_every_point_of_the_contract_is_told_with_its_fields(outside: Outside, connect: Connect, topic: str) -> None:
    program = outside.wants(*FORWARDED)
    seen = program.request
    assert seen("OnProviderLoaded").broker.version and seen("OnProviderLoaded").meta.node == "shardbroker@127.0.0.1"
    client_id = client_id_on(1, 3, "told")
    stays = {"session_expiry_interval": 60, "user_property": [("a", "b")]}
    client = connect(on=outside, client_id=client_id, clean=False, username="ann", password="pw", keepalive=33, properties=stays)
    host, port = client.socket.getsockname()
    came = seen("OnClientConnect")
    about = came.conninfo
    assert (about.clientid, about.username, about.peerhost, about.peerport, about.sockport) == (
        client_id, "ann", host, port, outside.address[1],
    )  # fmt: skip
    assert (about.node, about.proto_name, about.proto_ver, about.keepalive) == ("shardbroker@127.0.0.1", "MQTT", "5.0", 33)
    assert [(one.name, one.value) for one in came.props] == [("Session-Expiry-Interval", "60")]
    assert [(one.name, one.value) for one in came.user_props] == [("a", "b")]
    asked = seen("OnClientAuthenticate")
    who = asked.clientinfo
    assert (who.clientid, who.username, who.password, who.protocol, who.anonymous) == (client_id, "ann", "pw", "mqtt", False)
    assert (who.peerhost, who.peerport, who.sockport, asked.result) == (host, port, outside.address[1], False)
    assert seen("OnClientConnack").result_code == "success"
    assert {one.name: one.value for one in seen("OnClientConnack").props}["Topic-Alias-Maximum"] == "65535"
    for method in ("OnSessionCreated", "OnClientConnected"):
        assert seen(method).clientinfo.clientid == client_id and not seen(method).clientinfo.password
    client.subscribe([(f"$share/g/{topic}", 1), (topic, 2 | 4 | 8 | 32)])
    filters = {one.name: one.subopts for one in seen("OnClientSubscribe").topic_filters}
    assert {*filters} == {topic, f"$share/g/{topic}"}
    held = seen("OnSessionSubscribed", lambda request: request.topic == topic).subopts
    for options in (filters[topic], held):
        assert (options.qos, options.nl, options.rap, options.rh) == (2, 1, 1, 2)
    may = seen("OnClientAuthorize", lambda request: request.type == request.SUBSCRIBE)
    assert (may.clientinfo.clientid, may.topic) == (client_id, topic)
    sender = connect(4, on=outside)
    sender.publish(topic, b"\xff\x00", 1)
    client.expect(Publish, payload=b"\xff\x00")
    assert seen("OnClientAuthorize", lambda request: request.type == request.PUBLISH).topic == topic
    published = seen("OnMessagePublish").message
    assert (getattr(published, "from"), published.topic) == (sender.client_id, topic)
    assert (published.payload, published.qos) == (b"\xff\x00", 1)
    assert published.headers["peerhost"] == "127.0.0.1" and len(published.id) == 32
    assert abs(published.timestamp / 1000 - time.time()) < 600
    for method in ("OnMessageDelivered", "OnMessageAcked"):
        request = seen(method)
        assert (request.clientinfo.clientid, request.message.payload, request.message.id) == (client_id, b"\xff\x00", published.id)
    sender.publish("nobody/listens", b"x")
    dropped = seen("OnMessageDropped")
    assert (dropped.message.topic, dropped.reason) == ("nobody/listens", "no_subscribers")
    client.unsubscribe(topic)
    assert [one.name for one in seen("OnClientUnsubscribe").topic_filters] == [topic]
    assert seen("OnSessionUnsubscribed").topic == topic
    second = connect(on=outside, client_id=client_id, clean=False, properties=stays)
    assert seen("OnSessionTakenover").clientinfo.clientid == seen("OnSessionResumed").clientinfo.clientid == client_id
    assert seen("OnClientDisconnected").reason == "session_taken_over"
    third = connect(on=outside, client_id=client_id)
    assert seen("OnSessionDiscarded") and seen("OnSessionTerminated").reason == "discarded"
    third.disconnect()
    assert seen("OnClientDisconnected", lambda request: request.reason == "normal").clientinfo.clientid == client_id
    second.close()
    assert {f"On{''.join(map(str.capitalize, point.split('.')))}" for point in FORWARDED} <= {name for name, _ in program.calls}


def test_only_what_is_wanted_is_told(outside: Outside, connect: Connect, topic: str) -> None:
    program = outside.wants("client.connected", message_delivered=f"{topic}/+", message_dropped="#")
    client = connect(on=outside)
    client.subscribe(f"{topic}/#")
    client.publish(f"{topic}/a/b", b"no")
    client.publish(f"{topic}/a", b"yes")
    client.publish("nobody", b"")
    client.expect_messages(b"no", b"yes")
    assert program.request("OnMessageDelivered").message.payload == b"yes"
    assert program.request("OnMessageDropped").message.topic == "nobody"
    assert {name for name, _ in program.calls} == {
        "OnProviderLoaded", "OnClientConnected", "OnMessageDelivered", "OnMessageDropped",
    }  # fmt: skip


def test_a_program_that_comes_back_is_told_nothing_of_before(outside: Outside, connect: Connect, topic: str) -> None:
    """It may want other events now than those that waited for it when it went."""
    program = outside.wants("client.connected", "session.subscribed")
    program.answers["OnClientConnected"] = hang
    clients = [connect(on=outside) for _ in range(6)]  # of both connections to the program
    for client in clients:
        client.subscribe(f"{topic}/before")
    until(lambda: outside.state().get("queued") == 2 * len(clients), outside.report)
    outside.wants("client.subscribe")
    for client in clients:
        client.subscribe(f"{topic}/behind")
    until(lambda: len(program.seen("OnClientSubscribe")) == len(clients), lambda: str(program.calls))
    assert {name for name, _ in program.calls} == {"OnProviderLoaded", "OnClientSubscribe"}


def test_what_one_client_does_is_told_in_order(outside: Outside, connect: Connect, topic: str) -> None:
    program = outside.wants("message.delivered")
    client = connect(on=outside)
    client.subscribe(topic)
    for number in range(200):
        client.publish(topic, b"%d" % number)
    until(lambda: len(program.seen("OnMessageDelivered")) == 200)
    assert [int(one.message.payload) for one in program.seen("OnMessageDelivered")] == [*range(200)]


# --- authenticate and authorize -----------------------------------------------------------------------------------------------


def test_a_program_lets_clients_in_and_keeps_them_out(outside: Outside, connect: Connect) -> None:
    program = outside.wants(AUTHENTICATE)
    program.answers["OnClientAuthenticate"] = lambda request: program.says(request.clientinfo.password == "right", "CONTINUE")
    for worker in range(3):
        connect(on=outside, client_id=client_id_on(worker, 3, "right"), username="u", password="right").ping()
    for version, code in ((5, 0x87), (4, 5), (3, 5)):
        refused = connect(version, on=outside, connect=False, username="u", password="wrong")
        refused.connect(expect_code=code)
    program.answers["OnClientAuthenticate"] = lambda request: program.messages.ValuedResponse()
    connect(on=outside, username="u", password="wrong").ping()  # it says nothing, and nobody else is asked


def test_a_plugin_that_decides_comes_before_programs(outside: Outside, connect: Connect) -> None:
    program = outside.wants(AUTHENTICATE)
    program.answers["OnClientAuthenticate"] = lambda request: program.says(False)
    outside.witness("client.authenticate", returns="ok(allow()) if arguments[0].username == 'friend' else None")
    connect(on=outside, username="friend").ping()
    connect(on=outside, connect=False, username="other").connect(expect_code=0x87)


def test_a_program_decides_what_clients_may_do(outside: Outside, connect: Connect, topic: str) -> None:
    program = outside.wants(AUTHORIZE)
    program.answers["OnClientAuthorize"] = lambda request: program.says("/no" not in request.topic)
    client = connect(on=outside)
    suback = client.subscribe([(f"{topic}/yes", 1), (f"{topic}/no", 1), (f"$share/g/{topic}/no", 1)], check=False)
    assert suback.codes == (1, 0x87, 0x87)
    for qos in (1, 2):
        ack = client.publish(f"{topic}/no", b"x", qos)
        assert ack is not None and ack.code == 0x87
    client.publish(f"{topic}/no", b"x")
    for _ in range(3):
        client.publish(f"{topic}/yes", b"x", 1)
    client.expect_messages(b"x", b"x", b"x")
    publishes = program.seen("OnClientAuthorize", lambda request: request.type == request.PUBLISH and "/yes" in request.topic)
    assert len(publishes) == 1  # the rest was remembered
    connect(on=outside, connect=False, will=Will(f"{topic}/no", b"bye")).connect(expect_code=0x87)


def test_who_came_before_loses_what_a_program_denies(outside: Outside, connect: Connect, topic: str) -> None:
    outside.wants("client.connected")
    before = connect(on=outside)
    before.subscribe([(f"{topic}/no", 0), (f"{topic}/yes", 0)])
    program = outside.provider
    program.stop()
    program.hooks = {AUTHORIZE: ()}
    program.answers["OnClientAuthorize"] = lambda request: program.says("/no" not in request.topic)
    program.start()
    rows = until(lambda: len(found := outside.control.call("subscriptions list", clientid=before.client_id)["data"]) == 1 and found)
    assert rows[0]["topic"] == f"{topic}/yes"
    assert (ack := before.publish(f"{topic}/no", b"", 1)) is not None and ack.code == 0x87


def test_rules_decide_what_programs_leave_open(connect: Connect, topic: str, tmp_path: Path) -> None:
    rules = tmp_path / "acl.conf"
    rules.write_text(f'{{deny, all, all, ["{topic}/rule"]}}.\n{{allow, all}}.\n')
    with Outside() as broker:
        program = broker.wants(AUTHORIZE)
        broker.control.call("config update", values={"acl.sources": '["file"]', "acl.file.path": str(rules)})
        program.answers["OnClientAuthorize"] = lambda request: (
            program.says(False) if "/program" in request.topic else program.messages.ValuedResponse(type="IGNORE")
        )
        client = connect(on=broker)
        codes = client.subscribe([(f"{topic}/program", 0), (f"{topic}/rule", 0), (f"{topic}/free", 0)], check=False).codes
        assert codes == (0x87, 0x87, 0)
        assert [ack.code for name in ("program", "rule", "free") if (ack := client.publish(f"{topic}/{name}", b"", 1))] == [
            0x87, 0x87, 0,
        ]  # fmt: skip


# --- publish ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
def test_a_program_changes_drops_and_passes_messages(outside: Outside, connect: Connect, topic: str, version: int) -> None:
    program = outside.wants(PUBLISH)

    def answer(request: Any) -> Any:
        message = request.message
        if message.topic.endswith("/drop"):
            return program.becomes(message, headers={"allow_publish": "false"})
        if message.topic.endswith("/change"):
            return program.becomes(message, topic=f"{topic}/new", payload=message.payload + b"!", qos=1)
        return program.messages.ValuedResponse(type="IGNORE")

    program.answers["OnMessagePublish"] = answer
    subscriber = connect(on=outside, client_id=client_id_on(0, 3, "sub"))
    subscriber.subscribe(f"{topic}/#", 2)
    client = connect(version, on=outside, client_id=client_id_on(1, 3, "pub"))
    for qos in range(3):
        acks = [client.publish(f"{topic}/{name}", b"%d" % qos, qos) for name in ("drop", "change", "pass")]
        if qos == 1 and version == 5:
            assert [ack.code for ack in acks if ack] == [0x10, 0, 0]
        subscriber.expect(Publish, topic=f"{topic}/new", payload=b"%d!" % qos, qos=1)
        subscriber.expect(Publish, topic=f"{topic}/pass", payload=b"%d" % qos, qos=qos)
    subscriber.expect_nothing_from(client)


def test_properties_and_retain_stay_with_a_message_that_a_program_changes(outside: Outside, connect: Connect, topic: str) -> None:
    program = outside.wants(PUBLISH)
    program.answers["OnMessagePublish"] = lambda request: program.becomes(request.message, payload=b"new")
    client = connect(on=outside)
    given = {"content_type": "text", "message_expiry_interval": 500, "user_property": [("a", "b")]}
    client.publish(topic, b"old", 1, retain=True, properties=given)
    asked = program.request("OnMessagePublish")
    assert {one.name: one.value for one in asked.props} == {"Content-Type": "text", "Message-Expiry-Interval": "500"}
    assert [(one.name, one.value) for one in asked.user_props] == [("a", "b")]
    client.subscribe(topic)
    got = client.expect(Publish, payload=b"new", retain=True)
    assert got.properties["content_type"] == "text" and got.properties["user_property"] == [("a", "b")]
    assert 0 < got.properties["message_expiry_interval"] <= 500
    program.answers.clear()
    client.publish(topic, b"", retain=True)


@pytest.mark.parametrize("version", [4, 5])
def test_a_qos_2_message_that_is_sent_again_while_a_program_decides_waits_for_that_answer(
    outside: Outside, connect: Connect, topic: str, version: int
) -> None:
    """Until then it is nowhere but in memory, so PUBREC would promise too much."""
    program = outside.wants(PUBLISH)
    decided = threading.Event()

    async def later(request: Any) -> Any:
        while not decided.is_set():
            await asyncio.sleep(0.01)
        return program.becomes(request.message, payload=b"decided")

    subscriber = connect(on=outside, client_id=client_id_on(0, 3, "sub"))
    subscriber.subscribe(topic, 2)
    stays: dict[str, Any] = {"clean": False, "properties": {"session_expiry_interval": 60} if version == 5 else None}
    client_id = client_id_on(1, 3, f"again{version}x")
    program.answers["OnMessagePublish"] = later
    first = connect(version, on=outside, client_id=client_id, **stays)
    first.send_raw(wire.publish(topic, b"x", qos=2, packet_id=7, version=version))
    program.request("OnMessagePublish")
    second = connect(version, on=outside, client_id=client_id, **stays)
    second.send_raw(wire.publish(topic, b"x", qos=2, packet_id=7, dup=True, version=version))
    second.expect_none()
    decided.set()
    second.expect(Pubrec, packet_id=7)
    second.send_raw(wire.pubrel(7))
    second.expect(Pubcomp, packet_id=7)
    subscriber.expect(Publish, payload=b"decided")
    program.answers.clear()
    subscriber.expect_nothing_from(second)


def test_messages_of_one_client_stay_in_order_however_long_answers_take(outside: Outside, connect: Connect, topic: str) -> None:
    program = outside.wants(PUBLISH)
    chance = random.Random(5)

    async def later(request: Any) -> Any:
        await asyncio.sleep(chance.random() / 100)
        return program.becomes(request.message, payload=b"<" + request.message.payload)

    program.answers["OnMessagePublish"] = later
    subscriber = connect(on=outside)
    subscriber.subscribe(topic, 2)
    clients = [connect(on=outside, client_id=client_id_on(worker, 3, "ordered")) for worker in range(3)]
    for number in range(30):
        for worker, client in enumerate(clients):
            client.publish(topic, b"%d:%d" % (worker, number), number % 3, wait=False)
    got: dict[int, list[int]] = {worker: [] for worker in range(3)}
    for _ in range(90):
        worker, number = subscriber.expect(Publish).payload.removeprefix(b"<").split(b":")
        got[int(worker)].append(int(number))
    assert [*got.values()] == [[*range(30)]] * 3


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_is_published_though_its_publisher_has_gone(outside: Outside, connect: Connect, topic: str, qos: int) -> None:
    program = outside.wants(PUBLISH)
    release: list[bool] = []

    async def when_released(request: Any) -> Any:
        while not release:
            await asyncio.sleep(0.01)
        return program.messages.ValuedResponse(type="IGNORE")

    program.answers["OnMessagePublish"] = when_released
    subscriber = connect(on=outside)
    subscriber.subscribe(topic, 2)
    stays = {"session_expiry_interval": 60}
    client = connect(on=outside, clean=False, properties=stays)
    client.publish(topic, b"once", qos, wait=False, packet_id=7)
    program.request("OnMessagePublish")
    again = connect(on=outside, client_id=client.client_id, clean=False, properties=stays)
    client.expect_close()
    release.append(True)
    subscriber.expect(Publish, payload=b"once")
    if qos == 2:
        again.publish(topic, b"once", 2, packet_id=7, dup=True)
        subscriber.expect_nothing_from(again)


def test_a_message_is_published_though_its_session_has_ended(outside: Outside, connect: Connect, topic: str) -> None:
    program = outside.wants(PUBLISH)

    async def later(request: Any) -> Any:
        await asyncio.sleep(0.3)
        return program.messages.ValuedResponse(type="IGNORE")

    program.answers["OnMessagePublish"] = later
    subscriber = connect(on=outside)
    subscriber.subscribe(topic, 2)
    for qos in (1, 2):
        client = connect(on=outside)
        client.publish(topic, b"%d" % qos, qos, wait=False)
        program.request("OnMessagePublish", lambda request, qos=qos: request.message.qos == qos)
        outside.control.call("clients kick", clientids=[client.client_id])
        subscriber.expect(Publish, payload=b"%d" % qos)


def test_wills_and_messages_of_the_broker_are_asked_about(outside: Outside, connect: Connect, topic: str) -> None:
    program = outside.wants(PUBLISH)
    program.answers["OnMessagePublish"] = lambda request: program.becomes(request.message, payload=request.message.payload.upper())
    subscriber = connect(on=outside)
    subscriber.subscribe(topic)
    connect(on=outside, will=Will(topic, b"will")).drop()
    subscriber.expect(Publish, payload=b"WILL")
    outside.control.call("publish", topic=topic, payload="told")
    subscriber.expect(Publish, payload=b"TOLD")
    subscriber.publish(f"$delayed/1/{topic}", b"later")
    subscriber.expect(Publish, payload=b"LATER")
    assert len(program.seen("OnMessagePublish")) == 3


def test_large_messages_go_there_and_back(outside: Outside, connect: Connect, topic: str) -> None:
    program = outside.wants(PUBLISH)
    program.answers["OnMessagePublish"] = lambda request: program.becomes(request.message, payload=request.message.payload[::-1])
    client = connect(on=outside)
    client.subscribe(topic)
    payload = random.Random(1).randbytes(300_000)
    client.publish(topic, payload, 1)
    assert client.expect(Publish).payload == payload[::-1]


def test_what_cannot_be_published_refuses_the_message(outside: Outside, connect: Connect, topic: str) -> None:
    program = outside.wants(PUBLISH)
    program.answers["OnMessagePublish"] = lambda request: program.becomes(request.message, topic="a/#")
    client = connect(on=outside)
    assert (ack := client.publish(topic, b"", 1)) is not None and ack.code == 0x83
    outside.logged("exhook result rejected point=message.publish topic=")
    client.ping()


# --- programs that do not answer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failed_action", ["deny", "ignore"])
def test_silence_refuses_or_is_passed_over(outside: Outside, connect: Connect, topic: str, failed_action: str) -> None:
    with Provider(ASKED_POINTS) as silent:
        outside.configure(server(silent, "silent", failed_action=failed_action, request_timeout="400ms"))
        try:
            outside.until_used(silent, "silent")
            client, subscriber = connect(on=outside), connect(on=outside)
            subscriber.subscribe(topic, 2)
            for qos in (1, 2):
                ack = client.publish(topic, b"first", qos)  # what it may do is remembered
                assert ack is not None and ack.code == 0
            silent.answers |= dict.fromkeys(("OnClientAuthenticate", "OnClientAuthorize", "OnMessagePublish"), hang)
            denied = failed_action == "deny"
            connect(on=outside, connect=False).connect(expect_code=0x88 if denied else 0)
            connect(4, on=outside, connect=False).connect(expect_code=3 if denied else 0)
            assert client.subscribe(f"{topic}/other", check=False).codes == (0x87 if denied else 0,)
            for qos in (1, 2):
                ack = client.publish(topic, b"%d" % qos, qos)
                # Who has not answered is asked about the topic too, when what it may do was forgotten meanwhile.
                assert ack is not None and ack.code in ((0x83, 0x87) if denied else (0,))
            silent.answers.clear()
            ack = client.publish(topic, b"last", 2)
            assert ack is not None and ack.code == 0
            subscriber.expect_messages(*((b"first", b"first", b"last") if denied else (b"first", b"first", b"1", b"2", b"last")))
            for point in ASKED_POINTS:
                until(lambda point=point: outside.figures(point, "silent").get("failed"), outside.report)
        finally:
            outside.configure(server(outside.provider))


def test_a_program_that_is_not_there_refuses_every_question_until_it_comes(connect: Connect, topic: str) -> None:
    with Outside() as broker:
        connect(on=broker, connect=False).connect(expect_code=0x88)
        assert broker.state()["status"] == "disconnected"
        program = broker.provider
        program.hooks = {"client.connected": ()}
        program.start()
        broker.until_used(program)
        client = connect(on=broker)  # it does not want to be asked
        client.subscribe(topic)


def test_a_program_that_was_killed_is_found_again_and_asked_what_it_wants(outside: Outside, connect: Connect, topic: str) -> None:
    program = outside.wants(PUBLISH, "client.connected")
    client = connect(on=outside)
    client.subscribe(topic)
    program.stop()
    until(lambda: outside.state()["status"] == "disconnected")
    assert (ack := client.publish(topic, b"lost", 1)) is not None and ack.code == 0x83
    connect(on=outside)
    until(lambda: outside.figures("client.connected")["dropped"] >= 1)
    program.hooks = {"client.disconnected": ()}
    program.start()
    outside.until_used(program)
    client.publish(topic, b"passed", 1)
    client.expect_messages(b"passed")
    client.disconnect()
    assert program.request("OnClientDisconnected").clientinfo.clientid == client.client_id


def test_a_program_that_comes_back_at_once_is_asked_what_it_wants(outside: Outside, connect: Connect, topic: str) -> None:
    """The calls that wait bring the connection back before anybody has looked at it."""
    program = outside.wants("message.delivered")
    clients = [connect(on=outside, client_id=client_id_on(number, 3, "back")) for number in range(3)]
    for client in clients:
        client.subscribe(f"{topic}/{client.client_id}")
    (integrations,) = outside.child_pids("integrations")
    many = 500  # to be passed on take integrations longer than a connection takes to come back
    with stopped(integrations):
        for client in clients:
            for _ in range(many):
                client.publish(f"{topic}/{client.client_id}", b"")
            client.expect_messages(*[b""] * many)
        program.stop()
        program.hooks = {"client.connected": ()}
        program.start()
    outside.until_used(program)


@contextmanager
def far(port: int, delay_s: float) -> Iterator[int]:
    """The port of a way to `port` on which every piece of data takes so long."""
    proxy, loop = Proxy(port), asyncio.new_event_loop()
    proxy.delay_s = delay_s
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(proxy.start(), loop).result(5)
        yield proxy.port
        asyncio.run_coroutine_threadsafe(proxy.cut(), loop).result(5)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def test_a_program_that_is_far_away_is_reached(outside: Outside) -> None:
    with Provider(["client.connected"]) as program, far(program.port, 0.8) as port:
        outside.configure(f'{{ name = "far", url = "http://127.0.0.1:{port}" }}')
        try:
            outside.until_used(program, "far")
        finally:
            outside.configure(server(outside.provider))


def test_without_auto_reconnect_it_stays_away(outside: Outside) -> None:
    with Provider(["client.connected"]) as program:
        outside.configure(server(program, "once", auto_reconnect="disabled"))
        try:
            outside.until_used(program, "once")
            program.stop()
            until(lambda: outside.state("once")["status"] == "disconnected")
            program.calls.clear()
            program.start()
            outside.configure(server(outside.provider), server(program, "once", auto_reconnect="disabled", pool_size=1))
            outside.until_used(program, "once")
            assert len(program.seen("OnProviderLoaded")) == 1  # for the change of the configuration
        finally:
            outside.configure(server(outside.provider))


def test_integrations_and_workers_find_programs_again(connect: Connect, topic: str) -> None:
    with Outside() as broker:
        program = broker.wants(PUBLISH)
        program.answers["OnMessagePublish"] = lambda request: program.becomes(request.message, payload=b"changed")
        for title in ("integrations", "worker-0"):
            (pid,) = broker.child_pids(title)
            broker.kill_process(pid)
            until(lambda title=title, pid=pid: broker.child_pids(title) not in ([], [pid]))
            broker.until_used(program)
            client = connect(on=broker, client_id=client_id_on(0, 3, title))
            client.subscribe(topic)
            client.publish(topic, b"x", 1)
            client.expect_messages(b"changed")


def test_a_slow_program_misses_events_and_holds_nobody_up(outside: Outside, connect: Connect, topic: str) -> None:
    program = outside.wants("message.delivered")
    program.answers["OnMessageDelivered"] = hang
    client = connect(on=outside)
    client.subscribe(topic)
    many = 12_000
    for _ in range(0, many, 500):
        for _ in range(500):
            client.publish(topic, b"x")
        for _ in range(500):
            client.expect(Publish)
        client.ping()
    dropped = until(lambda: outside.figures("message.delivered")["dropped"], outside.report)
    assert 0 < dropped <= many
    assert outside.state()["queued"] <= 10_000


# --- several programs, other names, TLS ---------------------------------------------------------------------------------------


def test_several_programs_are_asked_in_order(outside: Outside, connect: Connect, topic: str) -> None:
    with Provider([AUTHENTICATE, PUBLISH]) as first, Provider([AUTHENTICATE, PUBLISH]) as second:
        outside.configure(server(first, "first"), server(second, "second"))
        try:
            outside.until_used(first, "first")
            outside.until_used(second, "second")
            how = "CONTINUE"
            first.answers["OnClientAuthenticate"] = lambda request: first.says(True, how)
            second.answers["OnClientAuthenticate"] = lambda request: second.says(not request.result)
            first.answers["OnMessagePublish"] = lambda request: first.becomes(request.message, how, payload=b"1")
            second.answers["OnMessagePublish"] = lambda request: (
                second.becomes(request.message, payload=request.message.payload + b"2")
            )
            connect(on=outside, connect=False).connect(expect_code=0x87)
            how = "STOP_AND_RETURN"
            client = connect(on=outside)
            client.subscribe(topic)
            client.publish(topic, b"0", 1)
            how = "CONTINUE"
            client.publish(topic, b"0", 1)
            client.expect_messages(b"1", b"12")
        finally:
            outside.configure(server(outside.provider))


def test_a_program_for_version_3_of_the_contract_is_found(outside: Outside, connect: Connect) -> None:
    with Provider(["client.connected"], version=3) as program:
        outside.configure(server(program, "newer"))
        try:
            outside.until_used(program, "newer")
            client = connect(on=outside)
            assert program.request("OnClientConnected").clientinfo.clientid == client.client_id
        finally:
            outside.configure(server(outside.provider))
        assert program.request("OnProviderUnloaded").meta.node == "shardbroker@127.0.0.1"


def test_a_program_is_asked_over_tls(outside: Outside, connect: Connect, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("program", "program", ("127.0.0.1",)).read_bytes()
    broker = str(authority.issue("broker", "broker"))
    credentials = grpc.ssl_server_credentials([(own, own)], authority.cafile.read_bytes(), require_client_auth=True)
    program = Provider(["client.connected"])
    program.start(credentials)
    try:
        tls = {"enable": True, "cacertfile": str(authority.cafile), "certfile": broker, "keyfile": broker}
        outside.configure(server(program, "tls", url=program.url.replace("http", "https"), ssl=tls))
        outside.until_used(program, "tls")
        client = connect(on=outside)
        assert program.request("OnClientConnected").clientinfo.clientid == client.client_id
        outside.configure(server(program, "tls", url=program.url.replace("http", "https"), ssl=tls | {"cacertfile": ""}))
        until(lambda: outside.state("tls")["status"] == "disconnected", outside.report)  # nobody it trusts has signed it
    finally:
        outside.configure(server(outside.provider))
        program.stop()


def test_the_program_of_the_page_does_what_it_says(outside: Outside, connect: Connect, tmp_path: Path) -> None:
    port = free_port()
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "program.py").write_text(source.replace(":9000", f":{port}"))
    proto = [sys.executable, "-m", "shardbroker.integrations.exhook"]
    (tmp_path / "exhook.proto").write_bytes(subprocess.run(proto, check=True, stdout=subprocess.PIPE).stdout)
    stubs = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--grpc_python_out=.", "exhook.proto"]
    subprocess.run(stubs, check=True, cwd=tmp_path)
    said = tmp_path / "said"
    with said.open("wb") as output:
        program = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path, stdout=output)
    try:
        outside.configure(f'{{ name = "sensors", url = "http://127.0.0.1:{port}", auto_reconnect = "200ms" }}')
        until(lambda: outside.state("sensors").get("status") == "connected", outside.report)
        outside.control.call("hooks list")
        connect(on=outside, connect=False, username="u", password="guess").connect(expect_code=0x87)
        client = connect(on=outside, username="u", password="open sesame")
        until(lambda: f"{client.client_id} is here" in said.read_text())
        client.subscribe("#")
        for topic, payload in (("sensors/1", b"hot"), ("sensors/1", b""), ("other", b"hot")):
            client.publish(topic, payload, 1)
        client.expect_messages(b"HOT", b"hot")
    finally:
        program.kill()
        program.wait()
        outside.configure(server(outside.provider))


# --- those who run it ---------------------------------------------------------------------------------------------------------


def test_figures_are_told_by_ctl_rest_and_metrics(outside: Outside, connect: Connect) -> None:
    program = outside.wants("client.connected", "client.authenticate")
    before = outside.figures("client.connected")["succeeded"]
    connect(on=outside)
    until(lambda: outside.figures("client.connected")["succeeded"] == before + 1)
    row = outside.figures("client.authenticate")
    state = outside.state()
    assert (state["status"], state["url"], state["failed_action"], state["pool_size"]) == ("connected", program.url, "deny", 2)
    assert {*state["hooks"]} == {*program.hooks}
    rest = Rest.logged_in(outside)
    assert [one["name"] for one in rest.good("GET", "/exhooks")] == ["main"]
    assert rest.good("GET", "/exhooks/main")["status"] == "connected"
    assert row in rest.good("GET", "/exhooks/main/hooks")
    assert rest.refused("GET", "/exhooks/none") == (404, "NOT_FOUND")
    text = str(outside.control.call("prometheus"))
    assert 'shardbroker_exhook_up{server="main"} 1' in text
    assert f'shardbroker_exhook_succeeded{{server="main",point="client.connected"}} {before + 1}' in text


WRONG = [
    ('{ name = "a" }', "url"),
    ('{ name = "a", url = "tcp://a:1" }', "http://HOST:PORT"),
    ('{ name = "a", url = "http://a" }', "http://HOST:PORT"),
    ('{ name = "a", url = "http://a:99999" }', "http://HOST:PORT"),
    ('{ name = "a", url = "https://a:1" }', "ssl.enable"),
    ('{ name = "a b", url = "http://a:1" }', "letters, digits"),
    ('{ name = "a", url = "http://a:1", failed_action = "maybe" }', "deny"),
    ('{ name = "a", url = "http://a:1", pool_size = 0 }', "pool_size"),
    ('{ name = "a", url = "http://a:1", request_timeout = "0s" }', "request_timeout"),
    ('{ name = "a", url = "https://a:1", ssl = { enable = true, certfile = "x" } }', "belong together"),
    ('{ name = "a", url = "http://a:1" }, { name = "a", url = "http://a:2" }', "each name once"),
]


@pytest.mark.parametrize(("table", "said"), WRONG)
def test_a_wrong_configuration_is_refused(table: str, said: str, outside: Outside, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--set", f"exhook.servers=[{table}]"]) != 0
    assert said in capsys.readouterr().err
    with pytest.raises(ControlError, match=r"exhook\.servers"):
        outside.configure(table)


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(schema, "PACKAGES", ("grpc", "not_there"))
    assert main(["config", "check", "--set", 'exhook.servers=[{ name = "a", url = "http://a:1" }]']) != 0
    assert "not_there, which is not installed: pip install 'shardbroker[exhook]'" in capsys.readouterr().err
    assert main(["config", "check"]) == 0


def test_a_filter_that_is_none_is_said(outside: Outside) -> None:
    with Provider({"message.publish": ["a/#/b"]}) as program:
        outside.configure(server(program, "wrong"))
        try:
            outside.logged("backend failed backend=exhook.wrong reason=.*topics: must be topic filters, got 'a/#/b'")
        finally:
            outside.configure(server(outside.provider))
