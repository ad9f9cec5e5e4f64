"""The registrar: claims in order, WHO until a partition is known, fencing by the member set, conflicts, bounds."""

import pytest

from shardbroker.cluster import registry as module
from shardbroker.cluster.clock import HybridClock, stamp_of
from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.messages import (
    Claim,
    Done,
    Find,
    Found,
    Grant,
    Held,
    Here,
    Key,
    Moved,
    Rebuild,
    Refuse,
    Release,
    Retry,
    Revoke,
    SessionMessage,
    Sessions,
    Starting,
    State,
    Tail,
    Wait,
    Who,
)
from shardbroker.cluster.outputs import ToNode
from shardbroker.cluster.registry import ALL_PARTITIONS, Registry, bitmap, client_key, filter_key, partitions_of
from shardbroker.cluster.rendezvous import PARTITIONS
from shardbroker.cluster.sessions import MESSAGE_BYTES_MAX, checked

CLOCK = 1_700_000_000_000
KEY = Key(7, 99)
D1, D2 = b"1" * 16, b"2" * 16
MEMBERS = ((1, 11), (2, 12), (3, 13))


def made(members: tuple[tuple[int, int], ...] = MEMBERS) -> Registry:
    """Returns a registrar of all partitions at node 1, which knows all sessions of the members."""
    one = Registry(1, HybridClock())
    one.set_view(members, D1, (1,) * PARTITIONS, 0)
    answer(one)
    return one


def answer(one: Registry, held: dict[int, tuple[Held, ...]] | None = None) -> list[ToNode]:
    """Has each member answer REBUILD."""
    done: list[ToNode] = []
    for node, ask in [*one._asks.items()]:
        done += one.sessions(node, Sessions(ask.number, 1, bitmap(ask.partitions), (held or {}).get(node, ()), True), 0)
    return done


def claim(number: int, digest: bytes = D1, is_provisional: bool = False) -> Claim:
    return Claim(number, KEY, digest, is_provisional)


def granted(outputs: list[ToNode]) -> Grant:
    [grant] = [output.message for output in outputs if isinstance(output.message, Grant)]
    return grant


def held(generation: int, stamp: int = 0, is_connected: bool = True, is_moving: bool = False) -> Held:
    return Held(KEY, generation, stamp, is_connected, is_moving)


def owned(one: Registry, node: int, number: int = 1) -> Held:
    """Has a node claim the key and become its holder."""
    grant = granted(one.claim(node, claim(number), 0, CLOCK))
    session = held(grant.generation, grant.generation)
    one.done(node, Done(KEY, grant.generation, session, grant.holder == 0), 0, CLOCK)
    return session


def test_a_claim_is_granted_and_the_next_one_names_its_holder() -> None:
    one = made()
    first = owned(one, 2)
    assert one.entry(KEY) == (2, first)
    grant = granted(one.claim(3, claim(5), 0, CLOCK))
    assert (grant.number, grant.holder, grant.is_provisional) == (5, 2, False)
    assert grant.generation > first.generation


def test_claims_of_a_key_wait_for_each_other() -> None:
    one = made()
    grant = granted(one.claim(2, claim(1), 0, CLOCK))
    assert one.claim(3, claim(2), 0, CLOCK) == [ToNode(3, Wait(2, KEY))]
    done = one.done(2, Done(KEY, grant.generation, held(grant.generation), False), 10, CLOCK)
    assert granted(done).holder == 2
    assert [output.node_id for output in done] == [3]


def test_a_claim_that_waits_too_long_is_refused() -> None:
    one = made()
    one.claim(2, claim(1), 0, CLOCK)
    one.claim(3, claim(2), 0, CLOCK)
    assert one.tick(module.QUEUE_MS - 1, CLOCK) == []
    assert one.tick(module.QUEUE_MS, CLOCK) == [ToNode(3, Refuse(2, KEY))]


def test_what_another_node_has_now_is_freed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FREED_A_TICK", 2)
    one = Registry(1, HybridClock())
    one.set_view(MEMBERS, D1, (1,) * PARTITIONS, 0)
    answer(one, {2: tuple(Held(Key(7, number), 50, 0, True, False) for number in range(5))})
    assert len(one) == 5
    one.set_view(MEMBERS[:2], D2, (2,) * PARTITIONS, 0)
    assert len(one) == 0 and one.entry(Key(7, 1)) is None
    left = []
    for now_ms in range(4):
        left.append(sum(map(len, one._ended)))
        one.tick(now_ms, CLOCK)
    assert left == [5, 3, 1, 0] and not one._ended


