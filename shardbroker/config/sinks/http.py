"""Keys of the type `http`."""

from typing import Annotated, Literal

from pydantic import Field

from shardbroker.config.base import Section
from shardbroker.config.connectors import HttpConnection, Secrets
from shardbroker.config.sinks.base import ActionSection, ConnectorSection
from shardbroker.config.units import Allowed

__all__ = ["HttpAction", "HttpConnector", "HttpParameters"]


class HttpConnector(ConnectorSection, HttpConnection):
    """A web service."""


class HttpParameters(Section):
    """The request of a row."""

    method: Literal["post", "put", "get", "delete"] = Field("post", description="Method of the request.")
    path: Annotated[str, Allowed("a template such as /devices/${clientid}")] = Field(
        "", max_length=4096, description="Appended to the URL of the connector; values of placeholders are encoded."
    )
    headers: Secrets = Field({}, description="Headers besides those of the connector; values may have placeholders.")
    body: Annotated[str, Allowed('a template such as {"t": ${payload.t}}')] = Field(
        "", max_length=65536, description="Body of the request; empty: the row as JSON."
    )
    batch: bool = Field(False, description="Whether a batch is one request, with an array of the bodies.")


class HttpAction(ActionSection):
    """Requests to a web service, one for each row or batch."""

    parameters: HttpParameters = HttpParameters()
