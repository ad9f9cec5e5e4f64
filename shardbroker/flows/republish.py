"""Action `republish`: each row becomes a message of publisher `$rule:<id>`, through the ring of a worker.

Arguments, defaults and their meaning are EMQX's: `topic`, `qos`, `retain`, `payload`, `mqtt_properties`, `user_properties`,
`direct_dispatch`. ACL is not asked, and quotas are not charged.
"""

import time
from typing import Any

from shardbroker.flows.actions import ActionError
from shardbroker.flows.lanes import Lanes
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import encode_properties
from shardbroker.mqtt.spec import PropertyId
from shardbroker.mqtt.topics import check_topic_name
from shardbroker.rules.templates import Template, template
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value
from shm.records import encode_publish

__all__ = ["Republish"]

DEFAULTS = {"qos": "${qos}", "retain": "${retain}", "payload": "${payload}", "user_properties": "${user_properties}"}
PROPERTIES = {
    "Payload-Format-Indicator": PropertyId.PAYLOAD_FORMAT_INDICATOR,
    "Message-Expiry-Interval": PropertyId.MESSAGE_EXPIRY_INTERVAL,
    "Content-Type": PropertyId.CONTENT_TYPE,
    "Response-Topic": PropertyId.RESPONSE_TOPIC,
    "Correlation-Data": PropertyId.CORRELATION_DATA,
}
TEXT_MAX = 65_535
"""Bytes of a topic and of a property."""
USER_PROPERTIES_MAX = 64
"""Of one message: the source may be a map that a client has sent."""
EXPIRY_MAX_S = 0xFFFFFFFF
BOOLEANS = {"true": True, "1": True, "false": False, "0": False, "": False, "undefined": False}


