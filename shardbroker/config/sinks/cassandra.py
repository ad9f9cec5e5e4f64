"""Keys of the type `cassandra`."""

from typing import Annotated, Literal

from pydantic import Field

from shardbroker.config.base import Section
from shardbroker.config.connectors import CassandraConnection
from shardbroker.config.sinks.base import ActionSection, ConnectorSection
from shardbroker.config.sinks.sql import SQL_MAX
from shardbroker.config.units import Allowed

__all__ = ["CassandraAction", "CassandraConnector", "CassandraParameters", "CassandraStatement"]


class CassandraConnector(ConnectorSection, CassandraConnection):
    """Cassandra: the nodes of one data center."""


class CassandraStatement(Section):
    """What is done with a row."""

    cql: Annotated[str, Allowed("a statement such as INSERT INTO t (topic, payload) VALUES (${topic}, ${payload})")] = Field(
        "", max_length=SQL_MAX, description="Statement for each row; placeholders are its parameters, written without quotes."
    )
    select: Annotated[str, Allowed("a query such as SELECT client_id FROM client WHERE node = ${node}, or nothing")] = Field(
        "",
        max_length=SQL_MAX,
        description="Query whose rows complete the row: `cql` is executed for each of them, and has their columns as placeholders; "
        "empty: once.",
    )


class CassandraParameters(CassandraStatement):
    """The statement of a row, and how a batch of them is written."""

    statements: Annotated[dict[str, CassandraStatement], Allowed("tables of cql and select by name")] = Field(
        {}, max_length=16, description="Others by name: a row whose field `statement` is such a name is written by it, in order."
    )
    undefined_vars_as_null: bool = Field(
        False, description="Whether a missing field is written as NULL; else as the text `undefined`, where the column takes one."
    )
    consistency: Literal["one", "two", "three", "quorum", "all", "local_one", "local_quorum", "each_quorum"] = Field(
        "local_quorum", description="How many replicas have a row before it is done, by the names of Cassandra."
    )


class CassandraAction(ActionSection):
    """Rows in tables of Cassandra."""

    parameters: CassandraParameters = CassandraParameters()