def asked() -> tuple[Registry, Who]:
    """Returns a registrar that has sent WHO to all members about a key that node 2 claims, and has the answer of node 1."""
    one = made()
    one._tables[KEY.partition].unsure.add(KEY.hash)
    first, *_ = one.claim(2, claim(1), 0, CLOCK)
    assert isinstance(first.message, Who)
    assert one.here(1, Here(first.message.number, KEY, None), 0, CLOCK) == []
    return one, first.message


def test_a_worker_that_is_being_started_is_waited_for() -> None:
    """Its session counted as lost after 300 ms, where the registrar did not know of it."""
    one, who = asked()
    one.here(2, Here(who.number, KEY, None), 0, CLOCK)
    now_ms = 0
    for _ in range(20):
        assert one.starting(3, Starting(who.number, KEY), now_ms) == [ToNode(2, Wait(1, KEY))]
        now_ms += module.ASK_MS
        assert one.tick(now_ms, CLOCK) == [ToNode(3, who)]
    grant = granted(one.here(3, Here(who.number, KEY, held(50)), now_ms, CLOCK))
    assert (grant.holder, grant.is_provisional) == (3, False)


def test_a_worker_that_never_starts_is_not_waited_for_any_longer() -> None:
    one, who = asked()
    one.here(2, Here(who.number, KEY, None), 0, CLOCK)
    now_ms = 0
    while one.starting(3, Starting(who.number, KEY), now_ms):
        one.tick(now_ms := now_ms + module.ASK_MS, CLOCK)
    assert now_ms == module.STARTING_MS
    assert granted(one.tick(now_ms + module.WHO_MS, CLOCK)).is_provisional


def test_no_worker_is_waited_for_where_another_node_has_the_session() -> None:
    one, who = asked()
    one.here(2, Here(who.number, KEY, held(50)), 0, CLOCK)
    assert one.starting(3, Starting(who.number, KEY), 0) == []
    assert one.starting(3, Starting(who.number + 1, KEY), 0) == []
    assert one.starting(3, Starting(who.number, Key(8, 99)), 0) == []
    assert granted(one.tick(module.WHO_MS, CLOCK)).is_provisional


def test_the_queue_of_a_key_is_bounded() -> None:
    one = made(tuple((node, 1) for node in range(1, 30)))
    for node in range(1, module.QUEUE_MAX + 2):
        one.claim(node, claim(node), 0, CLOCK)
    assert one.claim(29, claim(9), 0, CLOCK) == [ToNode(29, Refuse(9, KEY))]


@pytest.mark.parametrize("digest", [D2, b""])
def test_a_claim_under_another_member_set_is_void(digest: bytes) -> None:
    assert made().claim(2, claim(1, digest), 0, CLOCK) == [ToNode(2, Retry(1, KEY))]


def test_a_claim_for_a_partition_of_another_node_is_void() -> None:
    one = Registry(1, HybridClock())
    one.set_view(MEMBERS, D1, (2,) * PARTITIONS, 0)
    assert one.claim(2, claim(1), 0, CLOCK) == [ToNode(2, Retry(1, KEY))]


def test_a_partition_that_is_not_known_is_asked_for_by_who() -> None:
    one = Registry(1, HybridClock())
    asked = one.set_view(MEMBERS, D1, (1,) * PARTITIONS, 0)
    assert [output.node_id for output in asked] == [1, 2, 3]
    assert all(isinstance(output.message, Rebuild) for output in asked)
    who = one.claim(2, claim(1), 0, CLOCK)
    assert [output.message for output in who] == [Who(4, KEY, D1)] * 3
    assert one.here(1, Here(4, KEY, None), 0, CLOCK) == []
    assert one.here(2, Here(4, KEY, None), 0, CLOCK) == []
    grant = granted(one.here(3, Here(4, KEY, held(5)), 0, CLOCK))
    assert (grant.holder, grant.is_provisional) == (3, False)


def test_a_grant_without_all_answers_is_provisional() -> None:
    one = Registry(1, HybridClock())
    one.set_view(MEMBERS, D1, (1,) * PARTITIONS, 0)
    one.claim(2, claim(1), 0, CLOCK)
    assert granted(one.tick(module.WHO_MS, CLOCK)).is_provisional


