"""The preset of PostgreSQL: tables and columns of EMQ X Enterprise.

A row that is older than the stored one, or written again, changes nothing. A client's rows are compared by the start of their
connection first: the end of a connection that another one has replaced is not the end of that one.
"""

from typing import Any

from shardbroker.flows.persistence.sql import schema_of, sql_parameters
from shardbroker.flows.persistence.statements import Statements
from shardbroker.flows.persistence.stored import Page, Stored, Wanted, page_of, stored_of

__all__ = ["create", "fetch", "parameters", "retained"]

CLIENT = """INSERT INTO mqtt_client (clientid, state, node, online_at, offline_at, created)
VALUES (${clientid}, ${state}, ${node}, ${online_at}, ${offline_at}, ${online_at})
ON CONFLICT (clientid) DO UPDATE SET state = EXCLUDED.state, node = EXCLUDED.node, online_at = EXCLUDED.online_at,
  offline_at = COALESCE(EXCLUDED.offline_at, mqtt_client.offline_at)
WHERE EXCLUDED.online_at >= COALESCE(mqtt_client.online_at, 0)
  AND GREATEST(EXCLUDED.online_at, EXCLUDED.offline_at) >= GREATEST(mqtt_client.online_at, mqtt_client.offline_at, 0)"""
OFFLINE = """UPDATE mqtt_client SET state = 0, offline_at = ${started_at}
WHERE node = ${node} AND online_at < ${started_at} AND (state = 1 OR COALESCE(offline_at, 0) < online_at)"""
SUBSCRIPTION = """INSERT INTO mqtt_sub (clientid, topic, qos, created) VALUES (${clientid}, ${topic}, ${qos}, ${created})
ON CONFLICT (clientid, topic) DO UPDATE SET qos = EXCLUDED.qos, created = EXCLUDED.created"""
UNSUBSCRIPTION = "DELETE FROM mqtt_sub WHERE clientid = ${clientid} AND topic = ${topic}"
MESSAGE = """INSERT INTO mqtt_msg (msgid, topic, sender, node, qos, retain, payload, arrived)
VALUES (${id}, ${topic}, ${sender}, ${node}, ${qos}, ${retain}, ${payload}, ${arrived})
ON CONFLICT (msgid) DO NOTHING"""
ACKED_MESSAGE = "DELETE FROM mqtt_msg WHERE msgid = ${id}"
RETAINED = """INSERT INTO mqtt_retain (topic, msgid, sender, node, qos, payload, arrived)
VALUES (${topic}, ${id}, ${sender}, ${node}, ${qos}, ${payload}, ${arrived})
ON CONFLICT (topic) DO UPDATE SET msgid = EXCLUDED.msgid, sender = EXCLUDED.sender, node = EXCLUDED.node, qos = EXCLUDED.qos,
  payload = EXCLUDED.payload, arrived = EXCLUDED.arrived
WHERE EXCLUDED.arrived >= mqtt_retain.arrived"""
REMOVED = "DELETE FROM mqtt_retain WHERE topic = ${topic} AND arrived <= ${arrived}"
POSITION = """INSERT INTO mqtt_acked (clientid, topic, mid, created) VALUES (${clientid}, ${topic}, ${mid}, ${created})
ON CONFLICT (clientid, topic) DO UPDATE SET mid = EXCLUDED.mid, created = EXCLUDED.created WHERE EXCLUDED.mid >= mqtt_acked.mid"""

FETCH = """SELECT msgid, sender, qos, payload FROM mqtt_msg
WHERE topic = $1 AND msgid > GREATEST($2, {position}) AND msgid < $3 ORDER BY msgid LIMIT $4"""
POSITION_OF = "(SELECT mid FROM mqtt_acked WHERE clientid = $5 AND topic = $1)"
RETAINED_OF = "SELECT msgid, sender, qos, payload, arrived FROM mqtt_retain WHERE topic = $1"


STATEMENTS = Statements(CLIENT, OFFLINE, SUBSCRIPTION, UNSUBSCRIPTION, MESSAGE, ACKED_MESSAGE, RETAINED, REMOVED, POSITION)


def parameters(part: str, section: Any) -> dict[str, Any]:
    """Returns the parameters of the action of a part."""
    statement, others = STATEMENTS.of_part(part, section)
    return sql_parameters(statement, **others)


async def create(connector: Any) -> None:
    """Creates the tables and indexes that are missing. Raises errors of the library."""
    async with connector.connection() as connection, connection.transaction():
        for statement in schema_of("pgsql.sql"):
            await connection.execute(statement)


async def fetch(connector: Any, wanted: Wanted) -> Page:
    """Returns a page of messages. GREATEST ignores NULL, of a client without a position."""
    arguments = [wanted.topic, wanted.after, wanted.before, wanted.limit, *([wanted.client_id] if wanted.positions else [])]
    statement = FETCH.format(position=POSITION_OF if wanted.positions else "''")
    async with connector.connection() as connection:
        rows = await connection.fetch(statement, *arguments)
    return page_of(map(dict, rows), wanted.limit)


async def retained(connector: Any, topic: str) -> Stored | None:
    """Returns the retained message of a topic."""
    async with connector.connection() as connection:
        row = await connection.fetchrow(RETAINED_OF, topic)
    return None if row is None else stored_of(dict(row), has_id=False)
