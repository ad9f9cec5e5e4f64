"""The preset of TimescaleDB: messages, in a hypertable of the table of EMQ X Enterprise.

A unique key of a hypertable has its time: a message that is written again has the same one.
"""

from typing import Any

from shardbroker.flows.persistence.sql import schema_of, sql_parameters

__all__ = ["create", "parameters"]

MESSAGE = """INSERT INTO mqtt_msg (msgid, topic, sender, node, qos, retain, payload, arrived)
VALUES (${id}, ${topic}, ${sender}, ${node}, ${qos}, ${retain}, ${payload}, ${arrived})
ON CONFLICT (msgid, arrived) DO NOTHING"""


def parameters(part: str, section: Any) -> dict[str, Any]:
    """Returns the parameters of the action of messages."""
    return sql_parameters(MESSAGE)


async def create(connector: Any) -> None:
    """Creates the hypertable if it is missing. Raises errors of the library."""
    async with connector.connection() as connection, connection.transaction():
        for statement in schema_of("timescale.sql"):
            await connection.execute(statement)
