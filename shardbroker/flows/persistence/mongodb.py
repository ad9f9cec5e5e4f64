"""The preset of MongoDB: collections and fields of EMQ X Enterprise.

A row that is older than the stored document, or written again, changes nothing: the filter does not find the document then, and a
second one with its key is not possible.
"""

import json
from importlib.resources import files
from typing import Any

from shardbroker.flows.persistence.statements import Statements
from shardbroker.flows.persistence.stored import Page, Stored, Wanted, page_of, stored_of

__all__ = ["create", "fetch", "parameters", "retained"]

CLIENT = {
    "operation": "upsert",
    "collection": "mqtt_client",
    "filter_template": '{"clientid": "${clientid}", "online_at": {"$lte": ${online_at}},'
    ' "$or": [{"offline_at": null}, {"offline_at": {"$lte": ${at}}}]}',
    "payload_template": '{"$set": {"state": ${state}, "node": "${node}", "online_at": ${online_at}},'
    ' "$max": {"offline_at": ${offline_at}}, "$setOnInsert": {"created": ${online_at}}}',
}
"""$max leaves the time of the last disconnection unchanged if the row has no such time."""
OFFLINE = {
    "operation": "update",
    "collection": "mqtt_client",
    "filter_template": '{"node": "${node}", "online_at": {"$lt": ${started_at}}, "$or": [{"state": 1}, {"offline_at": null}]}',
    "payload_template": '{"$set": {"state": 0, "offline_at": ${started_at}}}',
}
OF_SUBSCRIPTION = '{"clientid": "${clientid}", "topic": "${topic}"}'
SUBSCRIPTION = {
    "operation": "upsert",
    "collection": "mqtt_sub",
    "filter_template": OF_SUBSCRIPTION,
    "payload_template": '{"$set": {"qos": ${qos}, "created": ${created}}}',
}
UNSUBSCRIPTION = {"operation": "delete", "collection": "mqtt_sub", "filter_template": OF_SUBSCRIPTION}
MESSAGE = {
    "collection": "mqtt_msg",
    "payload_template": '{"_id": "${id}", "msgid": "${id}", "topic": "${topic}", "sender": "${sender}", "node": "${node}",'
    ' "qos": ${qos}, "retain": ${retain}, "payload": "${payload}", "arrived": ${arrived}}',
}
ACKED_MESSAGE = {"operation": "delete", "collection": "mqtt_msg", "filter_template": '{"_id": "${id}"}'}
RETAINED = {
    "operation": "upsert",
    "collection": "mqtt_retain",
    "filter_template": '{"topic": "${topic}", "arrived": {"$lte": ${arrived}}}',
    "payload_template": '{"$set": {"msgid": "${id}", "sender": "${sender}", "node": "${node}", "qos": ${qos},'
    ' "payload": "${payload}", "arrived": ${arrived}}}',
}
REMOVED = {"operation": "delete", "collection": "mqtt_retain", "filter_template": RETAINED["filter_template"]}
POSITION = {
    "operation": "upsert",
    "collection": "mqtt_acked",
    "filter_template": '{"clientid": "${clientid}", "topic": "${topic}", "mid": {"$lte": "${mid}"}}',
    "payload_template": '{"$set": {"mid": "${mid}", "created": ${created}}}',
}
STATEMENTS = Statements(CLIENT, OFFLINE, SUBSCRIPTION, UNSUBSCRIPTION, MESSAGE, ACKED_MESSAGE, RETAINED, REMOVED, POSITION)


def parameters(part: str, section: Any) -> dict[str, Any]:
    """Returns the parameters of the action of a part."""
    statement, others = STATEMENTS.of_part(part, section)
    return {**statement, "statements": others}


async def create(connector: Any) -> None:
    """Creates the indexes that are missing, and with them the collections. Raises errors of the library."""
    schema = json.loads(files("shardbroker.flows.persistence").joinpath("schemas", "mongodb.json").read_text())
    async with connector.connection() as database:
        for collection, indexes in schema.items():
            for index in indexes:
                await database[collection].create_index([(name, 1) for name in index["keys"]], unique=index.get("unique", False))


async def fetch(connector: Any, wanted: Wanted) -> Page:
    """Returns a page of messages. All values are text: a client cannot inject an operator."""
    after = wanted.after
    async with connector.connection() as database:
        if wanted.positions:
            position = await database["mqtt_acked"].find_one({"clientid": wanted.client_id, "topic": wanted.topic})
            after = max(after, str(position.get("mid", ""))) if position else after
        between = {"topic": wanted.topic, "msgid": {"$gt": after, "$lt": wanted.before}}
        found = database["mqtt_msg"].find(between, sort=[("msgid", 1)], limit=wanted.limit)
        rows = await found.to_list(wanted.limit)
    return page_of(rows, wanted.limit)


async def retained(connector: Any, topic: str) -> Stored | None:
    """Returns the retained message of a topic."""
    async with connector.connection() as database:
        row = await database["mqtt_retain"].find_one({"topic": topic})
    return None if row is None else stored_of(row, has_id=False)
