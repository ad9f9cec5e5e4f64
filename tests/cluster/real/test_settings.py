"""Settings of all nodes: set by one command, applied by nodes that run, return, join or cannot, and kept without etcd."""

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shardbroker.config.cluster_values import COUNT_MAX, VALUE_BYTES_MAX, encode_value
from shardbroker.control import Control, ControlError
from tests.api.rest import PASSWORD, Rest
from tests.cluster.real.nodes import HOST, Nodes, running
from tests.cluster.real.test_core import await_leases, core_of, linked
from tests.cluster.real.test_other_nodes import ask, ctl
from tests.harness.broker import Broker, free_port
from tests.harness.needed import needed
from tests.harness.waiting import until
from tests.servers.etcd import etcd, etcdctl, url_of
from tests.servers.service import Service

pytestmark = pytest.mark.timeout(240)
KEY, NEXT = "mqtt.max_inflight", "mqtt.server_keepalive"
PREFIX = "/shardbroker/shardbroker/"
PATIENCE_S = 90.0
SLOW = "NOT_AVAILABLE", "TRY_AGAIN"
"""Codes of a change that may succeed later."""


@pytest.fixture(name="server")
def an_etcd() -> Iterator[Service]:
    with etcd() as server:
        yield server


def settled(nodes: Nodes) -> None:
    linked(nodes)
    for number in nodes.brokers:
        await_leases(nodes, number, **{f"n{one}": "up" for one in nodes.brokers})


def value(nodes: Nodes, number: int, key: str = KEY) -> tuple[str, str]:
    """Returns a value in force on a node, and its source."""
    (row,) = ask(nodes, number, "config get", key=key)["data"]
    return row["value"], row["source"]


def states(done: dict[str, Any]) -> dict[str, str]:
    return {one["node"].partition("@")[0]: one["state"] for one in done["nodes"]}


def set_all(nodes: Nodes, number: int, key: str, text: str) -> dict[str, str]:
    """Sets a value of all nodes, and returns the state of each; again if a slow machine has kept a node or etcd from answering."""
    found: list[dict[str, str]] = []

    def is_done() -> bool:
        try:
            found.append(states(ask(nodes, number, "config set", key=key, value=text, cluster=True)))
        except ControlError as error:
            if error.code not in SLOW:
                raise
            return False
        return "waiting" not in found[-1].values()

    until(is_done, lambda: f"{found}\n{nodes.output(number)}", PATIENCE_S)
    return found[-1]


def succeeded(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str] | None:
    """Returns what a command has printed if it has succeeded."""
    return done if done.returncode == 0 else None


def listed(nodes: Nodes, number: int, key: str = "") -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in ask(nodes, number, "config get", key=key, cluster=True)["data"]}


def keepalive(nodes: Nodes, number: int) -> int | None:
    """Returns the Server Keep Alive that a client is told."""
    with nodes.connect(number, f"asks-{time.monotonic_ns()}") as client:
        assert client.connack is not None
        return client.connack.properties.get("server_keep_alive")


def put(server: Service, key: str, row: bytes) -> None:
    """Writes a row into etcd as an operator can."""
    command = [needed("etcdctl"), "--endpoints", url_of(server), "put", f"{PREFIX}config/{key}"]
    subprocess.run(command, input=row, check=True, capture_output=True, env={"ETCDCTL_API": "3", "PATH": "/usr/bin"}, timeout=20)


def rows_in(server: Service) -> list[str]:
    return etcdctl(server, "get", "--prefix", "--keys-only", f"{PREFIX}config/").split()


def restarted(nodes: Nodes, number: int) -> None:
    nodes.brokers[number].stop()
    nodes.start([number])


