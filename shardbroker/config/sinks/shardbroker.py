"""Keys of the type `shardbroker`."""

from typing import Annotated

from pydantic import AfterValidator, Field

from shardbroker.config.base import Section
from shardbroker.config.connectors import ShardbrokerConnection
from shardbroker.config.sinks.base import ActionSection, ConnectorSection, SourceSection
from shardbroker.config.units import Allowed, Size

__all__ = ["ShardbrokerAction", "ShardbrokerConnector", "ShardbrokerParameters", "ShardbrokerSource", "ShardbrokerSourceParameters"]

PREFIX_HELP = "the begin of topics without +, # and $, such as site-a/"


def _check_prefix(value: str) -> str:
    if any(c in value for c in "+#$\0"):
        raise ValueError(f"allowed is {PREFIX_HELP}")
    return value


Prefix = Annotated[str, AfterValidator(_check_prefix), Allowed(PREFIX_HELP)]


class ShardbrokerConnector(ConnectorSection, ShardbrokerConnection):
    """Another broker of this kind, or those that connect to this one."""


class ShardbrokerParameters(Section):
    """What becomes of the messages at the other broker."""

    topic_prefix: Prefix = Field("", max_length=4096, description="In front of their topics at the other broker.")
    window: Size = Field(4 << 20, ge=1 << 18, le=1 << 28, description="Bytes of a journal under way that are not acknowledged.")

    @property
    def exactly_once(self) -> bool:
        """The other broker has the positions, so no row of another action can come here."""
        return True


class ShardbrokerAction(ActionSection):
    """Whole messages, exactly once."""

    parameters: ShardbrokerParameters = ShardbrokerParameters()


class ShardbrokerSourceParameters(Section):
    """Where other brokers connect to, and what becomes of their messages here."""

    listen: Annotated[str, Allowed("HOST:PORT")] = Field("", max_length=256, description="HOST:PORT that other brokers connect to.")
    topic_prefix: Prefix = Field("", max_length=4096, description="In front of the topics here, also of the prefix of the sender.")


class ShardbrokerSource(SourceSection):
    """Messages of other brokers of this kind, each published once."""

    parameters: ShardbrokerSourceParameters = ShardbrokerSourceParameters()
