"""Actions with several statements: the field `statement` of a row names the one that writes it.

    rows   a   b   b*  a          * with statement = "delete"
    runs  [a   b] [b*] [a]        each is written by its driver, in this order

Rows that the server refuses are found within their run, since the runs before it are already written.
"""

from collections.abc import Iterator, Mapping, Sequence

from shardbroker.flows.sinks.driver import Driver, Failure, Refused
from shardbroker.flows.sinks.row import Row

__all__ = ["FIELD", "Alternatives"]

FIELD = "statement"
"""Field of a row with the name of its statement."""
MAIN = ""
"""Name of the statement of rows without the field."""


class Alternatives:
    """drivers: by name of the statement, MAIN among them; all on one connector."""

    stores_cursor = False

    def __init__(self, drivers: Mapping[str, Driver]) -> None:
        self._drivers = drivers
        self._main = drivers[MAIN]

    async def open(self) -> None:
        """Opens all drivers."""
        for driver in self._drivers.values():
            await driver.open()

    async def probe(self) -> None:
        """Checks all statements."""
        for driver in self._drivers.values():
            await driver.probe()

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        """Writes a batch; see the contract of drivers."""
        failures: list[Failure] = []
        for name, places in self._runs(rows, failures):
            failures += await _written(self._drivers[name], rows, places)
        return failures

    async def close(self) -> None:
        """Closes all drivers."""
        for driver in self._drivers.values():
            await driver.close()

    def _runs(self, rows: Sequence[Row], failures: list[Failure]) -> Iterator[tuple[str, list[int]]]:
        """Yields the name of a statement, and the places of adjacent rows that it writes."""
        name, places = MAIN, list[int]()
        for at, row in enumerate(rows):
            wanted = row.values.get(FIELD)
            other = wanted if isinstance(wanted, str) else MAIN
            if other not in self._drivers:
                failures.append(Failure(at, f"{FIELD}: must be one of parameters.statements, got another text"))
                continue
            if other != name and places:
                yield name, places
                places = []
            name = other
            places.append(at)
        if places:
            yield name, places


async def _written(driver: Driver, rows: Sequence[Row], places: list[int]) -> list[Failure]:
    """Writes some rows; halves them if they are refused."""
    try:
        found = await driver.write([rows[at] for at in places])
    except Refused as error:
        if len(places) == 1:
            return [Failure(places[0], str(error))]
    else:
        return [one._replace(at=places[one.at]) for one in found]
    middle = len(places) // 2
    return [*await _written(driver, rows, places[:middle]), *await _written(driver, rows, places[middle:])]
