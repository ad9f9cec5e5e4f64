"""The file of retained messages is checked before anybody opens it, and what can be read of a damaged one is kept."""

import os
import random
from pathlib import Path

import pytest

from shardbroker.stores.retained import RetainedMessage, RetainedStore
from shardbroker.stores.retained_check import check_retained

COUNT = 3000
SEED = int(os.environ.get("DAMAGE_SEED", random.SystemRandom().getrandbits(32)))


def message(number: int) -> RetainedMessage:
    payload = random.Random(number).randbytes(number % 11 * 100 + (9000 if number % 100 == 0 else 0))
    return RetainedMessage(b"t/%d" % number, payload, 1, b"", b"i" * 16, 1, 0, b"publisher")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Messages that came in several transactions, some replaced, so that there are free pages."""
    path = tmp_path / "retained"
    with RetainedStore(path) as store:
        for start in range(0, COUNT, 500):
            store.update([message(number) for number in range(start, start + 500)])
        store.update([message(number)._replace(payload=b"") for number in range(0, COUNT, 3)])
        store.update([message(number) for number in range(0, COUNT, 3)])
    return path


def kept(path: Path) -> dict[bytes, RetainedMessage]:
    with RetainedStore(path) as store:
        found, cursor = store.scan(b"#", None, COUNT, 1 << 30, 0)
        while cursor is not None:
            more, cursor = store.scan(b"#", cursor, COUNT, 1 << 30, 0)
            found += more
    return {one.topic: one for one in found}


def is_right(found: RetainedMessage, told: str | None) -> bool:
    now = message(int(found.topic[2:]))
    return found == now or (told is not None and "before the last change" in told and found == now._replace(payload=b""))


def test_a_sound_store_stays_as_it_is(store: Path, tmp_path: Path) -> None:
    before = (store / "data.mdb").read_bytes()
    assert check_retained(store) is None
    assert (store / "data.mdb").read_bytes() == before
    assert check_retained(tmp_path / "none") is None


@pytest.mark.parametrize("page", [5, 60, 200])
def test_all_outside_a_damaged_page_is_kept(store: Path, page: int) -> None:
    """A page of noise: at most a few hundred messages stand in it, or below it. Page 5 is the root: without it there is the state
    before the last change."""
    with (store / "data.mdb").open("r+b") as file:
        os.pwrite(file.fileno(), random.Random(page).randbytes(4096), page * 4096)
    told = check_retained(store)
    found = kept(store)
    if told is None:
        assert len(found) == COUNT  # the page was free
    else:
        assert f"{len(found)} retained messages" in told and "retained.bad-" in told
    assert len(found) > COUNT * 0.8
    assert all(is_right(one, told) for one in found.values())


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize("bit", [0, 1, 2, 29, 63])
def test_a_wrong_number_of_a_change_is_damage(store: Path, page: int, bit: int) -> None:
    """Each of the two meta pages has the number of its change, and the greater number wins: a flipped bit can bring back the state
    before the last change, all of whose pages are sound."""
    with (store / "data.mdb").open("r+b") as file:
        place = page * 4096 + 144
        number = int.from_bytes(os.pread(file.fileno(), 8, place), "little")
        os.pwrite(file.fileno(), (number ^ 1 << bit).to_bytes(8, "little"), place)
    told = check_retained(store)
    found = kept(store)
    assert told is not None and "before the last change" in told and f"{len(found)} retained messages" in told
    assert len(found) == COUNT or len(found) == COUNT * 2 // 3
    assert all(is_right(one, told) for one in found.values())


@pytest.mark.parametrize("changes", [0, 1, 2, 3])
def test_a_young_store_is_sound(tmp_path: Path, changes: int) -> None:
    with RetainedStore(tmp_path / "retained") as store:
        for number in range(changes):
            store.update([message(number)])
    assert check_retained(tmp_path / "retained") is None
    assert len(kept(tmp_path / "retained")) == changes


@pytest.mark.parametrize("seed", [SEED, 3814714393], ids=["new", "older meta page wins"])
def test_random_bits(store: Path, seed: int) -> None:
    """Whatever is flipped: nobody dies of it, nothing wrong is found, and nothing is missing without a word."""
    rng = random.Random(seed)
    sound = (store / "data.mdb").read_bytes()
    for _ in range(25):
        broken = bytearray(sound)
        for _ in range(rng.randrange(1, 30)):
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        for old in store.parent.glob("retained.*"):
            if old.is_dir():
                (old / "data.mdb").unlink(missing_ok=True)
        (store / "data.mdb").write_bytes(broken)
        told = check_retained(store)
        found = kept(store)
        assert all(is_right(one, told) for one in found.values()), seed
        assert len(found) == COUNT or told is not None, seed


def test_a_check_that_was_killed_before_its_last_step(store: Path) -> None:
    os.rename(store, store.with_name("retained.new"))
    assert check_retained(store) is None
    assert len(kept(store)) == COUNT
