"""Rows as items of DynamoDB, by BatchWriteItem of 25.

An item replaces the one with the same key, so a batch that is written again changes nothing. A request may not have a key twice:
rows of one key are in requests that follow each other. What the table has no capacity for is sent again after a delay, and returned
to the queue of the action when that takes too long.

Conditions and removals are a request each, in the same rounds.

    rows --> items --> rounds, each with a key at most once --> groups of 25, a few at a time
                                                                 |
                                                  unprocessed: again, after a delay
"""

import asyncio
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiodynamo import errors

from shardbroker.config.sinks.dynamo import DynamoAction, DynamoConnector, DynamoStatement
from shardbroker.connectors.dynamodb import Dynamodb, error_of
from shardbroker.connectors.errors import ConnectorError
from shardbroker.flows.drivers.alternatives import Alternatives
from shardbroker.flows.drivers.dynamo_items import Attribute, ItemError, Key, Table, item_of, key_of, values_of
from shardbroker.flows.drivers.getters import Getter, placeholders
from shardbroker.flows.drivers.json_template import Build, json_template
from shardbroker.flows.sinks.driver import Driver, Failure, Refused, Unusable
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.values import UNDEFINED, EvaluationError

__all__ = ["connect", "make"]

GROUP_MAX = 25
"""Most items of a request, by DynamoDB's limit."""
GROUP_BYTES = 2 << 20
"""Most bytes of the items of a request. JSON makes up to six of one, and a request may have 16 MB."""
AT_A_TIME = 4
"""Requests of a batch under way: four lanes keep twice as many connections busy as there are by default."""
PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Most delays before what was not processed is sent again; then the action waits, up to 15 s."""
JITTER = 0.5
"""Least share of a delay."""
THROTTLED = (errors.ProvisionedThroughputExceeded, errors.RequestLimitExceeded, errors.Throttled)
IN_VAIN = (errors.ValidationException, errors.SerializationException, errors.ItemCollectionSizeLimitExceeded)
"""What is the fault of an item."""
WRONG_KEY = {
    "UnrecognizedClient", "InvalidSignature", "SignatureDoesNotMatch", "IncompleteSignature", "MissingAuthenticationToken",
    "InvalidClientTokenId", "ExpiredToken",
}  # fmt: skip
"""Names of errors, without `Exception`, of an account that is not accepted."""
TABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")
KNOWN_REASONS = {
    "Item size": "it is larger than allowed",
    "too large": "it is larger than allowed",
    "Nesting": "it has too many levels",
    "Type mismatch": "a part of a key has the wrong type",
    "empty": "a part of a key is empty",
    "schema": "its key is not that of the table",
    "umber": "a number is out of range",
    "duplicates": "a key is there twice",
}
"""Part of a text of the server -> what is wrong, without what it cites of an item."""
NAME = re.compile(r"#[A-Za-z0-9_]+")
"""An attribute in a condition."""
KEY = "#of_the_index"
"""The key of an index in a query."""
ABOUT_CONDITION = re.compile("ConditionExpression|FilterExpression")
"""In texts of the server about a condition."""
ABOUT_OPERAND = "operand"
"""In those of them that are about a value."""
NO_CAPACITY = "the table has not enough capacity"


class _Throttled(ConnectorError):
    """The table has not enough capacity for a request."""


class _Unfulfilled(ConnectorError):
    """The condition of a request does not hold."""


class _Server(Dynamodb):
    async def probe(self) -> None:
        """Raises Unusable or ConnectorError."""
        try:
            await super().probe()
        except errors.AIODynamoError as error:
            explained = self.explained(error)
            self.health.last_error = str(explained)
            raise explained from None

    def explained(self, error: errors.AIODynamoError, action: str = "") -> Exception:
        """Returns an error that says what is wrong. action: what was requested of which table."""
        where = self.where
        name, text = error_of(error)
        if name.removesuffix("Exception") in WRONG_KEY:
            if "valid region" in text or "not valid for" in text:
                return Unusable(f"{where}: the region of the server is not {self.region!r}")
            if "xpired" in text or "not yet current" in text:
                return Unusable(f"{where}: the key has expired, or the clock of this machine is wrong")
            return Unusable(f"{where}: the server rejects aws_access_key_id or aws_secret_access_key")
        if isinstance(error, errors.AccessDenied):
            return Unusable(f"{where}: the account has no right for {action or 'this request'}")
        if isinstance(error, errors.TableNotFound):
            return Unusable(f"{where}: {action.partition(' of ')[2] or 'the table'} is not there, in the region {self.region!r}")
        if isinstance(error, errors.UnknownOperation) or name in ("status 404", "status 405", "status 200"):
            return Unusable(f"{where}: the server is not DynamoDB; another url?")
        if isinstance(error, errors.ConditionalCheckFailed):
            return _Unfulfilled(f"{where}: the condition does not hold")
        if isinstance(error, IN_VAIN) and ABOUT_CONDITION.search(text) and ABOUT_OPERAND not in text:
            return Unusable(f"{where}: the server rejects a condition of the action, or its filter")
        if isinstance(error, IN_VAIN):
            return Refused(f"the server rejects the item: {_known(text)}")
        if isinstance(error, THROTTLED):
            return _Throttled(f"{where}: {NO_CAPACITY}")
        return ConnectorError(f"{where}: DynamoDB error {name}")


def _known(text: str) -> str:
    """Returns what is wrong with an item."""
    for part, meaning in KNOWN_REASONS.items():
        if part in text:
            return meaning
    return "it is not valid"


def connect(settings: DynamoConnector, key: str) -> _Server:
    return _Server(settings, key)


def make(action: DynamoAction, connector: _Server, id: str) -> Driver:
    parameters = action.parameters
    as_null = parameters.undefined_vars_as_null
    main = _driver(parameters, as_null, connector, f"{id}: parameters")
    others = {
        name: _driver(one, as_null, connector, f"{id}: parameters.statements.{name}")
        for name, one in parameters.statements.items()
    }
    return Alternatives({"": main, **others}) if others else main


def _driver(one: DynamoStatement, as_null: bool, connector: _Server, key: str) -> Driver:
    if not TABLE_NAME.fullmatch(one.table):
        raise ValueError(f"{key}.table: must be 3 to 255 letters, digits, _, . and -, got {one.table!r}")
    build = None
    if one.template.strip():
        try:
            build = json_template(one.template, as_null)
        except ValueError as error:
            raise ValueError(f"{key}.template: {error}") from None
    if one.filter.strip() and not one.index:
        raise ValueError(f"{key}.filter: must be empty without {key}.index")
    if one.operation == "put" and not one.condition.strip() and not one.index:
        return _DynamoDriver(connector, one, as_null, build)
    condition, filtered = _condition(one.condition, f"{key}.condition"), _condition(one.filter, f"{key}.filter")
    changes = _DynamoChanges(connector, one, as_null, build, condition, filtered)
    return _EachFound(changes) if one.index else changes


@dataclass(frozen=True, slots=True)
class _Condition:
    """names: as in the text -> attribute. values: of a row, named :v0, :v1 and so on in the text."""

    text: str
    names: Mapping[str, str]
    values: Sequence[Getter]

    def values_of(self, row: Row, as_null: bool) -> dict[str, Attribute]:
        """Returns the values of a row. Raises ItemError."""
        return item_of({f":v{at}": get(row) for at, get in enumerate(self.values)}, as_null).attributes


def _condition(text: str, key: str) -> _Condition | None:
    """Reads a condition; None for an empty text. Raises ValueError."""
    if not text.strip():
        return None
    parts = placeholders(text)
    values = [one for one in parts if not isinstance(one, str)]
    if any(isinstance(one, str) and ":" in one for one in parts):
        raise ValueError(f"{key}: must have placeholders such as ${{at}} for values, got a colon")
    names = [name for one in parts if isinstance(one, str) for name in NAME.findall(one)]
    numbers = iter(range(len(values)))
    made = "".join(one if isinstance(one, str) else f":v{next(numbers)}" for one in parts)
    return _Condition(made, {name: name[1:] for name in names}, values)


@dataclass(slots=True)
class _Put:
    """An item of the row at a place of the batch."""

    at: int
    key: Key
    attributes: dict[str, Attribute]
    size: int
    compared: dict[str, Attribute] = field(default_factory=dict)
    """Values of its condition."""


class _DynamoDriver:
    """Driver of one table."""

    def __init__(self, connector: _Server, parameters: DynamoStatement, as_null: bool, build: Build | None) -> None:
        self._connector, self._parameters, self._as_null, self._build = connector, parameters, as_null, build
        self._table: Table | None = None

    async def open(self) -> None:
        """Reads the key of the table."""
        self._table = await self._described()

    async def probe(self) -> None:
        """Reads it as well: account, right and table are checked."""
        await self._described()

    async def close(self) -> None:
        """Has nothing of its own: the connector is its owner's."""

    async def _described(self) -> Table:
        name = self._parameters.table
        try:
            found = (await self._request("DescribeTable", {"TableName": name})).get("Table", {})
            types = {one["AttributeName"]: one["AttributeType"] for one in found["AttributeDefinitions"]}
            keys = {one["KeyType"]: one["AttributeName"] for one in found["KeySchema"]}
            ordered = {keys[kind]: types[keys[kind]] for kind in ("HASH", "RANGE") if kind in keys}
        except (KeyError, TypeError, AttributeError):
            raise Unusable(f"{self._connector.where}: the server is not DynamoDB; another url?") from None
        except ConnectorError as error:
            self._connector.health.lost(error)
            raise
        for key, kind, given in (
            ("hash_key", "HASH", self._parameters.hash_key),
            ("range_key", "RANGE", self._parameters.range_key),
        ):
            if given and keys.get(kind) != given:
                there = f"{keys[kind]!r}" if kind in keys else "none"
                raise Unusable(f"parameters.{key}: must be that of the table {name!r}, which is {there}, got {given!r}")
        return Table(name, ordered, {one: kind for one, kind in types.items() if one not in ordered})

    async def _request(self, action: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Raises ConnectorError, Unusable, Refused, _Throttled."""
        try:
            return await self._connector.request(action, payload)
        except errors.AIODynamoError as error:
            explained = self._connector.explained(error, f"dynamodb:{action} of the table {self._parameters.table!r}")
            if isinstance(explained, Unusable):
                self._connector.health.lost(explained)
            raise explained from None

    # --- a batch --------------------------------------------------------------------------------------------------------------

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        """Writes a batch; see the contract of drivers."""
        if self._table is None:
            await self.open()
        table = self._table
        assert table is not None
        failures: list[Failure] = []
        rounds = _rounds(self._puts(table, rows, failures))
        try:
            for number, puts in enumerate(rounds):
                left = await self._written(table, puts, failures)
                if left:  # rows of the same keys that follow must not be there first
                    left += [put for later in rounds[number + 1 :] for put in later]
                    return [*failures, *(Failure(put.at, NO_CAPACITY, again=True) for put in left)]
        except Unusable:
            self._table = None
            raise
        return failures

    def _puts(self, table: Table, rows: Sequence[Row], failures: list[Failure]) -> list[_Put]:
        puts = []
        build, as_null = self._build, self._as_null
        for at, row in enumerate(rows):
            try:
                item = item_of(row.values if build is None else build(row), as_null)
                puts.append(_Put(at, key_of(item.attributes, table), *item, self._compared(row)))
            except ItemError as error:
                failures.append(Failure(at, str(error)))
            except (EvaluationError, UnicodeError):
                failures.append(Failure(at, "a value cannot be written as text"))
        return puts

    def _compared(self, row: Row) -> dict[str, Attribute]:
        """Returns the values of the condition of a row, empty without a condition. Raises ItemError."""
        return {}

    async def _written(self, table: Table, puts: Sequence[_Put], failures: list[Failure]) -> list[_Put]:
        """Writes items of different keys; returns those for which the table has no capacity."""
        for pause_s in (*PAUSES_S, 0.0):
            left: list[_Put] = []
            groups = _groups(puts)
            for at in range(0, len(groups), AT_A_TIME):
                tasks = [self._put(table, group, failures) for group in groups[at : at + AT_A_TIME]]
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
                for outcome in outcomes:
                    if isinstance(outcome, BaseException):
                        raise outcome
                    left += outcome
            if not left or not pause_s:
                break
            puts = left
            await asyncio.sleep(pause_s * random.uniform(JITTER, 1))
        return left

    async def _put(self, table: Table, group: Sequence[_Put], failures: list[Failure]) -> list[_Put]:
        """Writes the items of a request; returns those that are not processed. A group that is refused is halved."""
        requests = [{"PutRequest": {"Item": put.attributes}} for put in group]
        try:
            answer = await self._request("BatchWriteItem", {"RequestItems": {table.name: requests}})
        except _Throttled:
            return list(group)
        except Refused as error:
            if len(group) == 1:
                failures.append(Failure(group[0].at, str(error)))
                return []
            middle = len(group) // 2
            return [*await self._put(table, group[:middle], failures), *await self._put(table, group[middle:], failures)]
        unprocessed = answer.get("UnprocessedItems")
        return self._unprocessed(table, group, unprocessed) if unprocessed else []

    def _unprocessed(self, table: Table, group: Sequence[_Put], answer: Any) -> list[_Put]:
        by_key = {put.key: put for put in group}
        try:
            return [by_key[key_of(one["PutRequest"]["Item"], table)] for found in answer.values() for one in found]
        except (KeyError, TypeError, AttributeError, ItemError):
            raise ConnectorError(f"{self._connector.where}: the server answers with items that it was not sent") from None


class _DynamoChanges(_DynamoDriver):
    """Items with a condition, and removals: a request each. A row whose condition does not hold is done."""

    def __init__(
        self,
        connector: _Server,
        parameters: DynamoStatement,
        as_null: bool,
        build: Build | None,
        condition: _Condition | None,
        filtered: _Condition | None,
    ) -> None:
        super().__init__(connector, parameters, as_null, build)
        self._condition, self._filtered = condition, filtered

    def _compared(self, row: Row) -> dict[str, Attribute]:
        return self._condition.values_of(row, self._as_null) if self._condition is not None else {}

    async def _put(self, table: Table, group: Sequence[_Put], failures: list[Failure]) -> list[_Put]:
        for number, put in enumerate(group):
            try:
                await self._request(*self._change(table, put))
            except _Unfulfilled:
                continue
            except _Throttled:
                return list(group[number:])
            except Refused as error:
                failures.append(Failure(put.at, str(error)))
        return []

    def _change(self, table: Table, put: _Put) -> tuple[str, dict[str, Any]]:
        """Returns action and payload of a request."""
        payload: dict[str, Any] = {"TableName": table.name}
        if self._condition is not None:
            payload["ConditionExpression"] = self._condition.text
            payload |= {"ExpressionAttributeNames": self._condition.names} if self._condition.names else {}
            payload |= {"ExpressionAttributeValues": put.compared} if put.compared else {}
        if self._parameters.operation == "delete":
            return "DeleteItem", {**payload, "Key": {name: put.attributes[name] for name in table.keys}}
        return "PutItem", {**payload, "Item": put.attributes}

    # --- items of an index ----------------------------------------------------------------------------------------------------

    async def found(self, row: Row, start: Any) -> tuple[list[dict[str, Any]], Any]:
        """Returns a page of the items of an index with the value that a row has for its key, and where the next page begins, if
        there is one. Raises ItemError, and what write() raises."""
        index = self._parameters.index
        name = await self._index_key()
        values, names = item_of({":key": row.values.get(name)}, self._as_null).attributes, {KEY: name}
        if self._filtered is not None:
            values |= self._filtered.values_of(row, self._as_null)
            names |= self._filtered.names
        payload: dict[str, Any] = {
            "TableName": self._parameters.table,
            "IndexName": index,
            "KeyConditionExpression": f"{KEY} = :key",
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
        }
        if self._filtered is not None:
            payload["FilterExpression"] = self._filtered.text
        answer = await self._request("Query", payload | ({"ExclusiveStartKey": start} if start else {}))
        try:
            return [values_of(one) for one in answer["Items"]], answer.get("LastEvaluatedKey")
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConnectorError(f"{self._connector.where}: the server answers with items that cannot be read") from None

    async def _index_key(self) -> str:
        """Returns the partition key of the index. Raises Unusable."""
        index, table = self._parameters.index, self._parameters.table
        found = (await self._request("DescribeTable", {"TableName": table})).get("Table", {})
        for one in found.get("GlobalSecondaryIndexes", []):
            if one.get("IndexName") == index and len(keys := one.get("KeySchema", [])) == 1:
                return str(keys[0]["AttributeName"])
        raise Unusable(f"{self._connector.where}: the table {table!r} has no index {index!r} with a partition key alone")


class _EachFound:
    """Changes an item for each one that an index has for a row; its attributes are fields of the row then."""

    def __init__(self, changes: _DynamoChanges) -> None:
        self._changes = changes

    async def open(self) -> None:
        """Reads the key of the table."""
        await self._changes.open()

    async def probe(self) -> None:
        """Reads it as well."""
        await self._changes.probe()

    async def close(self) -> None:
        """Has nothing of its own."""

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        """Writes a batch; see the contract of drivers. A row fails if one that is found for it does."""
        failures = []
        for at, row in enumerate(rows):
            try:
                if (failure := await self._write_each(row)) is not None:
                    failures.append(failure._replace(at=at))
            except (ItemError, Refused) as error:
                failures.append(Failure(at, str(error)))
            except _Throttled:
                failures += [Failure(left, NO_CAPACITY, again=True) for left in range(at, len(rows))]
                break
        return failures

    async def _write_each(self, row: Row) -> Failure | None:
        own = {name: value for name, value in row.values.items() if value is not UNDEFINED and value is not None}
        first, start = None, None
        while True:
            page, start = await self._changes.found(row, start)
            failures = await self._changes.write([row.with_values({**found, **own}) for found in page])
            again = next((one for one in failures if one.again), None)
            if again is not None:
                return again
            first = first or next(iter(failures), None)
            if not start:
                return first


def _rounds(puts: Sequence[_Put]) -> list[list[_Put]]:
    """Returns lists in which no key is twice: the second row of a key is in the second one."""
    rounds: list[list[_Put]] = []
    seen: dict[Key, int] = {}
    for put in puts:
        number = seen.get(put.key, 0)
        seen[put.key] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(put)
    return rounds


def _groups(puts: Sequence[_Put]) -> list[list[_Put]]:
    """Returns the items of each request."""
    groups: list[list[_Put]] = []
    size = GROUP_BYTES + 1
    for put in puts:
        size += put.size
        if size > GROUP_BYTES or len(groups[-1]) == GROUP_MAX:
            groups.append([])
            size = put.size
        groups[-1].append(put)
    return groups
