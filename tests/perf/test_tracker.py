"""Late and double messages are told apart."""

from hypothesis import given
from hypothesis import strategies as st

from perf.tracker import Sequence


def brute(numbers: list[int]) -> tuple[int, int, int]:
    seen: set[int] = set()
    duplicates = disordered = 0
    for number in numbers:
        if number in seen:
            duplicates += 1
        elif seen and number < max(seen):
            disordered += 1
        seen.add(number)
    return len(seen), duplicates, disordered


@given(st.lists(st.integers(0, 63), max_size=200), st.integers(1, 64))
def test_against_sets(numbers: list[int], window: int) -> None:
    tracker = Sequence(max(window, 64))
    for number in numbers:
        tracker.see(number)
    assert tracker.counts == brute(numbers)


@given(st.lists(st.integers(-60, 200), max_size=300))
def test_far_along(steps: list[int]) -> None:
    """Numbers that go on for long, with gaps, and back by less than the window."""
    tracker = Sequence(200)
    numbers, highest = [], 0
    for step in steps:
        numbers.append(max(0, highest + step))
        highest = max(highest, numbers[-1])
    for number in numbers:
        tracker.see(number)
    assert tracker.counts == brute(numbers)


def test_one_that_is_late_by_far_more_than_the_window() -> None:
    """Of a group with a slow member: 20 are under way, and 20,000 that were sent later have arrived."""
    tracker = Sequence(20)
    numbers = [n for n in range(20_000) if n % 1000 != 7]
    late = range(7, 20_000, 1000)
    assert all(tracker.see(number) for number in (*numbers, *late))
    assert tracker.counts == (20_000, 0, len(late))
    assert not any(tracker.see(number) for number in (*late, 0, 19_999))


@given(st.lists(st.integers(-700, 200), max_size=300), st.sampled_from([64, 128, 512]))
def test_what_is_older_than_it_may_remember_is_a_duplicate(steps: list[int], most: int) -> None:
    tracker, seen, highest = Sequence(1, most), set(), -1
    duplicates = 0
    for step in steps:
        number = max(0, highest + step)
        new = tracker.see(number)
        if highest - number < most:
            assert new == (number not in seen), number
        duplicates += not new
        seen.add(number)
        highest = max(highest, number)
    assert tracker.counts[:2] == (len(steps) - duplicates, duplicates)


def test_jump_beyond_the_window() -> None:
    tracker = Sequence(64)
    assert all(tracker.see(number) for number in (0, 1, 2, 1000, 999, 970))
    assert not tracker.see(1000) and not tracker.see(970)
    assert tracker.counts == (6, 2, 2)
