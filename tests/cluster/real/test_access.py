"""Users, rules and bans on all nodes: changed at one, in force at another; splits, nodes that were away, and new ones."""

import json
import shutil
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import cbor2

from shardbroker.access.auth_client import users_dir
from shardbroker.access.stores import UserStore, key_of
from shardbroker.cluster import handshake
from shardbroker.control import Control
from tests.api.rest import Rest
from tests.cluster.real.network import network
from tests.cluster.real.nodes import Nodes, running
from tests.harness.broker import free_port
from tests.harness.waiting import until

SOON_S = 5.0
SUCCESS, BAD_LOGIN, BANNED, NOT_AUTHORIZED = 0, 0x86, 0x8A, 0x87
GUARDED = {"auth.chain": "builtin", "acl.sources": "builtin", "cluster.join_timeout": "2s"}
DENY = {"permission": "deny", "action": "publish", "topic": "t"}
USERS = 20_000


def call(nodes: Nodes, number: int, verb: str, **params: Any) -> Any:
    with Control(nodes.brokers[number].data_dir) as control:
        return control.call(verb, **params)


def users(nodes: Nodes, number: int) -> list[str]:
    return sorted(row["name"] for row in call(nodes, number, "users list")["data"])


def bans(nodes: Nodes, number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call(nodes, number, "banned list")["data"]
    return found


def connack(nodes: Nodes, number: int, client_id: str, username: str | None = None, password: str | None = None) -> int:
    """Returns the reason code of a CONNECT."""
    with nodes.connect(number, client_id, username=username, password=password, connect=False) as client:
        return client.connect(None).code


def await_connack(nodes: Nodes, number: int, code: int, client_id: str, username: str, password: str) -> None:
    until(lambda: connack(nodes, number, client_id, username, password) == code, lambda: nodes.output(number), SOON_S)


def await_same(nodes: Nodes, verb: str, expected: Any, numbers: Sequence[int] = (), within_s: float = SOON_S) -> None:
    """Waits until nodes have the same rows."""

    def found() -> list[Any]:
        return [call(nodes, number, verb)["data"] for number in numbers or nodes.brokers]

    until(lambda: all(one == expected for one in found()), lambda: str(found()), within_s)


def named(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "superuser": False} for name in names]


def add(nodes: Nodes, number: int, name: str, password: str = "secret") -> None:
    call(nodes, number, "users add", name=name, password=password)


def test_users_log_in_at_all_nodes_until_they_are_deleted_at_one() -> None:
    with running(2, workers=2, **GUARDED) as nodes:
        nodes.await_links(1, n2="up")
        add(nodes, 1, "ada")
        await_connack(nodes, 2, SUCCESS, "c1", "ada", "secret")
        assert connack(nodes, 2, "c1", "ada", "wrong") in (BAD_LOGIN, NOT_AUTHORIZED)
        add(nodes, 2, "ada", "another")
        await_connack(nodes, 1, SUCCESS, "c1", "ada", "another")
        assert connack(nodes, 1, "c1", "ada", "secret") != SUCCESS
        call(nodes, 1, "users delete", name="ada")
        await_connack(nodes, 2, connack(nodes, 1, "c1", "ada", "another"), "c1", "ada", "another")
        assert connack(nodes, 2, "c1", "ada", "another") != SUCCESS
        until(lambda: [peer["access"] for peer in nodes.status(1)["peers"]] == ["synced"], lambda: str(nodes.status(1)))


def test_a_ban_at_one_node_ends_a_connection_at_another_until_it_is_removed() -> None:
    with running(2, workers=2) as nodes:
        nodes.await_links(1, n2="up")
        with nodes.connect(2, "victim") as client, nodes.connect(2, "other") as other:
            call(nodes, 1, "banned add", kind="clientid", value="victim", reason="a test")
            client.expect_close(timeout=SOON_S)
            assert connack(nodes, 2, "victim") == BANNED
            call(nodes, 1, "banned add", kind="clientid_re", value="^oth")
            other.expect_close(timeout=SOON_S)
        assert [(ban["value"], ban["reason"]) for ban in bans(nodes, 2)] == [("victim", "a test"), ("^oth", "")]
        call(nodes, 2, "banned delete", kind="clientid", value="victim")
        until(lambda: connack(nodes, 1, "victim") == SUCCESS, lambda: nodes.output(1), SOON_S)
        assert connack(nodes, 2, "victim") == SUCCESS


def test_a_client_that_flaps_at_one_node_is_banned_at_all() -> None:
    flapping = {"flapping_detect.enable": "true", "flapping_detect.max_count": "3", "flapping_detect.ban_time": "1m"}
    with running(2, workers=2, each={1: flapping}) as nodes:
        nodes.await_links(1, n2="up")
        for _ in range(3):
            assert connack(nodes, 1, "flapper") == SUCCESS
        until(lambda: connack(nodes, 2, "flapper") == BANNED, lambda: nodes.output(2), SOON_S)
        (ban,) = bans(nodes, 2)
        assert (ban["by"], ban["until"]) == ("flapping detector", bans(nodes, 1)[0]["until"])


