"""The preset of MySQL and MariaDB: tables and columns of EMQ X Enterprise.

A row that is older than the stored one, or written again, changes nothing. MySQL assigns columns from left to right: those that a
condition compares are assigned last, and each in a way that leaves the condition as it was.
"""

from typing import Any

from shardbroker.connectors.mysql import literal
from shardbroker.flows.persistence.sql import schema_of, sql_parameters
from shardbroker.flows.persistence.statements import Statements
from shardbroker.flows.persistence.stored import Page, Stored, Wanted, page_of, stored_of

__all__ = ["create", "fetch", "parameters", "retained"]

IS_LATER = """VALUES(online_at) >= COALESCE(online_at, 0) AND GREATEST(VALUES(online_at), COALESCE(VALUES(offline_at), 0))
  >= GREATEST(COALESCE(online_at, 0), COALESCE(offline_at, 0))"""
CLIENT = f"""INSERT INTO mqtt_client (clientid, state, node, online_at, offline_at, created)
VALUES (${{clientid}}, ${{state}}, ${{node}}, ${{online_at}}, ${{offline_at}}, ${{online_at}})
ON DUPLICATE KEY UPDATE state = IF({IS_LATER}, VALUES(state), state), node = IF({IS_LATER}, VALUES(node), node),
  offline_at = IF({IS_LATER}, COALESCE(VALUES(offline_at), offline_at), offline_at),
  online_at = IF({IS_LATER}, VALUES(online_at), online_at)"""
OFFLINE = """UPDATE mqtt_client SET state = 0, offline_at = ${started_at}
WHERE node = ${node} AND online_at < ${started_at} AND (state = 1 OR COALESCE(offline_at, 0) < online_at)"""
SUBSCRIPTION = """INSERT INTO mqtt_sub (clientid, topic, qos, created) VALUES (${clientid}, ${topic}, ${qos}, ${created})
ON DUPLICATE KEY UPDATE qos = VALUES(qos), created = VALUES(created)"""
UNSUBSCRIPTION = "DELETE FROM mqtt_sub WHERE clientid = ${clientid} AND topic = ${topic}"
MESSAGE = """INSERT INTO mqtt_msg (msgid, topic, sender, node, qos, retain, payload, arrived)
VALUES (${id}, ${topic}, ${sender}, ${node}, ${qos}, ${retain}, ${payload}, ${arrived})
ON DUPLICATE KEY UPDATE msgid = msgid"""
ACKED_MESSAGE = "DELETE FROM mqtt_msg WHERE msgid = ${id}"
RETAINED = """INSERT INTO mqtt_retain (topic, msgid, sender, node, qos, payload, arrived)
VALUES (${topic}, ${id}, ${sender}, ${node}, ${qos}, ${payload}, ${arrived})
ON DUPLICATE KEY UPDATE msgid = IF(VALUES(arrived) >= arrived, VALUES(msgid), msgid),
  sender = IF(VALUES(arrived) >= arrived, VALUES(sender), sender), node = IF(VALUES(arrived) >= arrived, VALUES(node), node),
  qos = IF(VALUES(arrived) >= arrived, VALUES(qos), qos), payload = IF(VALUES(arrived) >= arrived, VALUES(payload), payload),
  arrived = GREATEST(VALUES(arrived), arrived)"""
REMOVED = "DELETE FROM mqtt_retain WHERE topic = ${topic} AND arrived <= ${arrived}"
POSITION = """INSERT INTO mqtt_acked (clientid, topic, mid, created) VALUES (${clientid}, ${topic}, ${mid}, ${created})
ON DUPLICATE KEY UPDATE created = IF(VALUES(mid) >= mid, VALUES(created), created), mid = GREATEST(VALUES(mid), mid)"""

FETCH = """SELECT msgid, sender, qos, payload FROM mqtt_msg
WHERE topic = {topic} AND msgid > {after} AND msgid < {before} ORDER BY msgid LIMIT {limit}"""
POSITION_OF = "SELECT mid FROM mqtt_acked WHERE clientid = {client} AND topic = {topic}"
RETAINED_OF = "SELECT msgid, sender, qos, payload, arrived FROM mqtt_retain WHERE topic = {topic}"


STATEMENTS = Statements(CLIENT, OFFLINE, SUBSCRIPTION, UNSUBSCRIPTION, MESSAGE, ACKED_MESSAGE, RETAINED, REMOVED, POSITION)


def parameters(part: str, section: Any) -> dict[str, Any]:
    """Returns the parameters of the action of a part."""
    statement, others = STATEMENTS.of_part(part, section)
    return sql_parameters(statement, **others)


async def create(connector: Any) -> None:
    """Creates the tables that are missing. Raises errors of the library."""
    async with connector.connection() as connection:
        await connection.query("SET sql_notes = 0")  # a table that exists is no warning
        try:
            for statement in schema_of("mysql.sql"):
                await connection.query(statement)
        finally:
            await connection.query("SET sql_notes = 1")


async def fetch(connector: Any, wanted: Wanted) -> Page:
    """Returns a page of messages."""
    topic, after = _bytes(wanted.topic), wanted.after
    async with connector.connection() as connection, connection.cursor() as cursor:
        if wanted.positions:
            await cursor.execute(POSITION_OF.format(client=_bytes(wanted.client_id), topic=topic))
            after = max([after, *(row["mid"] for row in await cursor.fetchall())])
        values = {"topic": topic, "after": literal(after), "before": literal(wanted.before), "limit": int(wanted.limit)}
        await cursor.execute(FETCH.format(**values))
        rows = await cursor.fetchall()
    return page_of(rows, wanted.limit)


async def retained(connector: Any, topic: str) -> Stored | None:
    """Returns the retained message of a topic."""
    async with connector.connection() as connection, connection.cursor() as cursor:
        await cursor.execute(RETAINED_OF.format(topic=_bytes(topic)))
        rows = await cursor.fetchall()
    return stored_of(rows[0], has_id=False) if rows else None


def _bytes(value: str) -> str:
    """Returns a value of a column of bytes as SQL that no value can leave."""
    return f"X'{value.encode(errors='surrogateescape').hex()}'"
