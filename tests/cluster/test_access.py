"""Users, rules, bans, accounts and keys between nodes: the core over the stores, links that are cut, a peer that is hostile."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shardbroker.access.accounts import AccountError
from shardbroker.access.replicated import ReplicatedAccess
from shardbroker.access.replicated_accounts import ReplicatedAccounts
from shardbroker.access.stores import Ban, RuleStore, User, UserStore
from shardbroker.cluster import retained
from shardbroker.cluster.messages import RetainedAck, RetainedRows
from shardbroker.cluster.retained import COMPARE_MS, Replication
from tests.cluster.test_retained import Cluster

NODES = 3
HASH = "$argon2id$"
RULE = {"permission": "deny", "action": "all", "topic": "a/#"}


class StoredCluster(Cluster):
    """Nodes with stores in files."""

    def __init__(self, tables: list[Any], seed: int = 1) -> None:
        super().__init__(0, seed)
        self.tables = tables
        self.cores = [Replication(one) for one in tables]

    def settle(self) -> None:
        for table in self.tables:
            while not table.build():
                pass
        self.link_all()
        for _ in range(3):
            self.now_ms += COMPARE_MS
            self.run()


def users(path: Path) -> ReplicatedAccess:
    return ReplicatedAccess(UserStore(path))


def rules(path: Path) -> ReplicatedAccess:
    return ReplicatedAccess(RuleStore(path))


def change_user(table: Any, rng: Random) -> None:
    name = f"u{rng.randrange(20)}"
    if rng.random() < 0.7:
        table.store.put("username", User(name, f"h{rng.random()}", rng.random() < 0.5))
    else:
        table.store.delete("username", name)


def change_rule(table: Any, rng: Random) -> None:
    name, store = f"c{rng.randrange(10)}", table.store
    match rng.randrange(5):
        case 0:
            store.put_rules("clientid", name, [RULE] * rng.randrange(1, 4))
        case 1:
            store.delete_rules("clientid", name)
        case 2:
            store.unban("clientid", name)
        case 3:
            store.purge_bans()
        case _:
            until = rng.choice((None, time.time() + rng.random() / 10, time.time() + 60))
            store.ban_many([Ban("clientid", name, until, "me", str(rng.random()), time.time())])


def change_account(table: Any, rng: Random) -> None:
    name, accounts = f"a{rng.randrange(10)}", table._opened()
    with suppress(AccountError):
        match rng.randrange(5):
            case 0:
                accounts.add(name, f"{HASH}{rng.random()}", "administrator", "")
            case 1:
                accounts.set_password(name, f"{HASH}{rng.random()}")
            case 2:
                accounts.delete(name)
            case 3:
                accounts.add_key(name, "viewer", "", None)
            case _:
                accounts.delete_key(name)


def of_users(table: Any) -> Any:
    return table.store.all("username")


def of_rules(table: Any) -> Any:
    now = time.time()
    return table.store.listed(), [ban for ban in table.store.bans() if not ban.expired(now)]


def of_accounts(table: Any) -> Any:
    accounts = table._opened()
    named = accounts.accounts()
    return named, [accounts.account(one["name"]) for one in named], accounts.api_keys()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("made", "change", "contents"), [
    (users, change_user, of_users), (rules, change_rule, of_rules), (ReplicatedAccounts, change_account, of_accounts),
], ids=["users", "rules", "accounts"])  # fmt: skip
def test_random_changes_cuts_and_restarts_end_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[[Path], Any], change: Callable[[Any, Random], None],
    contents: Callable[[Any], Any], seed: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(retained, "SUMMARY_ENTRIES", 7)
    monkeypatch.setattr(retained, "STEP_ENTRIES", 3)
    monkeypatch.setattr(retained, "ROWS_MAX", 3)
    for number in range(NODES):
        (tmp_path / str(number)).mkdir()
    cluster, rng = StoredCluster([made(tmp_path / str(number)) for number in range(NODES)], seed), Random(seed)
    cluster.link_all()
    for _ in range(150):
        node = rng.randrange(NODES)
        match rng.randrange(10):
            case 0:
                cluster.cut(node, (node + 1) % NODES)
            case 1:
                cluster.restart(node)
            case 2:
                cluster.link_all()
            case _:
                change(cluster.tables[node], rng)
        for _ in range(rng.randrange(6)):
            cluster.step()
    cluster.settle()
    first, *others = cluster.tables
    assert all(other.sums() == first.sums() and contents(other) == contents(first) for other in others)
    assert contents(first) and not any(table.refused for table in cluster.tables)
    for table in cluster.tables:
        table.close()


def test_rows_of_a_hostile_peer_are_acknowledged_and_the_connection_goes_on(tmp_path: Path) -> None:
    table = users(tmp_path)
    core = Replication(table)
    core.follow({1: False}, 0)
    for number in range(1, 50):
        batch = tuple(Random(number).randbytes(Random(number).randrange(200)) for _ in range(20))
        assert core.received(1, RetainedRows(number, batch), 0) == [(1, RetainedAck(number))]
    assert table.refused == 49 * 20 and not table.store.all("username")
    table.close()
