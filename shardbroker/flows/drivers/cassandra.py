"""Rows in tables of Cassandra, by a prepared statement whose parameters are the values of a row.

    rows --> columns of values --> serialized --> groups by partition --> unlogged batches of at most BATCH_BYTES, several under way

A batch has no two rows of one primary key: all rows of a batch have one time, and Cassandra keeps the greater value then. The
library gives each batch a later time than the one before, so the last row of a key stays whichever order batches arrive in. Where
rows have times of their own, `USING TIMESTAMP`, those of one key that have the same one are moved apart.
"""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    RequestExecutionException,
    Unauthorized,
    UnresolvableContactPoints,
)
from cassandra.cluster import NoHostAvailable, Session
from cassandra.protocol import ErrorMessage, SyntaxException
from cassandra.query import BatchStatement, BatchType, BoundStatement, PreparedStatement

from shardbroker.config.sinks.cassandra import CassandraAction, CassandraConnector, CassandraParameters, CassandraStatement
from shardbroker.connectors.cassandra import Cassandra, is_refused
from shardbroker.connectors.errors import ConnectorError, one_line
from shardbroker.connectors.reasons import network_reason, tls_reason
from shardbroker.flows.drivers.alternatives import Alternatives
from shardbroker.flows.drivers.cassandra_types import name_of, type_of
from shardbroker.flows.drivers.sql_template import Dialect, Placeholder, column_of, statement
from shardbroker.flows.drivers.sql_values import EPOCH, ColumnType, converted
from shardbroker.flows.sinks.driver import ConnectorDriver, Driver, Failure, Unusable
from shardbroker.flows.sinks.row import Row

__all__ = ["connect", "make"]

BATCH_BYTES: Final = 16 << 10
"""Most bytes of a batch, which a node applies as one mutation. Its limits batch_size_warn_threshold and batch_size_fail_threshold
(5 and 50 KiB by default) are for batches of several partitions only."""
ROW_BYTES, VALUE_BYTES = 48, 24
"""What a node counts for a row and for each of its values besides their bytes: times and lengths."""
ROW_MAX: Final = 16 << 20
"""Most bytes of a row: half of a segment of the commit log, 32 MiB by default; older nodes have no answer to more."""
PAGE: Final = 1000
"""Rows of a query that are taken at a time."""
TIMES_MAX: Final = 10_000
"""Keys whose last time is known: rows of one key and one time are close to each other."""
TIME_MAX: Final = 2**63 - 1
VERBS: Final = ("INSERT", "UPDATE", "DELETE")
TIME: Final = "[timestamp]"
"""Name of the parameter of USING TIMESTAMP."""
COLUMNS: Final = "SELECT column_name, kind, type FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s"
NO_KEY: Final = re.compile("null")
"""In the message about a missing partition key, by any version."""
OF_NODE: Final = re.compile("disk usage")
"""In the message of a guardrail that has nothing to do with a row."""
MESSAGE: Final = re.compile(r'message="(.*)"', re.DOTALL)
SHOWN: Final = re.compile(
    r"Key may not be empty"
    r"|Invalid null value in condition for column \w+"
    r"|Key length of \d+ is longer than maximum of \d+"
    r"|CQL Message of size \d+ bytes exceeds allowed maximum of \d+ bytes"
)
"""Messages about a row that have no value of it."""


