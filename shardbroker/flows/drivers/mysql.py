"""Rows in tables of MySQL and MariaDB, by asyncmy: statements that the server has prepared, with parameters in binary form.

    plain INSERT, REPLACE   INSERT INTO t (a, b) VALUES (?, ?), (?, ?), …   for 1000, 256, 64, 16, 4 or 1 rows, in a transaction
    others                  for one row, in a transaction

open() reads the types of the columns of a plain INSERT from information_schema. Integers are Unix ms where a column is a time.
"""

import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from shardbroker.config.sinks.mysql import MysqlAction, MysqlConnector
from shardbroker.config.sinks.sql import SqlParameters
from shardbroker.connectors.errors import describe, message_of, mysql_code_of
from shardbroker.connectors.mysql import Mysql
from shardbroker.flows.drivers.mysql_types import ANY, TIMESTAMP, type_named
from shardbroker.flows.drivers.sql_cursors import TABLE, Span
from shardbroker.flows.drivers.sql_driver import Columns, SqlDriver, SqlPlan, Suspected, with_statements
from shardbroker.flows.drivers.sql_template import Dialect, Insert, Part, Placeholder
from shardbroker.flows.drivers.sql_values import ColumnType
from shardbroker.flows.sinks.driver import Driver, Refused, Unusable

__all__ = ["MysqlDriver", "connect", "make"]

ROWS: Final = (1000, 256, 64, 16, 4, 1)
"""Rows of a prepared statement: any batch is a few of them, and a connection keeps one of each."""
PARAMETERS_MAX: Final = 65_535
"""Most parameters of a statement (COM_STMT_PREPARE)."""
REFUSED: Final = frozenset(
    {1022, 1048, 1062, 1138, 1139, 1153, 1169, 1216, 1217, 1230, 1242, 1263, 1264, 1265, 1292, 1365, 1366, 1367, 1369, 1406, 1411,
     1416, 1425, 1426, 1441, 1451, 1452, 1525, 1526, 1557, 1586, 1643, 1644, 1690, 1748, 1761, 1762, 3140, 3141, 3144, 3156, 3157,
     3158, 3732, 3819, 3903, 3904, 4025, 4035, 4036, 4037, 4038}
)  # fmt: skip
"""Errors that a row causes: values, keys, constraints, CHECK, SIGNAL of a trigger."""
UNUSABLE: Final = frozenset(
    {1044, 1045, 1046, 1049, 1054, 1064, 1103, 1109, 1110, 1136, 1142, 1143, 1146, 1147, 1149, 1166, 1210, 1227, 1235, 1241, 1295,
     1305, 1318, 1347, 1356, 1364, 1370, 1390, 1471, 1582, 1698, 3118}
)  # fmt: skip
"""What a row cannot cause: login, names, rights, syntax, a column that needs a value."""
RETRIED: Final = frozenset(
    {1016, 1020, 1021, 1026, 1028, 1030, 1034, 1035, 1036, 1037, 1038, 1040, 1041, 1042, 1043, 1047, 1053, 1080, 1114, 1129, 1130,
     1135, 1152, 1154, 1155, 1156, 1157, 1158, 1159, 1160, 1161, 1180, 1181, 1184, 1194, 1195, 1203, 1205, 1206, 1207, 1213, 1223,
     1226, 1243, 1290, 1297, 1317, 1412, 1429, 1430, 1436, 1568, 1613, 1614, 1615, 1637, 1689, 1712, 1792, 1814, 1820, 1836, 1862,
     1874, 1877, 1878, 1927, 1969, 3024, 3032, 3058, 3100, 3101, 3159, 3168, 3169, 3186, 3572, 4031, 4151}
)  # fmt: skip
"""What passes: files and memory, a full disk or table, connections and their limits, shutdown, locks, a read-only server,
statements that were ended, servers that are not ready. All others of a server are suspected."""
CLIENT: Final = range(2000, 3000)
"""Errors that the library has found, such as a lost connection."""
NOT_PREPARED: Final = 1295
PACKET_BYTES, VALUE_BYTES = 64, 32
"""More than a packet, and a parameter of it, have besides the bytes of texts."""
DDL: Final = (
    f"CREATE TABLE {TABLE} (`key` VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, journal VARCHAR(64) CHARACTER SET utf8mb4"
    " COLLATE utf8mb4_bin, position BIGINT NOT NULL, PRIMARY KEY (`key`, journal)) ENGINE=InnoDB"
)
COLUMNS: Final = (
    "SELECT column_name AS name, data_type AS kind, column_type AS whole FROM information_schema.columns"
    " WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ? ORDER BY ordinal_position"
)
ENGINE: Final = (
    "SELECT t.engine AS name, e.transactions AS transactions FROM information_schema.tables t"
    " LEFT JOIN information_schema.engines e ON e.engine = t.engine"
    " WHERE t.table_schema = COALESCE(?, DATABASE()) AND t.table_name = ?"
)
MOVE: Final = (
    f"INSERT INTO {TABLE} (`key`, journal, position) VALUES (?, ?, ?)"
    " ON DUPLICATE KEY UPDATE position = IF(position <= ?, ?, position)"
)


