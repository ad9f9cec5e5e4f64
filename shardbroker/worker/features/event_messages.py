"""Events as messages: `$event/...` of section `event_message`, and what of `sys.event_messages` only workers know.

An event is noted where it happens and published when the pass has done its work: in the middle of a delivery nothing else is
delivered. Events without subscribers and events about event messages are not recorded (docs/features.md).
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.spec import closing_word
from shardbroker.mqtt.topics import check_topic_name
from shm.events import clients_prefix

__all__ = ["EVENTS", "EventMessages"]

EVENTS = (
    "client_connected", "client_disconnected", "client_subscribed", "client_unsubscribed", "message_delivered", "message_acked",
    "message_dropped",
)  # fmt: skip
"""Names of keys and topics, in the order of session.context.EventFlag."""

NOTED_MAX = 10_000
"""Events of one pass; further ones are counted and dropped."""

SYS_WORDS = {"client_subscribed": "subscribed", "client_unsubscribed": "unsubscribed"}
"""Last levels of topics below $SYS; the manager publishes those about connects and disconnects."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class EventMessages:
    """router: where they are published; settings: the whole configuration."""

    def __init__(self, router: Any, settings: Any) -> None:
        self._router = router
        self._wanted = {name for name in EVENTS if getattr(settings.event_message, name)}
        self._sys_wanted = {name for name in SYS_WORDS if getattr(settings.sys.event_messages, name)}
        self._sys_prefix = clients_prefix(settings.node.name)
        self._levels = settings.mqtt.max_topic_levels
        self._noted: list[tuple[bytes, bytes]] = []

    @property
    def mask(self) -> int:
        """A bit for each event that is wanted."""
        return sum(1 << number for number, name in enumerate(EVENTS) if name in self._wanted | self._sys_wanted)

    @property
    def any_noted(self) -> bool:
        return bool(self._noted)

    def listeners(self, flag: int, client_id: bytes) -> list[bytes]:
        """Returns the topics of this event that have subscribers."""
        name = EVENTS[flag.bit_length() - 1]
        topics = [f"$event/{name}".encode()] if name in self._wanted else []
        if name in self._sys_wanted:
            topics.append(self._sys_prefix + client_id + b"/" + SYS_WORDS[name].encode())
        return [topic for topic in topics if self._is_topic(topic) and self._router.has_subscribers(topic)]

    def note(self, topics: list[bytes], fields: Mapping[str, Any], now_ms: int) -> None:
        """An event for these topics, as `listeners` gave them."""
        payload = _encode({**fields, "ts": now_ms}).encode(errors="replace")
        for topic in topics:
            if len(self._noted) < NOTED_MAX:
                self._noted.append((topic, payload))
            else:
                self._router.drop_event()

    def publish(self) -> None:
        """What was noted until now."""
        noted, self._noted = self._noted, []
        for topic, payload in noted:
            self._router.publish_own(topic, payload)

    def _is_topic(self, topic: bytes) -> bool:
        """Client ids may hold anything."""
        try:
            check_topic_name(topic, self._levels)
        except MqttError:
            return False
        return True


def identity(client_id: bytes, username: bytes | None, peer: str) -> dict[str, Any]:
    """Who it is about."""
    return {
        "clientid": client_id.decode(errors="replace"),
        "username": None if username is None else username.decode(errors="replace"),
        "ipaddress": peer.rpartition(":")[0].strip("[]"),
    }


def connected(version: int, keepalive_s: int, clean_start: int, expiry_s: int, connected_ms: int) -> dict[str, Any]:
    return {
        "proto_name": "MQIsdp" if version == 3 else "MQTT",
        "proto_ver": version,
        "keepalive": keepalive_s,
        "clean_start": bool(clean_start),
        "expiry_interval": expiry_s,
        "connected_at": connected_ms,
    }


def disconnected(reason_code: int, by_network: bool, connected_ms: int, now_ms: int) -> dict[str, Any]:
    return {"reason": closing_word(reason_code, by_network), "connected_at": connected_ms, "disconnected_at": now_ms}


def subscribed(filter: bytes, options: Mapping[str, int]) -> dict[str, Any]:
    return {"topic": filter.decode(errors="replace"), "subopts": dict(options)}


def message(id_high: int, id_low: int, topic: bytes, payload: bytes, qos: int, retain: bool, publisher: bytes) -> dict[str, Any]:
    """A payload that is no text is given in base64, and `payload_encoding` says so."""
    fields: dict[str, Any] = {
        "id": f"{id_high:016X}{id_low:016X}",
        "topic": topic.decode(errors="replace"),
        "qos": qos,
        "retain": retain,
        "from_clientid": publisher.decode(errors="replace"),
        "publish_received_at": id_high // 1000,
    }
    try:
        return fields | {"payload": payload.decode()}
    except UnicodeDecodeError:
        return fields | {"payload": base64.b64encode(payload).decode(), "payload_encoding": "base64"}
