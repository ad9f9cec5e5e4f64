"""Whole messages to and from other brokers of this kind; see flows/bridge."""

from shardbroker.config.sinks.shardbroker import ShardbrokerAction, ShardbrokerConnector, ShardbrokerSource
from shardbroker.connectors.shardbroker import Shardbroker
from shardbroker.flows.bridge.listener import Listener
from shardbroker.flows.bridge.sender import Sender, greet

__all__ = ["connect", "make", "make_source"]


def connect(settings: ShardbrokerConnector, key: str) -> Shardbroker:
    """Returns the connector. Raises ConnectionSettingError."""
    connector = Shardbroker(settings, key)
    connector.greet = lambda streams: greet(connector, streams)
    return connector


def make(settings: ShardbrokerAction, connector: Shardbroker, id: str) -> Sender:
    """Returns the driver of an action."""
    return Sender(settings, connector, id)


def make_source(settings: ShardbrokerSource, connector: Shardbroker, id: str) -> Listener:
    """Returns the driver of a source. Raises ConnectionSettingError."""
    return Listener(settings, connector, id)
