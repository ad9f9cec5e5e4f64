"""Stores of users, rules and bans of a node in a cluster: stamps, deletions, and what another node must not send."""

import json
import time
from itertools import permutations
from pathlib import Path
from typing import Any

import cbor2
import lmdb
import pytest

from shardbroker.access import replicated, stores
from shardbroker.access.replicated import ReplicatedAccess
from shardbroker.access.rows import Row, decode_row, encode_row
from shardbroker.access.stores import Ban, RuleStore, ScramUser, StoreError, User, UserStore
from shardbroker.access.tables import HASH_MAX, RULES_BYTES_MAX, TEXT_MAX, key_of
from shardbroker.stores.retained_stamps import ID_HIGH_MAX, TOMBSTONE_MS, TopicState

ALL = bytes(16), b"\xff" * 16
NOW_MS = time.time_ns() // 1_000_000
"""When this was loaded, which may be long before a test runs."""
DAY_MS = 86_400_000
LIVE, DELETED = TopicState.LIVE, TopicState.DELETED


def stamp(ms: int, low: int = 0) -> bytes:
    return (ms * 1000).to_bytes(8, "big") + low.to_bytes(8, "big")


def digests(table: ReplicatedAccess) -> list[bytes]:
    return [digest for digest, _, _ in table.entries(*ALL, 10_000)]


def rows(table: ReplicatedAccess) -> list[bytes]:
    """All rows of a table that is stamped."""
    found = digests(table)
    return table.rows(found, 1 << 30)[0] if found else []


def copy(source: ReplicatedAccess, target: ReplicatedAccess) -> None:
    target.merge(rows(source))


def users(path: Path) -> ReplicatedAccess:
    return ReplicatedAccess(UserStore(path))


def rules(path: Path) -> ReplicatedAccess:
    return ReplicatedAccess(RuleStore(path))


def user(name: str, hash: str = "h") -> dict[str, Any]:
    return {"kind": "username", "name": name, "hash": hash, "superuser": False, "salt": ""}


def row(fields: dict[str, Any], ms: int = NOW_MS, table: int = 0, key: bytes | None = None, **changed: Any) -> bytes:
    made = Row(stamp(ms), LIVE, 0, table, key or key_of("username", fields["name"]), json.dumps(fields).encode())
    return encode_row(made._replace(**changed))


def gone(name: str, ms: int = NOW_MS) -> bytes:
    return encode_row(Row(stamp(ms), DELETED, ms, 0, key_of("username", name), b""))


RULE = {"permission": "allow", "action": "publish", "topic": "a/#"}


def test_every_change_reaches_another_store(tmp_path: Path) -> None:
    one, other = users(tmp_path / "1"), users(tmp_path / "2")
    scram = ScramUser("bob", b"salt", b"stored", b"server", 4096, True)
    one.store.put("username", User("ada", "h", True, "s"))
    one.store.put("clientid", User("x" * 1000, "h"))
    one.store.put_scram("sha512", scram)
    assert one.head() == 3 and len(one.changes_behind(0, 10)[1]) == 3
    copy(one, other)
    assert other.store.get("username", "ada") == User("ada", "h", True, "s")
    assert other.store.get("clientid", "x" * 1000) == User("x" * 1000, "h")
    assert other.store.scram("sha512", "bob") == scram and other.store.scram("sha256", "bob") is None
    assert other.sums() == one.sums() and other.head() == 0, "what another node has changed is not sent on"
    assert one.store.delete("username", "ada") and not one.store.delete("username", "ada")
    assert one.store.delete_scram("sha512", "bob")
    copy(one, other)
    assert other.store.get("username", "ada") is None and other.store.scram("sha512", "bob") is None
    assert other.sums() == one.sums() and not other.refused


def test_rules_and_bans_reach_another_store(tmp_path: Path) -> None:
    one, other = rules(tmp_path / "1"), rules(tmp_path / "2")
    one.store.put_rules("all", "", [RULE])
    one.store.put_rules("username", "ada", [RULE, {"permission": "deny"}])
    until = (NOW_MS + DAY_MS) / 1000
    exact, network = Ban("clientid", "c1", None, "me", "why", 1.5), Ban("peerhost_net", "10.0.0.0/8", until)
    one.store.ban_many([exact, network, Ban("clientid_re", "^x")])
    copy(one, other)
    assert other.changed == {"rules", "banned"}
    assert sorted(other.store.listed()) == sorted(one.store.listed())
    assert other.store.bans() == one.store.bans() and other.store.scanned_bans() == one.store.scanned_bans()
    one.store.delete_rules("all", "")
    one.store.unban("clientid", "c1")
    copy(one, other)
    assert other.store.banned("clientid", "c1") is None and not other.store.get_rules("all", "")
    assert other.sums() == one.sums()


