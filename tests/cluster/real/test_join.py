"""A broker alone becomes a node by one command, and leaves: with an etcd elsewhere, one that nodes run, and without a core."""

import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardbroker.cluster.handshake import JOIN
from shardbroker.config.sources import read_kept
from shardbroker.control import Control, ControlError
from shardbroker.link.frames import FrameType, pack_frame, preface
from tests.cluster.real.moves import KEPT
from tests.cluster.real.nodes import HOST, Nodes, running, tls_of
from tests.cluster.real.test_core import linked
from tests.edge.certificates import Authority
from tests.harness import Client
from tests.harness.broker import Broker, free_port
from tests.harness.needed import needed
from tests.harness.waiting import until
from tests.servers.etcd import etcd, etcdctl, url_of

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(name="own_program")
def an_own_program(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A broker that starts again runs its own program, which that of the fork server is not."""
    monkeypatch.setattr(Broker, "by_fork", False)
    yield


def alone(nodes: Nodes, number: int, **settings: Any) -> Broker:
    """Starts a broker without a cluster, which has the cookie."""
    address = f"{HOST}:{free_port()}" if number > len(nodes.addresses) else nodes.addresses[number - 1]
    own = {
        "node.name": nodes.name(number), "cluster.cookie_file": nodes.cookie, "cluster.link.bind": address,
        "cluster.join_timeout": "20s", "cluster.lease": "2s",
    }  # fmt: skip
    broker = Broker(1, {**own, **settings}, nodes.directory / f"node-{number}")
    nodes.brokers[number] = broker
    broker.start()
    return broker


def call(broker: Broker, verb: str, **params: Any) -> Any:
    """Returns the result of a verb; one that a busy machine was too slow for is repeated, as its error says."""
    until_s = time.monotonic() + 120
    while True:
        try:
            with Control(broker.data_dir, timeout_s=60) as control:
                return control.call(verb, **params)
        except ControlError as error:
            if "took more than" not in str(error) or time.monotonic() > until_s:
                raise


def kept(broker: Broker) -> dict[str, Any]:
    return {".".join(path): value for path, value in read_kept(broker.data_dir / "runtime.toml").items()}


def enrols(broker: Broker) -> bool:
    """Returns whether the program runs that asks etcd for an id."""
    for child in broker.children():
        with suppress(psutil.Error):
            if "shardbroker.membership.enrol" in child.cmdline():
                return True
    return False


def starts(broker: Broker) -> int:
    """Returns how often a broker was ready."""
    return sum(" ready: " in line for line in broker.output)


def await_start(broker: Broker, before: int) -> None:
    """Waits until a broker is ready once more. Links are up before, and a broker that stops then keeps rings for its next start."""
    until(lambda: starts(broker) > before, lambda: "".join(broker.output), 60)
    broker._note_shared()


@contextmanager
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and sends nothing."""
    with socket.create_server((HOST, 0)) as server:
        yield f"{HOST}:{server.getsockname()[1]}"


def joined(nodes: Nodes, broker: Broker) -> Any:
    """Has a broker join the first node; returns the answer once both are linked."""
    before = starts(broker)
    found = call(broker, "cluster join", address=nodes.addresses[0])
    await_start(broker, before)
    linked(nodes)
    return found


def refusal(broker: Broker, address: str, **params: Any) -> str:
    """Returns the reason of a refused join, which has changed nothing."""
    before = kept(broker)
    with pytest.raises(ControlError) as refused:
        call(broker, "cluster join", address=address, **params)
    assert kept(broker) == before
    assert not (broker.data_dir / "cluster" / "joined").exists()
    with pytest.raises(ControlError, match="no cluster"):
        call(broker, "cluster status")
    return str(refused.value)


@pytest.mark.usefixtures("own_program")
def test_a_broker_joins_with_its_sessions_and_leaves() -> None:
    with etcd() as server, running(1, endpoints=[url_of(server)]) as nodes:
        broker = alone(nodes, 2)
        with Client(broker.address, 5, "c", clean=False, properties=KEPT) as client:
            client.subscribe("t/#", 1)
        with Client(broker.address, 5, "p") as publisher:
            publisher.publish("kept", b"alone", 1, retain=True)
        pid = broker.pid
        found = joined(nodes, broker)
        assert (found["cluster"], found["node"], found["restart"]) == ("shardbroker", nodes.name(1), "begun")
        assert found["keys"] == sorted(kept(broker))
        assert broker.pid == pid and found["id"] == nodes.status(2)["nodes"][0]["id"]
        assert kept(broker) == {
            "cluster.enable": True, "cluster.core.mode": "external", "cluster.etcd.endpoints": [url_of(server)],
        }  # fmt: skip
        nodes.await_line(1, f"node admitted name={nodes.name(2)}")
        nodes.await_line(2, "broker starts again")
        until(lambda: nodes.status(1)["peers"][0]["retained"] == "synced")
        with nodes.connect(1, "q") as publisher, nodes.connect(2, "c", clean=False, properties=KEPT) as client:
            assert client.connack.session_present
            publisher.publish("t/1", b"from the first node", 1)
            assert client.recv().payload == b"from the first node"
            publisher.subscribe("kept", 1)
            assert publisher.recv().payload == b"alone"

        with pytest.raises(ControlError, match=rf"{nodes.name(2)} is a node of the cluster shardbroker already"):
            call(broker, "cluster join", address=nodes.addresses[0])
        assert call(broker, "cluster leave")["restart"] == "needed"
        assert kept(broker) == {} and not (broker.data_dir / "cluster" / "joined").exists()
        broker.stop()
        nodes.await_line(2, f"node left name={nodes.name(2)}")
        until(lambda: nodes.links(1) == {})
        broker.start()
        with pytest.raises(ControlError, match="no cluster"):
            call(broker, "cluster status")
        joined(nodes, broker)


@pytest.mark.usefixtures("own_program")
def test_a_broker_joins_a_core_that_nodes_run_over_tls(tmp_path: Path) -> None:
    needed("etcd")
    authority = Authority(tmp_path)
    tls = tls_of(authority, 1, 2)
    with running(1, cores=(1,), each=tls) as nodes:
        broker = alone(nodes, 3)
        assert re.search("cluster.tls.enable has to be the same on all nodes", refusal(broker, nodes.addresses[0]))
        nodes.brokers.pop(3).stop()
        broker = alone(nodes, 4, **tls[2])
        assert f"certificate of node {nodes.name(4)}" in refusal(broker, nodes.addresses[0])
        nodes.brokers.pop(4).stop()
        broker = alone(nodes, 2, **tls[2])
        joined(nodes, broker)
        assert kept(broker) == {"cluster.enable": True, "cluster.core.members": [f"{nodes.name(1)}={nodes.cores[1]}"]}
        with Control(broker.data_dir) as control:
            roles = {row["node"]: row["role"] for row in control.call("cluster topology")["data"]}
        assert roles == {nodes.name(1): "core", nodes.name(2): "replicant"}


def test_a_broker_that_is_not_in_the_seeds_is_refused() -> None:
    with running(1, **{"cluster.join_timeout": "1s"}) as nodes:
        broker = alone(nodes, 3)
        assert re.search("node.id: must be set with cluster.core.mode = none", refusal(broker, nodes.addresses[0]))
        nodes.brokers.pop(3).stop()
        broker = alone(nodes, 4, **{"node.id": 4})
        assert re.search(rf"cluster.static.seeds of node {nodes.name(1)}: must have", refusal(broker, nodes.addresses[0]))
        nodes.brokers.pop(4).stop()
        broker = alone(nodes, 5, **{"node.id": 1})
        text = rf"node.id: must be unique, got 1, which belongs to node {nodes.name(1)}"
        assert re.search(text, refusal(broker, nodes.addresses[0]))
        nodes.brokers.pop(5).stop()


@pytest.mark.usefixtures("own_program")
def test_a_new_place_in_the_seeds_is_taken_and_left() -> None:
    address = f"{HOST}:{free_port()}"
    with running(1, **{"cluster.join_timeout": "1s"}) as first:
        seeds = json.dumps([*first.addresses, address])
        first.brokers[1].stop()
        first.brokers[1].settings["cluster.static.seeds"] = seeds
        first.start([1])
        first.addresses.append(address)
        broker = alone(first, 2, **{"node.id": 2, "cluster.join_timeout": "1s"})
        assert call(broker, "cluster join", address=first.addresses[0], restart=False)["restart"] == "needed"
        with pytest.raises(ControlError, match="no cluster"):
            call(broker, "cluster status")
        assert kept(broker) == {
            "cluster.enable": True, "cluster.core.mode": "none", "cluster.discovery": "static",
            "cluster.static.seeds": json.loads(seeds),
        }  # fmt: skip
        joined(first, broker)
        assert call(broker, "cluster leave")["keys"] == sorted(
            ["cluster.core.mode", "cluster.discovery", "cluster.enable", "cluster.static.seeds"]
        )
        broker.stop()
        broker.start()
        with pytest.raises(ControlError, match="no cluster"):
            call(broker, "cluster status")


def test_what_cannot_join_is_refused_with_its_reason_and_unchanged() -> None:
    with etcd() as server, running(1, endpoints=[url_of(server)]) as nodes:
        member = nodes.addresses[0]
        before = etcdctl(server, "get", "--prefix", "/shardbroker/", "--keys-only")
        cases: list[tuple[dict[str, Any], str, str]] = [
            ({"cluster.cookie_file": nodes.write_cookie("other", b"a secret of others")}, member, "compare cluster.cookie_file"),
            ({"cluster.cookie_file": ""}, member, "cluster.cookie_file: must be a file"),
            ({"cluster.name": "plant"}, member, r'cluster\.name: must be "shardbroker", got "plant" \(--set\)'),
            ({"cluster.enable": "false"}, member, r"cluster\.enable: must be true, got false \(--set\)"),
            ({"node.name": nodes.name(1)}, member, rf"node\.name: must be unique, got {nodes.name(1)}"),
            ({"node.id": 1}, member, r"node\.id: must be unique or 0, got 1"),
            ({"cluster.tls.enable": "true", "cluster.tls.cacertfile": nodes.cookie, "cluster.tls.certfile": nodes.cookie}, member,
             r"cluster\.tls\.certfile: must be a certificate with its key"),
            ({"cluster.link.bind": member}, member, "which is that of this one"),
        ]
        for number, (settings, address, text) in enumerate(cases, 10):
            broker = alone(nodes, number, **settings)
            found = refusal(broker, address)
            assert re.search(text, found), found
            nodes.brokers.pop(number).stop()
            broker.clear_shared()
        assert etcdctl(server, "get", "--prefix", "/shardbroker/", "--keys-only") == before
        assert "a secret of" not in nodes.output(1)


def test_an_address_at_which_no_member_listens_is_refused() -> None:
    with etcd() as server, running(1, endpoints=[url_of(server)]) as nodes, silent() as nothing:
        broker = alone(nodes, 2, **{"cluster.link.auth_timeout": "1s"})
        hint = r"the address must be that of cluster\.link\.bind of a member"
        for address, text in (
            (f"{HOST}:{free_port()}", f"Connection refused: {hint}"),
            (f"{HOST}:{nodes.brokers[1].address[1]}", f"has closed the connection: {hint}"),
            (url_of(server).rpartition("/")[2], hint),
            (nothing, r"must answer within cluster\.link\.connect_timeout and cluster\.link\.auth_timeout"),
            ("nowhere.invalid", "must be HOST or HOST:PORT with a known host"),
            ("nowhere:0", "address: must be HOST or HOST:PORT"),
            (broker.settings["cluster.link.bind"], "which is that of this one"),
        ):
            found = refusal(broker, address)
            assert re.search(text, found), found


@pytest.mark.usefixtures("own_program")
def test_values_of_the_file_are_not_hidden_and_data_of_another_cluster_is_refused(tmp_path: Path) -> None:
    with etcd() as server, running(1, endpoints=[url_of(server)]) as nodes:
        file = tmp_path / "own.toml"
        file.write_text("cluster.registry = 'off'\n")
        address = f"{HOST}:{free_port()}"
        settings = {"node.name": nodes.name(2), "cluster.cookie_file": nodes.cookie, "cluster.link.bind": address}
        broker = nodes.brokers[2] = Broker(1, settings, nodes.directory / "node-2", arguments=("--config", str(file)))
        broker.start()
        assert f'cluster.registry: must be "on", got "off" (file {file})' in refusal(broker, nodes.addresses[0])
        file.write_text("")
        call(broker, "config set", key="cluster.links", value="2")
        assert "cluster.links: must be 1, got 2" in refusal(broker, nodes.addresses[0])
        call(broker, "config reset", key="cluster.links")
        enrolled = broker.data_dir / "cluster" / "enrolled"
        enrolled.parent.mkdir(exist_ok=True)
        enrolled.write_text(json.dumps({"id": 7, "cluster": "ab" * 16, "place": "/shardbroker/plant/"}))
        assert f"belongs to the cluster {'ab' * 16}" in refusal(broker, nodes.addresses[0])
        enrolled.unlink()
        joined(nodes, broker)


@pytest.mark.usefixtures("own_program")
def test_a_manager_that_is_killed_has_changed_nothing_and_the_command_is_repeated() -> None:
    with etcd() as server, running(1, endpoints=[url_of(server)], **{"cluster.lease": "60s"}) as nodes:
        broker = alone(nodes, 2)
        (manager,) = broker.child_pids("manager")
        server.pause()
        try:
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(call, broker, "cluster join", address=nodes.addresses[0])
                nodes.await_line(1, f"node admitted name={nodes.name(2)}")
                until(lambda: enrols(broker), timeout_s=60)
                broker.kill_process(manager)
                with pytest.raises((ControlError, OSError)):
                    asked.result(30)
        finally:
            server.resume()
        until(lambda: broker.child_pids("manager") not in ([], [manager]))
        assert kept(broker) == {} and not (broker.data_dir / "cluster" / "joined").exists()

        def repeated() -> bool:
            try:
                call(broker, "cluster join", address=nodes.addresses[0])
            except (ControlError, OSError):
                return False
            return True

        before = starts(broker)
        until(repeated, lambda: "".join(broker.output), 60)
        await_start(broker, before)
        linked(nodes)


def test_a_stranger_learns_nothing(tmp_path: Path) -> None:
    with running(1, **{"cluster.link.auth_timeout": "1s", "cluster.join_timeout": "1s"}) as nodes:
        host, port = nodes.addresses[0].rsplit(":", 1)
        challenge = pack_frame(FrameType.CHALLENGE, b"n" * 16)
        asking = pack_frame(FrameType.JOIN, b"x" * 100)
        for sent in b"", challenge, challenge + asking, asking, b"\xff" * 4096:
            begun = time.monotonic()
            with socket.create_connection((host, int(port)), timeout=20) as stranger:
                stranger.sendall(preface(JOIN) + sent)
                received = b""
                while data := stranger.recv(4096):
                    received += data
            assert time.monotonic() - begun < 10
            for told in nodes.name(1), "shardbroker", "5370", COOKIE_PATH, nodes.addresses[0]:
                assert told.encode() not in received
        nodes.await_line(1, "peer manager refused reason=\"join: ")


COOKIE_PATH = "/cookie"
