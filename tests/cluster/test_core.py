"""Members by a core: what its keys say, what a node writes, and what links make of it."""

from random import Random

import cbor2
import pytest

from shardbroker.cluster.core import (
    APPLIED_MAX,
    DRAINING,
    JOINING,
    SETTING_BYTES_MAX,
    SETTINGS_MAX,
    UP,
    CoreKeys,
    CoreNode,
    CoreTable,
    CoreView,
    decode_view,
    encode_view,
    is_applied,
    value_of,
)
from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.handshake import Identity
from shardbroker.cluster.messages import Hello
from shardbroker.cluster.outputs import Close, Gone
from shardbroker.cluster.registration import Change, Cleaner, Delete, Put, RegistrationRefused, registration, removal
from shardbroker.cluster.view import SIGNALS, LinkState, NodeState, RouteState, View, ViewSettings

KEYS = CoreKeys("shardbroker", "c")
CLUSTER = b"c" * 16


def uuid_of(number: int) -> bytes:
    return bytes([number]) * 16


def address_of(number: int) -> str:
    return f"10.0.0.{number}:5370"


def me(number: int = 1, incarnation: int = 7) -> Identity:
    return Identity(number, f"n{number}", address_of(number), CLUSTER, uuid_of(number), incarnation)


class Store:
    """Keys with revisions, as etcd has them."""

    def __init__(self) -> None:
        self.keys: dict[bytes, tuple[bytes, int]] = {}
        self.revision = 1

    def put(self, key: bytes, value: bytes) -> list[tuple[bytes, bytes | None, int]]:
        self.revision += 1
        self.keys[key] = value, self.revision
        return [(key, value, self.revision)]

    def delete(self, key: bytes) -> list[tuple[bytes, bytes | None, int]]:
        self.revision += 1
        del self.keys[key]
        return [(key, None, self.revision)]

    def change(self, change: Change) -> bool:
        if any(self.keys.get(key, (b"", 0))[1] != revision for key, revision in change.conditions):
            return False
        self.revision += 1
        for one in change.operations:
            if isinstance(one, Put):
                self.keys[one.key] = one.value, self.revision
            else:
                self.keys.pop(one.key, None)
        return True

    def table(self, before: CoreView | None = None) -> CoreTable:
        table = CoreTable(KEYS, before or CoreView())
        table.load([(key, value, revision) for key, (value, revision) in self.keys.items()], self.revision)
        return table

    def register(self, number: int, incarnation: int = 7, state: str = UP, former: int = 0) -> bool:
        return self.change(registration(self.table(), me(number, incarnation), former, state))


def member(number: int, incarnation: int = 7, state: str = UP) -> CoreNode:
    return CoreNode(number, f"n{number}", address_of(number), uuid_of(number), incarnation, state)


# --- keys -----------------------------------------------------------------------------------------------------------------


def test_a_registration_makes_a_member() -> None:
    store = Store()
    assert store.register(1, state=JOINING) and store.register(2)
    assert store.table().view() == CoreView(3, (member(1, state=JOINING), member(2)), True)
    assert store.table().view().owners == {2: 7}
    assert store.register(1, state=UP) and store.table().view().owners == {1: 7, 2: 7}
    assert store.register(2, state=DRAINING) and store.table().view().owners == {1: 7}
    assert sorted(store.keys) == [KEYS.id_of(1), KEYS.id_of(2), KEYS.member_of(1), KEYS.member_of(2), KEYS.meta]


def test_all_nodes_have_the_same_view_whether_they_read_or_follow() -> None:
    store = Store()
    follower = store.table()
    for number in 1, 2, 3:
        before = {**store.keys}
        assert store.register(number)
        changed = [(key, value, revision) for key, (value, revision) in store.keys.items() if before.get(key) != (value, revision)]
        follower.apply(changed)
        assert follower.view() == store.table().view()
    follower.apply(store.delete(KEYS.member_of(3)))
    assert follower.epoch == store.revision == 5
    assert follower.view().node(3) == member(3, 0, "")
    assert store.table().epoch < follower.epoch, "a reader does not see at which revision a key went"
    assert store.register(1)  # which is why each reader registers again
    assert store.table().epoch == store.revision


