"""Keys of the type `mongodb`."""

from typing import Annotated

from pydantic import Field

from shardbroker.config.base import Section
from shardbroker.config.connectors import MongodbConnection
from shardbroker.config.sinks.base import ActionSection, ConnectorSection
from shardbroker.config.units import Allowed

__all__ = ["MongodbAction", "MongodbConnector", "MongodbParameters"]


class MongodbConnector(ConnectorSection, MongodbConnection):
    """MongoDB: one server, a replica set, or a sharded cluster."""


class MongodbParameters(Section):
    """The document of a row."""

    collection: str = Field("mqtt", min_length=1, max_length=1024, description="Collection; may have placeholders.")
    payload_template: Annotated[str, Allowed('a JSON object with placeholders, such as {"topic": "${topic}", "temp": ${temp}}')] = (
        Field("", max_length=65536, description="The document; empty: the whole row.")
    )


class MongodbAction(ActionSection):
    """A document for each row."""

    parameters: MongodbParameters = MongodbParameters()