def test_rules_that_were_cached_at_another_node_are_forgotten() -> None:
    with running(2, workers=2, **{"acl.sources": "builtin", "acl.no_match": "allow"}) as nodes:
        nodes.await_links(1, n2="up")
        with nodes.connect(2, "c1") as client:
            assert client.publish("t", b"allowed", qos=1).code in (SUCCESS, 0x10)
            call(nodes, 1, "acl set", kind="clientid", name="c1", rules=[json.dumps(DENY)])
            until(lambda: client.publish("t", b"denied", qos=1).code == NOT_AUTHORIZED, lambda: nodes.output(2), SOON_S)
            call(nodes, 2, "acl delete", kind="clientid", name="c1")
            await_same(nodes, "acl list", [])
            until(lambda: client.publish("t", b"allowed", qos=1).code != NOT_AUTHORIZED, lambda: nodes.output(2), SOON_S)


def test_both_sides_of_a_split_change_the_same_user() -> None:
    with network(2) as between, running(2, workers=1, network=between, **GUARDED) as nodes:
        nodes.await_links(1, n2="up")
        for name in ("both", "changed", "deleted"):
            add(nodes, 1, name, "before")
        await_same(nodes, "users list", named("both", "changed", "deleted"))
        between.split([1], [2])
        nodes.await_links(1, n2="down")
        add(nodes, 1, "both", "earlier")
        add(nodes, 2, "both", "later")
        call(nodes, 1, "users delete", name="changed")
        add(nodes, 2, "changed", "later")
        add(nodes, 1, "deleted", "earlier")
        call(nodes, 2, "users delete", name="deleted")
        call(nodes, 1, "banned add", kind="clientid", value="one")
        call(nodes, 2, "banned add", kind="clientid", value="two")
        between.heal()
        nodes.await_links(1, n2="up")
        await_same(nodes, "users list", named("both", "changed"), within_s=10)
        until(lambda: len(bans(nodes, 1)) == len(bans(nodes, 2)) == 2)
        for number in nodes.brokers:
            assert connack(nodes, number, "c1", "both", "later") == SUCCESS
            assert connack(nodes, number, "c1", "both", "earlier") != SUCCESS


def test_a_node_killed_behind_its_answer_gives_what_it_took_and_gets_what_it_missed() -> None:
    with running(2, workers=1, **GUARDED) as nodes:
        nodes.await_links(1, n2="up")
        for name in ("both", "deleted"):
            add(nodes, 1, name)
        await_same(nodes, "users list", named("both", "deleted"))
        nodes.brokers[2].stop()
        call(nodes, 1, "users delete", name="deleted")
        add(nodes, 1, "own")
        call(nodes, 1, "acl set", kind="username", name="own", rules=[json.dumps(DENY)])
        call(nodes, 1, "banned add", kind="clientid", value="c9")
        nodes.brokers[1].kill()
        assert nodes.brokers[1].process is not None
        nodes.brokers[1].process.wait(15)
        nodes.brokers[1].clear_shared()
        nodes.start([2])
        add(nodes, 2, "other")
        nodes.start([1])
        nodes.await_links(1, n2="up")
        await_same(nodes, "users list", named("both", "other", "own"))
        await_same(nodes, "acl list", [{"kind": "username", "name": "own", "rules": [DENY]}])
        until(lambda: [ban["value"] for ban in bans(nodes, 2)] == ["c9"])
        assert nodes.kill_link(2)
        add(nodes, 2, "behind")
        await_same(nodes, "users list", named("behind", "both", "other", "own"), within_s=15)


def test_users_imported_at_one_node_arrive_and_a_new_empty_node_gets_all() -> None:
    with running(3, workers=1, **GUARDED) as nodes:
        nodes.await_links(1, n2="up", n3="up")
        nodes.brokers[3].stop()
        store = UserStore(users_dir(nodes.brokers[1].data_dir))
        with store.writing() as writer:
            for number in range(USERS):
                fields = {"kind": "username", "name": f"u{number}", "hash": "$argon2id$", "superuser": False, "salt": ""}
                writer.put(0, key_of("username", f"u{number}"), cbor2.dumps(fields))
        call(nodes, 1, "banned add", kind="username", value="u7")
        stores = {1: store, 2: UserStore(users_dir(nodes.brokers[2].data_dir))}
        until(lambda: stores[2].stamps.sums() == store.stamps.sums(), lambda: nodes.output(2), 60)
        shutil.rmtree(nodes.brokers[3].data_dir / "access")
        nodes.start([3])
        nodes.await_links(1, n3="up")
        stores[3] = UserStore(users_dir(nodes.brokers[3].data_dir))
        until(lambda: stores[3].stamps.sums() == store.stamps.sums(), lambda: nodes.output(3), 60)
        assert stores[3]._count("passwords") == stores[2]._count("passwords") == USERS
        until(lambda: [ban["value"] for ban in bans(nodes, 3)] == ["u7"])
        for one in stores.values():
            one.close()


