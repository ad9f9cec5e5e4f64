"""Alarms about the disk, from what workers say in their counters."""

import errno
import json
from pathlib import Path

from shardbroker.management.alarms import Alarm
from shardbroker.management.disk_alarms import LIMIT_CALM_MS, DiskAlarms, DiskStage

CALM = {
    "journal.stage.count": 0, "journal.errno.count": 0, "journal.pending.count": 0, "journal.refused": 0, "journal.given_up": 0,
    "journal.not_captured": 0, "journal.write_ms": 0, "retained.errno.count": 0, "retained.dropped": 0,
}  # fmt: skip


def worker(**changes: int) -> dict[str, int]:
    return CALM | {name.replace("__", "."): value for name, value in changes.items()}


def alarms(goes_on: bool = False, first: bool = False) -> DiskAlarms:
    return DiskAlarms("n", Path("/data"), goes_on, first)


def test_a_full_disk_is_told_when_it_begins_when_the_limit_is_reached_and_when_it_is_over() -> None:
    one = alarms()
    full = {"journal__refused": 1, "journal__errno__count": errno.ENOSPC, "journal__pending__count": 77}
    looks: list[list[Alarm]] = [
        list(one.look([worker(), state], number * 1000))
        for number, state in enumerate(
            [
                worker(),
                worker(journal__stage__count=DiskStage.WAITS, **full),
                worker(journal__stage__count=DiskStage.WAITS, **full),
                worker(journal__stage__count=DiskStage.LIMIT, **full),
                worker(journal__refused=1),
                worker(journal__refused=1),
            ]
        )
    ]
    assert [len(told) for told in looks] == [0, 1, 0, 1, 1, 0]
    assert "No space left" in looks[1][0].line and "worker 1" in looks[1][0].line and "77 bytes" in looks[1][0].line
    assert looks[3][0].topic.endswith("/activate") and "suspended" in looks[3][0].line
    ended = json.loads(looks[4][0].payload)
    assert looks[4][0].topic.endswith("/deactivate") and (ended["activate_at"], ended["deactivate_at"]) == (1000, 4000)


def test_what_began_and_ended_between_two_looks_is_told() -> None:
    one = alarms()
    assert [[alarm.topic.rpartition("/")[2] for alarm in one.look([worker(journal__refused=n)], n)] for n in (0, 1, 1, 1)] == [
        [], ["activate"], ["deactivate"], [],
    ]  # fmt: skip


def test_the_end_says_what_was_given_up() -> None:
    one = alarms(goes_on=True)
    list(one.look([worker()], 0))
    list(one.look([worker(journal__stage__count=DiskStage.WITHOUT, journal__refused=1)], 1))
    (again,) = one.look([worker(journal__stage__count=DiskStage.AGAIN, journal__refused=1, journal__given_up=9)], 2)
    assert "being written again" in again.line
    (ended,) = one.look([worker(journal__refused=1, journal__given_up=9, journal__not_captured=4)], 3)
    assert "9 records" in ended.line and "4 messages" in ended.line


def test_a_slow_disk_is_told_when_it_lasts() -> None:
    one = alarms()
    spent, told = 0, []
    for second, share in enumerate([900, 0, 600, 600, 600, 300, 100, 100]):
        spent += share
        told += [(second, alarm.topic.rpartition("/")[2]) for alarm in one.look([worker(journal__write_ms=spent)], second * 1000)]
    assert told == [(4, "activate"), (6, "deactivate")]


def test_retained_messages_beyond_the_limit_are_told_once_until_it_is_calm() -> None:
    one = alarms()
    told = []
    for at_ms, dropped in ((0, 5), (1000, 6), (2000, 7), (3000, 7), (2000 + LIMIT_CALM_MS, 7)):
        told += [(at_ms, alarm.topic.rpartition("/")[2]) for alarm in one.look([worker(retained__dropped=dropped)], at_ms)]
    assert told == [(1000, "activate"), (2000 + LIMIT_CALM_MS, "deactivate")]


def test_what_happens_before_the_first_look_is_told_unless_a_manager_of_before_has_told_it() -> None:
    state = worker(retained__dropped=5, journal__refused=1)
    assert [alarm.topic.rpartition("/")[2] for alarm in alarms(first=True).look([state], 0)] == ["activate", "activate"]
    assert not list(alarms().look([state], 0))
