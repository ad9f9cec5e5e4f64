"""Keys of the type `opents`."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from shardbroker.config.base import Section
from shardbroker.config.connectors import Connection, Server
from shardbroker.config.sinks.base import ActionSection, ConnectorSection
from shardbroker.config.units import Allowed, Duration

__all__ = ["OpentsAction", "OpentsConnector", "OpentsParameters", "OpentsPoint"]


def _without_scheme(value: Any) -> Any:
    """EMQX's `server` is a URL."""
    return value.removeprefix("http://").rstrip("/") if isinstance(value, str) else value


Template = Annotated[str, Allowed("text with placeholders")]
Tags = Annotated[str | dict[str, str], Allowed('a table of tag = template, or a placeholder of a map such as "${tags}"')]


class OpentsConnector(ConnectorSection, Connection):
    """OpenTSDB, or a server with its API over HTTP."""

    server: Annotated[Server, BeforeValidator(_without_scheme)] = Field("", description="HOST:PORT; http:// before it is allowed.")
    summary: bool = Field(True, description="Whether answers have the numbers of points that were written and rejected.")
    details: bool = Field(True, description="Whether answers have the rejected points; without them a batch with one is halved.")
    sync: bool = Field(False, description="Whether the server answers after the points are on disk rather than in its memory.")
    sync_timeout: Duration = Field(0.0, ge=0, le=86400, description="How long the server waits for that; 0s: without limit.")


class OpentsPoint(Section):
    """A point of a row."""

    metric: Template = Field("${metric}", min_length=1, max_length=4096, description="Name of the metric.")
    tags: Tags = Field("${tags}", description="Tags; those whose value is missing are left out.")
    value: Annotated[str | int | float, Allowed("a number, or a placeholder")] = Field("${value}", description="The number.")
    timestamp: Annotated[str | int, Allowed("an integer, or a placeholder")] = Field(
        "", description="Unix s or ms; empty: the time of the message."
    )


class OpentsParameters(Section):
    """The points of a row."""

    data: Annotated[list[OpentsPoint], Allowed("a list of {metric, tags, value, timestamp}")] = Field(
        [OpentsPoint()], min_length=1, max_length=100, description="Points of each row."
    )


class OpentsAction(ActionSection):
    """Points for each row."""

    parameters: OpentsParameters = OpentsParameters()
