"""The sections `[persistence.<db>]`: presets that keep clients, subscriptions and messages in a database.

What a section expands to is in `shardbroker/flows/persistence`; a database is a row of DATABASES here and a module there.
"""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, create_model, field_validator

from shardbroker.config.base import Section
from shardbroker.config.features import check_filters
from shardbroker.config.sinks.base import PRESETS
from shardbroker.config.sinks.tables import Connectors
from shardbroker.config.sinks.types import SINK_TYPES
from shardbroker.config.units import Allowed

__all__ = [
    "DATABASES", "Kept", "KeptMessages", "LookupSource", "Persistence", "check_connectors", "check_filters_of_rule", "connector_id",
    "key_of", "rule_id",
]  # fmt: skip

FILTERS_MAX = 100
"""Topic filters of a part: they are in the SQL of one rule."""
EVENTS = ("$events/", "$bridges/", "$sources/")
"""Starts of names behind FROM that are no topic filters."""

Filters = Annotated[list[str], Allowed('a list of topic filters without quotes and backslashes, such as ["sensors/#"]')]


def check_filters_of_rule(texts: list[str]) -> None:
    """Raises ValueError for a text that is no topic filter, or that the SQL of a rule cannot name."""
    check_filters(texts)
    for one in texts:
        if one.startswith(EVENTS) or any(char in "\"'\\" or char < " " for char in one):
            raise ValueError(f"allowed are topic filters without quotes, backslashes and control characters, not {one[:200]!r}")


class KeptMessages(Section):
    """What all presets have; `connection`, with the keys of the connector of the database, comes with the table of a database."""

    connector: str = Field(
        "",
        max_length=64,
        description="Name of a connector of this type in the configuration; empty: `connection` has it.",
    )
    messages: Filters = Field(
        [], max_length=FILTERS_MAX, description="Topic filters of messages that are kept: those published with QoS 1 or 2."
    )
    store_qos0: bool = Field(False, description="Whether messages of QoS 0 to these topics are kept too.")

    @field_validator("messages", "retained", "acked", "fetch", "retain_lookup", check_fields=False)
    @classmethod
    def _filters(cls, value: list[str]) -> list[str]:
        check_filters_of_rule(value)
        return value

    @property
    def is_used(self) -> bool:
        """Whether anything is kept or looked up."""
        return bool(self.parts) or self.looks_up

    @property
    def looks_up(self) -> bool:
        """Whether subscriptions get anything of the database."""
        return any(getattr(self, name, None) for name in ("fetch", "retain_lookup"))

    @property
    def parts(self) -> list[str]:
        """What is kept."""
        return [name for name in ("clients", "subscriptions", "messages", "retained", "acked") if getattr(self, name, None)]


class Kept(KeptMessages):
    """What presets of databases with keys have."""

    clients: bool = Field(False, description="Whether the state of each client is kept: online or not, on which node, since when.")
    subscriptions: bool = Field(False, description="Whether the subscriptions of clients are kept.")
    retained: Filters = Field([], max_length=FILTERS_MAX, description="Topic filters of retained messages that are kept.")
    acked: Filters = Field(
        [], max_length=FILTERS_MAX, description="Topic filters of deliveries whose acknowledgement by a client is kept."
    )
    on_acked: Literal["position", "delete"] = Field(
        "position",
        description="position: the last acknowledged message of each client and topic is kept; delete: the message is removed.",
    )
    fetch: Filters = Field(
        [],
        max_length=FILTERS_MAX,
        description="Topic filters: a new subscription to a topic that one of them matches gets the kept messages that the client"
        " has not acknowledged. Subscriptions with wildcards and shared ones do not.",
    )
    fetch_time_range: Annotated[int, Allowed("seconds, or 0 for no limit")] = Field(
        0, ge=0, le=315_360_000, description="Age in seconds up to which kept messages are fetched; 0: any."
    )
    retain_lookup: Filters = Field(
        [],
        max_length=FILTERS_MAX,
        description="Topic filters: a subscription to a topic that one of them matches gets the retained message of the database"
        " if the broker has none, or an older one.",
    )


class KeptInRedis(Kept):
    """What the preset of Redis has."""

    expired_after: Annotated[int, Allowed("seconds, or 0 for no limit")] = Field(
        3600, ge=0, le=315_360_000, description="Seconds after which a kept message is removed; 0: never."
    )


