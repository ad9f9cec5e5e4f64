"""The chain of responsibility: order, the four returns, callbacks that fail. No broker."""

from collections.abc import Callable
from typing import Any

import pytest

from shardbroker.hooks import ok, stop
from shardbroker.hooks.registry import SLOW_S, Callback, Registry


class Chain:
    """A registry with callbacks at message.publish (which folds) or client.connected (which does not)."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.masks: list[int] = []
        self.registry = Registry(lambda *line: self.log.append(line), self.masks.append)

    def add(self, function: Callable[..., Any], priority: int = 500, point: str = "message.publish") -> Callback:
        made = Callback("test", point, function, priority)
        self.registry.add([made])
        return made

    def fold(self, value: Any = "") -> Any:
        return self.registry.fold("message.publish", value, str.strip)


@pytest.fixture
def chain() -> Chain:
    return Chain()


def test_the_highest_priority_comes_first_and_equals_in_their_order(chain: Chain) -> None:
    for name, priority in (("a", 0), ("b", 500), ("c", 1000), ("d", 500)):
        chain.add(lambda value, name=name: ok(value + name), priority)
    assert chain.fold() == "cbda"


@pytest.mark.parametrize(
    ("returned", "after", "end"),
    [(None, "x", "xy"), (ok("o"), "o", "oy"), (stop(), "", "x"), (stop("s"), "", "s"), (ok("  o  "), "o", "oy")],
)
def test_the_four_returns(chain: Chain, returned: Any, after: str, end: str) -> None:
    seen: list[str] = []
    chain.add(lambda value: returned, 600)

    def behind(value: str) -> Any:
        seen.append(value)
        return ok(value + "y")

    chain.add(behind)
    assert chain.fold("x") == end
    assert seen == ([after] if after else [])


@pytest.mark.parametrize("raised", [ValueError("wrong"), SystemExit(3), KeyboardInterrupt(), RecursionError()])
def test_a_callback_that_raises_is_told_counted_and_skipped(chain: Chain, raised: BaseException) -> None:
    def fails(value: str) -> Any:
        raise raised

    failing = chain.add(fails, 900)
    chain.add(lambda value: ok(value + "!"))
    assert [chain.fold("a") for _ in range(3)] == ["a!"] * 3
    assert (failing.calls, failing.errors) == (3, 3)
    assert len(chain.log) == 1 and chain.log[0][0] == "error" and type(raised).__name__ in chain.log[0][1]


@pytest.mark.parametrize("returned", [ValueError("wrong"), SystemExit(3), True, "text", ok(5)])
def test_a_callback_that_fails_at_a_point_that_decides_ends_the_chain(chain: Chain, returned: Any) -> None:
    """Those behind it cannot allow what it might have denied, unless it says so itself."""

    def fails(value: Any) -> Any:
        if isinstance(returned, BaseException):
            raise returned
        return returned

    failing = chain.add(fails, 900)
    behind = chain.add(lambda value: ok("allowed"))
    assert chain.registry.fold("message.publish", "", str.strip, failed="denied") == "denied"
    assert chain.registry.failed
    assert (failing.errors, behind.calls) == (1, 0)
    assert chain.fold() == "allowed", "a point that does not decide"
    assert not chain.registry.failed
    failing.on_error = "ignore"
    assert chain.registry.fold("message.publish", "", str.strip, failed="denied") == "allowed"
    assert not chain.registry.failed


@pytest.mark.parametrize("returned", [True, "text", ok(5)])
def test_what_may_not_be_returned_leaves_the_accumulator(chain: Chain, returned: Any) -> None:
    wrong = chain.add(lambda value: returned)
    assert chain.fold("as it was") == "as it was"
    assert wrong.errors == 1


def test_who_looks_on_cannot_change_anything_but_may_stop(chain: Chain) -> None:
    seen: list[str] = []
    changing = chain.add(lambda client: ok("new"), 900, "client.connected")
    chain.add(lambda client: stop(seen.append(client)) if client == "end" else None, 800, "client.connected")
    chain.add(seen.append, 700, "client.connected")
    chain.registry.fire("client.connected", "a")
    assert (seen, changing.errors) == (["a"], 1)


def test_a_slow_callback_is_told_by_name(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, SLOW_S * 2, 10.0, 10.0])
    monkeypatch.setattr("shardbroker.hooks.registry.time.perf_counter", lambda: next(clock))

    def slow(value: str) -> None:
        return None

    callback = chain.add(slow)
    chain.fold()
    chain.fold()
    assert (callback.seconds, callback.slowest) == (SLOW_S * 2, SLOW_S * 2)
    assert len(chain.log) == 1 and "took=0.20s" in chain.log[0][1]


def test_the_mask_says_which_points_have_callbacks(chain: Chain) -> None:
    callback = chain.add(lambda value: None)
    chain.registry.remove([callback])
    assert chain.masks == [1 << 15, 0]