def test_a_setting_reaches_all_nodes_and_takes_effect(server: Service) -> None:
    with running(3, endpoints=[url_of(server)]) as nodes:
        settled(nodes)
        assert [keepalive(nodes, number) for number in nodes.brokers] == [None] * 3
        done = until(lambda: succeeded(ctl(nodes, 1, "--json", "config", "set", "--cluster", NEXT, "77")), timeout_s=PATIENCE_S)
        answer = json.loads(done.stdout)
        assert answer["key"] == NEXT and answer["value"] == "77"
        assert states(answer) == dict.fromkeys(("n1", "n2", "n3"), "applied")
        assert [keepalive(nodes, number) for number in nodes.brokers] == [77] * 3, "as soon as the answer is there"
        (row,) = ask(nodes, 2, "config get", key=NEXT)["data"]
        assert row["source"] == "cluster" and row["by"].startswith("ctl:") and row["by"].endswith(f"@{nodes.name(1)}")
        assert abs(row["at"] / 1000 - time.time()) < 60
        found = listed(nodes, 3)[NEXT]
        assert sorted(found["applied"]) == [nodes.name(number) for number in (1, 2, 3)] and found["not_applied"] == []
        assert found["by"] == row["by"] and found["revision"] == answer["revision"]
        shown = ctl(nodes, 2, "config", "get", "--cluster").stdout
        assert NEXT in shown and nodes.name(3) in shown
        entry, *_ = [one for one in ask(nodes, 1, "audit list")["data"] if one["verb"] == "config set"]
        assert entry["params"] == {"key": NEXT, "value": "77", "cluster": True} and entry["code"] == "OK"
        metric = f"shardbroker_conf_sync_txid {answer['revision']}\n"
        for number in nodes.brokers:
            assert metric in ask(nodes, number, "prometheus")

        # A key that waits for a restart, one of many keys, and the end of both.
        assert set_all(nodes, 2, "durability.on_disk_error", "continue") == dict.fromkeys(("n1", "n2", "n3"), "restart")
        restarted(nodes, 1)
        settled(nodes)
        until(lambda: nodes.name(1) not in str(listed(nodes, 2, "durability")["durability.on_disk_error"]["remarks"]))
        assert value(nodes, 1, "durability.on_disk_error") == ('"continue"', "cluster")
        done = ask(nodes, 3, "config reset", key=NEXT, cluster=True)
        assert states(done) == dict.fromkeys(("n1", "n2", "n3"), "applied")
        assert [keepalive(nodes, number) for number in nodes.brokers] == [None] * 3
        assert rows_in(server) == [f"{PREFIX}config/durability.on_disk_error"]
        with pytest.raises(ControlError, match="no value set on all nodes"):
            ask(nodes, 3, "config reset", key=NEXT, cluster=True)


def test_what_is_not_valid_is_refused_and_nothing_is_written(server: Service, tmp_path: Path) -> None:
    each = {1: {KEY: 5}}
    with running(2, endpoints=[url_of(server)], each=each) as nodes:
        settled(nodes)
        refused = [
            (KEY, "-1", "allowed is"),  # this node has another value over it, the other one has not
            ("mqtt.max_infligth", "5", "did you mean mqtt.max_inflight"),
            ("mqtt", "5", "mqtt"),
            ("process.workers", "2", "a setting of one node"),
            ("node.name", "x", "a setting of one node"),
            ("cluster.lease", "9s", "a setting of one node"),
            ("listeners.default.bind", "0.0.0.0:1", "a setting of one node"),
            ("auth.redis.password", "x", "is a secret"),
            ("mqtt.response_information", "x" * (VALUE_BYTES_MAX + 1), f"at most {VALUE_BYTES_MAX} bytes"),
            ("mqtt." + "x" * 300, "5", "at most 255 bytes"),
            ("process.data_dir", "/tmp", "cannot be changed"),
        ]
        for key, text, reason in refused:
            with pytest.raises(ControlError, match=reason) as error:
                ask(nodes, 1, "config set", key=key, value=text, cluster=True)
            assert error.value.code == "BAD_REQUEST", key
        missing = {"acl.file.path": str(tmp_path / "missing.toml"), "acl.sources": '["file"]'}
        with pytest.raises(ControlError, match=r"missing\.toml"):
            ask(nodes, 1, "config update", values=missing, cluster=True)
        with pytest.raises(ControlError, match="unknown key"):
            ask(nodes, 1, "config update", values={NEXT: "9", "mqtt.nothing": "1"}, cluster=True)
        done = ctl(nodes, 1, "config", "set", "--cluster", KEY, "--", "-1")
        assert done.returncode == 1 and "allowed is" in done.stderr
        assert rows_in(server) == []
        codes = {one["code"] for one in ask(nodes, 1, "audit list")["data"] if one["verb"] == "config set"}
        assert codes == {"BAD_REQUEST"}

        assert set_all(nodes, 1, KEY, "9") == {"n1": "shadowed", "n2": "applied"}
        (row,) = listed(nodes, 2).values()
        assert row["remarks"] == [f"{nodes.name(1)}: shadowed: {KEY} by --set"]
        assert value(nodes, 1) == ("5", "--set") and value(nodes, 2) == ("9", "cluster")
        # This node over all nodes; then it is as the others again.
        assert ask(nodes, 2, "config set", key=KEY, value="11").get("shadowed_by") is None
        assert value(nodes, 2)[0] == "11" and value(nodes, 2)[1].endswith("runtime.toml")
        until(lambda: "runtime.toml" in str(listed(nodes, 1)[KEY]["remarks"]))
        assert ask(nodes, 2, "config reset", key=KEY)["value"] == "9"
        assert value(nodes, 2) == ("9", "cluster")
        until(lambda: "runtime.toml" not in str(listed(nodes, 1)[KEY]["remarks"]))

        for number in range(COUNT_MAX - 1):
            put(server, f"mqtt.mqueue_priorities.t{number}", encode_value("1", "by hand", 0))
        until(lambda: len(listed(nodes, 1)) == COUNT_MAX)
        with pytest.raises(ControlError, match=f"at most {COUNT_MAX} settings"):
            ask(nodes, 1, "config set", key=NEXT, value="5", cluster=True)


