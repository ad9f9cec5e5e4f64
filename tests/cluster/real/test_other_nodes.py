"""Verbs for other nodes: `ctl --node`, lists of all nodes, clients wherever they are, and who may ask."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardbroker.cluster.handshake import CALLS
from shardbroker.control import Control, ControlError
from shardbroker.link.frames import preface
from tests.api.rest import Rest
from tests.cluster.real.nodes import HOST, Nodes, running
from tests.harness.broker import free_port
from tests.harness.waiting import until


def ask(nodes: Nodes, number: int, verb: str, at_node: str = "", **params: Any) -> Any:
    """Asks node `number` for the result of a verb at another node."""
    with Control(nodes.brokers[number].data_dir, by="ctl:0", at_node=at_node) as control:
        return control.call(verb, **params)


def ask_all(nodes: Nodes, number: int, verb: str, **params: Any) -> dict[str, Any]:
    with Control(nodes.brokers[number].data_dir, of_all_nodes=True) as control:
        found: dict[str, Any] = control.call(verb, **params)
    return found


def ctl(nodes: Nodes, number: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "shardbroker"), "ctl", "--data-dir", str(nodes.brokers[number].data_dir), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def await_clients(nodes: Nodes, number: int, count: int) -> None:
    """Lists of clients are read from tables that workers write in their own time."""
    until(lambda: len(ask(nodes, number, "clients list")["data"]) == count)


def linked(nodes: Nodes) -> None:
    for own in nodes.brokers:
        nodes.await_links(own, **{f"n{other}": "up" for other in nodes.brokers if other != own})


def test_a_verb_is_carried_out_by_the_node_that_is_named() -> None:
    with running(3) as nodes:
        linked(nodes)
        third = nodes.connect(3, "third")
        await_clients(nodes, 3, 1)
        assert ask(nodes, 1, "status", nodes.name(2))["node"] == nodes.name(2)
        assert [row["clientid"] for row in ask(nodes, 1, "clients list", nodes.name(3))["data"]] == ["third"]
        assert ask(nodes, 1, "clients list")["data"] == []
        assert ask(nodes, 1, "clients list", nodes.name(1))["data"] == [], "its own name is allowed"
        done = ctl(nodes, 1, "--node", nodes.name(2), "config", "set", "mqtt.max_inflight", "7")
        assert done.returncode == 0, done.stderr
        values = [ask(nodes, number, "config get", key="mqtt.max_inflight")["data"][0]["value"] for number in (1, 2, 3)]
        assert values == ["32", "7", "32"]
        (entry,) = ask(nodes, 2, "audit list")["data"]
        assert (entry["by"], entry["verb"]) == (f"ctl:0@{nodes.name(1)}", "config set")
        third.ping()


def test_a_verb_that_streams_is_passed_on_item_by_item() -> None:
    with running(2) as nodes:
        linked(nodes)
        clients = [nodes.connect(2, f"c{number}") for number in range(3)]
        await_clients(nodes, 2, 3)
        with Control(nodes.brokers[1].data_dir, at_node=nodes.name(2)) as control:
            items = [*control.stream("clients kick-all", everybody=True, rate=1000)]
        assert items[-1]["kicked"] == 3
        for client in clients:
            client.expect_close()
        done = ctl(nodes, 1, "--node", nodes.name(2), "--json", "snapshot")
        assert done.returncode == 0, done.stderr
        assert [*(nodes.brokers[2].data_dir / "snapshots").iterdir()] and not (nodes.brokers[1].data_dir / "snapshots").exists()


def test_what_is_wrong_has_its_reason() -> None:
    with running(2) as nodes:
        linked(nodes)
        with pytest.raises(ControlError, match=f"node: must be one of {nodes.name(1)}, {nodes.name(2)}, got n9") as refused:
            ask(nodes, 1, "status", "n9")
        assert refused.value.code == "NOT_FOUND"
        with pytest.raises(ControlError, match="limit") as refused:
            ask(nodes, 1, "clients list", nodes.name(2), limit=0)
        assert refused.value.code == "BAD_REQUEST"
        with pytest.raises(ControlError, match="users list: every node has the same rows"):
            ask_all(nodes, 1, "users list")
        with pytest.raises(ControlError, match="status: must be a list"):
            ask_all(nodes, 1, "status")
        assert "--node and --cluster exclude each other" in ctl(nodes, 1, "--node", "x", "clients", "list", "--cluster").stderr
        assert "run this command on x" in ctl(nodes, 1, "--node", "x", "upgrade", "--check").stderr
        nodes.brokers[2].kill()
        until(lambda: nodes.links(1)[nodes.name(2)] != "up")
        with pytest.raises(ControlError, match=f"node {nodes.name(2)}: its link is") as refused:
            ask(nodes, 1, "status", nodes.name(2))
        assert refused.value.code == "NOT_AVAILABLE"
        for verb, params in ("clients kick", {"clientids": ["away"]}), ("clients show", {"clientid": "away"}):
            text = f"no session .*'away'; node {nodes.name(2)} may have it: .* its link is"
            with pytest.raises(ControlError, match=text) as refused:
                ask(nodes, 1, verb, **params)
            assert refused.value.code == "NOT_AVAILABLE"
        nodes.start([2])


def test_lists_of_all_nodes_page_by_page() -> None:
    with running(3) as nodes:
        linked(nodes)
        clients = [nodes.connect(number, f"{number}-{one}") for number in (1, 2, 3) for one in range(5)]
        wanted = [(nodes.name(number), f"{number}-{one}") for number in (1, 2, 3) for one in range(5)]
        for number in (1, 2, 3):
            await_clients(nodes, number, 5)
        for asked in (1, 2):
            found: list[tuple[str, str]] = []
            cursor, pages = None, 0
            while pages == 0 or cursor is not None:
                page = ask_all(nodes, asked, "clients list", limit=4, cursor=cursor)
                assert len(page["data"]) <= 4 and page["missing"] == []
                found += [(row["node"], row["clientid"]) for row in page["data"]]
                cursor, pages = page["cursor"], pages + 1
            assert sorted(found) == wanted
        done = ctl(nodes, 1, "clients", "list", "--cluster", "--all", "--json")
        assert sorted(json.loads(line)["clientid"] for line in done.stdout.splitlines()) == sorted(name for _, name in wanted)
        workers = ask_all(nodes, 2, "workers list")
        assert {row["node"] for row in workers["data"]} == {nodes.name(number) for number in (1, 2, 3)}
        nodes.brokers[3].kill()
        until(lambda: nodes.links(1)[nodes.name(3)] != "up")
        partial = ctl(nodes, 1, "clients", "list", "--cluster")
        assert partial.returncode == 1
        assert f"node {nodes.name(3)}: its rows are missing: node {nodes.name(3)}: its link is" in partial.stderr
        assert "2-4" in partial.stdout and "3-0" not in partial.stdout
        for client in clients[:10]:
            client.ping()
        nodes.start([3])


def test_a_client_is_found_and_kicked_wherever_it_is() -> None:
    with running(3) as nodes:
        linked(nodes)
        second, third = nodes.connect(2, "second"), nodes.connect(3, "third")
        assert ask(nodes, 1, "clients show", clientid="second")["node"] == nodes.name(2)
        assert ask(nodes, 1, "sessions show", clientid="third")["node"] == nodes.name(3)
        ask(nodes, 1, "subscriptions add", clientid="second", topic="a/b")
        nodes.connect(1, "p").publish("a/b", b"x", 1)
        assert second.recv().topic == "a/b"
        ask(nodes, 1, "subscriptions delete", clientid="second", topic="a/b")
        assert ask(nodes, 1, "clients kick", clientids=["second", "third", "nobody"]) == {"kicked": ["second", "third"]}
        second.expect_close()
        third.expect_close()
        for verb, params in ("clients kick", {"clientids": ["nobody"]}), ("clients show", {"clientid": "nobody"}):
            with pytest.raises(ControlError) as unknown:
                ask(nodes, 1, verb, **params)
            assert unknown.value.code == "CLIENTID_NOT_FOUND"


def test_rest_of_one_node_is_that_of_all() -> None:
    port = free_port()
    with running(2, each={1: {"api.bind": f"127.0.0.1:{port}"}}) as nodes:
        linked(nodes)
        first, second = nodes.name(1), nodes.name(2)
        clients = [nodes.connect(number, f"c{number}") for number in (1, 2)]
        clients[1].subscribe([("a/+", 1)])
        for number in (1, 2):
            await_clients(nodes, number, 1)
        ask(nodes, 1, "admins add", name="ada", password="a password", role="administrator")
        _, login = Rest(port)("POST", "/login", {"username": "ada", "password": "a password"})
        rest = Rest(port, f"Bearer {login['token']}")

        def get(path: str) -> Any:
            status, body = rest("GET", path)
            assert status == 200, body
            return body

        for path in "/clients", "/clients?limit=1&page=2", "/clients_v2":
            found = get(path)
            wanted = [(first, "c1"), (second, "c2")] if "page" not in path else [(second, "c2")]
            assert [(row["node"], row["clientid"]) for row in found["data"]] == wanted
            assert "missing" not in found["meta"]
        assert get("/clients")["meta"]["count"] == 2 and get("/sessions_count") == 2
        assert [row["clientid"] for row in get(f"/clients?node={second}")["data"]] == ["c2"]
        assert get("/clients/c2")["node"] == second
        assert [(row["node"], row["topic"]) for row in get("/subscriptions")["data"]] == [(second, "a/+")]
        assert [(row["node"], row["topic"]) for row in get("/clients/c2/subscriptions")] == [(second, "a/+")]
        assert [row["node"] for row in get("/stats")] == [first, second]
        assert [row["connections.count"] for row in get("/metrics")] == [1, 1]
        assert get(f"/nodes/{second}/stats")["subscriptions.count"] == 1
        assert get(f"/nodes/{second}/metrics")["subscriptions.count"] == 1
        assert rest("GET", "/nodes/n9/stats")[0] == 404
        assert get("/cluster/topology") == [{"core_node": name, "replicant_nodes": []} for name in (first, second)]
        assert ask(nodes, 1, "cluster topology")["data"][0] == {
            "node": first, "role": "core", "state": "running", "cores": [second], "reason": "",
        }  # fmt: skip
        assert second in ctl(nodes, 1, "cluster", "topology").stdout
        assert json.loads(ctl(nodes, 1, "--json", "cluster", "topology", "--own").stdout)["data"][0]["linked"] == [second]
        assert rest("DELETE", "/clients/c2")[0] == 204
        clients[1].expect_close()
        status, _ = rest("POST", f"/load_rebalance/{second}/evacuation/start", {})
        assert status == 200
        assert [row["node"] for row in get("/load_rebalance/global_status")["evacuations"]] == [second]
        assert rest("POST", f"/load_rebalance/{second}/evacuation/stop")[0] == 200
        nodes.brokers[2].kill()
        until(lambda: nodes.links(1)[second] != "up")
        assert get("/cluster/topology") == [{"core_node": first, "replicant_nodes": []}]
        partial = get("/clients")
        assert [row["clientid"] for row in partial["data"]] == ["c1"]
        assert [one["node"] for one in partial["meta"]["missing"]] == [second]
        assert [row["node"] for row in get("/stats")] == [first]
        nodes.start([2])


@pytest.mark.parametrize("allowed", ["read", "off"])
def test_a_node_decides_what_others_may_ask(allowed: str) -> None:
    with running(2, each={2: {"cluster.management": allowed}}) as nodes:
        linked(nodes)
        text = f"cluster.management of node {nodes.name(2)} must be all, got {allowed}"
        with pytest.raises(ControlError, match=text) as refused:
            ask(nodes, 1, "config set", nodes.name(2), key="mqtt.max_inflight", value="7")
        assert refused.value.code == "FORBIDDEN"
        if allowed == "read":
            assert ask(nodes, 1, "status", nodes.name(2))["node"] == nodes.name(2)
        else:
            with pytest.raises(ControlError, match=text):
                ask(nodes, 1, "status", nodes.name(2))
        assert ask(nodes, 2, "status", nodes.name(1))["node"] == nodes.name(1), "the other way is not concerned"


def test_managers_and_links_that_are_killed_are_asked_again() -> None:
    with running(2) as nodes:
        linked(nodes)
        for process in "manager", "link-0":
            assert ask(nodes, 1, "status", nodes.name(2))["node"] == nodes.name(2)
            broker = nodes.brokers[2]
            (pid,) = broker.child_pids(process)
            broker.kill_process(pid)

            def answers() -> bool:
                try:
                    return bool(ask(nodes, 1, "status", nodes.name(2))["node"] == nodes.name(2))
                except ControlError as error:
                    assert error.code in ("NOT_AVAILABLE", "BROKER_DOWN"), error
                    return False

            until(answers)


def test_nobody_without_the_cookie_is_answered(tmp_path: Path) -> None:
    """Neither one who sends a request at once, nor one who sends nothing, delays those who may ask."""
    with running(2, **{"cluster.link.auth_timeout": "1s"}) as nodes:
        linked(nodes)
        host, port = nodes.addresses[1].rsplit(":", 1)
        assert host == HOST
        strangers = []
        for sent in b"", b"\0\0\0\x05hello", b"\xff" * 4096:
            stranger = socket.create_connection((host, int(port)), timeout=20)
            stranger.sendall(preface(CALLS) + sent)
            strangers.append(stranger)
        assert ask(nodes, 1, "status", nodes.name(2))["node"] == nodes.name(2)
        for stranger in strangers:
            received = b""
            while data := stranger.recv(4096):
                received += data
            assert b"status" not in received
            stranger.close()
        assert ask(nodes, 1, "status", nodes.name(2))["node"] == nodes.name(2)
        until(lambda: "peer manager refused" in nodes.output(2))
