"""Keys of the type `kafka`. EMQX has `kafka_producer` and `kafka_consumer` with a connector each."""

from typing import Annotated, Any, Literal

from pydantic import Field

from shardbroker.config.base import Section
from shardbroker.config.connectors import KafkaConnection
from shardbroker.config.sinks.base import ActionSection, ConnectorSection, SourceSection
from shardbroker.config.units import Allowed, Duration, Size, Whole

__all__ = [
    "KafkaAction", "KafkaConnector", "KafkaHeader", "KafkaMapping", "KafkaMessage", "KafkaParameters", "KafkaSource",
    "KafkaSourceParameters",
]  # fmt: skip

CONNECTOR_WITHOUT_EFFECT = ("health_check_topic", "metadata_request_timeout", "min_metadata_refresh_interval", "socket_opts")
"""Keys of EMQX's connectors for which there is nothing to choose here."""
WITHOUT_EFFECT = (
    "buffer", "max_inflight", "max_linger_bytes", "max_linger_time", "partition_count_refresh_interval", "query_mode",
    "sync_query_timeout",
)  # fmt: skip
"""Keys of EMQX's actions, likewise: the journal is the buffer."""
SOURCE_WITHOUT_EFFECT = ("max_rejoin_attempts",)
"""Keys of EMQX's sources, likewise."""
MAPPINGS_MAX = 1000
TOPIC_NAME = r"[A-Za-z0-9._-]{1,249}"
"""Names of topics of Kafka."""
HEADERS_MAX = 64

Template = Annotated[str, Allowed("text with placeholders")]
Headers = Annotated[str, Allowed("a placeholder of a map or of a list of {key, value}, such as ${pub_props}")]


class KafkaConnector(ConnectorSection, KafkaConnection):
    """A cluster of Kafka."""

    @staticmethod
    def adapted(given: dict[str, Any]) -> dict[str, Any]:
        """Returns a definition of EMQX with the keys that it has here. Raises ValueError."""
        found = {name: value for name, value in given.items() if name not in CONNECTOR_WITHOUT_EFFECT}
        login = found.pop("authentication", None)
        if isinstance(login, dict):
            found = login | found
        elif login not in (None, "none"):
            raise ValueError(f"authentication: must be none or a table with mechanism, username and password, got {login!r:.100}")
        return found


class KafkaMessage(Section):
    """The record of a row. A missing field is empty."""

    key: Template = Field("${.clientid}", max_length=65536, description="Key; empty: the record has none.")
    value: Template = Field("${.}", max_length=65536, description="Value; `${.}` is the row as JSON.")
    timestamp: Template = Field(
        "${.timestamp}", max_length=1024, description="Unix ms; the time of the message where it is no such number."
    )


class KafkaHeader(Section):
    """A header of each record."""

    kafka_ext_header_key: Template = Field("", min_length=1, max_length=1024, description="Its name.")
    kafka_ext_header_value: Template = Field("", max_length=65536, description="Its value.")