def test_sessions_of_two_holders_are_one_after_a_rebuild() -> None:
    one = Registry(1, HybridClock())
    one.set_view(MEMBERS, D1, (1,) * PARTITIONS, 0)
    done = answer(one, {2: (held(5, 50),), 3: (held(4, 60),)})
    assert done == [ToNode(2, Revoke(KEY, 5, 3))]
    assert one.entry(KEY) == (3, held(4, 60))


def test_a_member_set_that_was_another_one_for_a_moment_is_asked_again() -> None:
    one = made()
    owned(one, 2)
    one.set_view(MEMBERS[:2], D2, (1,) * PARTITIONS, 0)
    asked = one.set_view(MEMBERS, D1, (1,) * PARTITIONS, 0)
    assert [output.node_id for output in asked] == [3]
    one.set_view(MEMBERS, D2, (2,) * PARTITIONS, 0)
    assert len(one) == 0
    assert [output.node_id for output in one.set_view(MEMBERS, D1, (1,) * PARTITIONS, 0)] == [1, 2, 3]


def test_a_member_that_had_another_registrar_is_asked_again() -> None:
    one = made()
    [output] = one.moved(3, Moved(bitmap([7])), 0)
    assert output == ToNode(3, Rebuild(one._number, D1, bitmap([7])))


def test_a_claim_of_a_process_that_has_ended_is_not_waited_for() -> None:
    one = made()
    granted(one.claim(2, claim(100), 0, CLOCK))
    assert one.claim(3, claim(1), 0, CLOCK) == [ToNode(3, Wait(1, KEY))]
    one.moved(2, Moved(bitmap([8]), 200), 0)
    one.moved(2, Moved(bitmap([7]), 99), 0)
    one.moved(3, Moved(bitmap([7]), 200), 0)
    assert one._locks[KEY].current, "another partition, a claim of the process that runs, another node"
    asked = one.moved(2, Moved(bitmap([7]), 200), 0)
    # The session may have been stored before the end, so all members that are not known are asked.
    numbers = {output.node_id: output.message.number for output in asked if isinstance(output.message, Who)}
    assert numbers.keys() == {1, 2, 3}
    for node in 1, 3:
        assert one.here(node, Here(numbers[node], KEY, None), 0, CLOCK) == []
    stored = held(1, 1)
    assert granted(one.here(2, Here(numbers[2], KEY, stored), 0, CLOCK)).holder == 2


# --- REBUILD ---------------------------------------------------------------------------------------------------------------


def asking() -> tuple[Registry, int]:
    """Returns a registrar that knows members 1 and 3, and the number of its REBUILD to member 2."""
    one = Registry(1, HybridClock())
    one.set_view(MEMBERS, D1, (1,) * PARTITIONS, 0)
    number = one._asks[2].number
    for node in 1, 3:
        one.sessions(node, Sessions(one._asks[node].number, 1, bitmap(ALL_PARTITIONS), (), True), 0)
    return one, number


def is_known(one: Registry, partition: int) -> bool:
    """Returns whether a claim in a partition is granted without WHO."""
    first = one.claim(2, Claim(1, Key(partition, 1), D1, False), 0, CLOCK)[0]
    return isinstance(first.message, Grant)


def test_an_answer_with_a_gap_does_not_count() -> None:
    one, number = asking()
    bits = bitmap(ALL_PARTITIONS)
    one.sessions(2, Sessions(number, 1, bits, (held(5),), False), 0)
    assert one.entry(KEY) == (2, held(5))
    one.sessions(2, Sessions(number, 3, bits, (), True), 0)
    assert not is_known(one, 8)
    one.sessions(2, Sessions(number, 2, bits, (), True), 0)
    assert is_known(one, 9)


def test_the_workers_of_a_node_answer_for_their_partitions() -> None:
    one, number = asking()
    even, odd = ({partition for partition in ALL_PARTITIONS if partition % 2 == rest} for rest in (0, 1))
    one.sessions(2, Sessions(number, 1, bitmap(odd), (held(5),), False), 0)
    one.sessions(2, Sessions(number, 1, bitmap(even), (), True), 0)
    assert is_known(one, 8) and not is_known(one, 9)
    one.sessions(2, Sessions(number, 2, bitmap(odd), (), True), 0)
    assert is_known(one, 11) and not one._asks


