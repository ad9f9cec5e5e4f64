"""Keys of the type `mqtt`."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from shardbroker.config.base import Section
from shardbroker.config.connectors import MqttConnection
from shardbroker.config.sinks.base import ActionSection, ConnectorSection, SourceSection
from shardbroker.config.units import Allowed, Whole

__all__ = ["MqttAction", "MqttConnector", "MqttLocal", "MqttParameters", "MqttSource", "MqttSourceParameters"]

def _qos(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _retain(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


Qos = Annotated[str, BeforeValidator(_qos), Allowed("0, 1, 2 or a template such as ${qos}")]
Retain = Annotated[str, BeforeValidator(_retain), Allowed("true, false or a template such as ${flags.retain}")]


class MqttConnector(ConnectorSection, MqttConnection):
    """Another MQTT broker."""


class MqttParameters(Section):
    """The message of a row."""

    topic: Annotated[str, Allowed("a template such as bridge/${topic}")] = Field(
        "${topic}", min_length=1, max_length=65535, description="Topic at the server; a prefix is its mount point."
    )
    qos: Qos = Field("${qos}", max_length=256, description="QoS at the server; 2: each row exactly once.")
    retain: Retain = Field("${flags.retain}", max_length=256, description="Whether the server retains the message.")
    payload: Annotated[str, Allowed("a template such as ${payload}")] = Field(
        "${payload}", max_length=262144, description="Payload; empty: the row as JSON."
    )

    @property
    def exactly_once(self) -> bool:
        """Whether rows may have QoS 2, so that packet ids are kept and each journal has a lane of its own."""
        return self.qos.strip() not in ("0", "1")


def _filters(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Filters = Annotated[list[str], BeforeValidator(_filters), Allowed('a topic filter, or a list of them, such as ["a/#", "b/+"]')]


class MqttLocal(Section):
    """What is published here for a message."""

    topic: Annotated[str, Allowed("a template such as site-a/${topic}")] = Field(
        "", max_length=65535, description="Topic here; empty: messages are for rules only."
    )
    strip_prefix: str = Field("", max_length=65535, description="Begin of topics at the server that `${topic}` does not have here.")
    qos: Qos = Field("${qos}", max_length=256, description="QoS here.")
    retain: Retain = Field("${retain}", max_length=256, description="Whether the message is retained here.")
    payload: Annotated[str, Allowed("a template such as ${payload}")] = Field(
        "${payload}", min_length=1, max_length=262144, description="Payload here."
    )


class MqttSourceParameters(Section):
    """What is received, and what becomes of it."""

    topic: Filters = Field(
        [], max_length=256, description="Topic filters at the server; `$share/GROUP/FILTER` for each of several connections."
    )
    qos: Whole = Field(1, ge=0, le=2, description="Most QoS of messages.")
    no_local: bool = Field(True, description="Whether what the same connection publishes does not return; MQTT 5.0 only.")
    retain_as_published: bool = Field(True, description="Whether messages keep RETAIN; MQTT 5.0 only.")
    local: MqttLocal = MqttLocal()


class MqttSource(SourceSection):
    """Messages of another MQTT broker."""

    parameters: MqttSourceParameters = MqttSourceParameters()


class MqttAction(ActionSection):
    """Messages to another MQTT broker."""

    parameters: MqttParameters = MqttParameters()