def test_a_change_of_this_node_is_the_newest_whatever_its_clock(tmp_path: Path) -> None:
    kept = users(tmp_path)
    ahead = row(user("ada", "ahead"), NOW_MS + 3_600_000)
    kept.merge([ahead])
    kept.store.put("username", User("ada", "later"))
    kept.merge([ahead])
    assert kept.store.get("username", "ada").hash == "later"
    kept.store.delete("username", "ada")
    kept.merge([ahead])
    assert kept.store.get("username", "ada") is None
    kept.merge([encode_row(decode_row(ahead, 2)._replace(id=ID_HIGH_MAX.to_bytes(8, "big") + b"\xff" * 8))])
    with pytest.raises(StoreError, match="latest time"):
        kept.store.put("username", User("ada", "later"))


def test_the_greatest_stamp_wins_in_any_order(tmp_path: Path) -> None:
    first, last = row(user("ada", "first"), NOW_MS), row(user("ada", "last"), NOW_MS + 2)
    changes = [first, gone("ada", NOW_MS + 1), last, gone("bob", NOW_MS)]
    sums = set()
    for number, order in enumerate(permutations(changes)):
        kept = users(tmp_path / str(number))
        for one in order:
            kept.merge([one])
        assert kept.store.get("username", "ada").hash == "last"
        sums.add(kept.sums())
        kept.close()
    assert len(sums) == 1


def test_an_expired_ban_is_gone_on_all_nodes_without_a_change(tmp_path: Path) -> None:
    one, other, late = (rules(tmp_path / name) for name in ("1", "2", "3"))
    now = time.time()
    one.store.ban_many([Ban("clientid", "c1", now + 10, "flapping detector", "", now)])
    copy(one, other)
    head = one.head()
    assert one.store.purge_bans(now + 11) == 1 and one.store.banned("clientid", "c1") is None
    assert one.head() == head and one.sums() == other.sums(), "nothing to send"
    copy(one, other)
    assert other.store.banned("clientid", "c1") == Ban("clientid", "c1", now + 10, "flapping detector", "", now)
    with other.store.writing() as writer:
        assert not writer.expire(1, b"clientid:c1", int(now * 1000)) and not writer.expire(1, b"clientid:c0", int(now * 1000))
    other.store.ban_many([Ban("clientid", "c1", now + 60, "me", "", now)])
    copy(other, one)
    assert one.store.banned("clientid", "c1").until == now + 60
    expired = Row(stamp(NOW_MS), LIVE, 0, 1, b"clientid:c9", json.dumps(
        {"kind": "clientid", "value": "c9", "until": now - 1, "by": "", "reason": "", "at": now - 9}).encode())  # fmt: skip
    late.merge([encode_row(expired)])
    assert late.store.banned("clientid", "c9") is None and len(digests(late)) == 1


def test_bans_that_have_ended_are_removed_though_none_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PURGED", 3)
    (kept, now) = rules(tmp_path), time.time()
    kept.store.ban_many([Ban("clientid", f"c{number}", now + 5) for number in range(10)] + [Ban("clientid", "for ever")])
    sums = kept.sums()
    kept.sweep(int(now * 1000) + 4_000)
    assert kept.store.ban_count() == 11
    kept.sweep(int(now * 1000) + 6_000 + replicated.PURGE_MS)
    assert kept.store.ban_count() == 1 and kept.sums() == sums and len(digests(kept)) == 11


def test_a_ban_for_ever_from_before_the_limit_is_a_permanent_one(tmp_path: Path) -> None:
    one, other = rules(tmp_path / "1"), rules(tmp_path / "2")
    with one.store.writing() as writer:
        writer.put(1, b"clientid:c", cbor2.dumps({**BAN, "until": float("inf")}))
    copy(one, other)
    assert other.store.banned("clientid", "c") == Ban("clientid", "c") and other.sums() == one.sums()


def test_deletions_are_forgotten_after_a_day(tmp_path: Path) -> None:
    one, other = users(tmp_path / "1"), users(tmp_path / "2")
    one.store.put("username", User("ada", "h"))
    copy(one, other)
    one.store.delete("username", "ada")
    assert not one.sweep(NOW_MS)
    assert one.sweep(NOW_MS + TOMBSTONE_MS + DAY_MS) == 1 and not digests(one)
    copy(other, one)
    assert one.store.get("username", "ada") is not None, "a node that was away for longer brings it back"
    old = NOW_MS - TOMBSTONE_MS - 1
    one.merge([gone("eve", old)])
    assert len(digests(one)) == 1, "an old deletion of what was never here is not kept"


