"""Events that rules see: names, columns, types and an example of each column.

`GET /rule_events`, the defaults of the tester and the page of columns derive from this table. An event has two names behind FROM:
`$events/client/connected` and, as in EMQX 5, `$events/client_connected`.
"""

from dataclasses import dataclass
from typing import Final

from shardbroker.rules.values import Value

__all__ = ["EVENTS", "Column", "Event", "event_of", "example"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an event. `type`: text, integer, boolean or map."""

    name: str
    type: str
    example: Value


@dataclass(frozen=True, slots=True)
class Event:
    """An event: `name` as in the column `event`, `topics` behind FROM (the first is shown)."""

    name: str
    topics: tuple[str, ...]
    title: str
    columns: tuple[Column, ...]


def _columns(**examples: Value) -> tuple[Column, ...]:
    kinds = {str: "text", int: "integer", bool: "boolean", dict: "map"}
    return tuple(Column(name, kinds[type(value)], value) for name, value in examples.items())


AT: Final = 1_700_000_000_000
"""Example of a time, Unix ms."""
NODE: Final = "shardbroker@127.0.0.1"
FLAGS: Final = {"dup": False, "retain": False}
CLIENT = _columns(clientid="c_emqx", username="u_emqx", peerhost="192.168.0.10", peername="192.168.0.10:56431")
COMMON = _columns(timestamp=AT, node=NODE)
ATTRIBUTES = _columns(client_attrs={"test": "example"})
MESSAGE = _columns(id="000600F2E0B5A7FBF44A00000001", payload='{"msg": "hello"}', topic="t/a", qos=1, flags=FLAGS)
PUBLISHED = _columns(publish_received_at=AT)
FROM_CLIENT = _columns(from_clientid="c_emqx_1")
PROTOCOL = _columns(sockname="0.0.0.0:1883", proto_name="MQTT", proto_ver=5)
CONNECT = _columns(
    sockname="0.0.0.0:1883",
    proto_name="MQTT",
    proto_ver=5,
    keepalive=60,
    clean_start=True,
    expiry_interval=3600,
    is_bridge=False,
)


def _event(name: str, title: str, *columns: tuple[Column, ...], spellings: tuple[str, ...] = ()) -> Event:
    plain = name.replace(".", "/", 1)
    topics = (f"$events/{plain}", f"$events/{name.replace('.', '_', 1)}", *spellings)
    whole = (*_columns(event=name), *(one for group in columns for one in group), *COMMON)
    return Event(name, tuple(dict.fromkeys(topics)), title, whole)


PUBLISH: Final = Event(
    "message.publish",
    ("t/#",),
    "message published",
    (
        *_columns(event="message.publish"),
        *MESSAGE,
        *CLIENT,
        *PUBLISHED,
        *_columns(pub_props={"Message-Expiry-Interval": 30}),
        *ATTRIBUTES,
        *COMMON,
    ),
)
BRIDGE: Final = Event(
    "bridge.received",
    ("$bridges/mqtt:*", "$sources/mqtt:*"),
    "message received by a source",
    (
        *_columns(event="$bridges/mqtt:*", server="192.168.0.1:1883", dup=False, retain=False, message_received_at=AT),
        *MESSAGE[:4],
        *_columns(pub_props={}),
        *COMMON,
    ),
)
EVENTS: Final[tuple[Event, ...]] = (
    PUBLISH,
    _event("message.delivered", "message delivered", MESSAGE, FROM_CLIENT, CLIENT, PUBLISHED, _columns(pub_props={})),
    _event(
        "message.acked", "message acknowledged", MESSAGE, FROM_CLIENT, CLIENT, PUBLISHED, _columns(puback_props={}, pub_props={})
    ),
    _event("message.dropped", "message dropped", MESSAGE, CLIENT[:1], PUBLISHED, _columns(reason="no_subscribers", pub_props={})),
    _event(
        "delivery.dropped",
        "delivery to a session dropped",
        MESSAGE,
        FROM_CLIENT,
        CLIENT,
        PUBLISHED,
        _columns(reason="queue_full", pub_props={}),
        spellings=("$events/message/delivery_dropped",),
    ),
    _event("client.connected", "client connected", CLIENT, CONNECT, _columns(connected_at=AT, conn_props={}), ATTRIBUTES),
    _event(
        "client.disconnected",
        "client disconnected",
        CLIENT,
        _columns(
            reason="normal",
            connected_at=AT,
            disconnected_at=AT,
            disconn_props={},
        ),
        PROTOCOL,
        ATTRIBUTES,
    ),
    _event("client.connack", "CONNACK sent", CLIENT, PROTOCOL, _columns(reason_code="success", conn_props={})),
    _event("client.ping", "ping received", CLIENT, CONNECT),
    _event(
        "client.check_authn_complete",
        "authentication decided",
        CLIENT,
        _columns(reason_code="success", is_anonymous=False, is_superuser=False),
        ATTRIBUTES,
        spellings=("$events/auth/check_authn_complete",),
    ),
    _event(
        "client.check_authz_complete",
        "authorization decided",
        CLIENT,
        _columns(topic="t/a", action="publish", authz_source="file", result="allow"),
        ATTRIBUTES,
        spellings=("$events/auth/check_authz_complete", "$events/client_check_acl_complete"),
    ),
    _event("session.subscribed", "topic filter subscribed", CLIENT, _columns(topic="t/a", qos=1, sub_props={}), ATTRIBUTES),
    _event("session.unsubscribed", "topic filter unsubscribed", CLIENT, _columns(topic="t/a", unsub_props={}), ATTRIBUTES),
    _event("message_transformation.failed", "transformation failed", MESSAGE, CLIENT, _columns(transformation="one", pub_props={})),
    _event("schema_validation.failed", "schema validation failed", MESSAGE, CLIENT, _columns(validation="one", pub_props={})),
    _event("sys.broker_started", "broker started", _columns(started_at=AT)),
    _event("sys.alarm_activated", "alarm activated", _columns(name="high_cpu", details={}, message="cpu", activated_at=AT)),
    _event(
        "sys.alarm_deactivated",
        "alarm deactivated",
        _columns(name="high_cpu", details={}, message="cpu", activated_at=AT, deactivated_at=AT),
    ),
    BRIDGE,
)

BY_TOPIC: Final = {topic: one for one in EVENTS for topic in one.topics}
SOURCES: Final = ("$bridges/", "$sources/")
"""Prefixes of what sources of the broker receive."""


def event_of(topic: str) -> Event | None:
    """Returns the event behind a topic filter of FROM, that of published messages for a filter of topics, None if unknown."""
    if topic.startswith(SOURCES):
        return BRIDGE
    if topic.startswith("$events/"):
        return BY_TOPIC.get(topic)
    return PUBLISH


def example(event: Event) -> dict[str, Value]:
    """Returns the columns of an event with their examples."""
    return {one.name: one.example for one in event.columns}