class KafkaParameters(Section):
    """Where records are written, and how."""

    topic: Annotated[str, Allowed("the name of a topic, or a template such as mqtt.${payload.kind}")] = Field(
        "", max_length=1024, description="Topic of Kafka; topics are not created."
    )
    message: KafkaMessage = KafkaMessage()
    kafka_headers: Headers = Field("", max_length=1024, description="Headers out of a field of the row.")
    kafka_ext_headers: Annotated[list[KafkaHeader], Allowed("a list of {kafka_ext_header_key, kafka_ext_header_value}")] = Field(
        [], max_length=HEADERS_MAX, description="More headers."
    )
    kafka_header_value_encode_mode: Literal["none", "json"] = Field(
        "none", description="none: values of headers are text or bytes, and others are left out; json: they are JSON."
    )
    partition_strategy: Literal["random", "key_dispatch"] = Field(
        "random",
        description="random: rows of a batch have one partition; key_dispatch: by the hash of the key that Java's clients have, so "
        "that records of a key keep their order.",
    )
    partitions_limit: Annotated[Literal["all_partitions"] | Whole, Allowed("all_partitions, or a number from 1 to 100000")] = Field(
        "all_partitions", description="Partitions of a topic that are written, from 0 on."
    )
    required_acks: Literal["all_isr", "leader_only", "none"] = Field(
        "all_isr", description="Replicas that have a record before it is done; `none` loses records when a connection ends."
    )
    idempotent: bool = Field(
        True, description="Whether Kafka drops repeats after a lost answer; without effect unless `required_acks` is `all_isr`."
    )
    compression: Literal["no_compression", "gzip", "snappy", "lz4", "zstd"] = Field(
        "no_compression", description="Compression of batches."
    )
    max_batch_bytes: Size = Field(
        896 << 10, ge=1 << 10, le=64 << 20, description="Most bytes of a batch of a partition, without compression."
    )
    exactly_once: bool = Field(
        False,
        description="Whether each batch is a transaction that has its position in the topic `shardbroker_cursors`: a consumer with "
        "isolation.level=read_committed reads each row once.",
    )

    @staticmethod
    def adapted(given: dict[str, Any]) -> dict[str, Any]:
        """Returns parameters of EMQX with the keys that they have here."""
        return {name: value for name, value in given.items() if name not in WITHOUT_EFFECT}


class KafkaAction(ActionSection):
    """A record of a topic for each row."""

    parameters: KafkaParameters = KafkaParameters()


class KafkaMapping(Section):
    """What is published for each record of a topic."""

    kafka_topic: str = Field("", min_length=1, max_length=249, pattern=f"^{TOPIC_NAME}$", description="Topic of Kafka.")
    mqtt_topic: Annotated[str, Allowed("a topic with placeholders such as from/kafka/${key}")] = Field(
        "", min_length=1, max_length=65535, description="Topic of the message."
    )
    qos: Annotated[Whole, Allowed("0, 1 or 2")] = Field(0, ge=0, le=2, description="Its QoS.")
    payload_template: Template = Field("${.}", max_length=65536, description="Its payload; `${.}` is all columns as JSON.")


class KafkaSourceParameters(Section):
    """What is read, and what is published."""

    topic: str = Field("", max_length=249, pattern=f"^({TOPIC_NAME})?$", description="Topic of Kafka whose records rules get.")
    topic_mapping: Annotated[list[KafkaMapping], Allowed("a list of {kafka_topic, mqtt_topic, qos, payload_template}")] = Field(
        [], max_length=MAPPINGS_MAX, description="Topics of Kafka whose records are published, and that rules get too."
    )
    group_id: str = Field("", max_length=249, description="Consumer group; empty: `shardbroker-` and the name of the source.")
    offset_reset_policy: Literal["latest", "earliest"] = Field(
        "latest", description="Where a group begins that has no offset of a partition yet."
    )
    key_encoding_mode: Literal["none", "base64"] = Field("none", description="base64: keys are text in Base64.")
    value_encoding_mode: Literal["none", "base64"] = Field("none", description="base64: values are text in Base64.")
    max_batch_bytes: Size = Field(896 << 10, ge=1 << 10, le=64 << 20, description="Most bytes of a partition in an answer.")
    max_wait_time: Duration = Field(1.0, ge=0.01, le=60, description="How long Kafka waits for records before it answers.")
    offset_commit_interval_seconds: Duration = Field(
        5.0, ge=0.1, le=3600, description="Time between two commits of offsets; a kill repeats what follows the last one."
    )

    @staticmethod
    def adapted(given: dict[str, Any]) -> dict[str, Any]:
        """Returns parameters of EMQX with the keys that they have here."""
        return {name: value for name, value in given.items() if name not in SOURCE_WITHOUT_EFFECT}


class KafkaSource(SourceSection):
    """Records of topics, as a member of a consumer group."""

    parameters: KafkaSourceParameters = KafkaSourceParameters()