def test_a_store_without_stamps_gets_them_and_loses_to_known_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated, "BUILD_ENTRIES", 7)
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        with lmdb.open(str(tmp_path / name), map_size=1 << 24, max_dbs=2) as env, env.begin(write=True) as txn:
            db = env.open_db(b"passwords", txn)
            env.open_db(b"scram", txn)
            for number in range(40):
                txn.put(key_of("username", f"u{number}"), cbor2.dumps(user(f"u{number}")), db=db)
            txn.put(b"username:own", cbor2.dumps(user("own", name)), db=db)
    one, other = users(tmp_path / "1"), users(tmp_path / "2")
    assert not one.is_ready()
    one.store.put("username", User("u3", "changed before the build"))
    other.merge([row(user("u4", "of a peer"))])
    for table in (one, other):
        while not table.build():
            pass
        assert table.is_ready() and len(digests(table)) == 41
    copy(one, other), copy(other, one)
    assert one.sums() == other.sums()
    assert [one.store.get("username", name).hash for name in ("u3", "u4", "u5")] == ["changed before the build", "of a peer", "h"]
    assert one.store.get("username", "own") == other.store.get("username", "own"), "one of them, on both"
    one.close()
    again = users(tmp_path / "1")
    assert again.is_ready() and len(digests(again)) == 41, "what is current is not built again"
    again.close()
    with lmdb.open(str(tmp_path / "1"), map_size=1 << 24, max_dbs=7) as env, env.begin(write=True) as txn:
        txn.put(b"username:u1", cbor2.dumps(user("u1", "by an older version")), db=env.open_db(b"passwords", txn))
    again = users(tmp_path / "1")
    assert not again.is_ready()
    copy(other, again)
    assert again.store.get("username", "u1").hash == "h", "changes that are not known lose"


def test_a_process_that_looked_before_another_made_the_stamps_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = UserStore(tmp_path)
    first.put("username", User("ada", "h"))
    first.close()
    monkeypatch.setattr(stores.RetainedStamps, "are_current", staticmethod(lambda env: False))
    second = users(tmp_path)
    assert len(digests(second)) == 1 and second.head() == 1


BAN = {"kind": "clientid", "value": "c", "until": None, "by": "", "reason": "", "at": 0}
HEX = {"salt": "00", "stored_key": "00", "server_key": "00"}
SCRAM = {"algorithm": "sha256", "name": "a", **HEX, "iterations": 1, "is_superuser": False}
OF_ALL = {"kind": "all", "name": "", "rules": [RULE]}
DEEP = b'{"kind":"all","name":"","rules":[' + b"[" * 100_000 + b"]" * 100_000 + b"]}"


@pytest.mark.parametrize("data", [
    b"", b"short", bytes(28), b"x" * 100, bytes(2 << 20),
    row(user("a"), key=b"username:b"), row(user("a"), key=b"x" * 511), row(user("a"), table=2), row(user("a"), table=255),
    row(user("a"), id=b"\xff" * 16), row(user("a"), state=DELETED), row(user("a"), value=b""), row(user("a"), since_ms=1 << 63),
    row(user("a"), value=b"{"), row(user("a"), value=b"[]"), row(user("a"), value=b"1" * 5000), row(user("a"), value=b"\xff"),
    row({**user("a"), "more": 1}), row({"name": "a"}), row({**user("a"), "kind": "peer"}), row({**user("a"), "kind": ["username"]}),
    row({**user("a"), "hash": ""}), row({**user("a"), "hash": 1}), row({**user("a"), "hash": "x" * (HASH_MAX + 1)}),
    row({**user("a"), "salt": None}), row({**user("a"), "superuser": 1}), row({**user("a"), "name": "a\0"}, key=b"username:a\0"),
    row({**user("a"), "name": ""}, key=b"username:"), row({**user("a"), "name": "\ud800"}, key=b"username:x"),
    row({**user("a"), "name": "x" * 65536}, key=key_of("username", "x" * 65536)),
    *(row({**SCRAM, **changed}, table=1, key=b"sha256:a") for changed in (
        {"algorithm": "md5"}, {"salt": ""}, {"salt": "0"}, {"salt": "zz"}, {"salt": "00" * 1025},
        {"iterations": 1.5}, {"iterations": -1},
        {"iterations": True}, {"iterations": 1 << 40}, {"is_superuser": "yes"}, {"name": "b"},
    )),
], ids=lambda _: "row")  # fmt: skip
def test_a_row_that_is_no_user_is_refused_and_counted(tmp_path: Path, data: bytes) -> None:
    kept = users(tmp_path)
    kept.merge([data, row(user("right"))])
    assert kept.refused == 1 and kept.refusal
    assert [one.name for one in kept.store.all("username")] == ["right"] and not kept.store.all_scram()
    assert len(digests(kept)) == 1


