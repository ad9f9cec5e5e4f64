"""Rows in tables of PostgreSQL, by asyncpg.

    plain INSERT    INSERT INTO t (a, b) SELECT r.v1, r.v2 FROM unnest($1::int[], $2::text[]) AS r (v1, v2)   one statement
    others          executemany                                                                             one implicit transaction
    write = "copy"  COPY t (a, b)                                                                           one statement

open() has the server infer the types of the placeholders. A batch is one transaction whichever way it is written.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from shardbroker.config.sinks.pgsql import PgsqlAction, PgsqlConnector, PgsqlParameters
from shardbroker.connectors.errors import describe, sqlstate_of
from shardbroker.connectors.postgresql import Postgresql
from shardbroker.flows.drivers.pgsql_types import ARRAY, OTHER, TYPES
from shardbroker.flows.drivers.sql_cursors import TABLE, Span
from shardbroker.flows.drivers.sql_driver import Columns, SqlDriver, SqlPlan, Suspected, with_statements
from shardbroker.flows.drivers.sql_template import Dialect, Insert, Part, Statement
from shardbroker.flows.drivers.sql_values import ColumnType
from shardbroker.flows.sinks.driver import Driver, Refused, Unusable

__all__ = ["PgsqlDriver", "connect", "make"]

REFUSED: Final = ("22", "23", "44", "54", "P0", "38", "39")
"""Classes of SQLSTATE that a row causes: data, constraint, check of a view, limit of a value, errors that a trigger raises."""
UNUSABLE: Final = ("0A", "28", "2D", "3D", "3F", "42")
"""What a row cannot cause: unsupported, login, COMMIT in a function, database, schema, and names, types and rights."""
RETRIED: Final = ("08", "0B", "25", "26", "3B", "40", "53", "55", "57", "58", "72", "F0", "HV", "XX")
"""What passes: connection, state of a transaction such as read-only, statements of a pooler, conflicts, a full disk, state of an
object, shutdown, the system, snapshots, configuration, foreign servers, internal errors. All others are suspected."""
TWICE: Final = "21000"
"""ON CONFLICT DO UPDATE meets a row twice in one statement, which no row is at fault for."""
EXPLAINED: Final = ("INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "SELECT")
DDL: Final = (
    f"CREATE TABLE {TABLE} (key text, journal text, position bigint NOT NULL, PRIMARY KEY (key, journal));"
    f" GRANT SELECT, INSERT, UPDATE ON {TABLE} TO the user"
)
FORMAT_TYPES: Final = "SELECT oid::int8, format_type(oid, NULL) AS name FROM pg_catalog.pg_type WHERE oid = ANY($1::int8[]::oid[])"
DEFERRING: Final = "SELECT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tginitdeferred)"
"""Foreign keys and unique constraints that are deferred have such triggers too."""
MOVE: Final = (
    f"INSERT INTO {TABLE} AS stored (key, journal, position) VALUES ($1, $2, $4) ON CONFLICT (key, journal)"
    " DO UPDATE SET position = EXCLUDED.position WHERE stored.position <= $3::int8"
)


def connect(settings: PgsqlConnector, key: str) -> Postgresql:
    """Returns the connector. Raises ConnectionSettingError."""
    return Postgresql(settings, key)


def make(action: PgsqlAction, connector: Postgresql, id: str) -> Driver:
    """Returns the driver of an action. Raises ValueError."""
    return with_statements(action.parameters, lambda parameters: PgsqlDriver(parameters, connector, id), write="auto")


@dataclass(frozen=True, slots=True)
class Plan(SqlPlan):
    """single: for one row, with $1, $2, … batch: for arrays of values; empty: rows are written by `single`."""

    single: str
    batch: str


class Copy(NamedTuple):
    """The target of COPY. columns: empty before open() if the statement names none."""

    table: str
    columns: tuple[str, ...]
    schema: str | None


class PgsqlDriver(SqlDriver[Plan]):
    """One action on one server."""

    def __init__(self, parameters: PgsqlParameters, connector: Postgresql, id: str) -> None:
        super().__init__(parameters, Dialect.POSTGRESQL, connector, id)
        self._copy = _copied(self._statement) if parameters.write == "copy" else None
        self._is_deferring = False
        """Whether the database has constraints that are checked at the end of a transaction."""

    async def _planned(self, connection: Any) -> Plan:
        plan = await _planned(connection, self._statement)
        self._is_deferring = bool(self.stores_cursor and await connection.fetchval(DEFERRING))
        if self._copy is not None:
            self._copy = self._copy._replace(columns=await _copied_columns(connection, self._copy, len(plan.types)))
        return plan

    async def _check(self, connection: Any) -> None:
        """Has the server explain the statement, which checks rights too."""
        if self._statement.verb in EXPLAINED:
            plan = self._plan or await _planned(connection, self._statement)
            try:
                async with self._savepoint(connection):  # an error does not end a transaction that is under way
                    await connection.fetch(f"EXPLAIN {plan.single}", *[None] * len(plan.types))
            except Exception as error:
                if not isinstance(self._classified(error), Refused):
                    raise  # else a function of the statement does not like NULL

    async def _execute(self, connection: Any, plan: Plan, columns: Columns, count: int, within: bool) -> None:
        if self._copy is not None:
            table, names, schema = self._copy
            await connection.copy_records_to_table(
                table, schema_name=schema, columns=names, records=list(zip(*columns, strict=True))
            )
        elif plan.batch:
            await connection.execute(plan.batch, *columns)
        else:
            await connection.executemany(plan.single, list(zip(*columns, strict=True)) if columns else [()] * count)

    async def _check_deferred(self, connection: Any) -> None:
        if self._is_deferring:
            await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def _other_plan(self, error: Exception, plan: Plan) -> Plan | None:
        """Returns one for single rows if a key of ON CONFLICT is in a batch more than once."""
        return Plan(plan.types, plan.single, "") if plan.batch and sqlstate_of(error) == TWICE else None

    def _transaction(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return connection.transaction()  # type: ignore[no-any-return]

    _savepoint = _transaction

    async def _make_table(self, connection: Any) -> None:
        await _make_table(connection)

    async def _read_positions(self, connection: Any) -> dict[str, int]:
        rows = await connection.fetch(f"SELECT journal, position FROM {TABLE} WHERE key = $1 FOR UPDATE", self.cursor_key)
        return {row["journal"]: row["position"] for row in rows}

    async def _move(self, connection: Any, span: Span) -> bool:
        moved = await connection.execute(MOVE, self.cursor_key, span.journal, span.first, span.behind)
        return bool(moved != "INSERT 0 0")

    def _classified(self, error: Exception) -> Exception:
        state = sqlstate_of(error)
        if isinstance(error, ValueError) and not state:  # of the library, whose text shows the value
            return Refused("a value does not fit its column")
        if state.startswith(REFUSED):
            return Refused(describe(error))
        if state.startswith(UNUSABLE):
            return Unusable(describe(error))
        return Suspected(describe(error)) if state and not state.startswith(RETRIED) else error


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


def _copied(template: Statement) -> Copy:
    """Returns the target of COPY. Raises ValueError if COPY cannot do what the statement does."""
    insert = template.insert
    if insert is None or not insert.is_bare or insert.tail or not 1 <= len(insert.table) <= 2:
        raise ValueError(
            'write: must be "auto" for this statement, got "copy", which is for INSERT INTO table (columns) VALUES (placeholders)'
        )
    return Copy(insert.table[-1], insert.columns, insert.table[0] if len(insert.table) == 2 else None)


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


async def _copied_columns(connection: Any, target: Copy, count: int) -> tuple[str, ...]:
    """Returns the columns of COPY. Raises Unusable if one of them has a type that is sent as text, which COPY cannot cast."""
    names = ", ".join(map(_quoted, target.columns)) or "*"
    schema = f"{_quoted(target.schema)}." if target.schema else ""
    found = await connection.prepare(f"SELECT {names} FROM {schema}{_quoted(target.table)}")
    columns = found.get_attributes()[:count]
    for column in columns:
        if _type_of(column.type) in (ARRAY, OTHER):
            raise Unusable(f'write: must be "auto" for the column {column.name}, which has the type {column.type.name}')
    return tuple(column.name for column in columns)
