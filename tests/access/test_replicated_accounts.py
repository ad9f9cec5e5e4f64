"""Accounts and API keys of a node in a cluster: stamps, deletions, first accounts, and what another node must not send."""

import json
import sqlite3
import time
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from shardbroker.access import account_stamps
from shardbroker.access.accounts import ACCOUNTS_FILE, AccountError, Accounts
from shardbroker.access.replicated_accounts import ReplicatedAccounts
from shardbroker.access.rows import Row, decode_row, encode_row
from shardbroker.stores.retained_stamps import ID_HIGH_MAX, TOMBSTONE_MS, TopicState

ALL = bytes(16), b"\xff" * 16
NOW_MS = time.time_ns() // 1_000_000
"""When this was loaded, which may be long before a test runs."""
DAY_MS = 86_400_000
LIVE, DELETED = TopicState.LIVE, TopicState.DELETED
HASH = "$argon2id$x"
OLD_TABLES = """
CREATE TABLE accounts (name TEXT PRIMARY KEY, hash TEXT, role TEXT, description TEXT);
CREATE TABLE keys (
    name TEXT PRIMARY KEY, key TEXT UNIQUE, digest BLOB, role TEXT, description TEXT,
    enable INTEGER, created_at INTEGER, expires_at INTEGER
);
CREATE TABLE tokens (digest BLOB PRIMARY KEY, name TEXT, expires_at REAL);
"""


