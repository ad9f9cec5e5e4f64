"""The contract of a driver: it renders rows, writes a batch, and classifies errors. The pool is that of a connector.

The outcome of a batch is one of these:

- `write` returns: all rows are written but those of the failures;
- it raises Refused: the server rejects the batch because of a row in it, and has written none;
- it raises any other exception: the server cannot be used, or its answer is not known. All rows are written again, later.

Reasons and texts of Refused and Unusable are logged and shown: they contain no secret and no value of a row. Rows are shared with
other actions; a driver does not change them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from shardbroker.connectors.connector import Connector
from shardbroker.connectors.errors import ConnectorError
from shardbroker.flows.sinks.limits import Limits
from shardbroker.flows.sinks.row import Row

__all__ = ["BatchingDriver", "ConnectorDriver", "CursorDriver", "Driver", "Failure", "Refused", "SyncedDriver", "Unusable"]


C = TypeVar("C", bound=Connector[Any])


class Refused(ConnectorError):
    """The server rejects a batch, and would reject it again."""


class Unusable(ConnectorError):
    """The server cannot be used as it is configured, whatever the rows: a table or a right is missing. Attempts go on."""


class Failure(NamedTuple):
    """A row of a batch that was not written."""

    at: int
    reason: str
    again: bool = False
    """Whether it is worth another attempt."""


class Driver(Protocol):
    """One action over one connector. All calls are made in one event loop."""

    async def open(self) -> None:
        """Prepares for writing after the first connection and after each loss. Raises what `write` raises."""

    async def probe(self) -> None:
        """Checks the server without an effect on it. Raises any exception if it cannot be used."""

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        """Writes a batch; see above."""

    async def close(self) -> None:
        """Releases what belongs to this action alone; the connector is closed by its owner."""


class ConnectorDriver(Generic[C]):
    """A driver that keeps nothing between batches: only its connector can be checked, and the owner of that closes it."""

    def __init__(self, connector: C) -> None:
        self._connector = connector

    async def open(self) -> None:
        """Checks that the server answers."""
        await self.probe()

    async def probe(self) -> None:
        """Checks the same again."""
        await self._connector.probe()

    async def close(self) -> None:
        """Releases nothing."""


class SyncedDriver(Driver, Protocol):
    """A driver whose writes are permanent only later: cursors move past rows that a sync has made so."""

    async def sync(self) -> None:
        """Makes all permanent that write() has returned for. Raises any exception if it is not."""


class BatchingDriver(Driver, Protocol):
    """A driver that has limits of its own in place of some of `resource_opts`."""

    def limits(self, limits: Limits) -> Limits:
        """Returns the limits of its action."""


class CursorDriver(Driver, Protocol):
    """A driver that can store the position behind each batch in the transaction of the batch."""

    stores_cursor: bool
    """Whether it does; known when it is made."""
    cursor_key: str
    """Key of its positions in the server; set before open(). It differs between actions, nodes and data directories."""

    async def stored(self) -> Mapping[str, int]:
        """Returns journal -> the position below which everything is written, as of the last open()."""
