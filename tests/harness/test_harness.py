"""The harness itself: a test tool that lets everything pass would be worse than none."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.harness import Broker, Client, Connack, Pingresp, Publish, client_id_on, wire, worker_of
from tests.harness.wire import WireError


@contextmanager
def server(answer: bytes, close: bool = False) -> Iterator[tuple[str, int]]:
    """Sends `answer` to the first client, whatever that says; closes at once or when the test is over."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(answer)
                if not close:
                    over.wait(10)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            over.set()
            thread.join()


def publish(**options: object) -> bytes:
    return wire.publish("a/b", b"payload", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_round_trip(version: int, qos: int) -> None:
    properties = {"topic_alias": 3, "user_property": [("k", "v"), ("k", "w")]} if version == 5 else {}
    raw = publish(version=version, qos=qos, packet_id=7 if qos else None, retain=True, properties=properties)
    expected = Publish("a/b", b"payload", qos, True, False, 7 if qos else None, properties)
    assert wire.parse(raw + b"\xd0\x00", version) == (expected, len(raw))
    assert all(wire.parse(raw[:cut], version) is None for cut in range(len(raw)))


@pytest.mark.parametrize("name", wire.PROPERTIES)
def test_every_property_round_trip(name: str) -> None:
    kind = wire.PROPERTIES[name][1]
    value: object = {"string": "text", "binary": b"\0\xff", "pair": ("a", "b")}.get(kind, 1)
    block = wire.properties({name: value})
    homes = [home for home, allowed in wire._SERVER_PROPERTIES.items() if name in allowed]
    for home in homes:
        found = wire._Reader(block).properties(home)
        assert found == {name: [value] if name in wire.REPEATABLE else value}
    for stranger in wire._SERVER_PROPERTIES.keys() - set(homes):
        with pytest.raises(WireError):
            wire._Reader(block).properties(stranger)


@pytest.mark.parametrize(
    ("raw", "version"),
    [
        ("21 02 00 00", 4),  # flags of CONNACK
        ("20 02 02 00", 4),  # reserved acknowledge flag
        ("20 02 01 00", 3),  # MQTT 3.1 has no Session Present
        ("20 02 01 05", 4),  # Session Present in a refusal
        ("20 02 00 06", 4),  # unknown return code
        ("20 03 00 00 00", 4),  # a byte too many
        ("20 82 00 00 00", 4),  # length not in its shortest form
        ("36 05 00 01 74 00 01", 4),  # QoS 3
        ("38 03 00 01 74", 4),  # DUP at QoS 0
        ("32 05 00 01 74 00 00", 4),  # packet id 0
        ("30 04 00 02 C3 28", 4),  # topic is not UTF-8
        ("30 03 00 01 23", 4),  # wildcard in a topic
        ("30 02 00 00", 4),  # empty topic
        ("30 03 00 00 00", 5),  # neither topic nor alias
        ("90 03 00 01 03", 4),  # SUBACK code 3
        ("60 02 00 01", 4),  # flags of PUBREL
        ("E0 00", 4),  # DISCONNECT from a server before 5.0
        ("C0 00", 4),  # PINGREQ from a server
        ("40 03 00 01 00", 4),  # reason code before 5.0
        ("D0 01 00", 5),  # PINGRESP with a body
        ("20 08 00 00 05 21 00 01 21 00", 5),  # property cut off
    ],
)
def test_parser_refuses_what_a_server_may_not_send(raw: str, version: int) -> None:
    with pytest.raises(WireError):
        wire.parse(bytes.fromhex(raw), version)


def test_client_ids_land_on_their_worker() -> None:
    for worker in range(5):
        assert worker_of(client_id_on(worker, 5, "any"), 5) == worker


def test_refused_connect_fails() -> None:
    with server(b"\x20\x02\x00\x05") as address, pytest.raises(AssertionError, match="code=5"):
        Client(address, 4, "x")


def test_expect_close_fails_on_an_open_connection() -> None:
    with (
        server(b"\x20\x02\x00\x00") as address,
        Client(address, 4, "x") as client,
        pytest.raises(AssertionError, match="still open"),
    ):
        client.expect_close(timeout=0.1)


def test_expect_close_fails_on_packets_before_the_end() -> None:
    with (
        server(b"\x20\x02\x00\x00\xd0\x00", close=True) as address,
        Client(address, 4, "x") as client,
        pytest.raises(AssertionError, match="expected the end"),
    ):
        client.expect_close()


def test_expect_none_fails_on_a_packet() -> None:
    with (
        server(b"\x20\x02\x00\x00\xd0\x00") as address,
        Client(address, 4, "x") as client,
        pytest.raises(AssertionError, match="expected nothing"),
    ):
        client.expect_none()


def test_packets_put_aside_stay_in_order() -> None:
    answer = (
        b"\x20\x02\x00\x00"
        + b"".join(wire.publish("t", b"%d" % n, version=4) for n in range(3))
        + b"\xd0\x00"
        + wire.publish("t", b"3", version=4)
    )
    with server(answer) as address, Client(address, 4, "x") as client:
        assert client.connack == Connack(False, 0)
        client.fence()
        assert [client.expect(Publish).payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        with pytest.raises(AssertionError, match="expected Pingresp"):
            client.expect(Pingresp, timeout=0.05)


@pytest.mark.own_broker
def test_broker_that_cannot_start_says_why() -> None:
    broker = Broker(1, {"mqtt.no_such_key": 1})
    with pytest.raises(AssertionError, match="no_such_key"):
        broker.start()
    broker._clean()
    assert not broker.data_dir.exists()


@pytest.mark.own_broker
def test_broker_leaves_nothing_behind() -> None:
    with Broker(2) as broker:
        assert broker.ready_line and broker.leftovers()
        children = broker.children()
        assert len(broker.child_pids("worker")) == 2
    assert not broker.leftovers()
    assert not broker.data_dir.exists()
    assert not any(child.is_running() for child in children)


@pytest.mark.own_broker
def test_broker_that_died_is_noticed() -> None:
    broker = Broker(1)
    broker.start()
    broker.kill()
    with pytest.raises(AssertionError, match="had ended by itself"):
        broker.stop()
    assert not broker.leftovers()