class Node:
    """The accounts of one node: as its manager writes them, and as its link-0 reads and merges them."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path
        self.own = Accounts(path)
        self.table = ReplicatedAccounts(path)

    def digests(self) -> list[bytes]:
        return [digest for digest, _, _ in self.table.entries(*ALL, 10_000)]

    def give(self, other: "Node") -> None:
        """Sends all rows."""
        other.table.merge(self.table.rows(self.digests(), 1 << 30)[0])

    def names(self) -> list[str]:
        return [row["name"] for row in self.own.accounts()]


def nodes(tmp_path: Path, count: int) -> list[Node]:
    return [Node(tmp_path / str(number)) for number in range(count)]


def stamp(ms: int) -> bytes:
    return (ms * 1000).to_bytes(8, "big") + bytes(8)


def row(name: str, ms: int = NOW_MS, kind: int = 0, state: TopicState = LIVE, **fields: Any) -> bytes:
    common = {"role": "administrator", "description": ""}
    own = {"hash": HASH} if kind == 0 else {
        "key": "0123456789abcdef", "digest": "00" * 32, "enable": True, "created_at": NOW_MS, "expires_at": None,
    }  # fmt: skip
    value = b"" if state == DELETED else json.dumps({**common, **own, **fields}).encode()
    return encode_row(Row(stamp(ms), state, ms if state == DELETED else 0, kind, name.encode(), value))


def test_every_change_reaches_another_node(tmp_path: Path) -> None:
    one, other = nodes(tmp_path, 2)
    one.own.add("ada", HASH, "administrator", "first")
    one.own.add("bob", HASH, "viewer", "")
    key, secret = one.own.add_key("robot", "viewer", "for tests", NOW_MS + DAY_MS)
    assert one.table.head() == 3
    found = one.table.changes_behind(1, 10)
    assert found is not None and found[0] == 3 and len(found[1]) == 2
    one.give(other)
    assert other.own.accounts() == one.own.accounts() and other.own.api_keys() == one.own.api_keys()
    assert other.own.of_key(key, secret) == ("robot", "viewer")
    assert other.table.sums() == one.table.sums() and other.table.head() == 0, "what another node has changed is not sent on"
    one.own.update("bob", "administrator", None)
    one.own.set_password("ada", HASH + "y")
    one.own.update_key("robot", None, None, False, None)
    one.give(other)
    assert other.own.account("ada") == (HASH + "y", "administrator") and other.own.account("bob") == (HASH, "administrator")
    with pytest.raises(AccountError, match="disabled"):
        other.own.of_key(key, secret)
    one.own.delete("ada")
    one.own.delete_key("robot")
    one.give(other)
    assert other.names() == ["bob"] and not other.own.api_keys()
    assert other.table.sums() == one.table.sums() and not other.table.refused


def test_logins_end_where_they_are_when_the_account_changes_elsewhere(tmp_path: Path) -> None:
    one, other = nodes(tmp_path, 2)
    one.own.add("ada", HASH, "administrator", "")
    one.own.add("bob", HASH, "administrator", "")
    one.give(other)
    ada, bob = other.own.log_in("ada", 60), other.own.log_in("bob", 60)
    one.own.update("ada", "viewer", None)
    one.give(other)
    assert other.own.of_token(ada) == ("ada", "viewer"), "another role, the same login"
    one.own.set_password("ada", HASH + "y")
    one.own.add("eve", HASH, "administrator", "")
    one.own.delete("bob")
    one.give(other)
    for token in (ada, bob):
        with pytest.raises(AccountError, match="unknown"):
            other.own.of_token(token)


def test_the_greatest_stamp_wins_in_any_order(tmp_path: Path) -> None:
    changes = [row("ada"), row("ada", NOW_MS + 1, state=DELETED), row("ada", NOW_MS + 2, hash=HASH + "last"), row("k", kind=1)]
    sums = set()
    for number, order in enumerate(permutations(changes)):
        node = Node(tmp_path / str(number))
        for one in order:
            node.table.merge([one])
        assert node.own.account("ada") == (HASH + "last", "administrator")
        sums.add(node.table.sums())
        node.table.close()
    assert len(sums) == 1


def test_a_change_of_this_node_is_the_newest_whatever_its_clock(tmp_path: Path) -> None:
    (one,) = nodes(tmp_path, 1)
    ahead = row("ada", NOW_MS + 3_600_000, hash=HASH + "ahead")
    one.table.merge([ahead, row("bob")])
    one.own.set_password("ada", HASH + "later")
    one.table.merge([ahead])
    assert one.own.account("ada") == (HASH + "later", "administrator")
    one.own.delete("ada")
    one.table.merge([ahead])
    assert one.own.account("ada") is None
    one.own.add("ada", HASH, "viewer", "again")
    latest = decode_row(ahead, 2)._replace(id=ID_HIGH_MAX.to_bytes(8, "big") + b"\xff" * 8)
    one.table.merge([encode_row(latest)])
    for change in (lambda: one.own.set_password("ada", HASH), lambda: one.own.delete("ada")):
        with pytest.raises(AccountError, match="latest time"):
            change()
    one.table.merge([encode_row(latest._replace(key=b"gone", state=DELETED, value=b"", since_ms=NOW_MS))])
    with pytest.raises(AccountError, match="latest time"):
        one.own.add("gone", HASH, "viewer", "")


def test_the_earliest_first_account_wins_and_none_joins_other_accounts(tmp_path: Path) -> None:
    one, other, third = nodes(tmp_path, 3)
    one.own.first(lambda _: HASH + "one")
    time.sleep(0.002)
    other.own.first(lambda _: HASH + "other")
    one.give(other), other.give(one)
    assert one.own.account("admin") == other.own.account("admin") == (HASH + "one", "administrator")
    assert one.table.sums() == other.table.sums()
    one.own.add("ada", HASH, "administrator", "")
    one.own.delete("admin")
    third.own.first(lambda _: HASH + "third")
    third.give(one)
    one.give(other), one.give(third)
    assert one.names() == other.names() == third.names() == ["ada"], "deleted within a day"
    with one.own.changing() as db:
        account_stamps.trim(db, NOW_MS + TOMBSTONE_MS + DAY_MS)
    late = Node(tmp_path / "late")
    late.own.first(lambda _: HASH + "late")
    late.give(one), one.give(late)
    assert one.names() == ["ada"], "no account of a first start joins others"
    assert late.names() == ["ada", "admin"]
    late.own.set_password("admin", HASH + "meant")
    late.give(one)
    assert one.names() == ["ada", "admin"], "one that was changed is meant"


def test_deletions_are_forgotten_after_a_day_and_the_oldest_of_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_stamps, "TOMBSTONES_MAX", 3)
    (one,) = nodes(tmp_path, 1)
    for number in range(6):
        one.own.add_key(f"k{number}", "viewer", "", None)
        one.own.delete_key(f"k{number}")
    assert len(one.digests()) == 3
    assert not one.table.sweep(NOW_MS + 1_000) and len(one.digests()) == 3
    one.table.sweep(NOW_MS + TOMBSTONE_MS + DAY_MS)
    assert not one.digests()
    one.table.merge([row("k9", NOW_MS - TOMBSTONE_MS - 1, 1, DELETED)])
    assert not one.digests()


def test_changes_are_kept_up_to_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_stamps, "CHANGES_KEPT", 5)
    (one,) = nodes(tmp_path, 1)
    for number in range(9):
        one.own.add_key(f"k{number}", "viewer", "", None)
    assert one.table.changes_behind(2, 100) is None
    found = one.table.changes_behind(5, 2)
    assert found is not None and found[0] == 7
    assert one.table.changes_behind(9, 2) == (9, [])


def test_a_file_without_stamps_gets_them_and_an_older_version_may_write_it(tmp_path: Path) -> None:
    for number in "12":
        (tmp_path / number).mkdir()
        with sqlite3.connect(tmp_path / number / ACCOUNTS_FILE) as db:
            db.executescript(OLD_TABLES)
            db.execute("INSERT INTO accounts VALUES ('same', ?, 'viewer', '')", (HASH,))
            db.execute("INSERT INTO accounts VALUES ('admin', ?, 'administrator', '')", (HASH + number,))
            key = ("robot", "0" * 15 + number, bytes(32), "viewer", "", 1, 1_000 + int(number), None)
            db.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?)", key)
        db.close()
    tables = [ReplicatedAccounts(tmp_path / number) for number in "12"]
    one, other = tables
    assert len(one.entries(*ALL, 100)) == 3
    assert len({*one.entries(*ALL, 9)} & {*other.entries(*ALL, 9)}) == 1, "the same row has the same stamp"
    for source, target in ((one, other), (other, one)):
        target.merge(source.rows([digest for digest, *_ in source.entries(*ALL, 9)], 1 << 20)[0])
    assert one.sums() == other.sums() and not one.refused
    with Accounts(tmp_path / "1") as accounts:
        assert accounts.api_keys()[0]["api_key"] == "0" * 15 + "2", "the later key"
        before = one.head()
        with sqlite3.connect(tmp_path / "1" / ACCOUNTS_FILE) as db:  # as a version without stamps
            db.execute("UPDATE accounts SET hash = ? WHERE name = 'admin'", (HASH + "old version",))
        db.close()
        assert one.head() == before + 1
    other.merge(one.rows([digest for digest, *_ in one.entries(*ALL, 9)], 1 << 20)[0])
    with Accounts(tmp_path / "2") as accounts:
        assert accounts.account("admin") == (HASH + "old version", "administrator")


def test_a_file_of_a_newer_version_is_refused_with_a_reason(tmp_path: Path) -> None:
    with Accounts(tmp_path) as accounts:
        accounts.add("ada", HASH, "administrator", "")
    with sqlite3.connect(tmp_path / ACCOUNTS_FILE) as db:
        db.execute("PRAGMA user_version = 2")
    db.close()
    with pytest.raises(AccountError, match="must be at most 1, got 2: a newer version"):
        Accounts.opened(tmp_path)


def test_a_file_that_was_replaced_is_opened_again(tmp_path: Path) -> None:
    (one,) = nodes(tmp_path, 1)
    one.own.add("ada", HASH, "administrator", "")
    assert len(one.digests()) == 1
    one.own.close()
    for path in one.path.iterdir():
        path.unlink()
    assert not one.digests()
    one.table.close()


@pytest.mark.parametrize("data", [
    b"", b"x" * 40, bytes(2 << 20), row("ada", kind=2), row("a b"), row("x" * 65), row("a\n"), row("ä"), row("a\0"),
    row("a/b", state=DELETED), row("ada", role="root"), row("ada", role=["viewer"]), row("ada", role=None),
    row("ada", description="x" * 401), row("ada", description=1),
    row("ada", hash=""), row("ada", hash="plain"), row("ada", hash=HASH + "x" * 5000), row("ada", hash=None), row("ada", more=1),
    *(row("robot", kind=1, **changed) for changed in (
        {"key": "x" * 16}, {"key": "0" * 15}, {"key": None}, {"digest": "00"}, {"digest": 5}, {"enable": 1},
        {"created_at": None}, {"created_at": 1.5}, {"created_at": -1}, {"created_at": True}, {"expires_at": "never"},
        {"expires_at": 1 << 60}, {"hash": HASH},
        {"key": "1111111111111111"},
    )),
], ids=lambda _: "row")  # fmt: skip
def test_a_row_that_is_no_account_or_key_is_refused_and_counted(tmp_path: Path, data: bytes) -> None:
    (one,) = nodes(tmp_path, 1)
    one.table.merge([row("taken", kind=1, key="1" * 16)])
    one.table.merge([data, row("right")])
    assert one.table.refused == 1 and one.table.refusal
    assert one.names() == ["right"] and [key["name"] for key in one.own.api_keys()] == ["taken"]
    assert len(one.digests()) == 2
    one.own.add("after", HASH, "viewer", "")
    assert one.table.head() == 1, "changes of this node are stamped again"