def test_changes_that_were_read_already_are_left_out() -> None:
    store = Store()
    first = store.put(KEYS.id_of(2), value_of(name="n2", address=address_of(2), uuid=uuid_of(2)))
    joined = store.put(KEYS.member_of(2), value_of(uuid=uuid_of(2), incarnation=1, state=JOINING))
    store.put(KEYS.member_of(2), value_of(uuid=uuid_of(2), incarnation=1, state=UP))
    table = store.table()
    table.apply([*first, *joined])
    assert table.view().nodes == (member(2, 1),)


def test_a_key_that_is_missing_removes_nothing() -> None:
    store = Store()
    store.register(1)
    store.register(2)
    known = store.table().view()
    empty = Store()
    found = empty.table(known).view()
    assert found.nodes == (member(1, 0, ""), member(2, 0, "")) and found.epoch == known.epoch
    assert empty.register(1)
    assert empty.keys[KEYS.meta][0] == value_of(uuid=CLUSTER)


def test_keys_that_are_deleted_under_a_watch_remove_nothing() -> None:
    store = Store()
    follower = store.table()
    for number in 1, 2:
        store.register(number)
    follower.apply([(key, value, revision) for key, (value, revision) in store.keys.items()])
    for key in [*store.keys]:
        follower.apply(store.delete(key))
    assert follower.view().nodes == (member(1, 0, ""), member(2, 0, "")) and not follower.meta


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KEYS.id_of(2), b"\xff"),
        (KEYS.id_of(2), b"[]"),
        (KEYS.id_of(2), cbor2.dumps([1, 2])),
        (KEYS.id_of(2), value_of(name="n2", address=address_of(2), uuid=b"short")),
        (KEYS.id_of(2), value_of(name="", address=address_of(2), uuid=uuid_of(2))),
        (KEYS.id_of(2), value_of(name="n\n2", address=address_of(2), uuid=uuid_of(2))),
        (KEYS.id_of(2), value_of(name="n2", address="nowhere", uuid=uuid_of(2))),
        (KEYS.id_of(2), value_of(name="n2", address=address_of(2), uuid=uuid_of(2), more="x" * 5000)),
        (KEYS.member_of(2), value_of(uuid=uuid_of(2), incarnation=0, state=UP)),
        (KEYS.member_of(2), value_of(uuid=uuid_of(2), incarnation=True, state=UP)),
        (KEYS.member_of(2), value_of(uuid=uuid_of(2), incarnation=1 << 60, state=UP)),
        (KEYS.member_of(2), value_of(uuid=uuid_of(2), incarnation=1, state="king")),
        (KEYS.gone_of(2), value_of(by="nobody")),
    ],
)
def test_a_value_that_cannot_be_used_counts_as_missing(key: bytes, value: bytes) -> None:
    store = Store()
    store.register(1)
    store.put(key, value)
    table = store.table()
    assert table.view().nodes == (member(1),)
    assert len(table.problems) == 1 and table.problems[0].startswith(key.decode())


@pytest.mark.parametrize("name", [b"ids/0", b"ids/251", b"ids/01", b"ids/x", b"ids", b"ids/1/2", b"other/1", b"ids/1000"])
def test_other_keys_are_not_read(name: bytes) -> None:
    store = Store()
    store.put(KEYS.prefix + name, b"x")
    store.put(b"/elsewhere/ids/1", b"x")
    table = store.table()
    assert not table.rows and not table.problems


def test_a_view_is_stored_and_read_again() -> None:
    view = CoreView(9, (member(1), member(2, 0, "")), True)
    assert decode_view(encode_view(view)) == view
    for damaged in (b"", b"\xff", encode_view(view)[:-3], cbor2.dumps([1, 2])):
        with pytest.raises(ValueError, match="members"):
            decode_view(damaged)


# --- registrations --------------------------------------------------------------------------------------------------------


