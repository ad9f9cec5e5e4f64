"""The preset of Cassandra: tables and columns of EMQ X Enterprise.

Each row is written with the time of what it is about (`written`, Unix µs), and Cassandra keeps the latest one, whichever order
rows arrive in: a row that is older than the stored one, or written again, changes nothing. The time of a client's row is the start
of its connection, so the end of a connection that another one has replaced is not the end of that one. Subscriptions are the
exception, as in other databases: the last one that is written stays.
"""

from typing import Any

from shardbroker.flows.persistence.sql import schema_of
from shardbroker.flows.persistence.statements import Statements
from shardbroker.flows.persistence.stored import Page, Stored, Wanted, page_of, stored_of

__all__ = ["create", "fetch", "parameters", "retained"]

CLIENT = """INSERT INTO client (client_id, state, node, connected, disconnected)
VALUES (${clientid}, ${state}, ${node}, ${online_at}, ${offline_at}) USING TIMESTAMP ${written}"""
ONLINE = "SELECT client_id FROM client WHERE node = ${node} AND state = 1 AND connected < ${started_at} ALLOW FILTERING"
OFFLINE = "UPDATE client USING TIMESTAMP ${written} SET state = 0, disconnected = ${started_at} WHERE client_id = ${client_id}"
SUBSCRIPTION = "INSERT INTO sub (client_id, topic, qos, created) VALUES (${clientid}, ${topic}, ${qos}, ${created})"
UNSUBSCRIPTION = "DELETE FROM sub WHERE client_id = ${clientid} AND topic = ${topic}"
MESSAGE = """INSERT INTO msg (topic, msgid, sender, node, qos, retain, payload, arrived)
VALUES (${topic}, ${id}, ${sender}, ${node}, ${qos}, ${retain}, ${payload}, ${arrived}) USING TIMESTAMP ${written}"""
ACKED_MESSAGE = "DELETE FROM msg USING TIMESTAMP ${written} WHERE topic = ${topic} AND msgid = ${id}"
RETAINED = """UPDATE retain USING TIMESTAMP ${written} SET msgid = ${msgid}, sender = ${sender}, node = ${node}, qos = ${qos},
  payload = ${payload}, arrived = ${arrived} WHERE topic = ${topic}"""
"""A removal is a row of NULL alone: one that was only ever updated is gone then."""
POSITION = "INSERT INTO acked (client_id, topic, msgid) VALUES (${clientid}, ${topic}, ${mid}) USING TIMESTAMP ${written}"
FETCH = "SELECT msgid, sender, qos, payload FROM msg WHERE topic = ? AND msgid > ? AND msgid < ? ORDER BY msgid ASC LIMIT ?"
POSITION_OF = "SELECT msgid FROM acked WHERE client_id = ? AND topic = ?"
RETAINED_OF = "SELECT msgid, sender, qos, payload, toUnixTimestamp(arrived) AS arrived FROM retain WHERE topic = ?"
STATEMENTS = Statements(
    client={"cql": CLIENT},
    offline={"select": ONLINE, "cql": OFFLINE},
    subscription={"cql": SUBSCRIPTION},
    unsubscription={"cql": UNSUBSCRIPTION},
    message={"cql": MESSAGE},
    acked_message={"cql": ACKED_MESSAGE},
    retained={"cql": RETAINED},
    removed=None,
    position={"cql": POSITION},
)


def parameters(part: str, section: Any) -> dict[str, Any]:
    """Returns the parameters of the action of a part."""
    statement, others = STATEMENTS.of_part(part, section)
    return {**statement, "statements": others, "undefined_vars_as_null": True}


async def create(connector: Any) -> None:
    """Creates the tables and indexes that are missing; the keyspace must exist. Raises Unusable or ConnectorError."""
    async with connector.session() as session:
        for statement in schema_of("cassandra.cql"):
            await connector.in_thread(connector.run, session, statement)


async def fetch(connector: Any, wanted: Wanted) -> Page:
    """Returns a page of messages."""
    async with connector.session() as session:
        after = wanted.after
        if wanted.positions:
            found = await connector.in_thread(connector.rows, session, POSITION_OF, (wanted.client_id, wanted.topic))
            after = max([after, *(row["msgid"] or "" for row in found)])
        rows = await connector.in_thread(connector.rows, session, FETCH, (wanted.topic, after, wanted.before, wanted.limit))
    return page_of(rows, wanted.limit)


async def retained(connector: Any, topic: str) -> Stored | None:
    """Returns the retained message of a topic; one that was removed may have NULL in all columns."""
    async with connector.session() as session:
        rows = await connector.in_thread(connector.rows, session, RETAINED_OF, (topic,))
    return stored_of(rows[0], has_id=False) if rows and rows[0]["msgid"] is not None else None
