"""The rules of presets: what is kept of a message or an event, with the fields that the statements of all databases name.

A row with the field `statement` is written by that statement of its action instead of the main one.
"""

from collections.abc import Sequence
from typing import Any

__all__ = ["PARTS", "rule_sql"]

CLIENTS = """SELECT clientid, node, connected_at AS online_at, disconnected_at AS offline_at, started_at,
  CASE WHEN event = 'client.disconnected' THEN disconnected_at ELSE connected_at END AS at,
  CASE WHEN event = 'client.connected' AND connected_at >= {started_ms} THEN 1 ELSE 0 END AS state,
  CASE WHEN event = 'sys.broker_started' THEN 'offline' END AS statement{more}
FROM "$events/client_connected", "$events/client_disconnected", "$events/sys/broker_started\""""
"""A connection from before the start of the broker is over: it is kept as state 0, however late it is written."""
SUBSCRIPTIONS = """SELECT clientid, topic, qos, timestamp AS created,
  CASE WHEN event = 'session.unsubscribed' THEN 'delete' END AS statement
FROM "$events/session_subscribed", "$events/session_unsubscribed\""""
MESSAGES = """SELECT id, topic, clientid AS sender, node, qos, CASE WHEN flags.retain = true THEN 1 ELSE 0 END AS retain, payload,
  timestamp AS arrived{more}
FROM {filters}{where}"""
OF_POINTS = ", subbits(hexstr2bin(id), 1, 64) * 1000 + (subbits(hexstr2bin(id), 97, 32) mod 1000) AS at_ns"
"""An id has the time of its message, Unix us in 64 bits, which all messages of a pass of the worker share, and ends with a number
in 32 bits: the time of a point is different for up to 1,000 messages of a pass."""
TAGS = """, regex_replace(topic, '[^-_./a-zA-Z0-9]', '_') AS tag_topic,
  CASE WHEN is_not_null(clientid) THEN regex_replace(clientid, '[^-_./a-zA-Z0-9]', '_') END AS tag_sender"""
OF_MESSAGE = "subbits(hexstr2bin(id), 1, 64)"
WRITTEN = f", {OF_MESSAGE} AS written"
"""Unix us, of which an id has whole ms."""
MORE_FIELDS = {"cassandra": WRITTEN, "influxdb": OF_POINTS, "opents": TAGS}
"""Database -> fields of messages that it needs besides."""
CLIENT_WRITTEN = """,
  CASE WHEN event = 'client.connected' THEN connected_at * 1000 WHEN event = 'client.disconnected' THEN connected_at * 1000 + 500
    ELSE started_at * 1000 - 1 END AS written"""
"""Unix us: of connections, in order of their starts, and each behind its start; the start of a broker is behind those before it."""
IS_NUMBER = "regex_match(payload, '^[-+]?[0-9]{1,30}([.][0-9]{1,30})?([eE][-+]?[0-9]{1,3})?$')"
CONDITIONS = {"opents": IS_NUMBER}
"""Database -> which messages it can keep."""
RETAINED = """SELECT id, topic, clientid AS sender, node, qos, payload, timestamp AS arrived,
  CASE WHEN payload = '' THEN 'delete' END AS statement
FROM {filters} WHERE flags.retain = true"""
RETAINED_OR_NULL = """SELECT topic, CASE WHEN payload != '' THEN id END AS msgid,
  CASE WHEN payload != '' THEN clientid END AS sender, CASE WHEN payload != '' THEN node END AS node,
  CASE WHEN payload != '' THEN qos END AS qos, CASE WHEN payload != '' THEN payload END AS payload,
  CASE WHEN payload != '' THEN timestamp END AS arrived{written}
FROM {filters} WHERE flags.retain = true"""
POSITIONS = """SELECT clientid, topic, id AS mid, timestamp AS created{more}
FROM "$events/message_acked" WHERE {matches}"""
NOT_FETCHING = "({matches}) AND is_null(fetching)"
"""While messages of a topic are fetched, only those that are delivered in order move the position."""
DELETIONS = """SELECT clientid, topic, id, 'delete' AS statement{more}
FROM "$events/message_acked" WHERE {matches}"""
PARTS = {
    "clients": "State of clients",
    "subscriptions": "Subscriptions of clients",
    "messages": "Messages",
    "retained": "Retained messages",
    "acked": "Acknowledged deliveries",
}
"""Part -> what it keeps, for people."""


def rule_sql(database: str, part: str, section: Any, started_ms: int) -> str:
    """Returns the SQL of the rule of a part. started_ms: of the broker, Unix ms."""
    is_timed = database == "cassandra"
    if part == "clients":
        return CLIENTS.format(started_ms=started_ms, more=CLIENT_WRITTEN if is_timed else "")
    if part == "subscriptions":
        return SUBSCRIPTIONS
    if part == "messages":
        conditions = [*([] if section.store_qos0 else ["qos > 0"]), *([CONDITIONS[database]] if database in CONDITIONS else [])]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return MESSAGES.format(filters=_named(section.messages), where=where, more=MORE_FIELDS.get(database, ""))
    if part == "retained" and is_timed:
        return RETAINED_OR_NULL.format(filters=_named(section.retained), written=WRITTEN)
    if part == "retained":
        return RETAINED.format(filters=_named(section.retained))
    matches = " OR ".join(f"topic =~ '{one}'" for one in section.acked)
    if section.on_acked == "delete":
        return DELETIONS.format(matches=matches, more=f", {OF_MESSAGE} + 500 AS written" if is_timed else "")
    if section.fetch:
        matches = NOT_FETCHING.format(matches=matches)
    return POSITIONS.format(matches=matches, more=WRITTEN if is_timed else "")


def _named(filters: Sequence[str]) -> str:
    """Returns topic filters behind FROM; the configuration has refused those with quotes."""
    return ", ".join(f'"{one}"' for one in filters)
