"""A core that nodes run: etcd as a child of three of them, killed, frozen, without its program and with a full database."""

import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import psutil
import pytest

from shardbroker.config.cluster import Cluster, missing_etcd
from shardbroker.control import Control, ControlError
from shardbroker.membership.core_file import CorePlan, write_plan
from tests.cluster.real.network import network
from tests.cluster.real.nodes import Nodes, running, tls_of
from tests.cluster.real.test_core import await_leases, core_of, linked
from tests.edge.certificates import Authority
from tests.harness.needed import needed
from tests.harness.waiting import until
from tests.servers.dns import dns

pytestmark = pytest.mark.timeout(240)


def etcd_of(nodes: Nodes, number: int) -> psutil.Process | None:
    """Returns the etcd of a node; None also while the process above it has ended and is not started again."""
    for pid in nodes.brokers[number].child_pids("cluster"):
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(pid).children():
                if child.name() == "etcd":
                    return child
    return None


def cores_of(nodes: Nodes, number: int) -> dict[str, str]:
    with Control(nodes.brokers[number].data_dir) as control:
        rows = control.call("cluster core status")["data"]
    return {row["name"].partition("@")[0]: row["state"] for row in rows}


def test_three_cores_and_a_replicant() -> None:
    needed("etcd")
    with running(4, cores=(1, 2, 3)) as nodes:
        linked(nodes)
        everybody = dict.fromkeys(("n1", "n2", "n3", "n4"), "up")
        for number in nodes.brokers:
            await_leases(nodes, number, **everybody)
        assert nodes.status(4)["core"]["mode"] == "managed" and etcd_of(nodes, 4) is None
        found = cores_of(nodes, 4)
        assert sorted(found.values()) == ["follower", "follower", "leader"] and sorted(found) == ["n1", "n2", "n3"]

        def described() -> dict[str, tuple[str, int]]:
            with Control(nodes.brokers[4].data_dir) as control:
                rows = control.call("cluster topology")["data"]
            return {row["node"].partition("@")[0]: (row["role"], len(row["cores"])) for row in rows}

        cores = dict.fromkeys(("n1", "n2", "n3"), ("core", 2))
        until(lambda: described() == {**cores, "n4": ("replicant", 1)}, lambda: str(described()))

        first = etcd_of(nodes, 1)
        assert first is not None
        assert (nodes.brokers[1].data_dir / "etcd" / "member").is_dir()
        first.kill()
        nodes.await_line(1, "cluster: etcd died cause=\"signal SIGKILL\"")
        until(lambda: etcd_of(nodes, 1) is not None)
        until(lambda: sorted(cores_of(nodes, 4).values()) == ["follower", "follower", "leader"])

        # Two of three: the lease of a node is renewed by the others, and the replicant's too.
        third = etcd_of(nodes, 3)
        assert third is not None
        third.suspend()
        time.sleep(3.0)  # more than a lease
        for number in nodes.brokers:
            await_leases(nodes, number, **everybody)
        third.resume()

        nodes.brokers[2].stop()
        await_leases(nodes, 4, **{**everybody, "n2": "none"})
        assert cores_of(nodes, 4)["n2"] == "stopped"
        until(lambda: described()["n2"] == ("unknown", 0) and described()["n1"] == ("core", 1), lambda: str(described()))
        nodes.start([2])
        await_leases(nodes, 4, **everybody)
        pids = [process.pid for number in (1, 2, 3) if (process := etcd_of(nodes, number)) is not None]
        assert len(pids) == 3
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_one_core_alone_dies_with_its_broker_and_returns() -> None:
    needed("etcd")
    with running(1, cores=(1,)) as nodes:
        await_leases(nodes, 1, n1="up")
        broker, first = nodes.brokers[1], etcd_of(nodes, 1)
        assert first is not None and first.environ()["ETCD_PRE_VOTE"] == "true"
        broker.kill_process(broker.child_pids("cluster")[0])
        until(lambda: not psutil.pid_exists(first.pid))
        until(lambda: etcd_of(nodes, 1) is not None)  # before that, the state is the last one of the process that was killed
        until(lambda: core_of(nodes, 1) == "connected")
        epoch, second = nodes.status(1)["epoch"], etcd_of(nodes, 1)
        assert second is not None
        broker.kill()
        until(lambda: not psutil.pid_exists(second.pid))
        nodes.start()
        until(lambda: core_of(nodes, 1) == "connected" and nodes.status(1)["epoch"] > epoch)
        await_leases(nodes, 1, n1="up")


def test_a_core_over_tls_and_the_alarms_of_etcd(tmp_path: Path) -> None:
    needed("etcd")
    authority = Authority(tmp_path)
    each = tls_of(authority, 1, 2)
    with running(2, cores=(1,), each=each) as nodes:
        linked(nodes)
        for number in nodes.brokers:
            await_leases(nodes, number, n1="up", n2="up")
        target = nodes.cores[1]
        with grpc.insecure_channel(target) as channel, pytest.raises(grpc.RpcError):
            activate(channel, NOSPACE)
        root, own = authority.cafile.read_bytes(), (tmp_path / "n2.pem").read_bytes()
        with grpc.secure_channel(target, grpc.ssl_channel_credentials(root)) as channel, pytest.raises(grpc.RpcError):
            activate(channel, NOSPACE)
        with grpc.secure_channel(target, grpc.ssl_channel_credentials(root, own, own)) as channel:
            activate(channel, NOSPACE)
        for number in nodes.brokers:
            nodes.await_line(number, "alarm activated name=cluster_core_faulty")
        assert nodes.status(2)["core"]["alarms"] == ["NOSPACE"]


