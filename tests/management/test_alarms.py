"""The alarm about memory tells each change once."""

import json

from shardbroker.management.alarms import MemoryAlarm

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
    assert "3.5 s" in ended.line
    assert alarm.look(0, 60 * MB, 5000) is None
