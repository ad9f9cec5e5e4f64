"""What the forms of the dashboard propose for a new action, and for a rule with its rows: each message as a row.

A type without an entry has defaults that need no proposal, or none that would suit a server which is not known.
"""

from typing import Any, Final, NamedTuple

__all__ = ["PROPOSALS", "ROWS", "Proposal"]

ROWS: Final = 'SELECT id, clientid, topic, qos, timestamp, payload\nFROM "t/#"'
"""The rule whose rows the parameters take."""


class Proposal(NamedTuple):
    """parameters: of an action. needs: what the server must have for it, as statements for its own client; or nothing."""

    parameters: dict[str, Any]
    needs: str = ""


_COLUMNS = "(id, client, topic, qos, at, payload)"
_VALUES = "VALUES (${id}, ${clientid}, ${topic}, ${qos}, ${timestamp}, ${payload})"
_PGSQL = Proposal(
    {"sql": f"INSERT INTO mqtt_messages {_COLUMNS}\n{_VALUES}\nON CONFLICT (id) DO NOTHING"},
    """CREATE TABLE mqtt_messages (
    id      text PRIMARY KEY,
    client  text NOT NULL,
    topic   text NOT NULL,
    qos     smallint NOT NULL,
    at      timestamptz NOT NULL,
    payload bytea
);""",
)
_TIMESCALE = Proposal(
    {"sql": f"INSERT INTO mqtt_messages {_COLUMNS}\n{_VALUES}\nON CONFLICT (id, at) DO NOTHING"},
    _PGSQL.needs.replace("text PRIMARY KEY", "text NOT NULL").replace("bytea\n", "bytea,\n    PRIMARY KEY (id, at)\n")
    + "\nSELECT create_hypertable('mqtt_messages', 'at');",
)
_MYSQL = Proposal(
    {"sql": f"INSERT IGNORE INTO mqtt_messages {_COLUMNS}\n{_VALUES}"},
    """CREATE TABLE mqtt_messages (
    id      CHAR(64) CHARACTER SET ascii PRIMARY KEY,
    client  VARCHAR(255) NOT NULL,
    topic   TEXT NOT NULL,
    qos     TINYINT NOT NULL,
    at      DATETIME(3) NOT NULL,
    payload LONGBLOB
);""",
)
PROPOSALS: Final[dict[str, Proposal]] = {
    "pgsql": _PGSQL,
    "timescale": _TIMESCALE,
    "mysql": _MYSQL,
    "redis": Proposal({"command_template": ["HSET", "mqtt:msg:${id}", "topic", "${topic}", "payload", "${payload}"]}),
}