class LookupSource(NamedTuple):
    """Where new subscriptions are looked up.

    connector: `type:name`. actions: those whose rows have to be written before the database is asked. positions: whether it has the
    position of each client, rather than only messages that are not acknowledged. time_range_s: 0 for no limit.
    """

    database: str
    connector: str
    fetch: tuple[bytes, ...]
    retain_lookup: tuple[bytes, ...]
    actions: tuple[str, ...]
    positions: bool
    time_range_s: int


class Database(NamedTuple):
    """part: what its section has besides `connection`."""

    title: str
    part: type[KeptMessages]


DATABASES = {
    "cassandra": Database("Cassandra", Kept),
    "dynamo": Database("DynamoDB", Kept),
    "influxdb": Database("InfluxDB", KeptMessages),
    "mongodb": Database("MongoDB", Kept),
    "mysql": Database("MySQL", Kept),
    "opents": Database("OpenTSDB", KeptMessages),
    "pgsql": Database("PostgreSQL", Kept),
    "redis": Database("Redis", KeptInRedis),
    "timescale": Database("TimescaleDB", KeptMessages),
}


def _section(name: str, row: Database) -> Any:
    connector: Any = SINK_TYPES[name].connector
    connection = (connector, Field(connector(), description="Settings of the connector, as those of `connectors`."))
    made = create_model(f"Persistence_{name}", __base__=row.part, __doc__=f"What is kept in {row.title}.", connection=connection)
    return (made, made())


class Persistence(create_model("_Persistence", __base__=Section, **{name: _section(name, row) for name, row in DATABASES.items()})):  # type: ignore[misc]
    """Presets that keep clients, subscriptions and messages in databases."""

    def used(self) -> dict[str, Any]:
        """Returns the sections that keep anything, by database."""
        return {name: section for name in DATABASES if (section := getattr(self, name)).is_used}

    def lookups(self) -> LookupSource | None:
        """Returns where new subscriptions are looked up, or None."""
        for name, section in self.used().items():
            if section.looks_up:
                deletes = "acked" in section.parts and section.on_acked == "delete"
                written = ("messages", "retained") if deletes else ("messages", "retained", "acked")
                parts = [one for one in written if one in section.parts]
                return LookupSource(
                    name,
                    connector_id(name, section),
                    tuple(one.encode() for one in section.fetch),
                    tuple(one.encode() for one in section.retain_lookup),
                    tuple(f"{name}:{rule_id(name, part)}" for part in parts),
                    not deletes,
                    section.fetch_time_range,
                )
        return None


def check_connectors(persistence: Persistence, connectors: Connectors) -> None:
    """Raises ValueError for a section whose connector does not exist, or that names two."""
    there = connectors.by_id()
    looking = [name for name, section in persistence.used().items() if section.looks_up]
    if len(looking) > 1:
        keys = " and ".join(f"persistence.{name}" for name in looking)
        raise ValueError(f"allowed is one section with fetch or retain_lookup, not {keys}")
    for name, section in persistence.used().items():
        if section.connector and f"{name}:{section.connector}" not in there:
            raise ValueError(
                f"allowed is a connector that exists: persistence.{name}.connector names {section.connector!r}, and there is no "
                f"connectors.{name}.{section.connector}"
            )
        if section.connector and section.connection != type(section.connection)():
            raise ValueError(f"allowed is one of persistence.{name}.connector and persistence.{name}.connection, not both")
        connection = there[f"{name}:{section.connector}"] if section.connector else section.connection
        if getattr(connection, "redis_type", "") == "cluster":
            raise ValueError(f"allowed is redis_type single or sentinel for the connector of persistence.{name}, not cluster")
        if "acked" in section.parts and section.on_acked == "delete" and not section.messages:
            raise ValueError(f"allowed is persistence.{name}.on_acked = delete only with persistence.{name}.messages")
        if getattr(section, "fetch", None) and not section.acked:
            raise ValueError(
                f"allowed is persistence.{name}.fetch only with persistence.{name}.acked: without it each subscription would get"
                " all messages again"
            )


def rule_id(name: str, part: str) -> str:
    """Returns the id of the rule of a part."""
    return f"{PRESETS}{name}-{part}"


def connector_id(name: str, section: Any) -> str:
    """Returns the id of the connector that a section uses."""
    return f"{name}:{section.connector or PRESETS + name}"


def key_of(id: str) -> str:
    """Returns the key of the preset that has made a rule, connector or action with this id; empty for one of a user."""
    name = id.rpartition(":")[2]
    database = name.removeprefix(PRESETS).partition("-")[0]
    return f"persistence.{database}" if name.startswith(PRESETS) and database in DATABASES else ""