def test_what_a_worker_has_not_answered_is_asked_again() -> None:
    one, number = asking()
    odd = {partition for partition in ALL_PARTITIONS if partition % 2}
    one.sessions(2, Sessions(number, 1, bitmap(ALL_PARTITIONS - odd), (), True), 0)
    [output] = one.tick(module.ASK_MS, CLOCK)
    assert output == ToNode(2, Rebuild(one._number, D1, bitmap(odd)))
    # The worker was slow, and answers the first one.
    one.sessions(2, Sessions(number, 1, bitmap(odd), (), True), module.ASK_MS)
    assert is_known(one, 9) and not one._asks


def test_an_answer_from_before_a_change_of_members_does_not_count() -> None:
    one, number = asking()
    one.set_view(MEMBERS[:2], D2, (1,) * PARTITIONS, 0)
    one.set_view(MEMBERS, D1, (1,) * PARTITIONS, 0)
    one.sessions(2, Sessions(number, 1, bitmap(ALL_PARTITIONS), (), True), 0)
    assert not is_known(one, 9)


def test_the_pause_between_two_rebuilds_grows_up_to_a_limit() -> None:
    one, _ = asking()
    times = [now for now in range(0, 10_000, 50) if one.tick(now, CLOCK)]
    assert times[:6] == [100, 300, 700, 1500, 3100, 4700]


def test_partitions_of_other_workers_are_left_to_them() -> None:
    one = Registry(1, HybridClock(), {7, 9}, number=1_000)
    asked = one.set_view(MEMBERS, D1, (1,) * 8 + (2,) * (PARTITIONS - 8), 0)
    assert asked == [ToNode(node, Rebuild(1_000 + node, D1, bitmap([7]))) for node in (1, 2, 3)]
    assert one.claim(2, Claim(1, Key(6, 1), D1, False), 0, CLOCK) == [ToNode(2, Retry(1, Key(6, 1)))]


def test_in_another_run_all_members_are_asked_again() -> None:
    """A MOVED may be missing between two runs."""
    one = made()
    assert one.set_view(MEMBERS, D1, (1,) * PARTITIONS, 0) == []
    asked = one.set_view(MEMBERS, D1, (1,) * PARTITIONS, 0, is_new_run=True)
    assert [(output.node_id, type(output.message)) for output in asked] == [(1, Rebuild), (2, Rebuild), (3, Rebuild)]


def test_the_claim_of_a_node_that_has_died_gives_way() -> None:
    one = made()
    owned(one, 2)
    one.claim(3, claim(1), 0, CLOCK)
    one.claim(1, claim(2), 0, CLOCK)
    done = one.set_view(MEMBERS[:2], D2, (1,) * PARTITIONS, 0)
    assert ToNode(1, Retry(2, KEY)) in done
    # Whether node 3 has taken the session is not known, so all nodes are asked.
    done = one.claim(1, claim(3, D2), 0, CLOCK)
    assert {type(output.message) for output in done} == {Who}


def test_another_session_of_the_holder_is_revoked_after_a_takeover() -> None:
    """An older session of the holder is served again while a later one is taken from it, and is reported before DONE."""
    one = made()
    session = owned(one, 2)
    grant = granted(one.claim(3, claim(2), 0, CLOCK))
    assert one.announce(2, held(session.generation - 1), 0, CLOCK) == []
    done = one.done(3, Done(KEY, grant.generation, held(grant.generation), True), 0, CLOCK)
    assert done == [ToNode(2, Revoke(KEY, session.generation - 1, 3))]


def test_a_grant_that_was_lost_ends_with_the_session_that_its_node_announces() -> None:
    """Seed 2 of members in etcd: its claim went to another registrar, and what it announced waited for the end of the lock."""
    one = made()
    first = owned(one, 2)
    grant = granted(one.claim(3, claim(5), 0, CLOCK))
    own = held(grant.generation + 1, grant.generation + 1)
    assert one.announce(3, own, 0, CLOCK) == [ToNode(2, Revoke(KEY, first.generation, 3))]
    assert one.entry(KEY) == (3, own)
    done = one.claim(1, claim(6), 0, CLOCK)
    assert {type(output.message) for output in done} == {Who}, "whether the grant was carried out is not known"


