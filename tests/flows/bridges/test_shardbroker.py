"""Records of journals to another broker of this kind: none is missing and none is there twice, whichever side is killed."""

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shardbroker.cluster.faults import ByeReason
from shardbroker.control import Control
from shardbroker.control.errors import ControlError
from shardbroker.flows.bridge.listener import CONNECTIONS_MAX, HANDSHAKE_S
from shardbroker.flows.bridge.protocol import PREFACE, PREFACE_MAGIC, PROTO
from shardbroker.link.frames import FrameType, pack_frame
from tests.edge.certificates import Authority
from tests.flows.bridges.far import Far
from tests.flows.sinks.publishing import publish_all
from tests.harness import Client, client_id_on, free_port, until

pytestmark = pytest.mark.own_broker
WORKERS = 2
SECRET = "0123456789abcdef"
EACH = 4000
"""Messages of each of two publishers."""
ACTION, SOURCE = "shardbroker:far", "shardbroker:near"
QUIET_S = 2.0


def sending(port: int, filter: str, secret: str = SECRET, **parameters: object) -> dict[str, dict[str, Any]]:
    """Sections of a broker that sends."""
    return {
        "connectors.shardbroker.far": {"server": f"127.0.0.1:{port}", "secret": secret, "timeout": "2s"},
        "actions.shardbroker.far": {
            "connector": "far", "parameters": parameters, "resource_opts": {"health_check_interval": "1s"},
        },
        "rules.out": {"sql": f'SELECT * FROM "{filter}"', "actions": [ACTION]},
    }  # fmt: skip


def receiving(port: int, secret: str = SECRET, **parameters: object) -> dict[str, dict[str, Any]]:
    """Sections of a broker that receives."""
    return {
        "connectors.shardbroker.near": {"secret": secret},
        "sources.shardbroker.near": {
            "connector": "near", "parameters": {"listen": f"127.0.0.1:{port}", **parameters},
        },
    }  # fmt: skip


def with_tls(sections: dict[str, dict[str, Any]], **tls: object) -> dict[str, dict[str, Any]]:
    """The same with TLS in the connector."""
    (connector,) = [name for name in sections if name.startswith("connectors.")]
    return {**sections, connector: {**sections[connector], "tls": True, **tls}}


def publish(broker: Far, begin: int, end: int, topic: bytes = b"in/a", first: int = 0) -> None:
    """Publishes as two clients, `first` and the next number."""
    for worker in range(WORKERS):
        payloads = [b'{"w": %d, "n": %d}' % (first + worker, n) for n in range(begin, end)]
        publish_all(broker.address, worker, WORKERS, payloads, topic)


def missing(far: Far, end: int = EACH) -> int:
    return len({(w, n) for w in range(WORKERS) for n in range(end)} - set(far.seen().rows))


@contextmanager
def pair(
    place: Path, workers: int = WORKERS, near_settings: dict[str, object] | None = None, **far_more: Any
) -> Iterator[tuple[Far, Far]]:
    """The sending and the receiving broker; topics get far/ in front."""
    port = free_port()
    with (
        Far(place / "far", workers=workers, sections=receiving(port, topic_prefix="far/"), **far_more) as far,
        Far(place / "near", "none", WORKERS, sections=sending(port, "in/#"), settings=near_settings) as near,
    ):
        yield near, far


def completed(near: Far, far: Far, end: int = EACH, journals: str = "same") -> None:
    """Waits for all messages, and checks that none is there twice. The order shows if the far broker has the same journals."""
    until(lambda: not missing(far, end), lambda: f"{missing(far, end)} {near.action(ACTION)} {near.output[-5:]}", 60)
    time.sleep(QUIET_S / 2)
    seen = far.seen()
    assert seen.is_ordered() or journals == "changed"
    assert not seen.repeated
    assert far.source(SOURCE)["failed"] == 0


def harm(near: Far, far: Far, victim: str) -> None:
    side, _, what = victim.partition(" ")
    one = near if side == "near" else far
    if what == "killed":
        one.kill()
        one.start()
    elif what == "stopped":
        one.stop()
        one.start()
    elif what == "paused":
        one.pause()
        time.sleep(2.5)
        one.resume()
    else:
        for pid in one.child_pids(what):
            one.kill_process(pid)


VICTIMS = [f"{side} {what}" for side in ("near", "far") for what in ("killed", "stopped", "paused", "flows-0", "worker")]


