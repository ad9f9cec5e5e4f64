"""Which node has the data directory of a node that died: changes of the core, and who may register."""

import pytest

from shardbroker.cluster.adoption import AdoptionRefused, adopter, claim, completion, release
from shardbroker.cluster.core import ADOPTIONS_MAX, CoreTable, value_of
from shardbroker.cluster.registration import RegistrationRefused, registration
from tests.cluster.test_core import KEYS, Store, me, uuid_of


@pytest.fixture(name="store")
def a_store() -> Store:
    """Nodes 1, 2 and 3, of which 1 has no lease."""
    store = Store()
    for number in (1, 2, 3):
        assert store.register(number)
    store.delete(KEYS.member_of(1))
    return store


def begin(store: Store, number: int) -> int:
    found = claim(store.table(), me(number), "n1", uuid_of(1), 1000)
    assert found.node_id == 1
    assert found.change is None or store.change(found.change)
    return found.term


def test_the_one_that_is_first_wins(store: Store) -> None:
    table = store.table()
    first, second = (claim(table, me(number), "n1", uuid_of(1), 1000) for number in (2, 3))
    assert first.change is not None and second.change is not None
    assert store.change(first.change)
    assert not store.change(second.change)
    with pytest.raises(AdoptionRefused, match="n1 is being adopted by node n2"):
        claim(store.table(), me(3), "n1", uuid_of(1), 1000)
    assert begin(store, 2) == 1, "the same node continues"


def test_an_adopter_that_died_is_replaced_with_a_later_term(store: Store) -> None:
    assert begin(store, 2) == 1
    store.delete(KEYS.member_of(2))
    assert begin(store, 3) == 2
    assert adopter(store.table(), uuid_of(1), 1) == "n3"
    assert adopter(store.table(), uuid_of(1), 2) is None
    with pytest.raises(AdoptionRefused, match="belongs to node n3 now"):
        completion(store.table(), me(2), uuid_of(1), 1000)


def test_only_the_stand_in_registers(store: Store) -> None:
    before = registration(store.table(), me(1, incarnation=8), 0, "up")
    begin(store, 2)
    assert not store.change(before), "a node that returns at the same moment"
    with pytest.raises(RegistrationRefused, match="belongs to an adoption by node n2"):
        registration(store.table(), me(1), 0, "up")
    assert store.change(registration(store.table(), me(1), 0, "up", term=1))
    with pytest.raises(AdoptionRefused, match="has a lease in the core still"):
        completion(store.table(), me(2), uuid_of(1), 1000)
    store.delete(KEYS.member_of(1))
    done = completion(store.table(), me(2), uuid_of(1), 1000)
    assert done is not None and store.change(done)
    table = store.table()
    assert table.view().node(1) is None and table.row("gone", 1) is not None
    for term in (0, 1):
        with pytest.raises(RegistrationRefused, match="belongs to an adoption by node n2"):
            registration(table, me(1), 0, "up", term=term)
    assert completion(table, me(2), uuid_of(1), 1000) is None
    assert begin(store, 2) == 0, "done"
    with pytest.raises(AdoptionRefused, match="was adopted by node n2"):
        claim(table, me(3), "n1", uuid_of(1), 1000)
    with pytest.raises(AdoptionRefused, match="has ended"):
        release(table, me(2), uuid_of(1))


def test_the_way_back(store: Store) -> None:
    begin(store, 2)
    with pytest.raises(AdoptionRefused, match="belongs to node n2"):
        release(store.table(), me(3), uuid_of(1))
    assert store.change(release(store.table(), me(2), uuid_of(1)))
    assert store.register(1)
    with pytest.raises(AdoptionRefused, match="no adoption"):
        release(store.table(), me(2), uuid_of(1))


def test_what_is_refused(store: Store) -> None:
    table = store.table()
    with pytest.raises(AdoptionRefused, match="n2 is running"):
        claim(table, me(3), "n2", uuid_of(2), 1000)
    with pytest.raises(AdoptionRefused, match="it belongs to another node"):
        claim(table, me(3), "n1", uuid_of(9), 1000)
    with pytest.raises(AdoptionRefused, match=r"n9 is not known: .* the core has n1, n2, n3"):
        claim(table, me(3), "n9", uuid_of(1), 1000)
    store.keys.pop(KEYS.meta)
    with pytest.raises(AdoptionRefused, match=r"cluster\.name"):
        claim(store.table(), me(3), "n1", uuid_of(1), 1000)


@pytest.mark.parametrize(
    "change",
    [
        {"term": 0}, {"term": True}, {"term": 1 << 40}, {"id": 251}, {"done": 1}, {"owner": ""}, {"owner": "a\n"}, {"name": 7},
        {"owner_uuid": b"short"}, {"uuid": uuid_of(2)}, {"since": "now"},
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_used_counts_as_missing(store: Store, change: dict[str, object]) -> None:
    row = {
        "uuid": uuid_of(1), "name": "n1", "id": 1, "owner": "n2", "owner_uuid": uuid_of(2), "term": 1, "since": 1, "done": True,
    }  # fmt: skip
    store.put(KEYS.adoption_of(uuid_of(1)), value_of(**row))
    assert adopter(store.table(), uuid_of(1)) == "n2"
    store.put(KEYS.adoption_of(uuid_of(1)), value_of(**{**row, **change}))
    table = store.table()
    assert adopter(table, uuid_of(1)) is None and len(table.problems) == 1


def test_rows_are_bounded_and_follow_changes() -> None:
    table, store = CoreTable(KEYS), Store()
    for key in (b"", b"xy", b"00" * 16):
        table.load([(KEYS.adopted + key, b"noise", 2)], 2)
        assert not table.adoptions and table.problems
    table.adoptions = {number.to_bytes(16, "big"): None for number in range(ADOPTIONS_MAX)}  # type: ignore[misc]
    row = value_of(uuid=uuid_of(1), name="n", id=1, owner="o", owner_uuid=uuid_of(2), term=1, since=1, done=False)
    table.apply(store.put(KEYS.adoption_of(uuid_of(1)), row))
    assert len(table.adoptions) == ADOPTIONS_MAX
    table.adoptions.clear()
    table.apply([(key, value, 90) for key, value, _ in store.put(KEYS.adoption_of(uuid_of(1)), row)])
    assert adopter(table, uuid_of(1)) == "o"
    table.apply([(KEYS.adoption_of(uuid_of(1)), None, 91)])
    assert adopter(table, uuid_of(1)) is None