def test_a_holder_that_was_not_taken_from_is_revoked() -> None:
    one = made()
    first = owned(one, 2)
    grant = granted(one.claim(3, claim(5), 0, CLOCK))
    done = one.done(3, Done(KEY, grant.generation, held(grant.generation), False), 0, CLOCK)
    assert done == [ToNode(2, Revoke(KEY, first.generation, 3))]


def test_find_and_release() -> None:
    one = made()
    session = owned(one, 2)
    assert one.find(3, Find(KEY)) == [ToNode(3, Found(KEY, 2))]
    one.release(3, Release(KEY, session.generation))
    one.release(2, Release(KEY, session.generation - 1))
    assert one.entry(KEY) is not None
    one.release(2, Release(KEY, session.generation))
    assert one.find(3, Find(KEY)) == [ToNode(3, Found(KEY, 0))]


def test_an_entry_that_its_node_denies_is_asked_for_again() -> None:
    one = made()
    owned(one, 2)
    assert one.find(3, Find(KEY, 2)) == []
    assert [output.node_id for output in one.tick(0, CLOCK)] == [2]


def test_a_denial_that_is_older_than_the_entry_does_not_hide_the_holder_from_a_claim() -> None:
    """Seed 1413 of splits: the session has moved back to the node that denied it, while a claim waits for the answer of another."""
    one = made()
    owned(one, 2)
    one._tables[KEY.partition].known.discard(1)
    [asked] = [output.message for output in one.claim(3, claim(5), 0, CLOCK) if isinstance(output.message, Who)]
    assert one.find(1, Find(KEY, 2)) == []
    assert granted(one.here(1, Here(asked.number, KEY, None), 0, CLOCK)).holder == 2


def test_an_answer_without_a_session_ends_what_its_node_reported_before() -> None:
    """Seed 1443 of splits: ANNOUNCE of a node that was revoked meanwhile counted more than the session of the holder."""
    one = made()
    owned(one, 2)
    one._tables[KEY.partition].known.discard(3)
    [asked] = [output.message for output in one.claim(1, claim(5), 0, CLOCK) if isinstance(output.message, Who)]
    one.announce(3, held(CLOCK << 17, CLOCK << 17), 0, CLOCK)
    assert granted(one.here(3, Here(asked.number, KEY, None), 0, CLOCK)).holder == 2


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_MAX", 0)
    one = made()
    owned(one, 2)
    assert len(one) == 0
    assert {type(output.message) for output in one.claim(3, claim(2), 0, CLOCK)} == {Who}


def test_keys() -> None:
    cluster = b"c" * 16
    assert client_key(cluster, "x:a").partition == filter_key(cluster, b"a").partition
    assert client_key(cluster, "x:a") != filter_key(cluster, b"a")
    assert client_key(cluster, "a").hash != client_key(b"d" * 16, "a").hash
    assert partitions_of(bitmap({0, 7, 8, 1023})) == {0, 7, 8, 1023}


def test_the_clock_never_goes_back() -> None:
    clock = HybridClock()
    first = clock.now(CLOCK)
    assert clock.now(CLOCK - 1000) == first + 1
    assert clock.witness(stamp_of(CLOCK + 59_000), CLOCK)
    assert clock.now(CLOCK) == stamp_of(CLOCK + 59_000) + 1
    assert not clock.witness(stamp_of(CLOCK + 61_000), CLOCK)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Claim(1, Key(1024, 1), D1, False), ByeReason.PROTOCOL_ERROR),
        (Claim(1, Key(1, -1), D1, False), ByeReason.PROTOCOL_ERROR),
        (Claim(1, KEY, b"x" * 17, False), ByeReason.LIMIT),
        (Moved(b"x"), ByeReason.LIMIT),
        (Sessions(1, 1, bitmap([]), (held(1),) * 1001, False), ByeReason.LIMIT),
        (Sessions(1, 1, bitmap([]), (held(1)._replace(stamp=1 << 63),), False), ByeReason.PROTOCOL_ERROR),
        (State(KEY, 1, 1, bytes(MESSAGE_BYTES_MAX + 1), True), ByeReason.LIMIT),
        (Tail(KEY, 1, 1, (), 1, delivered=(1 << 128,)), ByeReason.PROTOCOL_ERROR),
        (Found(KEY, 251), ByeReason.PROTOCOL_ERROR),
    ],
)
def test_fields_out_of_range_end_the_connection(message: SessionMessage, reason: ByeReason) -> None:
    with pytest.raises(PeerFault) as fault:
        checked(message)
    assert fault.value.reason == reason
