"""The preset of InfluxDB: a point of the measurement mqtt_msg for each message. There is nothing to create.

The time of a point is made of the id of its message: one that is written again is the same point, and one that is published in the
same us by the same client is another.
"""

from typing import Any

__all__ = ["create", "parameters"]

POINT = (
    'mqtt_msg,topic=${topic},sender=${sender},qos=${qos} msgid="${id}",node="${node}",retain=${retain}i,payload="${payload}"'
    " ${at_ns}"
)


def parameters(part: str, section: Any) -> dict[str, Any]:
    """Returns the parameters of the action of messages."""
    return {"write_syntax": POINT, "precision": "ns"}


async def create(connector: Any) -> None:
    """Has nothing to create: measurements are made when they are written."""
