"""What survives the end of processes, at levels `process` and `machine`: each way in which they can end, seen from outside."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Broker, Client, Publish, client_id_on
from tests.harness.waiting import stopped, until
from tests.harness.wire import PUBACK, PUBCOMP, PUBREC, Puback, Pubrec, Pubrel, Will, ack
from tests.journal.samples import checkpoints

pytestmark = pytest.mark.own_broker
WORKERS = 2
SESSION = {"session_expiry_interval": 1000}
ENDS = ["clean stop", "workers", "everything", "another number of workers", "other weights"]


@pytest.fixture(params=["process", "machine"])
def own(request: pytest.FixtureRequest) -> Iterator[Broker]:
    settings = {"durability.level": request.param}
    with (
        tempfile.TemporaryDirectory(prefix="shardbroker-test-") as data_dir,
        Broker(WORKERS, settings, data_dir=Path(data_dir)) as broker,
    ):
        yield broker


@pytest.fixture(params=ENDS)
def end(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def come_back(broker: Broker, end: str) -> None:
    """Ends processes of the broker, and waits until it serves again."""
    if end == "workers":
        for pid in broker.child_pids("sb-worker"):
            broker.kill_process(pid)
        return  # whoever connects waits until they are back
    assert broker.process is not None
    if end == "everything":
        broker.kill()
    else:
        broker.terminate()
    broker.process.wait(15)
    if end == "another number of workers":
        broker.workers = 3 if broker.workers == 2 else 2
    if end == "other weights":
        broker.settings["process.worker_weights"] = "1,3"
    broker.start()


def stay(broker: Broker, name: str, version: int = 5, **options: object) -> Client:
    """A client whose session stays."""
    properties = SESSION if version == 5 else None
    return Client(broker.address, version, name, clean=False, properties=properties, timeout=10, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_session_with_its_subscriptions_and_queue(own: Broker, end: str, version: int) -> None:
    """In order, to sessions on every worker, published on both."""
    names = [client_id_on(worker, WORKERS, f"s{worker}x") for worker in range(WORKERS)]
    for name in names:
        with stay(own, name, version) as client:
            client.subscribe("q/+", 1)
            client.subscribe("gone", 1)
            client.unsubscribe("gone")
    for worker in range(WORKERS):
        with Client(own.address, 5, client_id_on(worker, WORKERS, f"p{worker}x")) as publisher:
            for i in range(50):
                publisher.publish(f"q/{worker}", b"%d" % i, 1 + i % 2)
    come_back(own, end)
    for name in names:
        with stay(own, name, version) as client:
            assert client.connack is not None and (version == 3 or client.connack.session_present)
            got = [client.expect(Publish) for _ in range(50 * WORKERS)]
            for worker in range(WORKERS):
                assert [int(one.payload) for one in got if one.topic == f"q/{worker}"] == list(range(50))
            with Client(own.address, 5) as publisher:
                publisher.publish("gone", b"", 1)
                publisher.publish("q/new", b"after", 1)
            client.expect(Publish, topic="q/new", payload=b"after")


def test_subscription_options_and_identifier(own: Broker, end: str) -> None:
    with stay(own, "options") as client:
        client.subscribe("o/#", 1, no_local=True, retain_as_published=True, properties={"subscription_identifier": 7})
    come_back(own, end)
    with stay(own, "options") as client, Client(own.address, 5) as other:
        client.publish("o/own", b"not to me", 1)
        other.publish("o/other", b"kept", 1, retain=True)
        message = client.expect(Publish, topic="o/other", retain=True)
        assert message.properties["subscription_identifier"] in (7, [7])
        other.publish("o/other", b"", 1, retain=True)


def test_deliveries_in_flight_keep_their_packet_ids(own: Broker, end: str) -> None:
    """PUBLISH again with DUP, PUBREL where PUBREC was, nothing where all was done [MQTT-4.4.0-1]."""
    with stay(own, "flight", auto_ack=False) as client, Client(own.address, 5) as publisher:
        client.subscribe("f", 2)
        for i in range(5):
            publisher.publish("f", b"%d" % i, 1 + i % 2)
        got = [client.expect(Publish) for _ in range(5)]
        assert [one.packet_id for one in got] == [1, 2, 3, 4, 5]
        client.send_raw(ack(PUBACK, 1) + ack(PUBREC, 2) + ack(PUBREC, 4))
        assert {client.expect(Pubrel).packet_id for _ in range(2)} == {2, 4}
        client.send_raw(ack(PUBCOMP, 2))
        client.ping()
    come_back(own, end)
    with stay(own, "flight", auto_ack=False) as client:
        found = [client.recv() for _ in range(3)]
        assert {type(one).__name__: one.packet_id for one in found if isinstance(one, Pubrel)} == {"Pubrel": 4}
        again = [(one.packet_id, one.payload, one.qos, one.dup) for one in found if isinstance(one, Publish)]
        assert again == [(3, b"2", 1, True), (5, b"4", 1, True)]
        client.expect_none()


def test_a_qos_2_message_from_a_client_is_published_once(own: Broker, end: str) -> None:
    """Its packet id is still taken, so the repeat is none [MQTT-4.3.3-10]."""
    with stay(own, "reader") as reader:
        reader.subscribe("once", 2)
    with stay(own, "writer") as writer:
        writer.publish("once", b"x", 2, packet_id=9, wait=False)
        writer.expect(Pubrec, packet_id=9)
    come_back(own, end)
    with stay(own, "writer") as writer, stay(own, "reader") as reader:
        writer.publish("once", b"x", 2, packet_id=9, dup=True)
        writer.publish("once", b"y", 2, packet_id=9)
        assert [one.payload for one in reader.expect_messages(b"x", b"y")] == [b"x", b"y"]


def test_a_will_is_published_though_its_worker_was_killed(own: Broker) -> None:
    with stay(own, "heir") as heir:
        heir.subscribe("will/#", 1)
        dying = Client(own.address, 5, client_id_on(0, WORKERS, "w"), will=Will("will/a", b"gone", 1))
        come_back(own, "workers")
        dying.close()
    with stay(own, "heir") as heir:
        heir.expect(Publish, topic="will/a", payload=b"gone")


def test_a_will_that_a_recovery_has_published_survives_the_next(own: Broker) -> None:
    with stay(own, client_id_on(0, WORKERS, "heir")) as heir:
        heir.subscribe("will", 1)
    with stay(own, client_id_on(0, WORKERS, "w"), will=Will("will", b"dead", 1)):
        for _ in range(2):
            come_back(own, "workers")
            with Client(own.address, 5, client_id_on(0, WORKERS, "back"), timeout=10):
                pass
    with stay(own, client_id_on(0, WORKERS, "heir")) as heir:
        assert heir.expect(Publish).payload == b"dead"


@pytest.mark.parametrize("end", ["clean stop", "everything"])
def test_delays_and_expiry_go_on_while_the_broker_is_down(own: Broker, end: str) -> None:
    with stay(own, "heir") as heir:
        heir.subscribe("late/#", 1)
    will = Will("late/will", b"late", 1, properties={"will_delay_interval": 2})
    Client(own.address, 5, "delayed", will=will, properties=SESSION).cut()
    Client(own.address, 5, "brief", properties={"session_expiry_interval": 1}).disconnect()
    with Client(own.address, 5) as publisher:
        publisher.publish("late/short", b"short", 1, properties={"message_expiry_interval": 1})
        publisher.publish("late/long", b"long", 1, properties={"message_expiry_interval": 100})
    time.sleep(1.2)
    come_back(own, end)
    with stay(own, "heir") as heir:
        message = heir.expect(Publish, topic="late/long")
        assert 90 <= int(message.properties["message_expiry_interval"]) < 100
        heir.expect(Publish, topic="late/will", payload=b"late")
        heir.expect_none()
    with Client(own.address, 5, "brief", clean=False) as brief:
        assert brief.connack is not None and not brief.connack.session_present


def test_at_level_none_sessions_end_with_their_worker(own: Broker) -> None:
    own.stop()
    own.settings["durability.level"] = "none"
    own.start()
    with stay(own, "fleeting") as client:
        client.subscribe("t", 1)
    come_back(own, "clean stop")
    with stay(own, "fleeting") as client:
        assert client.connack is not None and not client.connack.session_present


def test_captured_messages_stand_in_the_journal_of_the_publishers_worker(own: Broker) -> None:
    own.stop()
    own.settings["journal.capture"] = "c/#"
    own.start()
    with Client(own.address, 5, client_id_on(1, WORKERS, "p")) as publisher:
        publisher.publish("c/a", b"kept", 0)
        publisher.publish("d/a", b"not", 1)
        publisher.publish("c/b", b"kept too", 1)
    printed = subprocess.run(
        [own.command()[0], "journal", "cat", str(own.data_dir / "journal" / "1")], capture_output=True, text=True
    )
    messages = [line for line in printed.stdout.splitlines() if '"kind": "message"' in line]
    assert [("kept" in line, '"captured": true' in line) for line in messages] == [(True, True)] * 2


@pytest.mark.parametrize("own", ["machine"], indirect=True)
@pytest.mark.parametrize("qos", [1, 2])
def test_an_acknowledgement_waits_for_the_disk_of_the_worker_that_keeps_the_message(own: Broker, qos: int) -> None:
    """And no longer than for that: who sends to others is answered."""
    with stay(own, client_id_on(1, WORKERS, "far")) as far, stay(own, client_id_on(0, WORKERS, "near")) as near:
        far.subscribe("far", 2)
        near.subscribe("near", 2)
        with (
            Client(own.address, 5, client_id_on(0, WORKERS, "a")) as waiting,
            Client(own.address, 5, client_id_on(0, WORKERS, "b")) as other,
        ):
            (pid,) = own.child_pids("sb-worker-1")
            with stopped(pid):
                waiting.publish("far", b"1", qos, wait=False)
                for _ in range(3):
                    other.publish("near", b"2", qos)
                waiting.expect_none()
            waiting.expect(Puback if qos == 1 else Pubrec, timeout=10)
            assert far.expect(Publish, timeout=10).payload == b"1"


@pytest.mark.parametrize("repeated", [False, True])
def test_what_a_killed_worker_had_forwarded_outlives_its_next_cycle_and_the_power(tmp_path: Path, repeated: bool) -> None:
    """A QoS 2 message stood in a ring alone when its publisher's worker was killed. `repeated`: twice."""
    settings = {"durability.level": "machine", "journal.cycle_bytes": "64KB"}
    pub = client_id_on(0, WORKERS, "pub")
    with Broker(WORKERS, settings, data_dir=tmp_path / "data") as broker:
        with stay(broker, client_id_on(1, WORKERS, "far")) as far:
            far.subscribe("far", 2)
        with stay(broker, client_id_on(0, WORKERS, "near")) as near:
            near.subscribe("near", 1)
        journal = broker.data_dir / "journal" / "0"
        with stay(broker, pub) as publisher, stopped(broker.child_pids("sb-worker-1")[0]):
            publisher.publish("near", b"." * (64 << 10), 1)  # the worker's next life begins with a cycle
            publisher.publish("far", b"2", 2, packet_id=9, wait=False)
            publisher.expect_none()
            for _ in range(1 + repeated):
                begun = checkpoints(journal)
                broker.kill_process(broker.child_pids("sb-worker-0")[0])
                until(lambda begun=begun: checkpoints(journal) > begun)  # type: ignore[misc]
            with stay(broker, pub) as again:
                again.publish("far", b"2", 2, packet_id=9, dup=True)
            broker.kill()
        broker.clear_shared()
        broker.start()
        with stay(broker, client_id_on(1, WORKERS, "far")) as far:
            assert far.expect(Publish).payload == b"2"
