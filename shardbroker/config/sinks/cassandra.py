"""Keys of the type `cassandra`."""

from typing import Annotated, Literal

from pydantic import Field

from shardbroker.config.base import Section
from shardbroker.config.connectors import CassandraConnection
from shardbroker.config.sinks.base import ActionSection, ConnectorSection
from shardbroker.config.sinks.sql import SQL_MAX
from shardbroker.config.units import Allowed

__all__ = ["CassandraAction", "CassandraConnector", "CassandraParameters"]


class CassandraConnector(ConnectorSection, CassandraConnection):
    """Cassandra: the nodes of one data center."""


class CassandraParameters(Section):
    """The statement of a row, and how a batch of them is written."""

    cql: Annotated[str, Allowed("a statement such as INSERT INTO t (topic, payload) VALUES (${topic}, ${payload})")] = Field(
        "", max_length=SQL_MAX, description="Statement for each row; placeholders are its parameters, written without quotes."
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
