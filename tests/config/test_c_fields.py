"""C fields that mirror `mqtt.*`: the written declarations, the rules, and the example of docs/design/0007-configuration.md."""

from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from shardbroker.config.base import RESTART, Section
from shardbroker.config.c_fields import EXCEPTIONS, c_fields, c_values
from shardbroker.config.mqtt_pxd import declarations
from shardbroker.config.settings import Mqtt
from shardbroker.config.units import Whole
from tests.docs.names import ROOT


class OneMore(Mqtt):
    max_topic_bytes: Whole = Field(65535, ge=1, le=65535, description="Longest topic, bytes.")


class NoRule(Section):
    pairs: list[str] = Field([])
    fixed: Annotated[list[str], RESTART] = Field([])


def test_the_declarations_are_current() -> None:
    """They are written by `make docs`."""
    assert Path(ROOT, "shardbroker/session/mqtt_settings.pxd").read_text() == declarations()


def test_one_more_key_is_one_more_field() -> None:
    fields = {key: mirror for key, _, mirror in c_fields(OneMore)}
    assert set(fields) - {key for key, _, _ in c_fields(Mqtt)} == {"max_topic_bytes"}
    assert fields["max_topic_bytes"][:2] == ("max_topic_bytes", "uint32_t")
    assert c_values(OneMore(max_topic_bytes=7))["max_topic_bytes"] == 7
    assert "max_topic_bytes: Whole = Field(" in Path(ROOT, "docs/design/0007-configuration.md").read_text()


def test_keys_that_need_a_restart_have_no_field() -> None:
    mirrored = {key for key, _, _ in c_fields(Mqtt)}
    assert {*Mqtt.model_fields} - mirrored == {"shared_subscription_strategy", "limiter"}
    assert {*EXCEPTIONS} < mirrored


def test_values() -> None:
    found = c_values(
        Mqtt.model_validate({
            "retry_interval": "infinity", "idle_timeout": "1500ms", "session_expiry_interval": "infinity", "server_keepalive": "2m",
            "mqueue_priorities": {"a/ü": 7}, "mqueue_default_priority": "highest", "max_mqueue_len": "infinity",
        })
    )  # fmt: skip
    assert (found["retry_interval_ms"], found["idle_timeout_ms"], found["session_expiry_ms"]) == (0, 1500, 2**64 - 1)
    assert (found["server_keepalive_s"], found["mqueue_priorities"]) == (120, {"a/ü".encode(): 7})
    assert (found["mqueue_default_priority"], found["max_mqueue_len"]) == (256, 0)


def test_a_type_without_a_rule_is_an_error() -> None:
    with pytest.raises(TypeError, match="pairs: no rule for a C field"):
        [*c_fields(NoRule)]
