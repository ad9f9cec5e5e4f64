"""Messages to another broker of this kind: none is missing and none is there twice at QoS 2, whichever side is killed."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.flows.bridges.far import Far
from tests.flows.sinks.broker import SinksBroker
from tests.flows.sinks.publishing import publish_all
from tests.harness import until

pytestmark = pytest.mark.own_broker
WORKERS = 2
EACH = 4000
"""Messages of each of two publishers."""


def near_sections(far: Far, version: str, qos: object, **more: Any) -> dict[str, dict[str, Any]]:
    opts = {"health_check_interval": "1s", "batch_size": 200, "buffer_records": 1000}
    return {
        "connectors.mqtt.far": {"server": far.server, "proto_ver": version, "timeout": "2s", **more},
        "actions.mqtt.far": {
            "connector": "far", "parameters": {"topic": "far/${topic}", "qos": qos}, "resource_opts": opts,
        },
        "rules.out": {"sql": 'SELECT * FROM "in/#"', "actions": ["mqtt:far"]},
    }  # fmt: skip


def publish(broker: SinksBroker, begin: int, end: int, topic: bytes = b"in/a") -> None:
    for worker in range(WORKERS):
        payloads = [b'{"w": %d, "n": %d}' % (worker, n) for n in range(begin, end)]
        publish_all(broker.address, worker, WORKERS, payloads, topic)


def missing(far: Far, end: int = EACH) -> int:
    return len({(w, n) for w in range(WORKERS) for n in range(end)} - set(far.seen().rows))


@pytest.mark.parametrize("victim", ["far", "far paused", "flows", "near"])
@pytest.mark.parametrize(("version", "qos"), [("v4", 1), ("v5", 1), ("v4", 2), ("v5", 2)])
def test_none_is_missing_and_none_repeated_at_qos_2(place: Path, version: str, qos: int, victim: str) -> None:
    with (
        Far(place / "far") as far,
        SinksBroker(WORKERS, place / "near", near_sections(far, version, qos)) as near,
    ):
        publish(near, 0, 100)
        until(lambda: not missing(far, 100), lambda: f"{near.action('mqtt:far')} {near.output[-5:]}", 30)
        for part in range(3):
            bounds = 100 + part * 1300, 100 + (part + 1) * 1300
            publish(near, *bounds)
            time.sleep(0.02 * part)
            harm(near, far, victim)
        publish(near, bounds[1], EACH)
        until(lambda: not missing(far), lambda: f"{missing(far)} {near.action('mqtt:far')} {near.output[-5:]}", 60)
        time.sleep(1)
        seen = far.seen()
        assert seen.is_ordered()
        assert qos < 2 or not seen.repeated
        assert near.action("mqtt:far")["failed"] == 0


def harm(near: SinksBroker, far: Far, victim: str) -> None:
    if victim == "far":
        far.kill()
        far.start()
    elif victim == "far paused":
        far.pause()
        time.sleep(2.5)
        far.resume()
    elif victim == "flows":
        for pid in near.child_pids("flows-0"):
            near.kill_process(pid)
    else:
        near.kill()
        near.start()