class _Server(Cassandra):
    async def probe(self) -> None:
        """Raises Unusable or ConnectorError."""
        try:
            await super().probe()
        except Exception as error:
            raise self._noted(error) from error

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Lends the session. Raises Unusable or ConnectorError."""
        try:
            async with self.connection() as session:
                yield session
        except Exception as error:
            raise self._noted(error) from error

    async def answers(self, session: Session, statements: Sequence[Any]) -> list[Exception | None]:
        """Executes statements; returns why each one is rejected. Raises Unusable or ConnectorError: the outcome is not known."""
        try:
            errors = await self.execute(session, statements)
        except TimeoutError as error:
            raise self._noted(error) from error
        fatal = next((error for error in errors if error is not None and not is_refused(error)), None)
        if fatal is not None:
            raise self._noted(fatal) from fatal
        return errors

    def _noted(self, error: Exception) -> Exception:
        explained = self.explained(error)
        self.health.last_error = str(explained)
        return explained

    def explained(self, error: Exception) -> Exception:
        """Returns an error that says what is wrong."""
        if isinstance(error, ConnectorError):
            return error
        where = ", ".join(self.settings.servers)
        if isinstance(error, NoHostAvailable):
            inner = list(error.errors.values()) if isinstance(error.errors, dict) else []
            if inner and isinstance(inner[0], Exception):
                return self.explained(inner[0])
            return ConnectorError(f"{where}: no node of the data center {self.settings.datacenter!r} can be reached"
                                  if self.settings.datacenter else f"{where}: no node can be reached")  # fmt: skip
        if isinstance(error, AuthenticationFailed):
            reason = "rejects username or password" if self.settings.username else "requires username and password"
            return Unusable(f"{where}: the server {reason}")
        if isinstance(error, Unauthorized | InvalidRequest | SyntaxException):
            return Unusable(_message(error))
        if isinstance(error, UnresolvableContactPoints):
            return ConnectorError(f"{where}: the name of the server cannot be resolved")
        if isinstance(error, OperationTimedOut):
            return ConnectorError(f"{where}: no response in time")
        if isinstance(error, RequestExecutionException | ErrorMessage):
            return ConnectorError(f"{where}: Cassandra error {getattr(error, 'summary', '') or type(error).__name__}")
        return ConnectorError(f"{where}: {tls_reason(str(error)) or network_reason(error)}")


def connect(settings: CassandraConnector, key: str) -> _Server:
    """Returns the connector. Raises ConnectionSettingError."""
    return _Server(settings, key)


def make(action: CassandraAction, connector: _Server, id: str) -> Driver:
    """Returns the driver of an action. Raises ValueError."""
    parameters = action.parameters
    main = _driver(parameters, parameters, connector)
    others: dict[str, Driver] = {}
    for name, one in parameters.statements.items():
        try:
            others[name] = _driver(one, parameters, connector)
        except ValueError as error:
            raise ValueError(f"statements.{name}.{error}") from None
    return Alternatives({"": main, **others}) if others else main


def _driver(one: CassandraStatement, parameters: CassandraParameters, connector: _Server) -> Driver:
    written = _CassandraDriver(one.cql, parameters, connector)
    return _EachFound(one.select, parameters, connector, written) if one.select.strip() else written


@dataclass(frozen=True, slots=True)
class _Plan:
    """A prepared statement. partition, key: which parameters are the partition key and the primary key; empty if not all of the
    former are parameters. time: which one is the time of the row, if any."""

    session: Session
    prepared: PreparedStatement
    types: tuple[ColumnType, ...]
    partition: tuple[int, ...]
    key: tuple[int, ...]
    time: int | None

    @property
    def shape(self) -> Sequence[tuple[str, str]]:
        """Names and types of the parameters."""
        return [(column.name, name_of(column.type)) for column in self.prepared.column_metadata]


@dataclass(slots=True)
class _Group:
    """Rows that are written together. keys: their primary keys."""

    rows: list[int] = field(default_factory=list)
    keys: set[Any] = field(default_factory=set)
    size: int = 0


class _CassandraDriver(ConnectorDriver[_Server]):
    def __init__(self, cql: str, parameters: CassandraParameters, connector: _Server) -> None:
        super().__init__(connector)
        self._statement = statement(cql, Dialect.CASSANDRA)
        if self._statement.verb not in VERBS:
            raise ValueError(f"cql: must be INSERT, UPDATE or DELETE, got {self._statement.verb or 'something else'}")
        self._placeholders = self._statement.placeholders
        if not self._placeholders:
            raise ValueError("cql: must have a placeholder such as ${topic}, got none: all rows would be the same one")
        self._cql = _with_markers(self._statement.parts)
        self._is_conditional = "IF" in self._statement.words
        self._as_null = parameters.undefined_vars_as_null
        self._consistency = ConsistencyLevel.name_to_value[parameters.consistency.upper()]
        self._plan: _Plan | None = None
        self._times: dict[int, tuple[int, int]] = {}
        """Hash of a key -> time of its last row, and the one that was written."""

    async def open(self) -> None:
        """Has the statement prepared. Raises Unusable or ConnectorError."""
        self._plan = None
        self._plan = await self._prepared()

    async def probe(self) -> None:
        """Checks the connection, and the names, types and rights of the statement, without a row."""
        await self._connector.probe()
        await self._try(await self._prepared())

    async def _try(self, plan: _Plan) -> None:
        """Executes the statement without values: rights and consistency are checked before the missing key is rejected.

        Raises Unusable or ConnectorError.
        """
        if not plan.partition:
            return  # it might be a row
        (error,) = await self._connector.answers(plan.session, [_bound(plan, [None] * len(plan.types))])
        if error is not None and not NO_KEY.search(message := _message(error)):
            raise Unusable(message)

    async def _prepared(self) -> _Plan:
        async with self._connector.session() as session:
            return await self._connector.in_thread(self._prepare, session)

    def _prepare(self, session: Session) -> _Plan:
        """Prepares the statement, in a thread. Raises Unusable, errors of the library."""
        prepared = self._connector.prepare(session, self._cql)
        prepared.consistency_level = self._consistency
        prepared.is_idempotent = True
        columns = prepared.column_metadata
        keyspace, table = columns[0].keyspace_name, columns[0].table_name
        found = list(session.execute(COLUMNS, (keyspace, table)))
        if any(one.type == "counter" for one in found):
            raise Unusable(f"the table {keyspace}.{table} has counters: a row that is written again would count twice")
        types = _types(prepared, self._placeholders, "cql")
        partition = tuple(prepared.routing_key_indexes or ())
        keys = {one.column_name for one in found if one.kind in ("partition_key", "clustering")}
        key = tuple(at for at, column in enumerate(columns) if column.name in keys)
        time = next((at for at, column in enumerate(columns) if column.name == TIME), None)
        return _Plan(session, prepared, types, partition, key, time)

    # --- rows -----------------------------------------------------------------------------------------------------------------

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        """Writes a batch; see the contract of drivers. All rows are written again if one of them may not have been."""
        if self._plan is None or not self._connector.is_current(self._plan.session):
            await self.open()
        plan = self._plan
        assert plan is not None
        failures: dict[int, Failure] = {}
        values = _serialized(plan.prepared, plan.types, self._placeholders, rows, self._as_null, failures)
        if plan.time is not None and plan.key:
            values = [row if at in failures else self._moved(plan, plan.time, row) for at, row in enumerate(values)]
        refused: list[tuple[int, Exception]] = []
        for groups in self._waves(plan, values, failures):
            refused += await self._write(plan, values, groups)
        if refused:
            await self._check_plan(plan)
            if any(OF_NODE.search(_message(error)) for _, error in refused):
                raise ConnectorError("a node rejects writes: its disk is nearly full")
            failures |= {at: Failure(at, _reason(error)) for at, error in refused}
        return list(failures.values())

    async def _write(self, plan: _Plan, values: Sequence[Sequence[Any]], groups: Sequence[_Group]) -> list[tuple[int, Exception]]:
        """Writes groups; returns the rows that are rejected, each of them alone."""
        errors = await self._connector.answers(plan.session, [self._request(plan, values, one.rows) for one in groups])
        refused = [(group.rows[0], error) for group, error in zip(groups, errors, strict=True) if error and len(group.rows) == 1]
        divided = [group for group, error in zip(groups, errors, strict=True) if error and len(group.rows) > 1]
        if divided:
            refused += await self._write(plan, values, [_Group([at]) for group in divided for at in group.rows])
        return refused

    async def _check_plan(self, plan: _Plan) -> None:
        """Raises Unusable or ConnectorError if a row may have been rejected for what the table is now."""
        now = await self._prepared()
        await self._try(now)
        self._plan = now
        if now.shape != plan.shape:
            raise ConnectorError("the table has changed: rows are written again with the types that it has now")

    def _moved(self, plan: _Plan, at: int, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns a row with a later time if the one before of its key has the same time: Cassandra would keep the greater value of
        each column, which is a part of both."""
        if row[at] is None:
            return row
        key = hash(tuple([row[one] for one in plan.key]))
        own = int.from_bytes(row[at], "big", signed=True)
        known = self._times.pop(key, None)
        if known is None:
            self._times[key] = own, own
            if len(self._times) > TIMES_MAX:
                del self._times[next(iter(self._times))]
            return row
        if own < known[0]:  # an old row loses
            self._times[key] = known
            return row
        given = min(max(own, known[1] + 1), TIME_MAX)
        self._times[key] = own, given
        return (*row[:at], given.to_bytes(8, "big", signed=True), *row[at + 1 :])

    def _waves(self, plan: _Plan, values: Sequence[tuple[Any, ...]], failures: dict[int, Failure]) -> list[list[_Group]]:
        """Returns rows in groups by partition. Groups of a wave are written at the same time, waves one after the other.

        Rows with conditions are alone, since one that does not hold keeps back all of a batch, and each row of a partition is in a
        later wave than the one before.
        """
        groups: list[_Group] = []
        latest: dict[Any, _Group] = {}
        waves: list[list[_Group]] = [groups]
        places: dict[Any, int] = {}
        for at, row in enumerate(values):
            if at in failures:
                continue
            size = ROW_BYTES + sum([VALUE_BYTES + len(one) for one in row if one is not None])
            if size > ROW_MAX:
                failures[at] = Failure(at, f"the row is larger than {ROW_MAX} bytes")
                continue
            partition = tuple([row[one] for one in plan.partition]) or None
            if self._is_conditional:
                place = places[partition] = places.get(partition, -1) + 1
                if place == len(waves):
                    waves.append([])
                waves[place].append(_Group([at]))
                continue
            key = tuple([row[one] for one in plan.key])
            group = latest.get(partition)
            if partition is None or group is None or key in group.keys or group.size + size > BATCH_BYTES:
                group = latest[partition] = _Group()
                groups.append(group)
            group.rows.append(at)
            group.keys.add(key)
            group.size += size
        return waves if waves[0] else []

    def _request(self, plan: _Plan, values: Sequence[Sequence[Any]], rows: Sequence[int]) -> Any:
        if len(rows) == 1:
            return _bound(plan, values[rows[0]])
        batch = BatchStatement(BatchType.UNLOGGED, consistency_level=self._consistency)
        for at in rows:
            batch.add(_bound(plan, values[at]))
        return batch


