"""Keys of the type `dynamo`."""

from typing import Annotated

from pydantic import Field

from shardbroker.config.base import Section
from shardbroker.config.connectors import DynamodbConnection
from shardbroker.config.sinks.base import ActionSection, ConnectorSection
from shardbroker.config.units import Allowed

__all__ = ["DynamoAction", "DynamoConnector", "DynamoParameters"]

NAME_MAX = 255
"""Most bytes of the name of a table or of an attribute of its key, by DynamoDB's limit."""


class DynamoConnector(ConnectorSection, DynamodbConnection):
    """DynamoDB, or a server with its API."""


class DynamoParameters(Section):
    """The item of a row."""

    table: str = Field("", max_length=NAME_MAX, description="Name of the table.")
    hash_key: str = Field("", max_length=NAME_MAX, description="Name of its partition key; empty: the one that the table has.")
    range_key: str = Field("", max_length=NAME_MAX, description="Name of its sort key; empty: the one that the table has, if any.")
    template: Annotated[str, Allowed('a JSON object with placeholders, such as {"id": "${id}", "temp": ${temp}}')] = Field(
        "", max_length=65536, description="The item; empty: the whole row."
    )
    undefined_vars_as_null: bool = Field(
        False, description="Whether a missing field is NULL also within quotes, rather than the text `undefined`."
    )


class DynamoAction(ActionSection):
    """An item for each row."""

    parameters: DynamoParameters = DynamoParameters()