def test_a_core_that_grows_shrinks_and_is_recovered() -> None:
    needed("etcd")
    with running(3, cores=(1,)) as nodes, Control(nodes.brokers[1].data_dir) as control:

        def change(verb: str, number: int) -> dict[str, int]:
            found: dict[str, int] = control.call(f"cluster core {verb}", node=nodes.name(number))
            return found

        linked(nodes)
        everybody = {"n1": "up", "n2": "up", "n3": "up"}
        for number in nodes.brokers:
            await_leases(nodes, number, **everybody)
        ids = {one["name"]: one["id"] for one in nodes.status(1)["nodes"]}
        with pytest.raises(ControlError, match="is not running, or not known"):
            control.call("cluster core add", node="n9@127.0.0.1")
        with pytest.raises(ControlError, match="is the only member of the core"):
            change("remove", 1)
        assert change("add", 2) == {"members": 2, "may_be_lost": 0}
        assert change("add", 3) == {"members": 3, "may_be_lost": 1}
        with pytest.raises(ControlError, match="is a member of the core already"):
            change("add", 3)
        with pytest.raises(ControlError, match="the core has a majority"):
            control.call("cluster core recover", force=True)
        assert sorted(cores_of(nodes, 2).values()) == ["follower", "follower", "leader"]

        # A dead one is removed, and finds that when it returns.
        nodes.brokers[2].stop()
        assert change("remove", 2)["members"] == 2
        nodes.start([2])
        nodes.await_line(2, "etcd removed from core")
        await_leases(nodes, 1, **everybody)
        assert etcd_of(nodes, 2) is None
        assert change("add", 2)["members"] == 3

        # A running one is removed.
        assert change("remove", 3)["members"] == 2
        nodes.await_line(3, "etcd removed from core")
        until(lambda: etcd_of(nodes, 3) is None)
        assert sorted(cores_of(nodes, 3)) == ["n1", "n2"]

        # The majority is lost for good.
        nodes.brokers[2].kill()
        until(lambda: core_of(nodes, 1) == "lost", timeout_s=20)
        with pytest.raises(ControlError, match="ctl cluster core recover"):
            change("remove", 2)
        with pytest.raises(ControlError, match="stop those brokers or cut them off"):
            control.call("cluster core recover")
        assert control.call("cluster core recover", force=True) == {"members": 1, "may_be_lost": 0}
        await_leases(nodes, 3, n1="up", n2="none", n3="up")
        nodes.start([2])
        nodes.await_line(2, "etcd removed from core")
        for number in nodes.brokers:
            await_leases(nodes, number, **everybody)
        assert cores_of(nodes, 2) == {"n1": "leader"}
        assert {one["name"]: one["id"] for one in nodes.status(1)["nodes"]} == ids


NOSPACE = b"\x08\x01\x18\x01"
"""An AlarmRequest that activates this alarm: action 1, alarm 1."""


def activate(channel: grpc.Channel, request: bytes) -> None:
    channel.unary_unary("/etcdserverpb.Maintenance/Alarm")(request, timeout=2)


def nameserver() -> str:
    """Returns the first DNS server of this machine, an IPv4 address; skips the test without one."""
    for line in Path("/etc/resolv.conf").read_text().splitlines():
        match line.split():
            case ["nameserver", address, *_] if ":" not in address:
                return address
    pytest.skip("/etc/resolv.conf has no server with an IPv4 address")


def test_a_replicant_finds_the_core_by_dns() -> None:
    """Its machine has a DNS server at the address that resolv.conf has, which knows the core by another name."""
    needed("etcd")
    address = nameserver()
    find = {"cluster.core.members": "[]", "cluster.discovery": "dns", "cluster.dns.name": "core.test"}
    with network(2) as net, ExitStack() as stack:
        with net.entered(2):
            if not address.startswith("127."):
                subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", "lo"], check=True)
            stack.enter_context(dns(address, 53, [f"--host-record=core.test,{net.host(1)}"]))
        with running(2, network=net, cores=(1,), each={2: find}) as nodes:
            linked(nodes)
            for number in nodes.brokers:
                await_leases(nodes, number, n1="up", n2="up")
            assert nodes.status(2)["core"]["endpoint"] == f"http://{net.host(1)}:12379"
            nodes.brokers[2].stop()
            write_plan(nodes.brokers[2].data_dir, CorePlan((f"http://{net.host(1)}:1",)))  # the core has moved meanwhile
            await_leases(nodes, 1, n1="up", n2="none")
            nodes.start([2])
            await_leases(nodes, 1, n1="up", n2="up")


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    cluster = Cluster.model_validate({"enable": True, "core": {"members": ["n1@10.0.0.1"]}, "cookie_file": "cookie"})
    assert "needs the program etcd, which is not installed: apt install etcd-server" in str(missing_etcd(cluster, "n1@10.0.0.1"))
    assert missing_etcd(cluster, "n2@10.0.0.2") is None, "a replicant needs none"
