"""Keys of the type `rabbitmq`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from shardbroker.config.base import LONGEST_WAIT_S, SHORTEST_S, Section
from shardbroker.config.connectors import RabbitmqConnection
from shardbroker.config.sinks.base import ActionSection, ConnectorSection, SourceSection
from shardbroker.config.units import Allowed, Duration, Whole

__all__ = ["RabbitmqAction", "RabbitmqConnector", "RabbitmqParameters", "RabbitmqSource", "RabbitmqSourceParameters"]


def _pairs(value: Any) -> Any:
    """Returns the table for EMQX's list of tables with `key` and `value`."""
    if isinstance(value, list) and all(isinstance(one, dict) and one.keys() == {"key", "value"} for one in value):
        return {one["key"]: one["value"] for one in value}
    return value


Templates = Annotated[dict[str, str], BeforeValidator(_pairs), Allowed("a table of text = template")]


class RabbitmqConnector(ConnectorSection, RabbitmqConnection):
    """RabbitMQ."""


class RabbitmqParameters(Section):
    """The message of a row."""

    exchange: str = Field("", max_length=255, description="Exchange; empty: the default one, whose routing keys name queues.")
    routing_key: str = Field("", max_length=4096, description="Template of the routing key, of up to 255 bytes.")
    delivery_mode: Literal["persistent", "non_persistent"] = Field(
        "persistent", description="Whether a durable queue keeps the message over a restart of the server."
    )
    payload_template: str = Field("", max_length=65536, description="Template of the body; empty: the row as JSON.")
    headers_template: Templates = Field({}, max_length=64, description="Headers, templates of texts.")
    properties_template: Templates = Field(
        {},
        max_length=16,
        description="Properties, such as content_type, expiration in ms or priority, as templates; message_id is that of the row.",
    )
    mandatory: bool = Field(True, description="Whether a message that no queue gets is a failed row; otherwise it is dropped.")
    publish_confirmation_timeout: Duration = Field(
        30.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="Longest wait for the next confirm of the server."
    )


class RabbitmqAction(ActionSection):
    """A message for each row, confirmed by the server."""

    parameters: RabbitmqParameters = RabbitmqParameters()


class RabbitmqSourceParameters(Section):
    """The queue, and what is published here."""

    queue: str = Field("", max_length=255, description="Queue, which exists.")
    prefetch: Whole = Field(1000, ge=1, le=65535, description="Messages under way that are not acknowledged.")
    topic: str = Field(
        "", max_length=4096, description="Template of the topic, such as rabbit/${routing_key}; empty: rules alone see the message."
    )
    payload_template: str = Field("${payload}", max_length=65536, description="Template of the payload.")
    qos: Whole = Field(1, ge=0, le=2, description="QoS.")
    retain: bool = Field(False, description="Whether it is retained.")


class RabbitmqSource(SourceSection):
    """Messages of a queue, acknowledged once workers have them."""

    parameters: RabbitmqSourceParameters = RabbitmqSourceParameters()
