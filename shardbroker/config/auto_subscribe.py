"""Keys of subscriptions that the broker makes for its clients: those of a list, and those that databases have."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from shardbroker.config.access import Names, chain_names
from shardbroker.config.base import LEVELS_MAX, LONGEST_WAIT_S, SHORTEST_S, Section
from shardbroker.config.connectors import MongodbConnection, MysqlConnection, PostgresqlConnection, RedisConnection, Texts
from shardbroker.config.features import PLACEHOLDER, check_placeholders
from shardbroker.config.units import Allowed, Duration, Whole
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_filter, parse_subscription

__all__ = [
    "AUTO_NAMES", "SUBSCRIPTION_SOURCES", "AutoSubscribe", "MongodbSubscriptions", "MysqlSubscriptions", "PostgresqlSubscriptions",
    "RedisSubscriptions",
]  # fmt: skip

AUTO_NAMES = ("clientid", "username", "host", "port")
"""Names of placeholders in `auto_subscribe.topics`."""
TOPIC_QUERY = "SELECT topic, qos FROM mqtt_sub WHERE clientid = ${clientid}"

TopicQuery = Annotated[str, Field(description="Query with the columns topic and qos. Placeholders are bound as parameters.")]


class AutoTopic(Section):
    """A filter and the options of its subscription."""

    topic: str
    qos: Literal[0, 1, 2] = 0
    nl: Annotated[Whole, Field(ge=0, le=1)] = 0
    rap: Annotated[Whole, Field(ge=0, le=1)] = 0
    rh: Annotated[Whole, Field(ge=0, le=2)] = 0

    @field_validator("topic")
    @classmethod
    def _filter(cls, value: str) -> str:
        check_placeholders(value, AUTO_NAMES)
        try:
            check_topic_filter(parse_subscription(PLACEHOLDER.sub("x", value).encode())[1], LEVELS_MAX)
        except MqttError as error:
            raise ValueError(f"topic {value!r}: {error}") from None
        return value


class RedisSubscriptions(RedisConnection):
    """Subscriptions in Redis: a hash of topic filter = QoS for each client."""

    cmd: str = Field("HGETALL mqtt:sub:${clientid}", description="HGETALL command.")


class PostgresqlSubscriptions(PostgresqlConnection):
    """Subscriptions in PostgreSQL."""

    query: TopicQuery = TOPIC_QUERY


class MysqlSubscriptions(MysqlConnection):
    """Subscriptions in MySQL or MariaDB."""

    query: TopicQuery = TOPIC_QUERY


class MongodbSubscriptions(MongodbConnection):
    """Subscriptions in MongoDB: documents with topic and qos."""

    collection: str = Field("mqtt_sub", description="Name of the collection.")
    filter: Texts = Field({"clientid": "${clientid}"}, description="Field = value of the documents of a client.")


class SubscriptionTables(Section):
    """The table of sources: NAME in `auto_subscribe.sources` and its keys. Its code is `integrations/auth/NAME.py`."""

    redis: RedisSubscriptions = RedisSubscriptions()
    postgresql: PostgresqlSubscriptions = PostgresqlSubscriptions()
    mysql: MysqlSubscriptions = MysqlSubscriptions()
    mongodb: MongodbSubscriptions = MongodbSubscriptions()


SUBSCRIPTION_SOURCES = tuple(SubscriptionTables.model_fields)
"""Names allowed in auto_subscribe.sources."""


def _known(value: list[str]) -> list[str]:
    for name in value:
        if name not in SUBSCRIPTION_SOURCES:
            raise ValueError(f"allowed are {', '.join(SUBSCRIPTION_SOURCES)}, not {name!r}")
    return chain_names(value)


class AutoSubscribe(SubscriptionTables):
    """Subscriptions that the broker creates for every client that connects; docs/topics.md."""

    topics: Annotated[
        list[AutoTopic],
        Allowed(
            "a list of tables with topic (a filter; ${clientid}, ${username}, ${host} and ${port} are filled in), "
            "qos, nl, rap and rh"
        ),
    ] = Field([], description="Created without SUBACK and without a check of permissions.")
    sources: Annotated[Names, AfterValidator(_known), Allowed(f"a list of {', '.join(SUBSCRIPTION_SOURCES)}")] = Field(
        [], description="Databases that have further subscriptions of each client, looked up when it connects."
    )
    on_error: Literal["ignore", "deny"] = Field(
        "ignore", description="Effect of a source that fails: the client connects without its subscriptions, or is denied (0x88)."
    )
    timeout: Duration = Field(5.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="Longest wait for all sources.")
    replace: bool = Field(
        False, description="Whether the sources have all subscriptions of a client: a session that is resumed loses others."
    )