class Republish:
    """Raises ValueError for wrong arguments."""

    def __init__(self, rule: str, args: dict[str, Any], lanes: Lanes | None, payload_max: int) -> None:
        topic = args.get("topic")
        if not isinstance(topic, str) or not topic:
            raise ValueError(f"republish.topic: must be a text, got {topic!r:.200}")
        given = {name: args.get(name, default) for name, default in DEFAULTS.items()}
        self._topic = template(topic)
        self._payload = template(str(given["payload"]) or "${.}")
        self._qos, self._retain, self._user = (_template(given[name]) for name in ("qos", "retain", "user_properties"))
        named = args.get("mqtt_properties") or {}
        if not isinstance(named, dict) or set(named) - set(PROPERTIES):
            names = ", ".join(PROPERTIES)
            raise ValueError(f"republish.mqtt_properties: must be an object with names of {names}, got {named!r:.200}")
        self._constant_qos = self._qos_of({}) if self._qos.is_constant else None
        self._properties = [(PROPERTIES[name], _template(value)) for name, value in named.items()]
        self._direct = args.get("direct_dispatch") in (True, "true")
        self._publisher = f"$rule:{rule}".encode()
        self._lanes, self._payload_max = lanes, payload_max

    def run(self, row: dict[str, Value], columns: dict[str, Value], journal: int) -> bool:
        """Publishes; returns when the record is in the ring. Raises ActionError."""
        topic, payload, qos, retain, properties = self._rendered(row)
        expiry_s = properties.pop(PropertyId.MESSAGE_EXPIRY_INTERVAL, 0)
        record = encode_publish(
            topic, payload, qos=qos, retain=retain, client_id=self._publisher, originate=not self._direct,
            properties=encode_properties(properties) if properties else b"",
            payload_format=properties.get(PropertyId.PAYLOAD_FORMAT_INDICATOR, 0),
            expires_ms=time.time_ns() // 1_000_000 + 1000 * expiry_s if expiry_s else 0,
        )  # fmt: skip
        lanes = self._lanes
        assert lanes is not None, "an action that is only checked is not run"
        for worker in lanes.workers if self._direct else (lanes.worker_of(journal),):
            lanes.put(worker, record)
        return True

    def show(self, row: dict[str, Value], columns: dict[str, Value]) -> dict[str, Any]:
        """Returns the message that run() would publish. Raises ActionError."""
        topic, payload, qos, retain, properties = self._rendered(row)
        named = {PropertyId(number).name.lower(): _shown(value) for number, value in properties.items()}
        return {"topic": topic.decode(), "payload": _shown(payload), "qos": qos, "retain": retain, "properties": named}

    def _rendered(self, row: dict[str, Value]) -> tuple[bytes, bytes, int, bool, dict[PropertyId, Any]]:
        """Returns topic, payload, QoS, whether it is retained, properties. Raises ActionError."""
        try:
            topic = self._topic.render(row).encode()
            payload = _bytes(self._payload, row)
            qos = self._qos_of(row) if self._constant_qos is None else self._constant_qos
            retain = self._retain_of(row)
            properties = self._properties_of(row)
            check_topic_name(topic)
        except (EvaluationError, MqttError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise ActionError(f"{type(error).__name__}: {error}") from error
        if len(payload) > self._payload_max:
            raise ActionError(f"payload: must be at most {self._payload_max} bytes, got {len(payload)}")
        return topic, payload, qos, retain, properties

    def _qos_of(self, row: dict[str, Value]) -> int:
        value = _value(self._qos, row)
        qos = 0 if value in (UNDEFINED, "undefined", "") else int(value)
        if qos not in (0, 1, 2):
            raise ValueError(f"qos: must be 0, 1 or 2, got {value!r:.40}")
        return qos

    def _retain_of(self, row: dict[str, Value]) -> bool:
        value = _value(self._retain, row)
        if value is UNDEFINED:
            return False
        retain = value if isinstance(value, bool) else BOOLEANS.get(str(value))
        if retain is None:
            raise ValueError(f"retain: must be true or false, got {value!r:.40}")
        return retain

    def _properties_of(self, row: dict[str, Value]) -> dict[PropertyId, Any]:
        found: dict[PropertyId, Any] = {}
        for number, given in self._properties:
            value = _value(given, row)
            if value is UNDEFINED or value == "undefined":
                continue
            if number == PropertyId.MESSAGE_EXPIRY_INTERVAL:
                found[number] = min(max(int(value), 0), EXPIRY_MAX_S)
            elif number == PropertyId.PAYLOAD_FORMAT_INDICATOR:
                if (indicator := int(value)) not in (0, 1):
                    raise ValueError(f"Payload-Format-Indicator: must be 0 or 1, got {indicator}")
                found[number] = indicator
            else:
                found[number] = _short(number.name, _bytes(given, row))
        pairs = _value(self._user, row)
        if isinstance(pairs, dict):
            if len(pairs) > USER_PROPERTIES_MAX:
                raise ValueError(f"user_properties: must be at most {USER_PROPERTIES_MAX}, got {len(pairs)}")
            found[PropertyId.USER_PROPERTY] = [
                (_short("user_properties", _encoded(name)), _short("user_properties", _encoded(value)))
                for name, value in pairs.items()
            ]
            if not pairs:
                del found[PropertyId.USER_PROPERTY]
        return found


def _shown(value: Any) -> Any:
    """Returns bytes as text where they are text."""
    if isinstance(value, list):
        return [[_shown(one) for one in pair] for pair in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _template(given: object) -> Template:
    """Returns the template of an argument, which may be a number or a boolean as well."""
    return template(str(given).lower() if isinstance(given, bool) else str(given))


def _value(given: Template, row: dict[str, Value]) -> Value:
    """Returns the value of a template that is one placeholder, the text of another one."""
    if len(given.parts) == 1 and not isinstance(given.parts[0], str):
        return given.value(row, given.parts[0])
    return given.render(row)


def _bytes(given: Template, row: dict[str, Value]) -> bytes:
    value = _value(given, row)
    if type(value) is str:
        return value.encode()
    return value if isinstance(value, bytes) else given.render(row).encode()


def _encoded(value: Value) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _short(name: str, value: bytes) -> bytes:
    if len(value) > TEXT_MAX:
        raise ValueError(f"{name}: must be at most {TEXT_MAX} bytes, got {len(value)}")
    return value
