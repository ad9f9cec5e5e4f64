"""Fields of the event, and topics in lists of topics. They read the columns that the rule sees."""

from shardbroker.mqtt.topics import matches
from shardbroker.rules.functions.arguments import array, integer, refusal, text
from shardbroker.rules.functions.maps import value_at
from shardbroker.rules.functions.table import Function
from shardbroker.rules.values import UNDEFINED, Value

__all__ = ["FUNCTIONS"]

_Columns = dict[str, Value]


def _column(name: str) -> Function:
    return Function(lambda columns: columns.get(name, UNDEFINED), (0,), is_pure=False, needs_columns=True)


def _flags(columns: _Columns) -> Value:
    return columns.get("flags", {})


def _flag(columns: _Columns, name: Value) -> Value:
    return value_at(name, _flags(columns))


def _topic(columns: _Columns, level: Value = None) -> Value:
    """The topic, or one of its levels, from 1 on."""
    topic = columns.get("topic", UNDEFINED)
    if level is None or topic is UNDEFINED:
        return topic
    levels = text(topic, "topic").split("/")
    if not 1 <= integer(level, "level") <= len(levels):
        raise refusal("level", f"1 to {len(levels)}", level)
    return levels[level - 1]


def _payload(columns: _Columns, path: Value = None) -> Value:
    """The payload, or a value in it."""
    payload = columns.get("payload", UNDEFINED)
    return payload if path is None else value_at(path, payload)


def _contains(topics: Value, topic: Value, qos: Value = None) -> bool:
    """Whether one of the entries (maps with `topic` and `qos`) has this topic, and this QoS."""
    return any(entry["topic"] == topic and (qos is None or entry.get("qos") == qos) for entry in _entries(topics))


def _contains_match(filters: Value, topic: Value, qos: Value = None) -> bool:
    """Whether the topic filter of one of the entries matches a topic, and the entry has this QoS."""
    name = text(topic, "topic").encode()
    return any(
        matches(text(entry["topic"], "filter").encode(), name) and (qos is None or entry.get("qos") == qos)
        for entry in _entries(filters)
    )


def _entries(topics: Value) -> list[dict[str, Value]]:
    return [entry for entry in array(topics, "topics") if type(entry) is dict and "topic" in entry]


FUNCTIONS: dict[str, Function] = {
    "clientid": _column("clientid"),
    "clientip": _column("peerhost"),
    "contains_topic": Function(_contains, (2, 3)),
    "contains_topic_match": Function(_contains_match, (2, 3)),
    "flag": Function(_flag, (1,), is_pure=False, needs_columns=True),
    "flags": Function(_flags, (0,), is_pure=False, needs_columns=True),
    "msgid": _column("id"),
    "payload": Function(_payload, (0, 1), is_pure=False, needs_columns=True),
    "peerhost": _column("peerhost"),
    "qos": _column("qos"),
    "topic": Function(_topic, (0, 1), is_pure=False, needs_columns=True),
    "username": _column("username"),
}
