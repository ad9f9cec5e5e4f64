"""Keys of the type `redis`."""

from typing import Annotated

from pydantic import Field

from shardbroker.config.base import Section
from shardbroker.config.connectors import RedisConnection
from shardbroker.config.sinks.base import ActionSection, ConnectorSection
from shardbroker.config.units import Allowed

__all__ = ["RedisAction", "RedisConnector", "RedisParameters"]

Command = Annotated[list[str], Allowed('a list of templates, such as ["HSET", "mqtt:msg:${id}", "payload", "${payload}"]')]


class RedisConnector(ConnectorSection, RedisConnection):
    """Redis: one server, a master of sentinels, or a cluster."""


class RedisParameters(Section):
    """The command of a row."""

    command_template: Command = Field(
        [], max_length=1024, description="Command and arguments; a value of a placeholder is one argument, or a part of one."
    )


class RedisAction(ActionSection):
    """A command for each row, pipelined by batch."""

    parameters: RedisParameters = RedisParameters()
