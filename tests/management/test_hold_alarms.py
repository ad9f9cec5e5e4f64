"""Alarms about holds: from segments on the disk, and over time."""

import json
from pathlib import Path
from typing import Any

from shardbroker.journal.holds import HOLDS_DIR, Hold, set_hold
from shardbroker.journal.layout import segment_paths, segment_start
from shardbroker.management.alarms import Alarm
from shardbroker.management.hold_alarms import CALM_MS, SHOWN, HoldAlarms, HoldUse, hold_uses
from tests.journal.samples import write_sample


def told(alarms: HoldAlarms, uses: list[HoldUse], removed: int, at_ms: int) -> list[tuple[str, bool, dict[str, Any]]]:
    """Returns name, whether it is active, fields."""

    def of(alarm: Alarm) -> tuple[str, bool, dict[str, Any]]:
        fields = json.loads(alarm.payload)
        return fields["name"], alarm.topic.endswith("/activate"), fields

    return [of(alarm) for alarm in alarms.look(uses, removed, at_ms)]


def use(share: float = 0.1, missing: int = 0, consumer: str = "rows") -> HoldUse:
    return HoldUse(consumer, "0", int(share * 1000), 1000, missing)


def test_the_use_of_holds_is_read_from_the_disk(tmp_path: Path) -> None:
    assert hold_uses(tmp_path, 5) == []
    set_hold(tmp_path, Hold("rows", {"0": 0}, 1000))
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "workers").write_bytes(b"")
    assert hold_uses(tmp_path, 5) == []
    journal = tmp_path / "journal" / "0"
    write_sample(journal)
    paths = segment_paths(journal)
    starts, sizes = [segment_start(path) for path in paths], [path.stat().st_size for path in paths]
    assert hold_uses(tmp_path, 5) == [HoldUse("rows", "0", sum(sizes), 1000)]
    set_hold(tmp_path, Hold("rows", {"0": starts[1]}, 1000))
    set_hold(tmp_path, Hold("done", {"0": (1 << 64) - 1}, 1000))
    set_hold(tmp_path, Hold("over", {"0": 0}, 1000, until_ms=5))
    set_hold(tmp_path, Hold("new", {"7": 1}, 1000))
    (tmp_path / HOLDS_DIR / "damaged.json").write_bytes(b"{")
    expected = [HoldUse("done", "0", 0, 1000), HoldUse("new", "0", sum(sizes), 1000), HoldUse("rows", "0", sum(sizes[1:]), 1000)]
    assert hold_uses(tmp_path, 5) == expected
    paths[0].unlink()
    paths[1].unlink()
    (found,) = [one for one in hold_uses(tmp_path, 5) if one.consumer == "rows"]
    assert found == HoldUse("rows", "0", sum(sizes[2:]), 1000, starts[2] - starts[1])


def test_a_hold_is_nearly_full_from_80_percent_on_until_it_is_below_60() -> None:
    alarms = HoldAlarms("n")
    looks = [
        [(name, active) for name, active, _ in told(alarms, [use(share)], 0, 0)] for share in (0.79, 0.8, 0.9, 0.6, 0.59, 0.79)
    ]
    assert looks == [[], [("hold_nearly_full", True)], [], [], [("hold_nearly_full", False)], []]
    many = [use(0.8 + number / 100, consumer=f"c{number:02}") for number in range(20)]
    ((_, _, fields),) = told(alarms, many, 0, 0)
    assert fields["details"]["count"] == 20 and len(fields["details"]["holds"]) == SHOWN
    worst = {"consumer": "c19", "journal": "0", "bytes": 990, "max_bytes": 1000, "missing": 0}
    assert fields["details"]["holds"][0] == worst
    assert fields["message"].startswith("c19 needs 990 bytes of journal 0, 99% of what its hold keeps; c18 needs")


def test_a_hold_that_is_exceeded_is_an_alarm_until_its_consumer_has_gone_on() -> None:
    alarms = HoldAlarms("n")
    assert told(alarms, [use(missing=3)], 0, 0) == [], "a hold whose first records went before it was set"
    ((name, active, fields),) = told(alarms, [use(missing=3)], 2, 1000)
    assert (name, active) == ("hold_exceeded", True)
    assert fields["details"]["segments"] == 2 and fields["details"]["holds"][0]["missing"] == 3
    assert fields["message"] == (
        "2 segments that consumers needed were removed, as their holds exceeded max_bytes; rows lacks 3 records of journal 0"
    )
    assert told(alarms, [use(missing=9)], 5, 2000) == [], "the same hold: one line is enough"
    assert told(alarms, [use(missing=9)], 5, 2000 + CALM_MS) == []
    ((name, active, fields),) = told(alarms, [use()], 5, 3000 + CALM_MS)
    assert (name, active) == ("hold_exceeded", False)
    assert fields["message"] == "consumers have gone on; 5 segments that they needed were removed"
    assert [active for _, active, _ in told(alarms, [use()], 6, 4000 + CALM_MS)] == [True], "between two looks"
    assert told(alarms, [use()], 6, 5000 + CALM_MS) == []
    ((_, active, fields),) = told(alarms, [use()], 6, 4000 + 2 * CALM_MS)
    assert not active and "; 1 segments" in fields["message"]


def test_the_next_manager_reports_what_is_still_missing_and_nothing_old() -> None:
    assert [active for _, active, _ in told(HoldAlarms("n"), [use(missing=1)], 4, 10 * CALM_MS)] == [True]
    assert told(HoldAlarms("n"), [use()], 4, 10 * CALM_MS) == []