class _EachFound(ConnectorDriver[_Server]):
    """Executes a statement for each row that a query finds; columns of the query are fields of the row then."""

    def __init__(self, select: str, parameters: CassandraParameters, connector: _Server, written: _CassandraDriver) -> None:
        super().__init__(connector)
        try:
            found = statement(select, Dialect.CASSANDRA)
        except ValueError as error:
            raise ValueError(str(error).replace("cql:", "select:", 1)) from None
        if found.verb != "SELECT":
            raise ValueError(f"select: must be SELECT, got {found.verb or 'something else'}")
        self._written = written
        self._placeholders = found.placeholders
        self._cql = _with_markers(found.parts)
        self._as_null = parameters.undefined_vars_as_null
        level = parameters.consistency.upper()
        self._consistency = ConsistencyLevel.name_to_value["QUORUM" if level == "EACH_QUORUM" else level]  # which is for writes
        self._query: _Query | None = None

    async def open(self) -> None:
        """Has query and statement prepared. Raises Unusable or ConnectorError."""
        self._query = None
        self._query = await self._prepared()
        await self._written.open()

    async def probe(self) -> None:
        """Checks both."""
        await self._prepared()
        await self._written.probe()

    async def _prepared(self) -> "_Query":
        async with self._connector.session() as session:
            return await self._connector.in_thread(self._prepare, session)

    def _prepare(self, session: Session) -> "_Query":
        prepared = self._connector.prepare(session, self._cql)
        prepared.consistency_level = self._consistency
        prepared.is_idempotent = True
        prepared.fetch_size = PAGE
        return _Query(session, prepared, _types(prepared, self._placeholders, "select"))

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        """Writes a batch; see the contract of drivers. A row fails if one that is found for it does."""
        if self._query is None or not self._connector.is_current(self._query.session):
            await self.open()
        query = self._query
        assert query is not None
        failures: dict[int, Failure] = {}
        values = _serialized(query.prepared, query.types, self._placeholders, rows, self._as_null, failures)
        for at, row in enumerate(rows):
            if at not in failures and (reason := await self._write_each(query, row, values[at])):
                failures[at] = Failure(at, reason)
        return list(failures.values())

    async def _write_each(self, query: "_Query", row: Row, values: Sequence[Any]) -> str:
        """Returns why a row fails; empty: it does not."""
        reason = ""
        async for page in self._pages(query, values):
            if isinstance(page, str):
                return page
            failures = await self._written.write([row.with_values({**row.values, **found}) for found in page])
            reason = reason or next((one.reason for one in failures), "")
        return reason

    async def _pages(self, query: "_Query", values: Sequence[Any]) -> "AsyncIterator[list[dict[str, Any]] | str]":
        """Yields rows that are found, by names of columns; a text: the node rejects the query for what it contains."""
        found: Any = None
        while found is None or found.has_more_pages:
            try:
                async with self._connector.session():
                    if found is None:
                        found = await self._connector.in_thread(query.session.execute, _bound(query, values))
                    else:
                        await self._connector.in_thread(found.fetch_next_page)
            except Unusable as error:
                if not isinstance(error.__cause__, InvalidRequest):
                    raise
                await self._prepared()
                yield _reason(error.__cause__)
                return
            names = found.column_names
            page = [{name: _plain(value) for name, value in zip(names, one, strict=True)} for one in found.current_rows]
            if page:
                yield page