def connect(settings: MysqlConnector, key: str) -> Mysql:
    """Returns the connector. Raises ConnectionSettingError."""
    return Mysql(settings, key, is_strict=True)


def make(action: MysqlAction, connector: Mysql, id: str) -> Driver:
    """Returns the driver of an action. Raises ValueError."""
    return with_statements(action.parameters, lambda parameters: MysqlDriver(parameters, connector, id))


@dataclass(frozen=True, slots=True)
class Plan(SqlPlan):
    """single: for one row. head, row, tail: of a plain INSERT; `row` is empty for others. packet_max: of the server, bytes."""

    single: str
    head: str
    row: str
    tail: str
    packet_max: int


class MysqlDriver(SqlDriver[Plan]):
    """One action on one server."""

    def __init__(self, parameters: SqlParameters, connector: Mysql, id: str) -> None:
        super().__init__(parameters, Dialect.MYSQL, connector, id)
        self._prepared: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        """Statements of each connection of the pool."""

    async def _planned(self, connection: Any) -> Plan:
        insert = self._statement.insert
        kinds = await self._types(connection, insert) if insert is not None else {}
        types = tuple(kinds.get(index, ANY) for index in range(len(self._placeholders)))
        marks = ["FROM_UNIXTIME(CAST(? AS DECIMAL(20,6)))" if type_ is TIMESTAMP else "?" for type_ in types]
        single = _filled(self._statement.parts, marks)
        await _try(connection, single)
        (row,) = await self._fetch(connection, "SELECT @@max_allowed_packet AS most", ())
        if insert is None or not self._placeholders:
            return Plan(types, single, "", "", "", row["most"])
        values = ", ".join(_filled(value, names) for value, names in zip(insert.values, _shared(insert, marks), strict=True))
        return Plan(types, single, f"{insert.head} VALUES ", f"({values})", f" {insert.tail}".rstrip(), row["most"])

    async def _types(self, connection: Any, insert: Insert) -> dict[int, ColumnType]:
        """Returns the types of the columns, by the number of the placeholder that is all of the column's value."""
        if not insert.table:
            return {}
        schema, table = (None, *insert.table)[-2:]
        found = await self._fetch(connection, COLUMNS, (schema, table))
        columns = {row["name"].lower(): type_named(row["kind"].lower(), "unsigned" in row["whole"]) for row in found}
        names = [name.lower() for name in insert.columns] or list(columns)
        types: dict[int, ColumnType] = {}
        number = 0
        for name, value in zip(names, insert.values, strict=False):
            if len(value) == 1 and isinstance(value[0], Placeholder) and name in columns:
                types[number] = columns[name]
            number += sum(isinstance(part, Placeholder) for part in value)
        return types

    async def _check(self, connection: Any) -> None:
        """Has the server prepare the statement, which checks rights too."""
        await _try(connection, _filled(self._statement.parts, ["?"] * len(self._placeholders)))

    async def _execute(self, connection: Any, plan: Plan, columns: Columns, count: int, within: bool) -> None:
        rows: Sequence[tuple[Any, ...]] = list(zip(*columns, strict=True)) if columns else [()] * count
        sizes = _sizes(count, _most(plan, columns))
        if within or len(sizes) == 1:
            return await self._execute_all(connection, plan, rows, sizes)
        async with self._transaction(connection):
            await self._execute_all(connection, plan, rows, sizes)

    async def _execute_all(self, connection: Any, plan: Plan, rows: Sequence[tuple[Any, ...]], sizes: Sequence[int]) -> None:
        at = 0
        for size in sizes:
            values = [value for row in rows[at : at + size] for value in row]
            if size == 1 and _bytes_of(values) > plan.packet_max:
                raise Refused(f"a row is longer than max_allowed_packet of the server, {plan.packet_max} bytes")
            sql = plan.single if size == 1 else plan.head + ", ".join([plan.row] * size) + plan.tail
            await (await self._statement_of(connection, sql)).execute(values)
            at += size

    async def _statement_of(self, connection: Any, sql: str) -> Any:
        """Returns a prepared statement, which the connection keeps."""
        prepared = self._prepared.setdefault(connection, {})
        if sql not in prepared:
            prepared[sql] = await connection.prepare(sql)
        return prepared[sql]

    async def _fetch(self, connection: Any, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        """Returns the rows of a query that is executed seldom."""
        prepared = await connection.prepare(sql)
        result = await prepared.execute(values)
        await prepared.close()
        names = [column[0] for column in result.description or ()]
        return [dict(zip(names, row, strict=True)) for row in result.rows or ()]

    # --- exactly once -------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _transaction(self, connection: Any) -> AsyncIterator[None]:
        await connection.begin()
        try:
            yield
        except Exception:
            with suppress(Exception):  # the connection may be lost
                await connection.rollback()
            raise
        await connection.commit()

    @asynccontextmanager
    async def _savepoint(self, connection: Any) -> AsyncIterator[None]:
        await connection.query("SAVEPOINT part")
        try:
            yield
        except Exception as error:
            if isinstance(self._classified(error), Refused):
                await connection.query("ROLLBACK TO SAVEPOINT part")
            raise
        await connection.query("RELEASE SAVEPOINT part")

    async def _make_table(self, connection: Any) -> None:
        await self._check_engine(connection)
        if not await self._fetch(connection, COLUMNS, (None, TABLE)):
            try:
                await connection.query(DDL.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
            except Exception as error:
                if mysql_code_of(error) not in (1044, 1142):
                    raise
                raise Unusable(f"exactly_once: must have the table {TABLE}, got {describe(error)}; create it: {DDL}") from None

    async def _check_engine(self, connection: Any) -> None:
        """Raises Unusable for a table without transactions, whose rows a rollback would leave."""
        insert = self._statement.insert
        if insert is None or not insert.table:
            return
        schema, table = (None, *insert.table)[-2:]
        for row in await self._fetch(connection, ENGINE, (schema, table)):
            if row["transactions"] == "NO":
                raise Unusable(f"exactly_once: must be a table with transactions, got {table} with the engine {row['name']}")

    async def _read_positions(self, connection: Any) -> dict[str, int]:
        async with self._transaction(connection):
            query = f"SELECT journal, position FROM {TABLE} WHERE `key` = ? FOR UPDATE"
            return {row["journal"]: row["position"] for row in await self._fetch(connection, query, (self.cursor_key,))}

    async def _move(self, connection: Any, span: Span) -> bool:
        prepared = await self._statement_of(connection, MOVE)
        done = await prepared.execute((self.cursor_key, span.journal, span.behind, span.first, span.behind))
        return bool(done.affected_rows)

    def _classified(self, error: Exception) -> Exception:
        code = mysql_code_of(error)
        if code in REFUSED:
            return Refused(describe(error))
        if code in UNUSABLE:
            return Unusable(describe(error))
        if isinstance(error, ValueError) and not code:  # of the library, whose text shows the value
            return Refused("a value does not fit its column")
        return Suspected(describe(error)) if code and code not in RETRIED and code not in CLIENT else error


def _filled(parts: Sequence[Part], marks: Sequence[str]) -> str:
    """Returns SQL with these texts for placeholders."""
    following = iter(marks)
    return "".join(part if isinstance(part, str) else next(following) for part in parts)


def _shared(insert: Insert, marks: Sequence[str]) -> list[list[str]]:
    """Returns the marks of each value."""
    following = iter(marks)
    return [[next(following) for part in value if isinstance(part, Placeholder)] for value in insert.values]


async def _try(connection: Any, sql: str) -> None:
    """Has the server read a statement. Raises Unusable with its message, which can show no values yet."""
    try:
        prepared = await connection.prepare(sql)
    except Exception as error:
        code = mysql_code_of(error)
        if code == NOT_PREPARED or code not in UNUSABLE:
            raise
        raise Unusable(f"{message_of(error)} (error {code})") from None
    await prepared.close()


def _most(plan: Plan, columns: Columns) -> int:
    """Returns how many rows one statement may have: its parameters and its packet have limits."""
    if not plan.row:
        return 1
    longest = PACKET_BYTES + sum(max(map(_bound, column), default=0) for column in columns)
    return min(PARAMETERS_MAX // len(columns), plan.packet_max // longest)


def _sizes(count: int, most: int) -> list[int]:
    """Returns the rows of each statement of a batch."""
    sizes: list[int] = []
    for size in ROWS:
        if size <= max(1, most):
            sizes += [size] * (count // size)
            count %= size
    return sizes


def _bound(value: Any) -> int:
    """Returns an upper bound of the bytes of a value as a parameter."""
    return VALUE_BYTES + 4 * len(value) if type(value) is str or type(value) is bytes else VALUE_BYTES


def _bytes_of(values: Sequence[Any]) -> int:
    sizes = [len(value.encode() if type(value) is str else value) if type(value) in (str, bytes) else 0 for value in values]
    return PACKET_BYTES + sum(sizes) + VALUE_BYTES * len(values)