@pytest.mark.parametrize("victim", VICTIMS)
def test_none_is_missing_and_none_repeated(place: Path, victim: str) -> None:
    with pair(place) as (near, far):
        publish(near, 0, 100)
        until(lambda: not missing(far, 100), lambda: f"{near.action(ACTION)} {near.output[-5:]} {far.output[-5:]}", 30)
        for part in range(3):
            begin, end = 100 + part * 1300, 100 + (part + 1) * 1300
            publish(near, begin, end)
            time.sleep(0.02 * part)
            harm(near, far, victim)
        publish(near, end, EACH)
        completed(near, far)
        assert all(topic == "far/in/a" for topic, _ in far.seen().messages)


@pytest.mark.parametrize("side", ["near", "far"])
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_none_is_missing_at_level_machine(place: Path, side: str, end: str) -> None:
    with pair(place, settings={"durability.level": "machine"}) as (near, far):
        publish(near, 0, 500)
        harm(near, far, f"{side} {end}")
        publish(near, 500, 1000)
        completed(near, far, 1000)


def test_two_processes_at_either_side(place: Path) -> None:
    with pair(place, settings={"flows.processes": 2}, near_settings={"flows.processes": 2}) as (near, far):
        for part in range(3):
            publish(near, part * 500, part * 500 + 500)
            for side in (near, far):
                for number in range(2):
                    for pid in side.child_pids(f"flows-{number}"):
                        side.kill_process(pid)
        completed(near, far, 1500)


@pytest.mark.parametrize("workers", [1, 3])
def test_another_number_of_workers_at_the_far_broker(place: Path, workers: int) -> None:
    with pair(place) as (near, far):
        publish(near, 0, 500)
        completed(near, far, 500)
        far.stop()
        publish(near, 500, 1000)
        far.workers = workers
        far.start()
        publish(near, 1000, 1500)
        completed(near, far, 1500, journals="changed")
        far.kill()
        far.workers = WORKERS
        far.start()
        publish(near, 1500, 2000)
        completed(near, far, 2000, journals="changed")


def test_another_number_of_workers_at_the_near_broker(place: Path) -> None:
    with pair(place) as (near, far):
        publish(near, 0, 500)
        far.stop()
        publish(near, 500, 1000)
        for workers in (1, 3):
            near.stop()
            near.workers = workers
            near.start()
        far.start()
        publish_all(near.address, 2, 3, [b'{"w": 2, "n": %d}' % n for n in range(500)])
        completed(near, far, 1000)
        until(lambda: (2, 499) in far.seen().rows, lambda: f"{near.action(ACTION)}", 30)


@pytest.mark.parametrize("size", [100_000, 900_000])
def test_messages_that_are_too_large_for_a_lane_or_a_frame(place: Path, size: int) -> None:
    """The smallest ring takes records of 16 KB, a frame 256 KB."""
    limit = {"mqtt.max_packet_size": "1MB"}
    with pair(place, settings={**limit, "process.ring_size": "64KB"}, near_settings=limit) as (near, far):
        filling = b"x" * size
        for n in range(0, 20, 5):
            for worker in range(WORKERS):
                payloads = [b'{"w": %d, "n": %d, "x": "%s"}' % (worker, at, filling if at % 2 else b"") for at in range(n, n + 5)]
                for payload in payloads:
                    publish_one(near, worker, payload)
            harm(near, far, "far worker" if n % 2 else "far killed")
        completed(near, far, 20)
        sizes = {len(payload) for _, payload in far.seen().messages}
        assert max(sizes) > size


def publish_one(broker: Far, worker: int, payload: bytes) -> None:
    with Client(broker.address, client_id=client_id_on(worker, WORKERS, "large")) as client:
        client.publish("in/a", payload, qos=1)


def test_a_message_that_the_far_broker_does_not_take_is_left_out_and_said(place: Path) -> None:
    with pair(place, settings={"mqtt.max_packet_size": "10KB"}) as (near, far):
        publish_one(near, 0, b"x" * 20_000)
        publish(near, 0, 10)
        until(lambda: not missing(far, 10), lambda: f"{near.action(ACTION)} {far.output[-5:]}", 30)
        until(lambda: far.source(SOURCE)["failed"] == 1, lambda: f"{far.source(SOURCE)}", 10)
        until(lambda: any("too large" in line for line in far.output))


