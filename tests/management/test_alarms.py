"""The alarms about memory and about losses tell each change once."""

import json

from shardbroker.control.losses import LOSSES, NO_LOSSES
from shardbroker.management.alarms import LossAlarm, MemoryAlarm
from shm.counters import NAMES

MB = 1 << 20


def test_one_alarm_from_begin_to_end() -> None:
    alarm = MemoryAlarm("n")
    assert alarm.look(0, 10 * MB, 0) is None
    begun = alarm.look(1, 80 * MB, 1000)
    assert begun is not None and begun.topic == "$SYS/brokers/n/alarms/activate"
    assert "80 MB" in begun.line
    assert json.loads(begun.payload)["activate_at"] == 1000
    assert alarm.look(1, 85 * MB, 2000) is None
    worse = alarm.look(2, 90 * MB, 3000)
    assert worse is not None and worse.topic.endswith("/activate") and json.loads(worse.payload)["activate_at"] == 1000
    ended = alarm.look(0, 60 * MB, 4500)
    assert ended is not None and ended.topic == "$SYS/brokers/n/alarms/deactivate"
    assert "lasted=3.5s" in ended.line
    assert alarm.look(0, 60 * MB, 5000) is None
    columns = {"name": "high_memory_usage", "activated_at": 1000}
    message = json.loads(begun.payload)["message"]
    assert begun.event() == ("sys.alarm_activated", {**columns, "message": message, "details": {"level": 1}}, 1000)
    ending = {**columns, "message": "workers use 60 MB", "details": {}, "deactivated_at": 4500}
    assert ended.event() == ("sys.alarm_deactivated", ending, 4500)


def counters(**changed: int) -> dict[str, int]:
    return {name: 0 for name, _ in LOSSES.values()} | {name.replace("__", "."): value for name, value in changed.items()}


def test_the_alarm_about_losses_names_the_largest_reason_and_begins_and_ends_once() -> None:
    alarm, told, expired, full = LossAlarm("n"), [], 0, 0
    for second in range(300):
        # Twenty a second in bursts with pauses between them; then seven, which is more than half of the limit.
        if 50 <= second < 100 and second % 5 == 0:
            full += 90
            expired += 10
        if 100 <= second < 150:
            full += 7
        found = alarm.look(counters(delivery__dropped__queue_full=full, delivery__dropped__expired=expired), 10, second * 1000)
        if found is not None:
            told.append((second, found))
    (begun_s, begun), (ended_s, ended) = told
    assert begun_s == 50 and "queue_full" in begun.line and "expired 10" in begun.line
    assert json.loads(begun.payload)["details"] == {"rate": 10, "reason": "queue_full", "losses": {"queue_full": 90, "expired": 10}}
    assert ended.topic.endswith("/deactivate") and 150 + 60 <= ended_s <= 150 + 75
    assert f"{full + expired} messages" in ended.line


def test_losses_below_the_limit_are_no_alarm_and_a_limit_of_0_ends_one() -> None:
    alarm = LossAlarm("n")
    assert not [second for second in range(60) if alarm.look(counters(retained__dropped=second * 9), 10, second * 1000)]
    assert alarm.look(counters(retained__dropped=10_000), 10, 60_000) is not None
    ended = alarm.look(counters(retained__dropped=20_000), 0, 61_000)
    assert ended is not None and ended.topic.endswith("/deactivate")
    assert alarm.look(counters(retained__dropped=30_000), 0, 62_000) is None


def test_what_is_counted_before_the_first_look_is_not_told() -> None:
    """A manager that starts again has not seen when they were lost."""
    alarm = LossAlarm("n")
    assert not [second for second in range(30) if alarm.look(counters(delivery__dropped__overload=5000), 10, second * 1000)]


def test_each_counter_of_dropped_messages_is_a_loss_or_has_a_reason_why_it_is_none() -> None:
    counted = {name for name, _ in LOSSES.values()}
    assert not counted & set(NO_LOSSES)
    assert counted | set(NO_LOSSES) == {name for name in NAMES if "dropped" in name}
