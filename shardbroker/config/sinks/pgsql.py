"""Keys of the types `pgsql` and `timescale`."""

from typing import Literal

from pydantic import Field

from shardbroker.config.connectors import PostgresqlConnection
from shardbroker.config.sinks.base import ActionSection, ConnectorSection
from shardbroker.config.sinks.sql import SqlParameters

__all__ = ["PgsqlAction", "PgsqlConnector", "PgsqlParameters", "TimescaleAction", "TimescaleConnector"]


class PgsqlConnector(ConnectorSection, PostgresqlConnection):
    """A PostgreSQL server."""


class PgsqlParameters(SqlParameters):
    """The statement of a row, and how a batch of them is written."""

    write: Literal["auto", "copy"] = Field(
        "auto", description="copy: by COPY, which is the quickest, for an INSERT of placeholders without ON CONFLICT."
    )


class PgsqlAction(ActionSection):
    """Rows in tables of PostgreSQL."""

    parameters: PgsqlParameters = PgsqlParameters()


class TimescaleConnector(PgsqlConnector):
    """A PostgreSQL server with TimescaleDB."""


class TimescaleAction(PgsqlAction):
    """Rows in tables of TimescaleDB."""
