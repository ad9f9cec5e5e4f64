"""The data directory of a node that died is adopted by another one: `ctl cluster adopt` with real brokers and etcd."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardbroker.control import Control, ControlError
from tests.cluster.real.moves import KEPT, MOVING
from tests.cluster.real.nodes import Nodes, running
from tests.cluster.real.test_core import await_leases, linked
from tests.harness import Client, client_id_on, wire
from tests.harness.waiting import until
from tests.servers.etcd import etcd, url_of
from tests.servers.service import Service

pytestmark = pytest.mark.timeout(400)

SETTINGS = {**MOVING, "mqtt.max_mqueue_len": 0, "durability.level": "machine"}
"""At level `machine` what was acknowledged is on the disk of the node that dies, not in its rings."""
ADOPTED_S = 120.0


@pytest.fixture(name="server")
def an_etcd() -> Iterator[Service]:
    with etcd() as server:
        yield server


def call(nodes: Nodes, number: int, verb: str, **params: Any) -> Any:
    with Control(nodes.brokers[number].data_dir) as control:
        return control.call(verb, **params)


def adoption(nodes: Nodes, number: int, dead: int) -> dict[str, Any]:
    """Returns the last row of an adoption; empty while the node does not answer."""
    with suppress(ControlError, OSError):
        rows = call(nodes, number, "cluster adoptions")["data"]
        return next((row for row in reversed(rows) if row["node"] == nodes.name(dead)), {})
    return {}


def described(nodes: Nodes, number: int, dead: int) -> str:
    row = adoption(nodes, number, dead)
    log = Path(row.get("directory", "/nowhere")) / "stand-in.log"
    return f"{row}\n{log.read_text() if log.exists() else ''}\n{nodes.output(number)}"


def await_adopted(nodes: Nodes, number: int, dead: int) -> None:
    until(
        lambda: adoption(nodes, number, dead).get("state") == "done", lambda: described(nodes, number, dead), ADOPTED_S
    )  # fmt: skip


def die(nodes: Nodes, number: int, *others: int) -> Path:
    """Kills a node with its shared memory, as its machine dies; returns its data directory at another path."""
    broker = nodes.brokers[number]
    broker.kill()
    broker.clear_shared()
    volume = nodes.directory / f"volume-{number}"
    shutil.copytree(broker.data_dir, volume, ignore=shutil.ignore_patterns("*.sock"))
    volume.chmod(0o700)
    for other in others:
        until(lambda: nodes.links(other).get(nodes.name(number)) == "down", lambda: nodes.output(other))  # noqa: B023
    return volume


def absent(nodes: Nodes, name: str, *filters: tuple[str, int]) -> None:
    """Makes a session at node 1 whose client is away."""
    with nodes.connect(1, name, clean=False, properties=KEPT) as client:
        client.subscribe([*filters])
        client.disconnect()


def take(client: Client, count: int) -> list[bytes]:
    """Returns the payloads of messages, each of which is acknowledged."""
    found: list[bytes] = []
    while len(found) < count:
        packet = client.recv(10)
        assert packet is not None, f"{len(found)} of {count}"
        if isinstance(packet, wire.Publish):
            found.append(packet.payload)
    return found


def stand_in_of(nodes: Nodes, number: int) -> psutil.Process | None:
    found = []
    for pid in managers_of(nodes, number):
        with suppress(psutil.Error):
            found += [one for one in psutil.Process(pid).children() if "shardbroker.supervisor.stand_in" in one.cmdline()]
    return found[0] if found else None


def managers_of(nodes: Nodes, number: int) -> list[int]:
    """Returns the manager of a node, without that of a stand-in."""
    broker = nodes.brokers[number]
    return [pid for pid in broker.child_pids("manager") if psutil.Process(pid).ppid() == broker.pid]


def test_sessions_with_queues_and_in_every_state_of_qos_2(server: Service) -> None:
    with running(3, workers=2, endpoints=[url_of(server)], **SETTINGS) as nodes, ExitStack() as stack:
        linked(nodes)
        names = [client_id_on(number % 2, 2, f"s{number}-") for number in range(8)]
        for name in names:
            absent(nodes, name, ("q/1", 1), ("q/2", 2))
        open_2 = stack.enter_context(nodes.connect(1, "open", clean=False, properties=KEPT, auto_ack=False))
        open_2.subscribe([("open/#", 2)])
        publisher = stack.enter_context(nodes.connect(2, "publisher"))
        expected = {1: [b"1-%d" % n for n in range(20)], 2: [b"2-%d" % n for n in range(20)]}
        for qos, payloads in expected.items():
            for payload in payloads:
                publisher.publish(f"q/{qos}", payload, qos=qos)
        # Outgoing: one without PUBREC, one with PUBREC and without PUBCOMP, one completed.
        for payload in (b"none", b"rec", b"comp"):
            publisher.publish("open/x", payload, qos=2)
        packets = {}
        while len(packets) < 3:
            packet = open_2.recv(10)
            assert isinstance(packet, wire.Publish) and packet.packet_id is not None
            packets[packet.payload] = packet.packet_id
        for payload in (b"rec", b"comp"):
            open_2.send_raw(wire.pubrec(packets[payload]))
            assert isinstance(open_2.recv(10), wire.Pubrel)
        open_2.send_raw(wire.pubcomp(packets[b"comp"]))
        # Incoming: PUBLISH with PUBREC, no PUBREL.
        open_2.send_raw(wire.publish("in/x", b"in", qos=2, packet_id=77))
        assert isinstance(open_2.recv(10), wire.Pubrec)
        publisher.publish("kept", b"retained", qos=1, retain=True)

        volume = die(nodes, 1, 2, 3)
        await_leases(nodes, 2, n1="none", n2="up", n3="up")
        for payload in (b"late-1", b"late-2"):
            publisher.publish("q/1", payload, qos=1)
        expected[1] += [b"late-1", b"late-2"]

        before = sorted(path.relative_to(volume) for path in volume.rglob("*"))
        checked = call(nodes, 2, "cluster adopt", directory=str(volume), node=nodes.name(1), check=True)
        assert checked["sessions"] == 9 and checked["workers"] == 2, checked
        assert checked["messages"] == 8 * 40 + 2, checked
        assert sorted(path.relative_to(volume) for path in volume.rglob("*")) == before
        assert adoption(nodes, 2, 1) == {}

        states = []
        with Control(nodes.brokers[2].data_dir, timeout_s=ADOPTED_S) as control:
            for row in control.stream("cluster adopt", directory=str(volume), node=nodes.name(1)):
                states.append(row["state"])
        assert states[-1] == "done", described(nodes, 2, 1)
        assert "moving" in states and stand_in_of(nodes, 2) is None
        assert [one["name"] for one in nodes.status(2)["nodes"]] == [nodes.name(2), nodes.name(3)]
        until(lambda: nodes.status(2)["epoch"] == nodes.status(3)["epoch"])

        for number, name in enumerate(names):
            with nodes.connect(2 + number % 2, name, clean=False, properties=KEPT, timeout=20) as client:
                assert client.connack is not None and client.connack.session_present, name
                found = take(client, 42)
                assert [one for one in found if one.startswith((b"1-", b"late"))] == expected[1]
                assert [one for one in found if one.startswith(b"2-")] == expected[2]
                assert client.recv(0.3) is None
        with nodes.connect(2, "open", clean=False, properties=KEPT, timeout=20, auto_ack=False) as client:
            assert client.connack is not None and client.connack.session_present
            again = [client.recv(10), client.recv(10)]
            (publish,) = [one for one in again if isinstance(one, wire.Publish)]
            (release,) = [one for one in again if isinstance(one, wire.Pubrel)]
            assert (publish.payload, publish.packet_id, publish.dup) == (b"none", packets[b"none"], True)
            assert release.packet_id == packets[b"rec"]
            client.send_raw(wire.pubrel(77))
            assert isinstance(client.recv(10), wire.Pubcomp)

        # The node that returns with the directory it had on its machine.
        with pytest.raises(AssertionError):
            nodes.start([1])
        assert "data directory adopted" in nodes.output(1), nodes.output(1)
        with pytest.raises(AssertionError):
            nodes.start([1])
        assert f"was adopted by node {nodes.name(2)}" in nodes.output(1)
        nodes.brokers.pop(1)
        with pytest.raises(ControlError, match="was adopted by node"):
            call(nodes, 3, "cluster adopt", directory=str(volume), node="n1@127.0.0.1")


def publish(nodes: Nodes, number: int, topic: str, count: int) -> list[bytes]:
    payloads = [b"%d" % n for n in range(count)]
    with nodes.connect(number, "publisher", timeout=20) as publisher:
        for payload in payloads:
            publisher.publish(topic, payload, qos=2)
    return payloads


def check_sessions(nodes: Nodes, number: int, names: list[str], payloads: list[bytes]) -> None:
    for name in names:
        with nodes.connect(number, name, clean=False, properties=KEPT, timeout=20) as client:
            assert client.connack is not None and client.connack.session_present, name
            assert take(client, len(payloads)) == payloads
            assert client.recv(0.2) is None


def test_stand_in_manager_and_broker_are_killed_meanwhile(server: Service) -> None:
    """The same command, and the start of the node, continue what was begun."""
    with running(2, workers=2, endpoints=[url_of(server)], **SETTINGS) as nodes:
        linked(nodes)
        names = [client_id_on(number % 2, 2, f"s{number}-") for number in range(30)]
        for name in names:
            absent(nodes, name, ("t", 2))
        payloads = publish(nodes, 2, "t", 20)
        volume = die(nodes, 1, 2)
        await_leases(nodes, 2, n1="none", n2="up")
        wanted = {"directory": str(volume), "node": nodes.name(1), "sess_rate": 2, "wait": False}
        call(nodes, 2, "cluster adopt", **wanted)
        killed: set[int] = set()

        def moving() -> psutil.Process | None:
            child = stand_in_of(nodes, 2) if adoption(nodes, 2, 1).get("state") == "moving" else None
            return None if child is None or child.pid in killed else child

        for what in ("stand-in", "manager", "stand-in", "node"):
            until(lambda: moving() is not None, lambda: described(nodes, 2, 1), 60)
            child = moving()
            assert child is not None
            killed.add(child.pid)
            if what == "node":
                nodes.brokers[2].kill()
                nodes.start([2])
            elif what == "manager":
                nodes.brokers[2].kill_process(*managers_of(nodes, 2))
            else:
                child.kill()
            until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)  # noqa: B023
            until(lambda: bool(adoption(nodes, 2, 1)), lambda: nodes.output(2), 30)
            assert adoption(nodes, 2, 1)["state"] != "done"
        assert call(nodes, 2, "cluster adopt", **wanted)["directory"] == str(volume)
        await_adopted(nodes, 2, 1)
        check_sessions(nodes, 2, names, payloads)
        nodes.brokers.pop(1)


def test_one_node_adopts_and_the_way_back(server: Service) -> None:
    with running(3, workers=1, endpoints=[url_of(server)], **SETTINGS) as nodes:
        linked(nodes)
        for name in ("a", "b"):
            absent(nodes, name, ("t", 1))
        payloads = publish(nodes, 2, "t", 5)
        with nodes.connect(1, "delaying") as client:
            client.publish("$delayed/3600/late", b"late", qos=1)
        volume = die(nodes, 1, 2, 3)
        await_leases(nodes, 2, n1="none", n2="up", n3="up")
        wanted = {"directory": str(volume), "node": nodes.name(1)}
        call(nodes, 2, "cluster adopt", **wanted, wait=False)
        with pytest.raises(ControlError, match=r"is in use by the broker|is being adopted by node n2"):
            call(nodes, 3, "cluster adopt", **wanted)
        other = nodes.directory / "copy"
        shutil.copytree(nodes.brokers[1].data_dir, other, ignore=shutil.ignore_patterns("*.sock"))
        with pytest.raises(ControlError, match="is being adopted by node n2@"):
            call(nodes, 3, "cluster adopt", directory=str(other), node=nodes.name(1))
        with pytest.raises(ControlError, match="is being adopted from"):
            call(nodes, 2, "cluster adopt", directory=str(other), node=nodes.name(1))
        until(
            lambda: "1 delayed messages are not due; --leave-behind" in adoption(nodes, 2, 1).get("message", ""),
            lambda: described(nodes, 2, 1), ADOPTED_S,
        )  # fmt: skip
        check_sessions(nodes, 3, ["a", "b"], payloads)

        row = call(nodes, 2, "cluster stop-adoption", node=nodes.name(1))
        assert row["state"] == "stopped" and stand_in_of(nodes, 2) is None
        with pytest.raises(ControlError, match="none is under way"):
            call(nodes, 2, "cluster stop-adoption", node=nodes.name(1))
        shutil.rmtree(nodes.brokers[1].data_dir)
        shutil.move(volume, nodes.brokers[1].data_dir)  # the volume is back at its machine
        nodes.start([1])
        linked(nodes)

        def delayed() -> int:
            with suppress(ControlError):
                return len(call(nodes, 1, "delayed list")["data"])
            return -1

        until(lambda: delayed() == 1, lambda: nodes.output(1), 30)

        volume = die(nodes, 1, 2, 3)
        await_leases(nodes, 2, n1="none", n2="up", n3="up")
        row = call(nodes, 3, "cluster adopt", directory=str(volume), node=nodes.name(1), leave_behind=True)
        assert row["state"] == "done" and "left behind: 1 delayed" in row["message"], row
        nodes.brokers.pop(1)


def test_a_member_of_a_core_that_nodes_run() -> None:
    """The stand-in of a node that ran etcd is a client of the others."""
    with running(3, workers=1, cores=(1, 2, 3), **SETTINGS) as nodes:
        linked(nodes)
        absent(nodes, "a", ("t", 2))
        payloads = publish(nodes, 2, "t", 5)
        volume = die(nodes, 1, 2, 3)
        await_leases(nodes, 2, n1="none", n2="up", n3="up")
        assert call(nodes, 2, "cluster adopt", directory=str(volume), node=nodes.name(1))["state"] == "done"
        check_sessions(nodes, 3, ["a"], payloads)
        call(nodes, 2, "cluster core remove", node=nodes.name(1))
        nodes.brokers.pop(1)


def test_what_cannot_be_adopted_is_refused_and_unchanged(server: Service) -> None:
    with running(2, workers=1, endpoints=[url_of(server)], **SETTINGS) as nodes:
        linked(nodes)
        own, running_dir = nodes.brokers[2].data_dir, nodes.brokers[1].data_dir
        copy, empty = nodes.directory / "copy", nodes.directory / "empty"
        shutil.copytree(running_dir, copy, ignore=shutil.ignore_patterns("*.sock"))
        empty.mkdir()

        def refused(text: str, directory: Path, node: str = nodes.name(1), **more: Any) -> None:
            for check in (True, False):
                with pytest.raises(ControlError, match=text):
                    call(nodes, 2, "cluster adopt", directory=str(directory), node=node, check=check, **more)
            assert call(nodes, 2, "cluster adoptions")["data"] == []

        refused("is running: it has a lease in the core", copy)
        refused("is in use by the broker with pid", running_dir)
        refused("must be apart from the data directory of this node", own)
        refused("must be another one than this node", copy, nodes.name(2))
        refused("node n9 is not known", copy, "n9")
        refused("has no file node", empty)
        refused("No such file", nodes.directory / "nothing")
        refused("must be an absolute path", Path("copy"))
        refused("address: must be HOST:PORT", copy, address="nowhere")
        volume = die(nodes, 1, 2)
        await_leases(nodes, 2, n1="none", n2="up")
        (volume / "journal" / "link").symlink_to("/etc")
        refused("must be a file or a directory; remove it", volume)
        (volume / "journal" / "link").unlink()
        (volume / "node").write_text("0" * 32)
        refused("it belongs to another node", volume)
        (volume / "node").write_bytes((running_dir / "node").read_bytes())
        call(nodes, 2, "cluster force-leave", node=nodes.name(1))
        call(nodes, 2, "cluster forget", node=nodes.name(1))
        refused("is not known: it was forgotten", volume)
        nodes.brokers.pop(1)


def test_without_a_core_it_is_refused() -> None:
    with running(1, workers=1, **SETTINGS) as nodes:
        for verb, params in ("cluster adopt", {"directory": "/tmp", "node": "n2"}), ("cluster adoptions", {}):
            with pytest.raises(ControlError, match=r"no core: members are cluster.static.seeds"):
                call(nodes, 1, verb, **params)