@dataclass(frozen=True, slots=True)
class _Query:
    """A prepared query."""

    session: Session
    prepared: PreparedStatement
    types: tuple[ColumnType, ...]


def _plain(value: Any) -> Any:
    """Returns a value of a column as one of a rule: times in Unix ms, what rules have no type for as text."""
    if isinstance(value, datetime):
        return round((value - EPOCH.replace(tzinfo=value.tzinfo)).total_seconds() * 1000)
    return value if value is None or isinstance(value, str | int | float | bytes) else str(value)


def _with_markers(parts: Sequence[str | Placeholder]) -> str:
    return "".join(part if isinstance(part, str) else "?" for part in parts)


def _types(prepared: PreparedStatement, placeholders: Sequence[Placeholder], key: str) -> tuple[ColumnType, ...]:
    """Returns how the values of placeholders are sent. key: of the statement, for errors. Raises Unusable."""
    columns = prepared.column_metadata
    if len(columns) != len(placeholders):
        raise Unusable(f"{key}: must have placeholders such as ${{topic}} only, got a marker such as ? or :name")
    types = []
    for placeholder, column in zip(placeholders, columns, strict=True):
        type_ = type_of(column.type)
        if type_ is None:
            raise Unusable(f"{placeholder.text}: values of the type {name_of(column.type)} cannot be written")
        types.append(type_)
    return tuple(types)