def test_of_two_registrations_of_one_revision_one_is_carried_out() -> None:
    store = Store()
    one, other = (registration(store.table(), me(1, incarnation), 0, JOINING) for incarnation in (7, 8))
    assert store.change(one) and not store.change(other)
    assert not store.change(one), "an attempt that is repeated finds its own effect"
    assert store.register(1), "and so does the next one, which is no conflict"


def test_a_killed_broker_is_replaced_at_once_and_another_one_is_not() -> None:
    store = Store()
    store.register(1, 7)
    with pytest.raises(RegistrationRefused, match="copy of this data directory"):
        store.register(1, 8)
    assert store.register(1, 8, former=7)


def test_another_cluster_and_another_data_directory_are_refused() -> None:
    store = Store()
    store.register(1)
    with pytest.raises(RegistrationRefused, match=r"cluster\.name"):
        registration(store.table(), me()._replace(cluster=b"d" * 16), 0, UP)
    with pytest.raises(RegistrationRefused, match="another data directory"):
        registration(store.table(), me()._replace(node_uuid=uuid_of(9)), 0, UP)


def test_a_node_that_is_removed_may_join_again_and_its_id_is_free_only_when_forgotten() -> None:
    store = Store()
    store.register(1)
    store.register(2)
    assert (change := removal(store.table(), 2, "force-leave", 0)) is not None
    assert not store.change(change), "it has a lease"
    store.delete(KEYS.member_of(2))
    assert (change := removal(store.table(), 2, "force-leave", 0)) is not None and store.change(change)
    assert store.table().view().node(2) == member(2, 0, "")._replace(is_gone=True)
    assert store.register(2, 8) and store.table().view().node(2) == member(2, 8)
    assert KEYS.gone_of(2) not in store.keys
    store.delete(KEYS.member_of(2))
    known = store.table().view()
    assert (change := removal(store.table(), 2, "forget", 0, forget=True)) is not None and store.change(change)
    assert Delete(KEYS.id_of(2)) in change.operations
    found = store.table(known).view().node(2)
    assert found is not None and found.is_gone, "a node that was away meanwhile learns of it"
    assert store.table().view().node(2) is None
    assert removal(store.table(), 9, "forget", 0) is None


def test_the_lowest_member_removes_nodes_without_a_lease_and_without_a_link() -> None:
    store = Store()
    for number in 1, 2, 3, 4:
        store.register(number)
    store.delete(KEYS.member_of(4))
    table, cleaner, other = store.table(), Cleaner(1, 1000), Cleaner(2, 1000)
    assert cleaner.due(table, {4}, 0) == cleaner.due(table, {4}, 5000) == []
    assert cleaner.due(table, (), 6000) == other.due(table, (), 6000) == []
    assert cleaner.due(table, (), 6999) == []
    assert cleaner.due(table, (), 7000) == [4] and other.due(table, (), 7000) == []
    store.register(4, 8)
    assert cleaner.due(store.table(), (), 7000) == []
    store.delete(KEYS.member_of(4))
    assert cleaner.due(store.table(), (), 7100) == [], "it was there meanwhile"


# --- links ----------------------------------------------------------------------------------------------------------------


def view_of(*nodes: CoreNode, is_current: bool = True, join_timeout_ms: int = 30_000) -> View:
    settings = ViewSettings(first_dial_ms=0, join_timeout_ms=join_timeout_ms)
    return View(me(), [], settings, Random(1), 0, CoreView(5, nodes, is_current))


def hello(number: int, incarnation: int = 7, uuid: bytes = b"", address: str = "") -> Hello:
    address, uuid = address or address_of(number), uuid or uuid_of(number)
    return Hello(SIGNALS, number, f"n{number}", address, CLUSTER, uuid, incarnation, 1, 1, 0, bytes(16))


def up(view: View, number: int, incarnation: int = 7, address: str = "") -> None:
    view.established(hello(number, incarnation, address=address), 100 + number, 0)
    view.synced(address or address_of(number), RouteState.NORMAL, True, 0)


