"""The preset of DynamoDB: tables and attributes of EMQ X Enterprise.

A row that is older than the stored item, or written again, changes nothing: its condition does not hold then. Clients are compared
by the start of their connection first: the end of one that another has replaced is not the end of that one.
"""

import json
from importlib.resources import files
from typing import Any

from aiodynamo import errors

from shardbroker.connectors.errors import ConnectorError
from shardbroker.flows.drivers.dynamo_items import values_of
from shardbroker.flows.persistence.statements import Statements
from shardbroker.flows.persistence.stored import Page, Stored, Wanted, page_of, stored_of

__all__ = ["create", "fetch", "parameters", "retained"]

CLIENT = {
    "table": "mqtt_client",
    "template": '{"clientid": "${clientid}", "state": ${state}, "node": "${node}", "online_at": ${online_at},'
    ' "offline_at": ${offline_at}, "changed_at": ${at}}',
    "condition": "attribute_not_exists(#clientid) OR #online_at < ${online_at}"
    " OR (#online_at = ${online_at} AND #changed_at <= ${at})",
}
OFFLINE = {
    "table": "mqtt_client",
    "index": "node",
    "template": '{"clientid": "${clientid}", "state": 0, "node": "${node}", "online_at": ${online_at},'
    ' "offline_at": ${started_at}, "changed_at": ${started_at}}',
    "filter": "NOT #offline_at >= #online_at AND #online_at < ${started_at}",
    "condition": "#node = ${node} AND NOT #offline_at >= #online_at AND #online_at < ${started_at}",
}
"""Of clients without the time of an end: their rows may be of state 0 already, see the rule."""
SUBSCRIPTION = {
    "table": "mqtt_sub",
    "template": '{"clientid": "${clientid}", "topic": "${topic}", "qos": ${qos}, "created": ${created}}',
}
UNSUBSCRIPTION = {"operation": "delete", "table": "mqtt_sub", "template": '{"clientid": "${clientid}", "topic": "${topic}"}'}
MESSAGE = {
    "table": "mqtt_msg",
    "template": '{"topic": "${topic}", "msgid": "${id}", "sender": "${sender}", "node": "${node}", "qos": ${qos},'
    ' "retain": ${retain}, "payload": "${payload}", "arrived": ${arrived}}',
}
ACKED_MESSAGE = {"operation": "delete", "table": "mqtt_msg", "template": '{"topic": "${topic}", "msgid": "${id}"}'}
RETAINED = {
    "table": "mqtt_retain",
    "template": '{"topic": "${topic}", "msgid": "${id}", "sender": "${sender}", "node": "${node}", "qos": ${qos},'
    ' "payload": "${payload}", "arrived": ${arrived}}',
    "condition": "attribute_not_exists(#topic) OR #arrived <= ${arrived}",
}
REMOVED = {
    "operation": "delete",
    "table": "mqtt_retain",
    "template": '{"topic": "${topic}"}',
    "condition": "#arrived <= ${arrived}",
}
POSITION = {
    "table": "mqtt_acked",
    "template": '{"clientid": "${clientid}", "topic": "${topic}", "mid": "${mid}", "created": ${created}}',
    "condition": "attribute_not_exists(#clientid) OR #mid <= ${mid}",
}
STATEMENTS = Statements(CLIENT, OFFLINE, SUBSCRIPTION, UNSUBSCRIPTION, MESSAGE, ACKED_MESSAGE, RETAINED, REMOVED, POSITION)


def parameters(part: str, section: Any) -> dict[str, Any]:
    """Returns the parameters of the action of a part."""
    statement, others = STATEMENTS.of_part(part, section)
    return {**statement, "statements": others, "undefined_vars_as_null": True}


async def create(connector: Any) -> None:
    """Creates the tables that are missing. Raises Unusable or ConnectorError."""
    schema = json.loads(files("shardbroker.flows.persistence").joinpath("schemas", "dynamo.json").read_text())
    for table in schema:
        try:
            await connector.request("CreateTable", table)
        except (errors.ResourceInUse, errors.TableInUse, errors.TableAlreadyExists):
            continue  # it is there
        except errors.AIODynamoError as error:
            raise connector.explained(error, f"dynamodb:CreateTable of the table {table['TableName']!r}") from None


async def fetch(connector: Any, wanted: Wanted) -> Page:
    """Returns a page of messages: at most 1 MB, by DynamoDB's limit."""
    after = wanted.after
    if wanted.positions:
        key = {"clientid": {"S": wanted.client_id}, "topic": {"S": wanted.topic}}
        found = await _read(connector, "GetItem", "mqtt_acked", {"Key": key, "ConsistentRead": True})
        after = max(after, found["Item"]["mid"]["S"]) if "Item" in found else after
    query = {
        "KeyConditionExpression": "#t = :topic AND msgid BETWEEN :after AND :before",
        "ExpressionAttributeNames": {"#t": "topic"},
        "ExpressionAttributeValues": {
            ":topic": {"S": wanted.topic},
            ":after": {"S": _next(after)},
            ":before": {"S": wanted.before},
        },
        "ConsistentRead": True,
        "Limit": wanted.limit,
    }
    if _next(after) > wanted.before:
        return page_of([], wanted.limit)
    found = await _read(connector, "Query", "mqtt_msg", query)
    try:
        rows = [values_of(item) for item in found["Items"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConnectorError(f"{connector.where}: the server answers with items that cannot be read") from None
    return page_of(rows, wanted.limit, has_more=bool(found.get("LastEvaluatedKey")))


async def retained(connector: Any, topic: str) -> Stored | None:
    """Returns the retained message of a topic."""
    found = await _read(connector, "GetItem", "mqtt_retain", {"Key": {"topic": {"S": topic}}, "ConsistentRead": True})
    return stored_of(values_of(found["Item"]), has_id=False) if "Item" in found else None


def _next(id: str) -> str:
    """Returns a text between an id and the next one: BETWEEN includes both ends. No message has the upper end as its id."""
    return id + "0"


async def _read(connector: Any, action: str, table: str, request: dict[str, Any]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = await connector.request(action, {"TableName": table, **request})
    except errors.AIODynamoError as error:
        raise connector.explained(error, f"dynamodb:{action} of the table {table!r}") from None
    return answer