def test_a_node_that_is_down_or_joins_applies_what_was_set_meanwhile(server: Service) -> None:
    later: list[Broker] = []
    with running(3, endpoints=[url_of(server)], prepare=lambda nodes: later.append(nodes.brokers.pop(3))) as nodes:
        until(lambda: [core_of(nodes, number) for number in (1, 2)] == ["connected"] * 2)
        await_leases(nodes, 1, n1="up", n2="up")
        nodes.brokers[2].stop()
        await_leases(nodes, 1, n1="up", n2="none")
        done = until(lambda: succeeded(ctl(nodes, 1, "config", "set", "--cluster", NEXT, "55")), timeout_s=PATIENCE_S)
        assert "down" in done.stdout, done.stdout
        (nodes.brokers[3],) = later
        nodes.start([2, 3])
        assert keepalive(nodes, 2) == 55
        assert keepalive(nodes, 3) == 55, "a new node has it before it serves"
        settled(nodes)
        until(lambda: len(listed(nodes, 1)[NEXT]["applied"]) == 3)
        nodes.brokers[3].stop()
        await_leases(nodes, 1, n1="up", n2="up", n3="none")
        assert len(etcdctl(server, "get", f"{PREFIX}applied/", "--prefix", "--keys-only").split()) == 2
        ask(nodes, 1, "cluster force-leave", node=nodes.name(3))
        until(lambda: nodes.name(3) not in str(listed(nodes, 1)))
        nodes.brokers.pop(3)