def test_partitions_are_of_the_members_whatever_the_links_do() -> None:
    view = view_of(member(1), member(2), member(3), member(4, state=JOINING), member(5, 0, ""))
    assert view.members == ((1, 7), (2, 7), (3, 7))
    assert {*view.links} == {address_of(number) for number in (2, 3, 4, 5)}
    up(view, 2)
    assert view.members == ((1, 7), (2, 7), (3, 7)) and view.epoch == 5
    view.lost(address_of(2), 100)
    assert view.members == ((1, 7), (2, 7), (3, 7))
    view.set_core(CoreView(8, (member(1), member(2)), True), 200)
    assert view.members == ((1, 7), (2, 7)) and view.epoch == 8


def test_a_broker_that_has_proved_itself_is_later_than_the_core_knows() -> None:
    view = view_of(member(1), member(2))
    digest = view.digest
    up(view, 2, incarnation=9)
    assert view.members == ((1, 7), (2, 9)) and view.epoch == 6 and view.digest != digest
    view.set_core(CoreView(10, (member(1), member(2, 9)), True), 100)
    assert view.members == ((1, 7), (2, 9)) and view.epoch == 10


def test_a_node_serves_once_it_is_registered_and_has_the_routes_of_all_members() -> None:
    view = view_of(member(2), member(3, 0, ""))
    up(view, 2)
    assert not view.serves, "it is not registered"
    view.set_core(CoreView(6, (member(1, state=JOINING), member(2), member(3, 0, "")), True), 100)
    assert view.serves and view.state == NodeState.NORMAL, "node 3 has no lease, so it is not waited for"
    alone = view_of(member(1, state=JOINING))
    assert alone.serves


def test_without_the_core_a_node_that_starts_waits_for_all_that_it_knew() -> None:
    view = view_of(member(1), member(2), member(3, 0, ""), is_current=False, join_timeout_ms=1000)
    up(view, 2)
    assert not view.serves
    view.tick(1000, 0)
    assert view.serves and view.joined_late
    view = view_of(is_current=False, join_timeout_ms=1000)
    assert not view.serves, "it has never been a member, or its disk was lost"


def test_isolated_is_who_has_no_lease_and_does_not_reach_all_members() -> None:
    view = view_of(member(1), member(2), member(3, 0, ""))
    up(view, 2)
    assert not view.holds_lease and not view.isolated, "all that have a lease are linked"
    view.lost(address_of(2), 100)
    assert view.isolated
    view.set_lease(True, 200)
    assert not view.isolated


def test_a_node_that_is_gone_is_removed_with_what_is_kept_for_it() -> None:
    view = view_of(member(1), member(2))
    up(view, 2)
    gone = member(2, 0, "")._replace(is_gone=True)
    done = view.set_core(CoreView(6, (member(1), gone), True), 100)
    assert [type(one) for one in done] == [Close, Gone] and not view.links and view.members == ((1, 7),)


def test_a_node_with_another_address_keeps_what_is_kept_for_it() -> None:
    view = view_of(member(1), member(2), member(3))
    up(view, 2)
    moved = member(2)._replace(address="10.0.9.9:5370")
    done = view.set_core(CoreView(6, (member(1), moved, member(3)), True), 100)
    assert [type(one) for one in done] == [Close]
    link = view.links["10.0.9.9:5370"]
    assert link.node is not None and link.node.node_id == 2 and link.state == LinkState.DOWN and address_of(2) not in view.links
    up(view, 2, address="10.0.9.9:5370")
    assert link.state == LinkState.UP


def test_an_id_of_another_data_directory_is_another_node() -> None:
    view = view_of(member(1), member(2))
    up(view, 2)
    done = view.set_core(CoreView(6, (member(1), member(2)._replace(uuid=uuid_of(9))), True), 100)
    assert [type(one) for one in done] == [Close, Gone]
    link = view.links[address_of(2)]
    assert link.node is None and not link.is_connected
    view.established(hello(2, uuid=uuid_of(9)), 7, 200)
    assert link.is_connected


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (hello(3), ByeReason.NOT_A_MEMBER),
        (hello(2, uuid=uuid_of(9)), ByeReason.DUPLICATE_ID),
        (hello(3, address=address_of(2)), ByeReason.DUPLICATE_ID),
        (hello(2, address="10.0.9.9:5370"), ByeReason.NOT_A_MEMBER),
    ],
)
def test_a_node_that_the_core_does_not_know_like_that_is_refused(seen: Hello, reason: ByeReason) -> None:
    view = view_of(member(1), member(2))
    with pytest.raises(PeerFault) as found:
        view.check(seen)
    assert found.value.reason == reason and "core" in found.value.text