def test_a_ring_of_three_brokers_ends_at_its_begin(place: Path) -> None:
    ports = [free_port() for _ in range(3)]
    parts = [{**sending(ports[(n + 1) % 3], "#"), **receiving(ports[n])} for n in range(3)]
    with (
        Far(place / "one", "#", WORKERS, sections=parts[0]) as one,
        Far(place / "two", "#", WORKERS, sections=parts[1]) as two,
        Far(place / "three", "#", WORKERS, sections=parts[2]) as three,
    ):
        for n, broker in enumerate((one, two, three)):
            publish(broker, 0, 50, first=2 * n)
        expected = sorted((w, n) for w in range(6) for n in range(50))
        for broker in (one, two, three):
            until(lambda broker=broker: set(broker.seen().rows) >= set(expected), lambda broker=broker: f"{broker.output[-5:]}", 60)
        time.sleep(QUIET_S)
        for broker in (one, two, three):
            assert sorted(broker.seen().rows) == expected


@pytest.fixture
def authorities(place: Path) -> tuple[Authority, Authority]:
    (place / "tls").mkdir()
    return Authority(place / "tls"), Authority(place / "tls", "another authority")


def test_tls_with_certificates_of_both_sides(place: Path, authorities: tuple[Authority, Authority]) -> None:
    own, _ = authorities
    port, ca = free_port(), str(own.cafile)
    far_tls = {"tls_ca": ca, "tls_cert": str(own.issue("server", "server", ("localhost",)))}
    near_tls = {"tls_ca": ca, "tls_cert": str(own.issue("client", "client")), "server": f"localhost:{port}"}
    with (
        Far(place / "far", workers=WORKERS, sections=with_tls(receiving(port, topic_prefix="far/"), **far_tls)) as far,
        Far(place / "near", "none", WORKERS, sections=with_tls(sending(port, "in/#"), **near_tls)) as near,
    ):
        publish(near, 0, 500)
        harm(near, far, "far killed")
        publish(near, 500, 1000)
        completed(near, far, 1000)


