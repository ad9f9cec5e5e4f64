"""Keys of the type `pulsar`. Names are EMQX's where it has them."""

from typing import Annotated, Any, Literal

from pydantic import Field

from shardbroker.config.base import Section
from shardbroker.config.connectors import PulsarConnection
from shardbroker.config.sinks.base import ActionSection, ConnectorSection, SourceSection
from shardbroker.config.units import Allowed, Size, Whole

__all__ = ["PulsarAction", "PulsarConnector", "PulsarMessage", "PulsarParameters", "PulsarSource", "PulsarSourceParameters"]

WITHOUT_EFFECT = ("buffer", "local_topic", "max_inflight", "retention_period", "send_buffer", "sync_timeout")
"""Keys of EMQX's actions for which there is nothing to choose here: the journal is the buffer, `resource_opts` has limits."""
PROPERTIES_MAX = 64
TOPICS_MAX = 64
PRODUCERS_MAX = 10_000
"""Each is an object of the server as well."""

Template = Annotated[str, Allowed("text with placeholders")]
Topics = Annotated[list[str], Allowed('a list of topics, such as ["persistent://public/default/orders"]')]
Properties = Annotated[dict[str, str], Allowed('a table of text = text with placeholders, such as { device = "${clientid}" }')]


class PulsarConnector(ConnectorSection, PulsarConnection):
    """A cluster of Pulsar."""

    @staticmethod
    def adapted(given: dict[str, Any]) -> dict[str, Any]:
        """Returns a definition of EMQX with the keys that it has here. Raises ValueError."""
        found = dict(given)
        login = found.pop("authentication", None)
        if isinstance(login, dict):
            renamed = {"token" if name == "jwt" else name: value for name, value in login.items()}
            found = renamed | found
        elif login not in (None, "none"):
            raise ValueError(f"authentication: must be none, or a table with username and password or with jwt, got {login!r:.100}")
        return found


class PulsarMessage(Section):
    """The message of a row."""

    key: Template = Field(
        "${.clientid}", max_length=65536, description="Key; empty, or a placeholder whose field is missing: the message has none."
    )
    value: Template = Field("${.}", max_length=1 << 20, description="Value; `${.}` is the row as JSON.")


class PulsarParameters(Section):
    """Where messages are written, and how."""

    pulsar_topic: Annotated[str, Allowed("a topic such as persistent://public/default/readings, with placeholders")] = Field(
        "", max_length=4096, description="Topic; characters of values that structure names, such as /, are encoded."
    )
    message: PulsarMessage = PulsarMessage()
    properties: Properties = Field(
        {}, max_length=PROPERTIES_MAX, description="Properties of each message; one whose field is missing is left out."
    )
    strategy: Literal["key_dispatch", "roundrobin", "random"] = Field(
        "key_dispatch",
        description="Partition of a message: by the hash of the key that Java's clients have, so that messages of a key keep their "
        "order; or one for all rows of a batch, in turn or by chance.",
    )
    compression: Literal["no_compression", "lz4", "zlib", "zstd", "snappy"] = Field(
        "no_compression", description="Compression of batches."
    )
    batching: Literal["default", "key_based", "none"] = Field(
        "default",
        description="Messages that are stored together: all, those of a key, which consumers of the type key_shared need, or none.",
    )
    batch_size: Whole = Field(1000, ge=1, le=100_000, description="Most messages that are stored together.")
    max_batch_bytes: Size = Field(900 << 10, ge=1 << 10, le=64 << 20, description="Their bytes, without compression.")
    max_producers: Whole = Field(
        1000, ge=1, le=PRODUCERS_MAX, description="Producers that stay open, one for each partition: of topics with placeholders."
    )
    exactly_once: bool = Field(
        False,
        description="Whether the server drops what was stored before, by the position of a row: the namespace must have "
        "deduplication, `strategy` must be key_dispatch, and messages are stored one by one.",
    )

    @staticmethod
    def adapted(given: dict[str, Any]) -> dict[str, Any]:
        """Returns parameters of EMQX with the keys that they have here."""
        return {name: value for name, value in given.items() if name not in WITHOUT_EFFECT}


class PulsarAction(ActionSection):
    """A message of a topic for each row."""

    parameters: PulsarParameters = PulsarParameters()


class PulsarSourceParameters(Section):
    """What is received, and what is published."""

    topics: Topics = Field([], max_length=TOPICS_MAX, description="Topics; a partitioned one is received with all its partitions.")
    topics_pattern: Annotated[str, Allowed("a regular expression such as persistent://public/default/orders-.*")] = Field(
        "", max_length=1024, description="Topics of one namespace, also those that are made later, in place of `topics`."
    )
    subscription: str = Field(
        "",
        max_length=255,
        description="Subscription, which keeps its place at the server; empty: `shardbroker-` and the name of the source.",
    )
    subscription_type: Literal["exclusive", "failover", "shared", "key_shared"] = Field(
        "exclusive",
        description="exclusive, failover: messages have the order of their partition; key_shared: of their key; shared: none.",
    )
    initial_position: Literal["latest", "earliest"] = Field("latest", description="Where a subscription begins that is new.")
    receiver_queue: Whole = Field(
        1000, ge=1, le=100_000, description="Messages of a partition that the library has in memory, ahead of workers."
    )
    mqtt_topic: Annotated[str, Allowed("a topic with placeholders, such as from/pulsar/${key}")] = Field(
        "", max_length=4096, description="Topic of what is published; empty: rules alone get messages."
    )
    payload_template: Template = Field("${value}", max_length=65536, description="Its payload; `${.}` is all columns as JSON.")
    qos: Whole = Field(1, ge=0, le=2, description="Its QoS.")
    retain: bool = Field(False, description="Whether it is retained.")


class PulsarSource(SourceSection):
    """Messages of a subscription, acknowledged once workers have them."""

    parameters: PulsarSourceParameters = PulsarSourceParameters()
