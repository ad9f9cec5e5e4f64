"""The preset of OpenTSDB: a point of the metric mqtt_msg for each message whose payload is a number. There is nothing to create.

OpenTSDB takes few characters in tags: others are `_` in the topic and the client id.
"""

from typing import Any

__all__ = ["create", "parameters"]

POINT = {
    "metric": "mqtt_msg",
    "tags": {"topic": "${tag_topic}", "sender": "${tag_sender}", "qos": "${qos}"},
    "value": "${payload}",
    "timestamp": "${arrived}",
}


def parameters(part: str, section: Any) -> dict[str, Any]:
    """Returns the parameters of the action of messages."""
    return {"data": [POINT]}


async def create(connector: Any) -> None:
    """Has nothing to create: the server makes metrics with tsd.core.auto_create_metrics."""