def test_a_node_that_cannot_apply_a_key_applies_the_next(server: Service, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("")
    with running(2, endpoints=[url_of(server)]) as nodes:
        settled(nodes)
        assert set_all(nodes, 1, "acl.file.path", str(rules)) == {"n1": "applied", "n2": "applied"}
        assert set_all(nodes, 1, "acl.sources", '["file"]') == {"n1": "applied", "n2": "applied"}
        nodes.brokers[2].stop()
        rules.unlink()
        nodes.start([2])
        nodes.await_line(2, "alarm activated name=config_not_applied")
        settled(nodes)
        until(lambda: "n2" in str(listed(nodes, 1)["acl.file.path"]["not_applied"]))
        assert set_all(nodes, 1, NEXT, "44") == {"n1": "applied", "n2": "applied"}
        assert keepalive(nodes, 2) == 44

        # A node of an older version has no such key.
        put(server, "mqtt.key_of_next_year", encode_value("5", "ctl:0@n9", 0))
        until(lambda: len(listed(nodes, 1).get("mqtt.key_of_next_year", {}).get("not_applied", [])) == 2)
        nodes.await_line(1, "alarm activated name=config_not_applied")
        assert set_all(nodes, 2, NEXT, "45") == {"n1": "applied", "n2": "applied"}
        rules.write_text("")
        ask(nodes, 2, "config reload")
        until(lambda: nodes.name(2) in listed(nodes, 1)["acl.file.path"]["applied"])
        ask(nodes, 1, "config reset", key="mqtt.key_of_next_year", cluster=True)
        for number in nodes.brokers:
            nodes.await_line(number, "alarm deactivated name=config_not_applied")


GARBAGE = {
    "mqtt.retry_interval": b"\xf6", "mqtt.max_awaiting_rel": b"\x81" * 4000, "mqtt": b"\xa0", "a b": encode_value("1", "", 0),
    "mqtt.limiter": encode_value("[" * 9000, "", 0), "mqtt.max_mqueue_len": b"\xff" * 1_000_000,
    "cluster.name": encode_value('"x"', "", 0),
    "mqtt.retain_available": encode_value("1\nprocess.workers = 5", "", 0), "x" * 2000: encode_value("1", "", 0),
    "mqtt.upgrade_qos": encode_value("true", "\x1b[2J", 0),
}  # fmt: skip


def test_garbage_in_etcd_concerns_its_keys_alone(server: Service) -> None:
    with running(2, endpoints=[url_of(server)]) as nodes:
        settled(nodes)
        before = {number: nodes.processes(number) for number in nodes.brokers}
        for key, row in GARBAGE.items():
            put(server, key, row)
        assert set_all(nodes, 1, NEXT, "33") == {"n1": "applied", "n2": "applied"}
        for number in nodes.brokers:
            nodes.await_line(number, "alarm activated name=config_not_applied")
            assert keepalive(nodes, number) == 33
        assert len(listed(nodes, 1)) == len(GARBAGE) + 1
        assert {number: nodes.processes(number) for number in nodes.brokers} == before
        restarted(nodes, 2)
        assert keepalive(nodes, 2) == 33
        settled(nodes)
        for name in [name for name in listed(nodes, 1) if name != NEXT]:
            ask(nodes, 1, "config reset", key=name, cluster=True)
        assert rows_in(server) == [f"{PREFIX}config/{NEXT}"]
        for number in nodes.brokers:
            nodes.await_line(number, "alarm deactivated name=config_not_applied")

        # More than a message of etcd holds: members are known nevertheless, and values stay.
        for number in range(4):
            put(server, f"big{number}", b"x" * 1_400_000)
        restarted(nodes, 2)
        settled(nodes)
        assert keepalive(nodes, 2) == 33
        nodes.await_line(2, "core settings not read")
        with pytest.raises(ControlError, match="settings of all nodes cannot be read"):
            ask(nodes, 2, "config set", key=NEXT, value="34", cluster=True)
        etcdctl(server, "del", "--prefix", f"{PREFIX}config/big")
        set_all(nodes, 2, NEXT, "35")
        assert keepalive(nodes, 1) == 35


def can(nodes: Nodes, number: int, text: str) -> bool:
    try:
        ask(nodes, number, "config set", key=NEXT, value=text, cluster=True)
    except ControlError:
        return False
    return True


def test_two_changes_at_the_same_time(server: Service) -> None:
    with running(3, endpoints=[url_of(server)]) as nodes:
        settled(nodes)

        def attempt(number: int, key: str) -> str:
            try:
                ask(nodes, number, "config set", key=key, value=str(100 + number), cluster=True)
                return "set"
            except ControlError as error:
                return error.code

        with ThreadPoolExecutor(6) as pool:
            for _ in range(3):
                same = [pool.submit(attempt, number, KEY) for number in nodes.brokers]
                other = [pool.submit(attempt, 1, NEXT), pool.submit(attempt, 2, "mqtt.max_topic_alias")]
                outcomes = [one.result() for one in same]
                assert set(outcomes) <= {"set", "NOT_MATCH", *SLOW} and ("set" in outcomes or {*SLOW} & {*outcomes})
                assert {one.result() for one in other} <= {"set", *SLOW}
                until(lambda: len({value(nodes, number) for number in nodes.brokers}) == 1)


def test_kills_in_the_middle(server: Service) -> None:
    with running(2, endpoints=[url_of(server)]) as nodes:
        settled(nodes)
        for title, text in ("cluster", "21"), ("manager", "22"), ("cluster", "23"), ("manager", "24"):
            broker = nodes.brokers[2]
            broker.kill_process(broker.child_pids(title)[0])
            set_all(nodes, 1, NEXT, text)
            until(lambda text=text: keepalive(nodes, 2) == int(text), timeout_s=PATIENCE_S)
            until(lambda: len(listed(nodes, 1)[NEXT]["applied"]) == 2, lambda: f"{listed(nodes, 1)}", PATIENCE_S)
            nodes.await_line(2, "process died")
        with ThreadPoolExecutor(1) as pool:
            running_change = pool.submit(can, nodes, 1, "25")
            broker = nodes.brokers[1]
            broker.kill_process(broker.child_pids("cluster")[0])
            running_change.result()
        set_all(nodes, 1, NEXT, "26")
        assert [keepalive(nodes, number) for number in (1, 2)] == [26, 26]


def test_without_etcd_the_last_values_stay_over_a_restart(server: Service) -> None:
    with running(2, endpoints=[url_of(server)]) as nodes:
        settled(nodes)
        set_all(nodes, 1, NEXT, "66")
        server.kill()
        until(lambda: core_of(nodes, 1) == "lost", timeout_s=30)
        begun = time.monotonic()
        with pytest.raises(ControlError, match="etcd is not reached") as error:
            ask(nodes, 1, "config set", key=NEXT, value="67", cluster=True)
        assert error.value.code == "NOT_AVAILABLE" and time.monotonic() - begun < 20
        assert ctl(nodes, 1, "config", "set", "--cluster", NEXT, "67").returncode == 1
        assert ask(nodes, 1, "config set", key=KEY, value="12")["applied"] == [KEY], "everything else goes on"
        nodes.brokers[1].stop()
        nodes.start([1])
        assert keepalive(nodes, 1) == 66 and value(nodes, 1, NEXT) == ('"66s"', "cluster")
        nodes.brokers[1].kill()
        nodes.start([1])
        assert keepalive(nodes, 1) == 66
        server.start()
        set_all(nodes, 2, NEXT, "68")
        assert [keepalive(nodes, number) for number in (1, 2)] == [68, 68]


def test_an_etcd_that_is_set_up_again_has_the_values_again(server: Service) -> None:
    with running(2, endpoints=[url_of(server)]) as nodes:
        settled(nodes)
        set_all(nodes, 1, NEXT, "66")
        set_all(nodes, 1, KEY, "13")
        etcdctl(server, "del", "--prefix", "/shardbroker/")
        until(lambda: len(rows_in(server)) == 2)
        settled(nodes)
        assert [keepalive(nodes, number) for number in (1, 2)] == [66, 66]
        set_all(nodes, 2, NEXT, "67")
        assert [keepalive(nodes, number) for number in (1, 2)] == [67, 67]


def test_settings_of_all_nodes_need_a_core() -> None:
    with running(1) as nodes:
        for verb, more in ("config set", {"key": KEY, "value": "5"}), ("config reset", {"key": KEY}), ("config get", {}):
            with pytest.raises(ControlError, match=r"cluster\.core\.mode must be managed or external, got none") as error:
                ask(nodes, 1, verb, cluster=True, **more)
            assert error.value.code == "NOT_AVAILABLE"
    off = pytest.raises(ControlError, match=r"cluster\.enable must be true")
    with Broker(1) as broker, Control(broker.data_dir) as control, off:
        control.call("config set", key=KEY, value="5", cluster=True)


def test_settings_of_all_nodes_by_rest(server: Service) -> None:
    port = free_port()
    with running(2, endpoints=[url_of(server)], each={1: {"api.bind": f"{HOST}:{port}"}}) as nodes:
        settled(nodes)
        password = until(lambda: PASSWORD.search(nodes.output(1)), lambda: nodes.output(1))[1]
        status, answer = Rest(port)("POST", "/login", {"username": "admin", "password": password})
        rest = Rest(port, f"Bearer {answer['token']}")
        status, answer = rest("PUT", "/configs/mqtt?cluster=true", {"server_keepalive": "50s", "limiter": {"max_conn_rate": "9/s"}})
        assert status == 200 and states(answer["changed"]) == {"n1": "restart", "n2": "restart"}
        assert keepalive(nodes, 2) == 50
        status, answer = rest("GET", "/configs", cluster="true")
        assert status == 200 and sorted(row["key"] for row in answer["data"]) == ["mqtt.limiter.max_conn_rate", NEXT]
        status, answer = rest("POST", f"/configs_reset/{NEXT}", {"cluster": True})
        assert status == 200 and keepalive(nodes, 2) is None
        status, answer = rest("PUT", "/configs/process?cluster=true", {"workers": 3})
        assert status == 400 and "a setting of one node" in answer["message"]
