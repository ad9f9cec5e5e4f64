"""Keys of the type `dynamo`."""

from typing import Annotated, Literal

from pydantic import Field

from shardbroker.config.base import Section
from shardbroker.config.connectors import DynamodbConnection
from shardbroker.config.sinks.base import ActionSection, ConnectorSection
from shardbroker.config.units import Allowed

__all__ = ["DynamoAction", "DynamoConnector", "DynamoParameters", "DynamoStatement"]

NAME_MAX = 255
"""Most bytes of the name of a table or of an attribute of its key, by DynamoDB's limit."""


class DynamoConnector(ConnectorSection, DynamodbConnection):
    """DynamoDB, or a server with its API."""


class DynamoStatement(Section):
    """What is done with a row."""

    operation: Literal["put", "delete"] = Field(
        "put", description="put: the item is written, in place of the one with its key; delete: the one with its key is removed."
    )
    condition: Annotated[str, Allowed("a condition such as attribute_not_exists(#topic) OR #at <= ${at}, or nothing")] = Field(
        "",
        max_length=4096,
        description="Condition on the stored item; the row is done if it does not hold. Names of attributes begin with #.",
    )
    index: str = Field(
        "",
        max_length=NAME_MAX,
        description="Index with a partition key alone: the operation is done for each item with the value that the row has for it, "
        "whose attributes complete the row; empty: once.",
    )
    filter: Annotated[str, Allowed("a condition such as #state <> ${state}, or nothing")] = Field(
        "", max_length=4096, description="With `index`: condition on the items that are found, not on the key of the index."
    )
    table: str = Field("", max_length=NAME_MAX, description="Name of the table.")
    hash_key: str = Field("", max_length=NAME_MAX, description="Name of its partition key; empty: the one that the table has.")
    range_key: str = Field("", max_length=NAME_MAX, description="Name of its sort key; empty: the one that the table has, if any.")
    template: Annotated[str, Allowed('a JSON object with placeholders, such as {"id": "${id}", "temp": ${temp}}')] = Field(
        "", max_length=65536, description="The item; empty: the whole row."
    )


class DynamoParameters(DynamoStatement):
    """The item of a row."""

    statements: Annotated[dict[str, DynamoStatement], Allowed("tables of operation, table, template and others by name")] = Field(
        {}, max_length=16, description="Others by name: a row whose field `statement` is such a name is written by it, in order."
    )
    undefined_vars_as_null: bool = Field(
        False, description="Whether a missing field is NULL also within quotes, rather than the text `undefined`."
    )


class DynamoAction(ActionSection):
    """An item for each row."""

    parameters: DynamoParameters = DynamoParameters()
