"""The contract of the driver of a source.

`shardbroker/flows/drivers/<type>.py` has `make_source(settings, connector, id) -> SourceDriver` besides `make` and `connect`;
settings: the model `source` of the type in config/sinks/types.py. It raises ValueError or ConnectorError for settings that cannot
work.

All calls are made in one event loop, that of the connectors. Texts of errors are logged and shown: they contain no secret and
nothing that others have sent.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from shardbroker.mqtt.spec import PropertyId

__all__ = ["Message", "Received", "SourceDriver", "Take"]


class Message(NamedTuple):
    """What is published in this broker."""

    topic: bytes
    """UTF-8. A name that may not be published to, such as one below `$SYS/`, makes the record a failed one."""
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Mapping[PropertyId, Any] = {}
    """Of MQTT 5.0 §3.3.2.3, as `encode_properties` takes them; Message Expiry Interval in seconds, from now on."""


class Received(NamedTuple):
    """One record of a server."""

    columns: dict[str, Any]
    """What a rule sees: names and values of JSON, and bytes. The frame adds `event`, `timestamp` and `node`."""
    message: Message | None
    """None: nothing is published."""
    key: bytes = b""
    """Records of one key keep their order; those of an empty key are all of one key. Such as a topic, or a partition."""


Take = Callable[[Sequence[Received], Callable[[], None]], Awaitable[None]]
"""take(batch, done): returns once there is room for the next batch. `done` is called, in the event loop, once the workers have
consumed the whole batch: with durability.level = machine it is on the disk. Only then the driver acknowledges it. Batches are done
in the order in which they were taken. After a loss of the server, `done` of earlier batches may still be called: it must not fail
then."""


class SourceDriver(Protocol):
    """One source over one connector. It may have `lag_records`, an int: records at the server that were not received yet."""

    async def run(self, take: Take) -> None:
        """Connects, and receives until it is cancelled. Raises any exception when the server is lost, or cannot be used as it is
        configured: it is called again after a delay."""

    async def probe(self) -> None:
        """Checks the server without an effect on it. Raises any exception if it cannot be used. It is called before run(), and now
        and then while that runs; a failure ends run()."""

    async def close(self) -> None:
        """Releases what belongs to this source alone; the connector is closed by its owner."""