def test_users_from_before_the_cluster_reach_the_others() -> None:
    with running(2, **GUARDED) as nodes:
        broker = nodes.brokers[1]
        broker.stop()
        in_cluster = {**broker.settings}
        broker.settings.update({"cluster.enable": "false"})
        broker.start()
        for number in range(5):
            add(nodes, 1, f"old{number}")
        broker.stop()
        broker.settings.update(in_cluster)
        nodes.start([1])
        nodes.await_links(1, n2="up")
        await_same(nodes, "users list", named(*(f"old{number}" for number in range(5))))


def test_a_peer_of_an_earlier_version_stays_linked_and_gets_nothing(tmp_path: Any) -> None:
    """Node 2 greets without the feature, as the version before."""
    shim = tmp_path / "sitecustomize.py"
    shim.write_text(f"import shardbroker.cluster.handshake as h\nh.FEATURES &= ~{handshake.FEATURE_ACCESS}\n")
    with running(2, workers=1, **GUARDED) as nodes:
        nodes.brokers[2].stop()
        nodes.brokers[2].environment["PYTHONPATH"] = str(tmp_path)
        nodes.start([2])
        nodes.await_links(1, n2="up")
        add(nodes, 1, "ada")
        assert connack(nodes, 1, "c1", "ada", "secret") == SUCCESS
        until(lambda: [(one["retained"], one["access"]) for one in nodes.status(1)["peers"]] == [("synced", "none")])
        until(lambda: [(one["retained"], one["access"]) for one in nodes.status(2)["peers"]] == [("synced", "none")])
        assert users(nodes, 2) == [] and nodes.links(1) == {nodes.name(2): "up"}


def test_accounts_and_keys_are_those_of_all_nodes() -> None:
    ports = {number: free_port() for number in (1, 2)}
    with running(2, workers=1, each={number: {"api.bind": f"127.0.0.1:{port}"} for number, port in ports.items()}) as nodes:
        nodes.await_links(1, n2="up")
        until(lambda: all(call(nodes, number, "admins list")["data"] for number in ports))
        call(nodes, 1, "admins passwd", name="admin", password="of the cluster")
        call(nodes, 2, "admins add", name="ada", password="a password", role="administrator")
        key = call(nodes, 1, "api-keys add", name="robot")
        # Ten wrong passwords, or keys, block an address for a minute: it asks for them once they are there, in order of their node.
        until(lambda: "ada" in {one["name"] for one in call(nodes, 1, "admins list")["data"]}, lambda: nodes.output(1), SOON_S)
        until(lambda: call(nodes, 2, "api-keys list")["data"], lambda: nodes.output(2), SOON_S)

        def answers(number: int, name: str, password: str) -> int:
            return Rest(ports[number])("POST", "/login", {"username": name, "password": password})[0]

        def serves(number: int) -> bool:
            robot = Rest(ports[number], "Basic " + b64encode(f"{key['api_key']}:{key['api_secret']}".encode()).decode())
            logins = answers(number, "admin", "of the cluster"), answers(number, "ada", "a password")
            return (*logins, robot("GET", "/banned")[0]) == (200, 200, 200)

        until(lambda: serves(1) and serves(2), lambda: f"{nodes.output(1)}\n{nodes.output(2)}", SOON_S)
        status, login = Rest(ports[1])("POST", "/login", {"username": "ada", "password": "a password"})
        ada = Rest(ports[1], f"Bearer {login['token']}")
        assert (status, ada("GET", "/banned")[0]) == (200, 200)
        assert ada("POST", "/banned", {"as": "clientid", "who": "c1"})[0] == 200
        until(lambda: [ban["value"] for ban in bans(nodes, 2)] == ["c1"])
        call(nodes, 2, "admins delete", name="ada")
        call(nodes, 2, "api-keys delete", name="robot")
        until(lambda: ada("GET", "/banned")[0] == 401, lambda: nodes.output(1), SOON_S)
        assert answers(1, "ada", "a password") == 401
        until(lambda: not call(nodes, 1, "api-keys list")["data"])
        until(lambda: [peer["access"] for peer in nodes.status(1)["peers"]] == ["synced"])


def test_accounts_that_a_killed_node_has_acknowledged_are_not_lost() -> None:
    with running(2, workers=1, **{"cluster.join_timeout": "2s"}) as nodes:
        nodes.await_links(1, n2="up")
        nodes.brokers[2].stop()
        call(nodes, 1, "admins add", name="ada", password="a password", role="viewer")
        nodes.brokers[1].kill()
        assert nodes.brokers[1].process is not None
        nodes.brokers[1].process.wait(15)
        nodes.brokers[1].clear_shared()
        nodes.start([1, 2])
        nodes.await_links(1, n2="up")
        await_same(nodes, "admins list", [{"name": "ada", "role": "viewer", "description": ""}])
