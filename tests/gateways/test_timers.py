"""Timers of many devices in one of the loop."""

import asyncio
from math import inf
from random import Random

from shardbroker.gateways.timers import NEVER, SHARE, UNIT_S, Timers


class Loop:
    """A clock, and the one timer of it that is set."""

    def __init__(self) -> None:
        self.now_s, self.due_s = 1000.0, inf
        self.calls = 0

    def time(self) -> float:
        return self.now_s

    def call_at(self, due_s, call):  # type: ignore[no-untyped-def]
        assert self.due_s == inf, "two timers at a time"
        self.due_s, self._call = due_s, call
        self.calls += 1
        return self

    def cancel(self) -> None:
        self.due_s = inf

    def run(self, until_s: float) -> None:
        while self.due_s <= until_s:
            self.now_s, self.due_s = max(self.now_s, self.due_s), inf
            self._call()
        self.now_s = until_s


class Device:
    """Wants to be called at `due_s`, and then has none."""

    def __init__(self, timers: Timers, loop: Loop, due_s: float) -> None:
        self.timers, self.loop, self.due_s = timers, loop, due_s
        self.called_s: float | None = None
        self.early = 0
        self.place = timers.set(self, due_s, NEVER)

    def tick(self) -> None:
        if self.loop.now_s < self.due_s:
            self.early += 1
            self.place = self.timers.set(self, self.due_s, NEVER)
        else:
            self.called_s, self.place = self.loop.now_s, NEVER


def world() -> tuple[Loop, Timers]:
    loop = Loop()
    return loop, Timers(loop)  # type: ignore[arg-type]


def test_each_device_is_called_at_its_time_and_not_much_earlier_than_it_wants() -> None:
    loop, timers = world()
    random = Random(1)
    devices = [Device(timers, loop, loop.now_s + 10 ** random.uniform(-3, 6)) for _ in range(2000)]
    loop.run(loop.now_s + 1.1e6)
    for one in devices:
        assert one.called_s is not None
        assert one.due_s <= one.called_s <= one.due_s + 2 * UNIT_S
        assert one.early <= 12
    assert loop.due_s == inf, "nothing is left"


def test_far_deadlines_share_a_place_and_are_early_by_a_small_part() -> None:
    loop, timers = world()
    devices = [Device(timers, loop, loop.now_s + 86_400 + n) for n in range(500)]
    assert len({id(one.place) for one in devices}) <= 2
    assert all(one.due_s - 86_900 / SHARE <= one.place.at_s <= one.due_s for one in devices)


def test_a_device_has_one_place_and_may_give_it_up() -> None:
    loop, timers = world()
    device = Device(timers, loop, loop.now_s + 10)
    first = device.place
    device.due_s = loop.now_s + 1
    device.place = timers.set(device, device.due_s, device.place)
    assert device not in first and device in device.place
    assert timers.set(device, inf, device.place) is NEVER
    loop.run(loop.now_s + 20)
    assert device.called_s is None


def test_a_device_that_fails_does_not_stop_the_others() -> None:
    loop, timers = world()

    class Failing:
        def tick(self) -> None:
            raise ZeroDivisionError

    timers.set(Failing(), loop.now_s + 1, NEVER)
    devices = [Device(timers, loop, loop.now_s + 1 + n / 1000) for n in range(50)]
    for _ in range(3):
        try:
            loop.run(loop.now_s + 2)
        except ZeroDivisionError:
            continue
    assert all(one.called_s is not None for one in devices)


def test_with_a_loop() -> None:
    async def run() -> list[int]:
        timers, order = Timers(asyncio.get_running_loop()), []
        done = asyncio.Event()

        class One:
            def __init__(self, number: int) -> None:
                self.number = number

            def tick(self) -> None:
                order.append(self.number)
                if len(order) == 3:
                    done.set()

        now_s = asyncio.get_running_loop().time()
        for number in (2, 0, 1):
            timers.set(One(number), now_s + number * 0.05, NEVER)
        await asyncio.wait_for(done.wait(), 10)
        return order

    assert asyncio.run(run()) == [0, 1, 2]
