"""Keys of the type `mongodb`."""

from typing import Annotated, Literal

from pydantic import Field

from shardbroker.config.base import Section
from shardbroker.config.connectors import MongodbConnection
from shardbroker.config.sinks.base import ActionSection, ConnectorSection
from shardbroker.config.units import Allowed

__all__ = ["MongodbAction", "MongodbConnector", "MongodbParameters", "MongodbStatement"]


class MongodbConnector(ConnectorSection, MongodbConnection):
    """MongoDB: one server, a replica set, or a sharded cluster."""


FILTER = 'a JSON object with placeholders, such as {"clientid": "${clientid}"}; placeholders of text in quotes'


class MongodbStatement(Section):
    """What is done with a row."""

    operation: Literal["insert", "upsert", "update", "delete"] = Field(
        "insert",
        description="insert: adds a document; upsert: changes the one that `filter_template` finds, or adds it; update, delete: "
        "changes or removes all that it finds.",
    )
    filter_template: Annotated[str, Allowed(FILTER)] = Field(
        "", max_length=65536, description="Which documents are changed or removed; not for insert."
    )
    collection: str = Field("mqtt", min_length=1, max_length=1024, description="Collection; may have placeholders.")
    payload_template: Annotated[str, Allowed('a JSON object with placeholders, such as {"topic": "${topic}", "temp": ${temp}}')] = (
        Field("", max_length=65536, description="The document, or the operators of a change such as $set; empty: the whole row.")
    )


class MongodbParameters(MongodbStatement):
    """The document of a row."""

    statements: Annotated[dict[str, MongodbStatement], Allowed("tables of operation, collection and templates by name")] = Field(
        {}, max_length=16, description="Others by name: a row whose field `statement` is such a name is written by it, in order."
    )


class MongodbAction(ActionSection):
    """A document for each row."""

    parameters: MongodbParameters = MongodbParameters()