APPLIED = {"revision": 7, "errors": {"a.b": "unknown key"}, "restart": ["c.d"], "shadowed": {"e.f": "--set"}}


def test_settings_of_all_nodes_are_kept_as_they_are_with_the_revision_of_their_last_change() -> None:
    store = Store()
    store.put(KEYS.meta, value_of(uuid=CLUSTER))
    table = store.table()
    table.load_settings([(KEYS.setting_of(b"a.b"), b"garbage", 5)], 0)
    assert (table.settings, table.settings_revision, table.left_out) == ({b"a.b": (b"garbage", 5)}, 5, 0)
    table.apply([(KEYS.setting_of(b"c.d"), b"1", 9), (KEYS.changed, value_of(id=b"x", by="n1"), 9)])
    assert (table.settings[b"c.d"], table.changed, table.settings_revision) == ((b"1", 9), (b"x", 9), 9)
    table.apply([(KEYS.setting_of(b"a.b"), None, 11)])
    assert (sorted(table.settings), table.settings_revision) == ([b"c.d"], 11)
    epoch = table.epoch
    table.apply([(KEYS.applied_of(3), value_of(**APPLIED), 12)])
    assert table.settings_revision == 11 and table.epoch == epoch and table.view().nodes == ()
    table.load_settings([(KEYS.setting_of(b"e.f"), b"2", 3)], 4)
    assert (sorted(table.settings), table.settings_revision, table.left_out) == ([b"e.f"], 9, 4), "at least the last change"


def test_settings_of_all_nodes_are_bounded() -> None:
    table = Store().table()
    table.apply([(KEYS.setting_of(b"k%d" % number), b"x" * 50_000, 10 + number) for number in range(SETTINGS_MAX + 5)])
    assert (len(table.settings), table.left_out) == (SETTINGS_MAX, 5)
    assert {len(value) for value, _ in table.settings.values()} == {SETTING_BYTES_MAX}
    table.apply([(KEYS.setting_of(b"k%d" % (SETTINGS_MAX + 1)), None, 900)])
    assert table.left_out == 4
    table.apply([(KEYS.changed, b"\x81" * 3000, 901), (KEYS.changed, value_of(id=5), 902)])
    assert table.changed == (b"", 902)


@pytest.mark.parametrize(
    "change",
    [
        {"revision": -1}, {"revision": True}, {"revision": "7"}, {"errors": []}, {"errors": {1: "x"}}, {"errors": {"a": 1}},
        {"restart": {}}, {"restart": [1]}, {"restart": ["x" * 301]}, {"shadowed": None}, {"shadowed": {"a": "x" * 301}},
        {"restart": ["x"] * (APPLIED_MAX + 1)}, {"revision": 1 << 64},
    ],
)  # fmt: skip
def test_what_no_node_can_have_applied_counts_as_missing(change: dict[str, object]) -> None:
    assert is_applied(APPLIED)
    assert not is_applied({**APPLIED, **change})
    table = Store().table()
    table.apply([(KEYS.applied_of(3), value_of(**{**APPLIED, **change}), 12)])
    assert table.row("applied", 3) is None and "applied/3" in table.problems[0]


def test_the_first_node_of_an_etcd_that_was_set_up_again_restores_the_settings() -> None:
    store, lost = Store(), [(b"a.b", b"1"), (b"c.d", b"2")]
    change = registration(store.table(), me(), 0, UP, settings=lost)
    assert store.change(change)
    assert {key: value for key, (value, _) in store.keys.items() if key.startswith(KEYS.settings)} == {
        KEYS.setting_of(b"a.b"): b"1", KEYS.setting_of(b"c.d"): b"2",
    }  # fmt: skip
    assert not store.change(change), "another node was first"
    assert len(registration(store.table(), me(2), 0, UP, settings=lost).operations) == 2, "the core has values"
