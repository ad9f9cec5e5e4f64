"""Rows in tables of PostgreSQL, by asyncpg.

    plain INSERT    INSERT INTO t (a, b) SELECT r.v1, r.v2 FROM unnest($1::int[], $2::text[]) AS r (v1, v2)   one statement
    others          executemany                                                                             one implicit transaction
    write = "copy"  COPY t (a, b)                                                                           one statement

open() has the server infer the types of the placeholders. A batch is one transaction whichever way it is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shardbroker.config.sinks.pgsql import PgsqlAction, PgsqlConnector
from shardbroker.connectors.errors import describe, sqlstate_of
from shardbroker.connectors.postgresql import Postgresql
from shardbroker.flows.drivers.pgsql_types import ARRAY, OTHER, TYPES, ColumnType, converted
from shardbroker.flows.drivers.sql_cursors import TABLE, CursorMoved, Span, spans
from shardbroker.flows.drivers.sql_template import Dialect, Insert, Part, Statement, column_of, statement
from shardbroker.flows.sinks.driver import Failure, Refused, Unusable
from shardbroker.flows.sinks.row import Row

__all__ = ["PgsqlDriver", "connect", "make"]

REFUSED: Final = ("22", "23", "44", "54", "P0", "38", "39")
"""Classes of SQLSTATE that a row causes: data, constraint, check of a view, limit of a value, errors that a trigger raises."""
UNUSABLE: Final = ("0A", "28", "3D", "3F", "42")
"""What a row cannot cause: unsupported, login, database, schema, and names, types and rights."""
TWICE: Final = "21000"
"""ON CONFLICT DO UPDATE meets a row twice in one statement, which is none of the rows' faults."""
EXPLAINED: Final = ("INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "SELECT")
DDL: Final = (
    f"CREATE TABLE {TABLE} (key text, journal text, position bigint NOT NULL, PRIMARY KEY (key, journal));"
    f" GRANT SELECT, INSERT, UPDATE ON {TABLE} TO the user"
)
FORMAT_TYPES: Final = "SELECT oid::int8, format_type(oid, NULL) AS name FROM pg_catalog.pg_type WHERE oid = ANY($1::int8[]::oid[])"
MOVE: Final = (
    f"INSERT INTO {TABLE} AS stored (key, journal, position) VALUES ($1, $2, $4) ON CONFLICT (key, journal)"
    " DO UPDATE SET position = EXCLUDED.position WHERE stored.position <= $3::int8"
)


def connect(settings: PgsqlConnector, key: str) -> Postgresql:
    """Returns the connector. Raises ConnectionSettingError."""
    return Postgresql(settings, key)


def make(action: PgsqlAction, connector: Postgresql, id: str) -> "PgsqlDriver":
    """Returns the driver of an action. Raises ValueError."""
    return PgsqlDriver(action, connector, id)


@dataclass(frozen=True, slots=True)
class Plan:
    """How the statement is written, with the types that the server has inferred."""

    types: tuple[ColumnType, ...]
    single: str
    """For one row, with $1, $2, …"""
    batch: str
    """For arrays of values; empty: rows are written by `single`."""


class PgsqlDriver:
    """One action on one server."""

    def __init__(self, action: PgsqlAction, connector: Postgresql, id: str) -> None:
        parameters = action.parameters
        self._connector = connector
        self._statement = statement(parameters.sql, Dialect.POSTGRESQL)
        self._placeholders = self._statement.placeholders
        self._as_null = parameters.undefined_vars_as_null
        self._copy = _copied(self._statement) if parameters.write == "copy" else None
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
                plan = await _planned(connection, self._statement)
                if self._copy is not None:
                    await self._check_copied(connection)
                if self.stores_cursor:
                    await _make_table(connection)
                    self._stored = await self._read_positions(connection)
                self._plan = plan
        except Exception as error:
            raise _classified(error) from None

    async def _check_copied(self, connection: Any) -> None:
        """Asks for the columns of COPY, which has no types of its own: those of the table must be among TYPES."""
        table, columns, schema = self._copy  # type: ignore[misc]
        names = ", ".join(map(_quoted, columns)) or "*"
        found = await connection.prepare(f"SELECT {names} FROM {_quoted(schema) + '.' if schema else ''}{_quoted(table)}")
        for column in found.get_attributes():
            if column.type.schema != "pg_catalog" or column.type.name not in TYPES:
                raise Unusable(f'write: must be "auto" for the column {column.name}, which has the type {column.type.name}')

    async def _read_positions(self, connection: Any) -> dict[str, int]:
        """Waits for a transaction of this action that has not ended yet: its outcome counts."""
        rows = await connection.fetch(f"SELECT journal, position FROM {TABLE} WHERE key = $1 FOR UPDATE", self.cursor_key)
        return {row["journal"]: row["position"] for row in rows}

    async def stored(self) -> Mapping[str, int]:
        """Returns journal -> the position below which everything is written, as of the last open()."""
        return self._stored

    async def probe(self) -> None:
        """Checks the connection, the names and the rights of the statement, which is not executed."""
        await self._connector.probe()
        if self._statement.verb not in EXPLAINED:
            return
        try:
            async with self._connector.connection() as connection:
                plan = self._plan or await _planned(connection, self._statement)
                await connection.fetch(f"EXPLAIN {plan.single}", *[None] * len(plan.types))
        except Exception as error:
            raise _classified(error) from None

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
                await self._write_once(plan, columns, kept, spans(rows), failures)
            elif kept:
                await self._write(plan, columns, len(kept))
        except Exception as error:
            raise self._outcome(error) from None
        return list(failures.values())

    def _outcome(self, error: Exception) -> Exception:
        """Classifies an error; what the server cannot do now may be possible once open() has read its tables again."""
        made = _classified(error)
        if isinstance(made, Unusable | CursorMoved):
            self._plan = None
        return made

    def _columns(self, plan: Plan, rows: Sequence[Row], failures: dict[int, Failure]) -> list[list[Any]]:
        """Returns the values of each placeholder, and notes rows with a value that does not fit."""
        columns = []
        for placeholder, type_ in zip(self._placeholders, plan.types, strict=True):

            def failed(index: int, reason: str, text: str = placeholder.text) -> None:
                failures.setdefault(index, Failure(index, f"{text}: {reason}"))

            columns.append(converted(column_of(placeholder, rows), type_, self._as_null, failed))
        return columns

    async def _write(self, plan: Plan, columns: list[list[Any]], count: int) -> None:
        try:
            async with self._connector.connection() as connection:
                await self._execute(connection, plan, columns, count)
        except Exception as error:
            if not self._is_twice(error, plan):
                raise
            await self._write(self._by_rows(plan), columns, count)

    async def _execute(self, connection: Any, plan: Plan, columns: list[list[Any]], count: int) -> None:
        """Writes rows, all or none."""
        if self._copy is not None:
            table, names, schema = self._copy
            rows = list(zip(*columns, strict=True))
            await connection.copy_records_to_table(table, schema_name=schema, columns=names or None, records=rows)
        elif plan.batch:
            await connection.execute(plan.batch, *columns)
        else:
            await connection.executemany(plan.single, list(zip(*columns, strict=True)) if columns else [()] * count)

    def _is_twice(self, error: Exception, plan: Plan) -> bool:
        return bool(plan.batch) and sqlstate_of(error) == TWICE

    def _by_rows(self, plan: Plan) -> Plan:
        """Writes row by row from now on: keys of ON CONFLICT come more than once in a batch."""
        self._plan = Plan(plan.types, plan.single, "")
        return self._plan

    # --- exactly once -------------------------------------------------------------------------------------------------------------

    async def _write_once(
        self, plan: Plan, columns: list[list[Any]], kept: Sequence[int], moves: Sequence[Span], failures: dict[int, Failure]
    ) -> None:
        """Writes rows and moves the cursor. Rows that the server refuses are found here: half a record has no position."""
        refused: dict[int, Failure] = {}
        async with self._connector.connection() as connection, connection.transaction():
            for span in moves:
                moved = await connection.execute(MOVE, self.cursor_key, span.journal, span.first, span.behind)
                if moved == "INSERT 0 0":
                    raise CursorMoved(span)
            await self._write_part(connection, plan, columns, kept, refused)
        failures |= refused

    async def _write_part(
        self, connection: Any, plan: Plan, columns: list[list[Any]], kept: Sequence[int], refused: dict[int, Failure]
    ) -> None:
        """Writes rows within a savepoint; if they are refused, halves of them."""
        if not kept:
            return
        try:
            async with connection.transaction():
                return await self._execute(connection, plan, columns, len(kept))
        except Exception as error:
            by_rows = self._is_twice(error, plan)
            reason = _classified(error)
            if not by_rows and not isinstance(reason, Refused):
                raise
        if by_rows:
            return await self._write_part(connection, self._by_rows(plan), columns, kept, refused)
        if len(kept) == 1:
            refused[kept[0]] = Failure(kept[0], str(reason))
            return None
        middle = len(kept) // 2
        for part in (slice(0, middle), slice(middle, None)):
            await self._write_part(connection, plan, [column[part] for column in columns], kept[part], refused)

    async def close(self) -> None:
        """Has nothing of its own: the connector is its owner's."""


# --- the statement ----------------------------------------------------------------------------------------------------------------


async def _planned(connection: Any, template: Statement) -> Plan:
    """Has the server read the statement. Raises errors of the library."""
    names = [f"${number + 1}" for number in range(len(template.placeholders))]
    prepared = await connection.prepare(_filled(template.parts, names))
    inferred = prepared.get_parameters()
    types = [_type_of(one) for one in inferred]
    shown = {row["oid"]: row["name"] for row in await connection.fetch(FORMAT_TYPES, sorted({one.oid for one in inferred}))}
    # What the server reads from a text, by the name of its type.
    read = [shown[one.oid] if type_ in (ARRAY, OTHER) else "" for one, type_ in zip(inferred, types, strict=True)]
    single = _filled(template.parts, [_cast(f"{one}::text", cast) if cast else one for one, cast in zip(names, read, strict=True)])
    if any(read):
        await connection.prepare(single)
    batch = ""
    if template.insert is not None and template.placeholders:
        arrays = [f"{name}::{'text' if cast else shown[one.oid]}[]" for name, cast, one in zip(names, read, inferred, strict=True)]
        batch = _unnested(template.insert, arrays, read)
        try:
            await connection.prepare(batch)
        except Exception as error:
            if sqlstate_of(error)[:2] not in ("42", "0A"):
                raise
            batch = ""  # such as VALUES (DEFAULT, $1), which is for VALUES only
    return Plan(tuple(types), single, batch)


def _type_of(inferred: Any) -> ColumnType:
    if inferred.kind == "array":
        return ARRAY
    return TYPES.get(inferred.name, OTHER) if inferred.schema == "pg_catalog" else OTHER


def _filled(parts: Sequence[Part], names: Sequence[str]) -> str:
    """Returns SQL with these texts for placeholders."""
    following = iter(names)
    return "".join(part if isinstance(part, str) else next(following) for part in parts)


def _unnested(insert: Insert, arrays: Sequence[str], read: Sequence[str]) -> str:
    """Returns an INSERT of all elements of arrays."""
    columns = [f"v{number + 1}" for number in range(len(arrays))]
    names = [f"shardbroker_row.{name}" for name in columns]
    following = iter([_cast(name, cast) if cast else name for name, cast in zip(names, read, strict=True)])
    values = ["".join(part if isinstance(part, str) else next(following) for part in value) for value in insert.values]
    rows = f"unnest({', '.join(arrays)}) AS shardbroker_row ({', '.join(columns)})"
    return f"{insert.head} SELECT {', '.join(values)} FROM {rows} {insert.tail}"


def _cast(expression: str, type_: str) -> str:
    return f"CAST({expression} AS {type_})"


def _copied(template: Statement) -> tuple[str, tuple[str, ...], str | None]:
    """Returns table, columns and schema of COPY. Raises ValueError if the statement is none that COPY can do."""
    insert = template.insert
    if insert is None or not insert.is_bare or insert.tail or not 1 <= len(insert.table) <= 2:
        raise ValueError(
            'write: must be "auto" for this statement, got "copy", which is for INSERT INTO table (columns) VALUES (placeholders)'
        )
    return insert.table[-1], insert.columns, insert.table[0] if len(insert.table) == 2 else None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


async def _make_table(connection: Any) -> None:
    """Creates the table of cursors if it is missing. Raises Unusable if that is not allowed."""
    if await connection.fetchval("SELECT to_regclass($1)", TABLE) is not None:
        return
    try:
        await connection.execute(DDL.partition(";")[0].replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
    except Exception as error:
        if await connection.fetchval("SELECT to_regclass($1)", TABLE) is not None:
            return  # another action was quicker
        if sqlstate_of(error) == "42501":
            raise Unusable(f"exactly_once: must have the table {TABLE}, got {describe(error)}; create it: {DDL}") from None
        raise


def _classified(error: Exception) -> Exception:
    """Returns the error of the contract of drivers that stands for an error of the library."""
    if isinstance(error, ValueError) and sqlstate_of(error) == "" and not isinstance(error, OSError):
        return Refused("a value does not fit its column")  # of the library, which shows the value
    state = sqlstate_of(error)
    if state.startswith(REFUSED):
        return Refused(describe(error))
    if state.startswith(UNUSABLE):
        return Unusable(describe(error))
    return error