def _serialized(
    prepared: PreparedStatement,
    types: Sequence[ColumnType],
    placeholders: Sequence[Placeholder],
    rows: Sequence[Row],
    as_null: bool,
    failures: dict[int, Failure],
) -> list[tuple[Any, ...]]:
    """Returns the parameters of each row as bytes, and notes rows with a value that does not fit."""
    version = prepared.protocol_version
    columns = []
    for placeholder, type_, column in zip(placeholders, types, prepared.column_metadata, strict=True):

        def failed(index: int, reason: str, text: str = placeholder.text) -> None:
            failures.setdefault(index, Failure(index, f"{text}: {reason}"))

        made = converted(column_of(placeholder, rows), type_, as_null, failed)
        serialize: Callable[[Any, int], bytes] = column.type.serialize
        columns.append([None if value is None else serialize(value, version) for value in made])
    return list(zip(*columns, strict=True)) if columns else [()] * len(rows)


def _bound(plan: _Plan | _Query, values: Sequence[Any]) -> BoundStatement:
    """Returns the statement with parameters that are serialized already."""
    bound = BoundStatement(plan.prepared)
    bound.values = list(values)
    return bound


def _message(error: Exception) -> str:
    """Returns the message of a node in one line. It may show CQL: for statements without values only."""
    found = getattr(error, "message", None) or str(error)
    inner = MESSAGE.search(found)
    return one_line(inner[1] if inner else found)


def _reason(error: Exception) -> str:
    """Returns why a node rejects a row."""
    found = SHOWN.search(_message(error))
    return f"the node rejects the row: {found[0]}" if found else "the node rejects the row as invalid"