@pytest.mark.parametrize(("table", "key", "value"), [
    *((0, b"all", {**OF_ALL, **changed}) for changed in (
        {"rules": []}, {"rules": [RULE] * 101}, {"rules": RULE}, {"rules": [1]}, {"rules": [{"permission": "maybe"}]},
        {"rules": [{**RULE, "topic": "a/#/b"}]}, {"rules": [{**RULE, "topic": 5}]}, {"rules": [{**RULE, "topics": [[]]}]},
        {"rules": [{**RULE, "who": {"username_re": "("}}]}, {"rules": [{**RULE, "ipaddress": "x"}]},
        {"rules": [{**RULE, "qos": 7}]},
        {"rules": [{**RULE, "topic": "x" * (RULES_BYTES_MAX + (1 << 19))}]}, {"kind": "some"}, {"name": None},
        {"rules": [{**RULE, "who": {"and": [{"ipaddr": 5}]}}]}, {"rules": [{**RULE, "ipaddress": {"a": 1}}]},
    )),
    (0, b"all", DEEP),
    *((1, b"clientid:c", {**BAN, **changed}) for changed in (
        {"kind": "x"}, {"value": "d"}, {"value": None}, {"until": "soon"}, {"until": -1}, {"until": 1e300}, {"until": True},
        {"at": None}, {"by": 5}, {"reason": "x" * (TEXT_MAX + 1)},
    )),
    (1, b"clientid:c", b'{"kind":"clientid","value":"c","until":NaN,"by":"","reason":"","at":0}'),
    (1, b"clientid:c", b'{"kind":"clientid","value":"c","until":Infinity,"by":"","reason":"","at":0}'),
    (1, b"clientid_re:(", {**BAN, "kind": "clientid_re", "value": "("}),
    (1, b"peerhost_net:x", {**BAN, "kind": "peerhost_net", "value": "x"}),
], ids=lambda _: "")  # fmt: skip
def test_a_row_that_is_no_rule_or_ban_is_refused_and_counted(tmp_path: Path, table: int, key: bytes, value: Any) -> None:
    kept = rules(tmp_path)
    kept.store.put_rules("all", "", [RULE])
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    kept.merge([encode_row(Row(stamp(NOW_MS + DAY_MS), LIVE, 0, table, key, data))])
    assert kept.refused == 1 and kept.refusal and len(kept.refusal) < 1000
    assert kept.store.get_rules("all", "") == [RULE] and not kept.store.bans(), "what was there stays"


def test_what_has_no_room_is_refused_and_the_rest_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAP_BYTES", 1 << 18)
    kept = users(tmp_path)
    kept.merge([row(user(f"u{number}", "x" * 4000)) for number in range(100)])
    assert 0 < kept.refused < 100 and "full" in kept.refusal
    assert len(kept.store.all("username")) == 100 - kept.refused


def test_values_that_no_frame_takes_are_refused_at_this_node(tmp_path: Path) -> None:
    kept, of_rules = UserStore(tmp_path / "u"), RuleStore(tmp_path / "r")
    with pytest.raises(StoreError, match="4096"):
        kept.put("username", User("a", "x" * (HASH_MAX + 1)))
    with pytest.raises(StoreError, match="1048576"):
        of_rules.put_rules("all", "", [{**RULE, "topic": "x" * (RULES_BYTES_MAX + 1)}])
    with pytest.raises(StoreError, match="65535"):
        of_rules.ban_many([Ban("clientid", "c", None, "", "x" * (TEXT_MAX + 1))])
    for until in (float("inf"), float("nan"), 1e13):
        with pytest.raises(StoreError, match="at most 1e\\+12"):
            of_rules.ban_many([Ban("clientid", "c", until)])
    of_rules.put_rules("all", "", [{**RULE, "topic": "ß" * 100_000}])
    of_rules.ban_many([Ban("clientid", "\1" * TEXT_MAX, None, "\1" * TEXT_MAX, "\1" * TEXT_MAX)])
    table, other = ReplicatedAccess(of_rules), rules(tmp_path / "o")
    copy(table, other)
    assert not table.too_large and not other.refused and other.store.bans() == of_rules.bans()
