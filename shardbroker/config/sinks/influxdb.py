"""Keys of the type `influxdb`."""

from typing import Annotated, Literal

from pydantic import Field

from shardbroker.config.base import Section
from shardbroker.config.connectors import Connection
from shardbroker.config.sinks.base import ActionSection, ConnectorSection
from shardbroker.config.units import Allowed, Secret

__all__ = ["InfluxdbAction", "InfluxdbConnector", "InfluxdbParameters"]

SYNTAX = "lines such as readings,device=${clientid} temp=${payload.temp},count=${n}i ${timestamp}"


class InfluxdbConnector(ConnectorSection, Connection):
    """InfluxDB 1, 2 or 3, or a server with one of these APIs."""

    influxdb_type: Literal["influxdb_api_v1", "influxdb_api_v2", "influxdb_api_v3"] = Field(
        "influxdb_api_v2",
        description="v1: `database`, `username`, `password`; v2: `bucket`, `org`, `token`; v3: `database`, `token`.",
    )
    database: str = Field("mqtt", max_length=1024, description="Name of the database.")
    bucket: str = Field("mqtt", max_length=1024, description="Name of the bucket.")
    org: str = Field("", max_length=1024, description="Name of the organization.")
    token: Secret = Field("", description="Token of the API; not allowed with --set. `file:PATH` reads it from a file.")


class InfluxdbParameters(Section):
    """The points of a row."""

    write_syntax: Annotated[str, Allowed(SYNTAX)] = Field(
        "", max_length=65536, description="Points in line protocol, with placeholders."
    )
    precision: Literal["ns", "us", "ms", "s"] = Field("ms", description="Unit of the times of points.")


class InfluxdbAction(ActionSection):
    """Points for each row, one request for each batch."""

    parameters: InfluxdbParameters = InfluxdbParameters()
