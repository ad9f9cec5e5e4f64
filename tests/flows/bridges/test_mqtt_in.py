"""Messages of another broker of this kind: each is published here, whichever side is killed or stopped."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.flows.bridges.far import Far
from tests.flows.bridges.test_mqtt_out import harm, missing, publish
from tests.flows.sinks.publishing import publish_all
from tests.harness import until

pytestmark = pytest.mark.own_broker
EACH = 4000
FAR: dict[str, object] = {"mqtt.max_mqueue_len": "infinity", "mqtt.upgrade_qos": True}
"""Publishers have QoS 1: messages get the QoS of the subscription."""


def near_sections(far: Far, version: str, qos: int) -> dict[str, dict[str, Any]]:
    return {
        "connectors.mqtt.far": {"server": far.server, "proto_ver": version, "timeout": "2s"},
        "sources.mqtt.far": {
            "connector": "far",
            "parameters": {"topic": "in/#", "qos": qos, "local": {"topic": "far/${topic}", "strip_prefix": "in/"}},
            "resource_opts": {"health_check_interval": "1s"},
        },
    }


@pytest.mark.parametrize("victim", ["far", "far paused", "flows", "near"])
@pytest.mark.parametrize(("version", "qos"), [("v4", 1), ("v5", 2)])
def test_none_is_missing(place: Path, version: str, qos: int, victim: str) -> None:
    with (
        Far(place / "far", "nothing", workers=2, settings=FAR) as far,
        Far(place / "near", sections=near_sections(far, version, qos), workers=2) as near,
    ):
        near.await_source(lambda payload: publish_all(far.address, 0, 2, [payload]))
        publish(far, 0, 100)
        until(lambda: not missing(near, 100), lambda: f"{near.source('mqtt:far')} {near.output[-5:]}", 30)
        assert {topic for topic, _ in near.seen().messages} == {"far/a"}
        for part in range(3):
            bounds = 100 + part * 1300, 100 + (part + 1) * 1300
            publish(far, *bounds)
            time.sleep(0.02 * part)
            harm(near, far, victim)
        publish(far, bounds[1], EACH)
        until(lambda: not missing(near), lambda: f"{missing(near)} {near.source('mqtt:far')} {near.output[-5:]}", 60)
        time.sleep(1)
        seen = near.seen()
        assert seen.is_ordered()
        if qos == 2 and victim.startswith("far"):
            assert not seen.repeated
