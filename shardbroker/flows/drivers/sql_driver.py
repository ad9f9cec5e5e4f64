"""What drivers of databases with SQL share: columns of values, batches as transactions, and positions stored with the rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shardbroker.config.sinks.sql import SqlParameters
from shardbroker.connectors.connector import Connector
from shardbroker.flows.drivers.alternatives import Alternatives
from shardbroker.flows.drivers.sql_cursors import CursorMoved, Span, spans
from shardbroker.flows.drivers.sql_template import Dialect, column_of, statement
from shardbroker.flows.drivers.sql_values import ColumnType, converted
from shardbroker.flows.sinks.driver import Driver, Failure, Refused, Unusable
from shardbroker.flows.sinks.row import Row

__all__ = ["Columns", "SqlDriver", "SqlPlan", "Suspected", "with_statements"]

Columns = list[list[Any]]
"""The values of each placeholder."""


class Suspected(Refused):
    """The server rejects a batch with an error in none of the driver's lists, such as one that a trigger defines.

    It is the row's if it remains with one row alone while the server can be used.
    """


@dataclass(frozen=True, slots=True)
class SqlPlan:
    """How the statement is written. types: of the placeholders, as the server has them."""

    types: tuple[ColumnType, ...]


Plan = TypeVar("Plan", bound=SqlPlan)
P = TypeVar("P", bound=SqlParameters)


def with_statements(parameters: P, make: Callable[[P], "SqlDriver[Any]"], **plain: Any) -> Driver:
    """Returns the driver of an action. make: of one statement. plain: parameters of the others. Raises ValueError."""
    main = make(parameters)
    if not parameters.statements:
        return main
    if parameters.exactly_once:
        raise ValueError("exactly_once: must be false with parameters.statements, got true")
    others: dict[str, Driver] = {}
    for name, sql in parameters.statements.items():
        try:
            others[name] = make(parameters.model_copy(update={"sql": sql, "statements": {}, **plain}))
        except ValueError as error:
            raise ValueError(f"statements.{name}: {str(error).removeprefix('sql: ')}") from None
    return Alternatives({"": main, **others})


class SqlDriver(ABC, Generic[Plan]):
    """One action on one server. Raises ValueError for a statement that cannot be used."""

    def __init__(self, parameters: SqlParameters, dialect: Dialect, connector: Connector[Any], id: str) -> None:
        self._connector = connector
        self._statement = statement(parameters.sql, dialect)
        self._placeholders = self._statement.placeholders
        self._as_null = parameters.undefined_vars_as_null
        self._plan: Plan | None = None
        self._stored: dict[str, int] = {}
        self.stores_cursor = parameters.exactly_once
        self.cursor_key = id
        """Action, node and origin of the data directory; set by the owner before open()."""

    async def open(self) -> None:
        """Reads the types of the placeholders, and the stored positions. Raises what `write` raises."""
        self._plan = None
        try:
            async with self._connector.connection() as connection:
                plan = await self._planned(connection)
                if self.stores_cursor:
                    await self._make_table(connection)
                    self._stored = await self._read_positions(connection)
                self._plan = plan
        except Exception as error:
            raise self._without_rows(error) from None

    async def stored(self) -> Mapping[str, int]:
        """Returns journal -> the position below which everything is written, as of the last open()."""
        return self._stored

    async def probe(self) -> None:
        """Checks the connection, and the names and rights of the statement, which is not executed."""
        await self._connector.probe()
        try:
            async with self._connector.connection() as connection:
                await self._check(connection)
        except Exception as error:
            raise self._without_rows(error) from None

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        """Writes a batch; see the contract of drivers."""
        if self._plan is None:
            await self.open()
        plan = self._plan
        assert plan is not None
        failures: dict[int, Failure] = {}
        columns = self._columns(plan, rows, failures)
        kept = [index for index in range(len(rows)) if index not in failures]
        if failures:
            columns = [[column[index] for index in kept] for column in columns]
        try:
            if self.stores_cursor:
                failures |= await self._write_once(plan, columns, kept, spans(rows))
            elif kept:
                await self._write(plan, columns, len(kept))
        except Exception as error:
            outcome = self._outcome(error)
        else:
            return list(failures.values())
        if self.stores_cursor and isinstance(outcome, Refused):  # rows of one record must not be divided, as they have one position
            self._plan = None
            raise Unusable(str(outcome))
        if isinstance(outcome, Suspected) and len(rows) == 1:
            await self.probe()
        raise outcome

    async def close(self) -> None:
        """Has nothing of its own: the connector is its owner's."""

    def _without_rows(self, error: Exception) -> Exception:
        """Classifies an error of a call that has no row, which therefore is no row's fault."""
        made = self._classified(error)
        return Unusable(str(made)) if isinstance(made, Refused) else made

    def _outcome(self, error: Exception) -> Exception:
        """Classifies an error of a batch. Where a table or a position is not as expected, the next attempt begins with open()."""
        made = self._classified(error)
        if isinstance(made, Unusable | CursorMoved):
            self._plan = None
        return made

    def _columns(self, plan: Plan, rows: Sequence[Row], failures: dict[int, Failure]) -> Columns:
        """Returns the values of each placeholder, and notes rows with a value that does not fit."""
        columns = []
        for placeholder, type_ in zip(self._placeholders, plan.types, strict=True):

            def failed(index: int, reason: str, text: str = placeholder.text) -> None:
                failures.setdefault(index, Failure(index, f"{text}: {reason}"))

            columns.append(converted(column_of(placeholder, rows), type_, self._as_null, failed))
        return columns

    async def _write(self, plan: Plan, columns: Columns, count: int) -> None:
        try:
            async with self._connector.connection() as connection:
                return await self._execute(connection, plan, columns, count, within=False)
        except Exception as error:
            other = self._other_plan(error, plan)
            if other is None:
                raise
        self._plan = other
        return await self._write(other, columns, count)

    async def _write_once(self, plan: Plan, columns: Columns, kept: Sequence[int], moves: Sequence[Span]) -> dict[int, Failure]:
        """Writes rows and moves the cursor. Rows that the server refuses are found here: half a record has no position."""
        refused: dict[int, Failure] = {}
        async with self._connector.connection() as connection, self._transaction(connection):
            for span in moves:
                if not await self._move(connection, span):
                    raise CursorMoved(span)
            await self._write_part(connection, plan, columns, kept, refused)
        return refused

    async def _write_part(
        self, connection: Any, plan: Plan, columns: Columns, kept: Sequence[int], refused: dict[int, Failure]
    ) -> None:
        """Writes rows within a savepoint; if they are refused, halves of them."""
        if not kept:
            return
        try:
            async with self._savepoint(connection):
                await self._execute(connection, plan, columns, len(kept), within=True)
                return await self._check_deferred(connection)
        except Exception as error:
            other = self._other_plan(error, plan)
            reason = self._classified(error)
            if other is None and not isinstance(reason, Refused):
                raise
        if other is not None:
            self._plan = other
            await self._write_part(connection, other, columns, kept, refused)
        elif len(kept) == 1:
            if isinstance(reason, Suspected):
                await self._check(connection)  # an error of it ends the transaction, and the batch is written again
            refused[kept[0]] = Failure(kept[0], str(reason))
        else:
            middle = len(kept) // 2
            for part in (slice(0, middle), slice(middle, None)):
                await self._write_part(connection, plan, [column[part] for column in columns], kept[part], refused)

    def _other_plan(self, error: Exception, plan: Plan) -> Plan | None:
        """Returns how to write rows from now on, if an error is the plan's fault."""
        return None

    async def _check_deferred(self, connection: Any) -> None:
        """Raises errors of constraints that the end of the transaction would raise, for servers that have such constraints."""

    @abstractmethod
    async def _planned(self, connection: Any) -> Plan:
        """Has the server read the statement."""

    @abstractmethod
    async def _check(self, connection: Any) -> None:
        """Raises an error if the statement cannot be executed."""

    @abstractmethod
    async def _execute(self, connection: Any, plan: Plan, columns: Columns, count: int, within: bool) -> None:
        """Writes rows, all or none. within: a transaction that is under way."""

    @abstractmethod
    def _transaction(self, connection: Any) -> AbstractAsyncContextManager[Any]: ...

    @abstractmethod
    def _savepoint(self, connection: Any) -> AbstractAsyncContextManager[Any]: ...

    @abstractmethod
    async def _make_table(self, connection: Any) -> None:
        """Creates the table of cursors if it is missing. Raises Unusable if that is not allowed."""

    @abstractmethod
    async def _read_positions(self, connection: Any) -> dict[str, int]:
        """Returns journal -> position, once all transactions of this action have ended: their outcome counts."""

    @abstractmethod
    async def _move(self, connection: Any, span: Span) -> bool:
        """Moves the position from at most the first one of a batch to behind it. Returns whether it was there."""

    @abstractmethod
    def _classified(self, error: Exception) -> Exception:
        """Returns the error of the contract of drivers that stands for an error of the library, or the same."""
