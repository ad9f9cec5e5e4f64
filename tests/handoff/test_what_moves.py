"""What belongs to a connection or a session beside its packets: who the client is, what it may do, its will, what waits for it."""

import socket
from collections.abc import Callable, Iterator

import pytest

from shardbroker.control import Control, ControlError
from tests.access.guarded import Guarded
from tests.access.test_verified_names import again, login
from tests.edge.conftest import Edge
from tests.handoff.conftest import WORKERS, replace
from tests.harness import Broker, Client, Closed, Disconnect, Publish, Will, client_id_on, until, wire
from tests.harness.waiting import stopped

pytestmark = pytest.mark.own_broker
Move = Callable[[Broker], None]
RULES = '{allow, {user, "ada"}, all, ["ada/#"]}.\n{deny, all}.\n'


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    rules = tmp_path_factory.mktemp("rules") / "acl.conf"
    rules.write_text(RULES)
    broker = Guarded({"auth.chain": ["scram"], "acl.sources": ["file"], "acl.file.path": str(rules)})
    with broker:
        broker.admin.add_user("ada", "pencil", scram=True)
        yield broker


@pytest.fixture(scope="module", params=["process", "none", "machine"])
def plain(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(WORKERS, {"durability.level": request.param, "mqtt.max_inflight": 3}) as broker:
        yield broker


def test_rules_and_a_ban_hold_and_a_client_can_log_in_again(checked: Guarded, move: Move) -> None:
    client = login(checked, client_id_on(0, WORKERS, "checked"), "ada")
    client.subscribe("ada/in", 1)
    for _ in range(2):
        move(checked)
        assert client.publish("ada/in", b"allowed", 1).code == 0  # type: ignore[union-attr]
        client.expect(Publish, payload=b"allowed")
        assert client.publish("eve/in", b"denied", 1).code == 0x87  # type: ignore[union-attr]
        assert client.subscribe("eve/in", 1, check=False).codes == (0x87,)
        again(client, "ada")
        client.expect(wire.Auth, code=0)
    move(checked)
    checked.admin.ban("username", "ada")
    with Control(checked.data_dir) as control:
        control.call("config reload")
    assert isinstance(client.expect_close(20), Disconnect)
    assert checked.admin.unban("username", "ada")  # for the other way to move


def test_topics_stay_below_a_mount_point(move: Move) -> None:
    with Edge({"own": {"mountpoint": "tenants/${username}/${clientid}/"}}, WORKERS) as broker:
        name = client_id_on(0, WORKERS, "mounted")
        with Client(broker.address, 5, "outside") as outside, Client(
            broker.address, 5, name, username="ada", dial=lambda: socket.create_connection(broker.at("own"), 5)
        ) as inside:
            inside.subscribe("in", 1)
            outside.subscribe("#", 1)
            move(broker)
            inside.publish("out", b"1", 1)
            assert outside.expect(Publish).topic == f"tenants/ada/{name}/out"
            outside.publish(f"tenants/ada/{name}/in", b"2", 1)
            assert inside.expect(Publish).topic == "in"


@pytest.mark.parametrize("version", [4, 5])
def test_what_waits_for_a_client_waits_for_it_afterwards(plain: Broker, version: int, move: Move) -> None:
    """Three are in flight, the others in the queue; they arrive once and in order."""
    topic = f"waits/{version}"
    with Client(plain.address, 5, client_id_on(1, WORKERS, "other")) as other, Client(
        plain.address, version, client_id_on(0, WORKERS, f"waits{version}"), auto_ack=False
    ) as client:
        client.subscribe(topic, 1)
        for number in range(10):
            other.publish(topic, b"%d" % number, 1)
        for number in range(10):
            message = client.expect(Publish, payload=b"%d" % number, dup=False)
            assert message.packet_id == number + 1
            if number % 3 == 2:
                move(plain)
            client.ack(message)


def test_a_session_without_a_connection_is_found_by_its_client(plain: Broker, move: Move) -> None:
    name, kept = client_id_on(0, WORKERS, "absent"), {"session_expiry_interval": 100}
    with Client(plain.address, 5, client_id_on(1, WORKERS, "other")) as other:
        client = Client(plain.address, 5, name, clean=False, properties=kept)
        client.subscribe("absent", 1)
        client.close()
        other.publish("absent", b"before", 1)
        move(plain)
        other.publish("absent", b"behind", 1)
        with Client(plain.address, 5, name, clean=False, properties=kept) as client:
            assert client.connack is not None
            assert client.connack.session_present
            client.expect(Publish, payload=b"before")
            client.expect(Publish, payload=b"behind")


def test_a_will_is_published_and_a_takeover_ends_the_older_connection(plain: Broker, move: Move) -> None:
    name = client_id_on(0, WORKERS, "will")
    with Client(plain.address, 5, client_id_on(1, WORKERS, "other")) as other:
        other.subscribe("will", 1)
        first = Client(plain.address, 5, name, will=Will("will", b"taken over", 1))
        move(plain)
        second = Client(plain.address, 5, name, will=Will("will", b"lost", 1))
        first.expect_close()
        other.expect(Publish, payload=b"taken over")
        move(plain)
        second.socket.close()
        other.expect(Publish, payload=b"lost")


def test_retained_messages_under_way_arrive(plain: Broker, move: Move) -> None:
    total = 300
    with Client(plain.address, 5, client_id_on(1, WORKERS, "other")) as other, Client(
        plain.address, 4, client_id_on(0, WORKERS, "retained"), auto_ack=False
    ) as client:
        for number in range(total):
            other.publish(f"kept/{number:03}", b"x", 1, retain=True)
        client.subscribe("kept/#", 1)
        got = []
        for number in range(total):
            message = client.expect(Publish, dup=False)
            got.append(message.topic)
            if number in (10, 200):
                move(plain)
            client.ack(message)
        assert sorted(got) == [f"kept/{number:03}" for number in range(total)]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_retained_messages_under_way_end_with_their_subscription(plain: Broker, is_replaced: bool, move: Move) -> None:
    """[MQTT-3.10.4-2]. A successor that was told of a subscription that the session no longer had ended by SIGSEGV."""
    with Client(plain.address, 5, client_id_on(1, WORKERS, "other")) as other, Client(
        plain.address, 5, client_id_on(0, WORKERS, "leaves"), auto_ack=False
    ) as client:
        for number in range(20):
            other.publish(f"left/{number:02}", b"x", 1, retain=True)
        client.subscribe("left/#", 1)
        under_way = [client.expect(Publish) for _ in range(3)]
        client.unsubscribe("left/#")
        if is_replaced:
            move(plain)
        for message in under_way:
            client.ack(message)
        for turn in range(3):
            client.subscribe("fence", 1)
            other.publish("fence", b"%d" % turn, 1)
            client.ack(client.expect(Publish, topic="fence", payload=b"%d" % turn))
        client.subscribe("left/#", 1)
        assert len({client.expect(Publish).topic for _ in range(3)}) == 3, "they are sent to it again"


def test_a_connect_in_two_halves(plain: Broker) -> None:
    with Client(plain.address, 5, client_id_on(0, WORKERS, "halves"), connect=False) as client:
        client.send_raw(client._connect_packet[:-3])
        with Client(plain.address, 5, client_id_on(0, WORKERS, "first")):
            replace(plain, 0)
        client.send_raw(client._connect_packet[-3:])
        assert client.expect(wire.Connack).code == 0
        client.ping()


def test_keep_alive_is_measured_on(plain: Broker, move: Move) -> None:
    with Client(plain.address, 5, client_id_on(0, WORKERS, "silent"), keepalive=3) as client:
        move(plain)
        client.ping()
        with pytest.raises(Closed):
            while client.recv(10) is not None:
                pass


def test_counts_of_connections_stay_exact(plain: Broker, move: Move) -> None:
    def listed() -> tuple[int, int, int]:
        with Control(plain.data_dir) as control:
            (row,) = control.call("listeners list")["data"]
            state = control.call("status")
            return row["current_connections"], state["connections"], state["subscriptions"]

    until(lambda: listed()[0] == 0)
    subscriptions = listed()[2]
    clients = [Client(plain.address, 5, client_id_on(0, WORKERS, f"count{number}-")) for number in range(5)]
    for client in clients:
        client.subscribe("count", 1)
    for _ in range(2):
        move(plain)
        assert listed() == (5, 5, subscriptions + 5)
    for client in clients:
        client.close()
    until(lambda: listed() == (0, 0, subscriptions), lambda: str(listed()))


def test_what_is_in_memory_only_is_refused_and_nobody_notices() -> None:
    with Broker(WORKERS, {"durability.level": "none"}) as broker, Client(
        broker.address, 5, client_id_on(0, WORKERS, "stays")
    ) as client:
        pids = broker.child_pids("worker")
        client.publish("$delayed/100/later", b"x", 1)
        with pytest.raises(ControlError, match="was not replaced"):
            replace(broker, 0)
        client.ping()
        assert broker.child_pids("worker") == pids
        until(lambda: any('worker not replaced reason="deferred messages are in memory' in line for line in broker.output))


def test_an_acknowledgement_that_waits_for_another_disk_moves_only_behind_it() -> None:
    """At level `machine` a PUBACK waits until the worker of the subscriber has synced the message."""
    with Broker(WORKERS, {"durability.level": "machine"}) as broker, Client(
        broker.address, 5, client_id_on(1, WORKERS, "subscriber"), timeout=60
    ) as subscriber, Client(broker.address, 5, client_id_on(0, WORKERS, "publisher"), timeout=60) as publisher:
        subscriber.subscribe("synced", 1)
        pids = broker.child_pids("worker-0")
        (other,) = broker.child_pids("worker-1")
        with stopped(other):
            publisher.send_raw(wire.publish("synced", b"owed", version=5, qos=1, packet_id=7))
            with pytest.raises(ControlError, match="was not replaced"):
                replace(broker, 0)
            until(lambda: any('reason="not finished within 2 s: the disk' in line for line in broker.output))
            publisher.expect_none()
            assert broker.child_pids("worker-0") == pids
        publisher.expect(wire.Puback, packet_id=7)
        subscriber.expect(Publish, payload=b"owed")
        replace(broker, 0)
        publisher.publish("synced", b"behind", 1)
        subscriber.expect(Publish, payload=b"behind")
        with stopped(other):  # the successor holds acknowledgements back as well
            publisher.send_raw(wire.publish("synced", b"held", version=5, qos=1, packet_id=9))
            publisher.expect_none()
        publisher.expect(wire.Puback, packet_id=9)
