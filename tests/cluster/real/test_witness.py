"""A witness: two nodes and an etcd that serves no client have a majority when one node is gone."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardbroker.control import Control, ControlError
from tests.cluster.real.nodes import HOST, Nodes, free_pair, running
from tests.cluster.real.test_core import await_leases, core_of, linked
from tests.cluster.real.test_managed import cores_of
from tests.harness import Client
from tests.harness.broker import Broker, free_port
from tests.harness.needed import needed
from tests.harness.waiting import until

pytestmark = pytest.mark.timeout(240)
WITNESS = f"w1@{HOST}"
STARTED_S = 30.0


@contextmanager
def witness(nodes: Nodes, bind: str, directory: Path) -> Iterator[Broker]:
    """A machine with the configuration of the nodes."""
    own = {"node.name": WITNESS, "cluster.role": "witness", "cluster.core.bind": bind, "cluster.link.bind": f"{HOST}:{free_port()}"}
    with Broker(1, nodes.settings(1) | own, directory) as found:
        yield found


def etcd_of(one: Broker) -> list[psutil.Process]:
    return [child for child in psutil.Process(one.pid).children() if child.name() == "etcd"]


def call(nodes: Nodes, number: int, verb: str, **given: Any) -> Any:
    with Control(nodes.brokers[number].data_dir) as control:
        return control.call(verb, **given)


def change(nodes: Nodes, verb: str, **given: Any) -> Any:
    return call(nodes, 1, f"cluster core {verb}", node=WITNESS, **given)


def test_two_nodes_and_a_witness(tmp_path: Path) -> None:
    needed("etcd")
    bind = f"{HOST}:{free_pair()}"
    with running(2, cores=(1, 2), members={WITNESS: bind}) as nodes, witness(nodes, bind, tmp_path) as third:
        assert f"ready: witness {WITNESS} of the cluster shardbroker, etcd http://{bind}" in third.ready_line
        linked(nodes)
        for number in nodes.brokers:
            await_leases(nodes, number, n1="up", n2="up")
        until(lambda: sorted(cores_of(nodes, 1).values()) == ["follower", "follower", "leader"], timeout_s=STARTED_S)
        assert [one.name() for one in psutil.Process(third.pid).children(recursive=True)] == ["etcd"]
        assert {one["name"] for one in nodes.status(1)["nodes"]} == {nodes.name(1), nodes.name(2)}

        # A machine is gone: the other one knows that by the witness, and settings of all nodes can be changed.
        nodes.brokers[2].kill()
        await_leases(nodes, 1, n1="up", n2="none")
        until(lambda: core_of(nodes, 1) == "connected")
        call(nodes, 1, "config set", key="mqtt.max_inflight", value="40", cluster=True)
        with Client(nodes.brokers[1].address, 5, "c1") as client:
            client.fence()

        # Without the witness too there is no majority, and MQTT continues.
        (etcd,) = etcd_of(third)
        etcd.suspend()
        until(lambda: core_of(nodes, 1) == "lost", timeout_s=STARTED_S)
        with Client(nodes.brokers[1].address, 5, "c2") as client:
            client.fence()
        etcd.resume()
        until(lambda: core_of(nodes, 1) == "connected", timeout_s=STARTED_S)

        # Killed, its etcd is started again; killed, the witness takes its etcd with it, and finds its place.
        etcd.kill()
        until(lambda: [one for one in etcd_of(third) if one.pid != etcd.pid], timeout_s=STARTED_S)
        until(lambda: 'witness: etcd died cause="signal SIGKILL"' in "".join(third.output))
        (etcd,) = etcd_of(third)
        third.kill()
        until(lambda: not psutil.pid_exists(etcd.pid))
        third.start()
        until(lambda: core_of(nodes, 1) == "connected", timeout_s=STARTED_S)

        nodes.start([2])
        await_leases(nodes, 1, n1="up", n2="up")
        (etcd,) = etcd_of(third)
    until(lambda: not psutil.pid_exists(etcd.pid))


def test_a_witness_is_added_to_a_core_and_removed(tmp_path: Path) -> None:
    needed("etcd")
    bind = f"{HOST}:{free_pair()}"
    with running(2, cores=(1,)) as nodes, witness(nodes, bind, tmp_path) as third:
        linked(nodes)
        await_leases(nodes, 1, n1="up", n2="up")
        assert call(nodes, 1, "cluster core add", node=nodes.name(2))["members"] == 2
        until(lambda: f'until="ctl cluster core add {WITNESS} --address {bind}"' in "".join(third.output))
        assert etcd_of(third) == []
        with pytest.raises(ControlError, match="a witness has an address: --address HOST:PORT"):
            change(nodes, "add")
        with pytest.raises(ControlError, match="address: must be HOST:PORT with a port from 1 to 65534, got nowhere"):
            change(nodes, "add", address="nowhere")
        with pytest.raises(ControlError, match="which is a node and no witness"):
            call(nodes, 1, "cluster core add", node=nodes.name(2), address=bind)
        assert change(nodes, "add", address=bind) == {"members": 3, "may_be_lost": 1}
        with pytest.raises(ControlError, match=f"{WITNESS} is a member of the core already"):
            change(nodes, "add", address=bind)
        assert cores_of(nodes, 2).keys() == {"n1", "n2", "w1"}

        nodes.brokers[2].kill()
        await_leases(nodes, 1, n1="up", n2="none")
        nodes.start([2])
        await_leases(nodes, 1, n1="up", n2="up")

        assert change(nodes, "remove") == {"members": 2, "may_be_lost": 0}
        until(lambda: "witness: etcd removed from core" in "".join(third.output), timeout_s=STARTED_S)
        until(lambda: etcd_of(third) == [])
        assert change(nodes, "add", address=bind)["members"] == 3


def test_a_witness_that_cannot_be_one(tmp_path: Path) -> None:
    def refused(*settings: str) -> str:
        broker = Broker(1, {}, tmp_path)
        command = [*broker.command(), *(f"--set={one}" for one in settings)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=STARTED_S, check=False)
        assert done.returncode != 0
        return done.stderr

    text = "cluster.role: witness needs cluster.enable = true and cluster.core.mode = managed"
    assert text in refused("cluster.role=witness")