REFUSED = {
    "wrong CA": "self-signed certificate in certificate chain",
    "wrong host name": "IP address mismatch",
    "no certificate": "TLS fails: tlsv13 alert certificate required|connection reset by peer|has closed the connection",
    "wrong certificate": "TLS fails: tlsv1 alert unknown ca|connection reset by peer|has closed the connection",
    "no TLS": "has closed the connection: is a source of the type shardbroker there|connection reset by peer",
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_side_that_is_not_trusted_is_named(place: Path, authorities: tuple[Authority, Authority], case: str) -> None:
    own, other = authorities
    port, ca = free_port(), str(own.cafile)
    far_tls = {"tls_ca": ca, "tls_cert": str(own.issue("server", "server", ("localhost",)))}
    changes: dict[str, dict[str, object]] = {
        "wrong CA": {"tls_ca": str(other.cafile)},
        "wrong host name": {"server": f"127.0.0.1:{port}"},
        "no certificate": {"tls_cert": ""},
        "wrong certificate": {"tls_cert": str(other.issue("stranger", "stranger"))},
        "no TLS": {"tls": False},
    }
    near_tls = {"tls_ca": ca, "tls_cert": str(own.issue("client", "client")), "server": f"localhost:{port}", **changes[case]}
    near_parts = with_tls(sending(port, "in/#"), **near_tls)
    with (
        Far(place / "far", sections=with_tls(receiving(port), **far_tls)),
        Far(place / "near", "none", sections=near_parts) as near,
    ):
        until(lambda: re.search(REFUSED[case], status(near)), lambda: status(near), 30)
        assert near.action(ACTION)["status"] == "disconnected"
        with Control(near.data_dir) as control, pytest.raises(ControlError, match=REFUSED[case]):
            control.call("connectors probe", id=ACTION, definition=json.dumps(near_parts["connectors.shardbroker.far"]))


def test_a_rule_that_is_not_of_whole_messages_is_refused(place: Path) -> None:
    with pair(place) as (near, far), Control(near.data_dir) as control:
        for sql in ('SELECT * FROM "in/#" WHERE qos = 1', 'SELECT payload FROM "in/#"', 'SELECT * FROM "$events/client_connected"'):
            with pytest.raises(ControlError, match="SELECT \\* FROM topic filters, without WHERE"):
                control.call("rules create", id="wrong", sql=sql, actions=json.dumps([ACTION]))
        control.call("rules create", id="more", sql='SELECT * FROM "more/#"', actions=json.dumps([ACTION]))
        publish(near, 0, 100, b"more/a")
        completed(near, far, 100)
        assert {topic for topic, _ in far.seen().messages} == {"far/more/a"}


def test_a_rule_with_another_action_is_evaluated_for_that_one(place: Path) -> None:
    port = free_port()
    parts = sending(port, "in/#")
    again = {"function": "republish", "args": {"topic": "out/again", "qos": 1, "payload": "${payload}"}}
    parts["rules.out"]["actions"] = [ACTION, again]
    with (
        Far(place / "far", workers=WORKERS, sections=receiving(port, topic_prefix="far/")) as far,
        Far(place / "near", "out/#", WORKERS, sections=parts) as near,
    ):
        publish(near, 0, 300)
        completed(near, far, 300)
        until(lambda: not missing(near, 300), lambda: f"{near.output[-5:]}", 30)


def test_two_brokers_that_send_all_to_each_other(place: Path) -> None:
    ports = free_port(), free_port()
    sections = [{**sending(ports[n], "#"), **receiving(ports[1 - n])} for n in range(2)]
    with (
        Far(place / "one", "#", WORKERS, sections=sections[0]) as one,
        Far(place / "two", "#", WORKERS, sections=sections[1]) as two,
    ):
        for broker in (one, two):
            until(lambda one=broker: one.action(ACTION).get("status") == "connected", lambda one=broker: str(one.output), 30)
        publish(one, 0, 50)
        publish(two, 0, 50, first=2)
        expected = sorted((w, n) for w in range(4) for n in range(50))
        for broker in (one, two):
            until(lambda broker=broker: set(broker.seen().rows) >= set(expected), lambda broker=broker: f"{broker.output[-5:]}", 30)
        time.sleep(QUIET_S)
        for broker in (one, two):
            assert sorted(broker.seen().rows) == expected
            assert broker.seen().is_ordered()


def status(broker: Far) -> str:
    return str(broker.action(ACTION).get("error", ""))


@pytest.mark.parametrize(
    ("far_secret", "phrase"),
    [("another secret than near", "another secret"), ("", "connection refused: is a source")],
    ids=["secret", "no listener"],
)
def test_an_error_that_names_its_cause(place: Path, far_secret: str, phrase: str) -> None:
    port = free_port()
    far_sections = receiving(port, far_secret) if far_secret else {}
    with (
        Far(place / "far", sections=far_sections),
        Far(place / "near", "none", sections=sending(port, "in/#")) as near,
    ):
        until(lambda: phrase in status(near), lambda: status(near), 30)


def test_a_listener_of_clients_is_none_of_bridges(place: Path) -> None:
    with Far(place / "far") as far, Far(place / "near", "none", sections=sending(far.address[1], "in/#")) as near:
        until(lambda: "source of the type shardbroker" in status(near), lambda: status(near), 30)


def test_a_broker_with_another_version_is_refused(place: Path) -> None:
    port = free_port()
    with Far(place / "far", sections=receiving(port)) as far:
        until(lambda: far.source(SOURCE).get("status") == "connected", lambda: f"{far.output}", 30)
        with socket.create_connection(("127.0.0.1", port), 5) as link:
            link.sendall(b"SBRB\x09\0\0\0")
            link.settimeout(5)
            assert link.recv(64)[40] == ByeReason.NO_COMMON_PROTOCOL
            assert link.recv(64) == b""
        until(lambda: any("version of the bridge protocol" in line for line in far.output), lambda: f"{far.output}", 10)


def test_a_stranger_has_little_room_and_little_time(place: Path) -> None:
    """More connections than there may be, without a word; then a HELLO that claims a megabyte."""
    port = free_port()
    with Far(place / "far", sections=receiving(port)) as far:
        until(lambda: far.source(SOURCE).get("status") == "connected", lambda: f"{far.output}", 30)
        silent = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(CONNECTIONS_MAX + 20)]
        try:
            for link in silent:
                link.settimeout(2 * HANDSHAKE_S)
                while link.recv(1024):
                    pass
        finally:
            for link in silent:
                link.close()
        with socket.create_connection(("127.0.0.1", port), 5) as link:
            link.settimeout(5)
            frame = pack_frame(FrameType.HELLO, bytes(1 << 20))
            link.sendall(PREFACE.pack(PREFACE_MAGIC, PROTO, bytes(3)) + frame[:100])
            assert link.recv(64)[40] == ByeReason.LIMIT
        with Far(place / "near", "none", sections=sending(port, "in/#")) as near:
            until(lambda: near.action(ACTION).get("status") == "connected", lambda: f"{near.output}", 30)
