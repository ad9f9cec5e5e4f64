"""Rows as documents of MongoDB, one unordered insert for each batch and collection; or changes of documents, in order.

A document without `_id` in its template gets the id of the message. A document that is there already counts as written if it is the
same; another row of the same message gets an id with a digest of the document.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import bson
import pymongo.errors
from bson.codec_options import CodecOptions
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteMany, UpdateMany, UpdateOne

from shardbroker.config.sinks.mongodb import MongodbAction, MongodbConnector, MongodbStatement
from shardbroker.connectors.errors import ConnectorError
from shardbroker.connectors.mongodb import AUTHENTICATION_FAILED, Mongodb
from shardbroker.connectors.reasons import network_reason, tls_reason
from shardbroker.flows.drivers.alternatives import Alternatives
from shardbroker.flows.drivers.getters import encoded, placeholders
from shardbroker.flows.drivers.json_template import Build, json_template
from shardbroker.flows.sinks.driver import ConnectorDriver, Driver, Failure, Refused, Unusable
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.functions.dates import MongoDate
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["connect", "make"]

DOCUMENT_MAX = 16 << 20
"""Most bytes of a document, by MongoDB's limit."""
DEPTH_MAX = 100
"""Most levels of a document, by MongoDB's limit."""
NAME_MAX = 200
"""Most bytes of the name of a collection: 255 with the database, by MongoDB's limit."""
DIGEST_BYTES = 8
DUPLICATE_KEY, UNAUTHORIZED, VALIDATION = 11000, 13, 121
AGAIN = {
    24, 46, 50, 63, 89, 91, 112, 133, 150, 189, 202, 234, 262, 10107, 11600, 11602, 13388, 13435, 13436, 14031,
}  # fmt: skip
"""Errors of the server's state rather than of a document: locks, time limits, shutdown, elections, moving chunks, a full disk."""
ERRNO = re.compile(r"\[Errno (-?\d+)\]")
OF_ID = re.compile(r"E11000 duplicate key error collection: \S+ index: _id_ dup key")
RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
NOT_REACHED = (pymongo.errors.PyMongoError, OSError)

Name = Callable[[Row], str]


class _Server(Mongodb):
    async def probe(self) -> None:
        """Raises Unusable or ConnectorError."""
        try:
            await super().probe()
        except NOT_REACHED as error:
            explained = self.explained(error)
            self.health.last_error = str(explained)
            raise explained from error

    @property
    def where(self) -> str:
        settings = self.settings
        return settings.server if settings.mongo_type == "single" else ", ".join(settings.servers)

    def not_everywhere(self) -> ConnectorError:
        """Returns the error of a write that may be lost when the primary is."""
        return ConnectorError(f"{self.where}: the documents are not on enough members of the replica set yet")

    def explained(self, error: Exception) -> Exception:
        """Returns an error that says what is wrong."""
        where, database = self.where, self.settings.database
        if isinstance(error, pymongo.errors.OperationFailure) and not isinstance(error, pymongo.errors.NotPrimaryError):
            if error.code == AUTHENTICATION_FAILED:
                return Unusable(f"{where}: the server rejects username or password")
            if error.code == UNAUTHORIZED:
                return Unusable(f"{where}: the user may not write to the database {database!r}")
            if error.code in AGAIN or isinstance(error, pymongo.errors.ExecutionTimeout | pymongo.errors.WTimeoutError):
                return ConnectorError(f"{where}: MongoDB error {error.code}")
            return Refused(f"MongoDB error {error.code}")
        if isinstance(error, pymongo.errors.InvalidName):
            return Refused("the name of the collection is not allowed")
        if isinstance(error, pymongo.errors.DocumentTooLarge):
            return Refused(f"the document is larger than {DOCUMENT_MAX} bytes")
        late = isinstance(error, TimeoutError | pymongo.errors.ServerSelectionTimeoutError)
        if late and (known := self.server_errors()):
            return ConnectorError(f"{where}: {_connecting_reason(known[0])}")
        return ConnectorError(f"{where}: {_network_reason(error)}")


def connect(settings: MongodbConnector, key: str) -> _Server:
    return _Server(settings, key)


def make(action: MongodbAction, connector: _Server, id: str) -> Driver:
    parameters = action.parameters
    main = _driver(parameters, connector, f"{id}: parameters")
    others = {
        name: _driver(one, connector, f"{id}: parameters.statements.{name}") for name, one in parameters.statements.items()
    }
    return Alternatives({"": main, **others}) if others else main


def _driver(statement: MongodbStatement, connector: _Server, key: str) -> Driver:
    built = _template(statement.payload_template, f"{key}.payload_template")
    name = _name(statement.collection)
    if statement.operation == "insert":
        if statement.filter_template.strip():
            raise ValueError(f"{key}.filter_template: must be empty with operation = insert")
        return _MongodbDriver(connector, name, built)
    wanted = _template(statement.filter_template, f"{key}.filter_template")
    if wanted is None:
        raise ValueError(f"{key}.filter_template: must be a JSON object with operation = {statement.operation}, got ''")
    if (built is None) is not (statement.operation == "delete"):
        must = "empty" if built is not None else 'operators such as {"$set": {"state": ${state}}}'
        raise ValueError(f"{key}.payload_template: must be {must} with operation = {statement.operation}")
    return _MongodbChanges(connector, name, statement.operation, wanted, built)


def _template(text: str, key: str) -> Build | None:
    """Returns what builds the object of a template, or None for an empty one. Raises ValueError."""
    try:
        return json_template(text) if text.strip() else None
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _name(text: str) -> Name:
    parts = placeholders(text)
    if all(isinstance(one, str) for one in parts):
        return lambda row: text
    return lambda row: "".join([one if isinstance(one, str) else encoded(one(row)).decode() for one in parts])


@dataclass(slots=True)
class _Document:
    at: int
    id: Any
    rest: dict[str, Any]
    is_own_id: bool
    """Whether the id is made here rather than by the template."""
    data: bytes = b""

    def encode(self) -> None:
        """Raises what `_encoded` does."""
        self.data = _encoded({"_id": self.id, **self.rest})

    def distinct(self) -> None:
        """Gives it an id that another row of the same message does not have."""
        self.id = f"{self.id}-{hashlib.blake2b(self.data, digest_size=DIGEST_BYTES).hexdigest()}"
        self.is_own_id = False
        self.encode()


class _MongodbDriver(ConnectorDriver[_Server]):
    def __init__(self, connector: _Server, name: Name, build: Build | None) -> None:
        super().__init__(connector)
        self._name = name
        self._build = build

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        failures: list[Failure] = []
        by_name: dict[str, list[_Document]] = {}
        for at, row in enumerate(rows):
            try:
                name = _checked(self._name(row))
                document = self._document(at, row)
                document.encode()
            except _Impossible as error:
                failures.append(Failure(at, str(error)))
            except (EvaluationError, UnicodeError):
                failures.append(Failure(at, "a value cannot be written as text"))
            else:
                by_name.setdefault(name, []).append(document)
        for name, documents in by_name.items():
            failures += await self._insert(name, documents)
        return failures

    def _document(self, at: int, row: Row) -> _Document:
        built = _plain(row.values if self._build is None else self._build(row), DEPTH_MAX)
        if "_id" in built:
            return _Document(at, built.pop("_id"), built, False)
        return _Document(at, row.id or row.value(("position",)), built, True)

    async def _insert(self, name: str, documents: Sequence[_Document]) -> list[Failure]:
        collection = self._connector.database[name]
        failures: list[Failure] = []
        there: list[_Document] = []
        for document, error in await self._errors_of(collection, documents):
            if error.get("code") != DUPLICATE_KEY or not _is_of_id(error):
                failures.append(_failure(document.at, error))
            elif document.is_own_id:
                there.append(document)
        if there:
            others = await self._others(collection, there)
            for one in others:
                one.distinct()
            if others:
                failures += await self._insert(name, others)
        return failures

    async def _errors_of(self, collection: Any, documents: Sequence[_Document]) -> list[tuple[_Document, Mapping[str, Any]]]:
        """Inserts documents; returns those that are not inserted, each with the error."""
        try:
            async with self._connector.connection():
                await collection.insert_many([RawBSONDocument(one.data) for one in documents], ordered=False)
        except pymongo.errors.BulkWriteError as error:
            details = error.details or {}
            if details.get("writeConcernErrors"):
                raise self._connector.not_everywhere() from None
            return [(documents[one["index"]], one) for one in details["writeErrors"]]
        except NOT_REACHED as error:
            raise self._connector.explained(error) from error
        return []

    async def _others(self, collection: Any, documents: Sequence[_Document]) -> list[_Document]:
        """Returns the documents whose id another document has."""
        wanted = {one.id: one for one in documents}
        try:
            async with self._connector.connection():
                found = collection.with_options(RAW).find({"_id": {"$in": list(wanted)}})
                stored = {one["_id"]: one.raw async for one in found}
        except NOT_REACHED as error:
            raise self._connector.explained(error) from error
        return [one for one in documents if stored.get(one.id) != one.data]


class _MongodbChanges(ConnectorDriver[_Server]):
    """Changes and removals, in order. An upsert that meets a document of the same key, which its filter does not find, is done: the
    filter wants older ones only."""

    def __init__(self, connector: _Server, name: Name, operation: str, wanted: Build, change: Build | None) -> None:
        super().__init__(connector)
        self._name, self._operation, self._wanted, self._change = name, operation, wanted, change

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        failures: list[Failure] = []
        work: list[tuple[str, int, Any]] = []
        for at, row in enumerate(rows):
            try:
                work.append((_checked(self._name(row)), at, self._request(row)))
            except _Impossible as error:
                failures.append(Failure(at, str(error)))
            except (EvaluationError, UnicodeError):
                failures.append(Failure(at, "a value cannot be written as text"))
        for name, ones in groupby(work, lambda one: one[0]):
            failures += await self._carry_out(name, [(at, request) for _, at, request in ones])
        return failures

    def _request(self, row: Row) -> Any:
        wanted = _plain(self._wanted(row), DEPTH_MAX)
        _encoded(wanted)
        if self._change is None:
            return DeleteMany(wanted)
        change = _plain(self._change(row), DEPTH_MAX)
        _encoded(change)
        return UpdateOne(wanted, change, upsert=True) if self._operation == "upsert" else UpdateMany(wanted, change)

    async def _carry_out(self, name: str, requests: Sequence[tuple[int, Any]]) -> list[Failure]:
        collection, failures = self._connector.database[name], list[Failure]()
        while requests:
            try:
                async with self._connector.connection():
                    await collection.bulk_write([request for _, request in requests], ordered=True)
            except pymongo.errors.BulkWriteError as error:
                details = error.details or {}
                if details.get("writeConcernErrors"):
                    raise self._connector.not_everywhere() from None
                (first, *_) = details["writeErrors"]
                if first.get("code") != DUPLICATE_KEY or self._operation != "upsert":
                    failures.append(_failure(requests[first["index"]][0], first))
                requests = requests[first["index"] + 1 :]  # the server has stopped there
            except NOT_REACHED as error:
                raise self._connector.explained(error) from error
            else:
                break
        return failures


class _Impossible(Exception):
    """A row that cannot be a document; the text has no value of it."""


def _checked(name: str) -> str:
    """Returns the name of a collection. Raises _Impossible: a client may have chosen a part of it."""
    if not name or name.startswith(("system.", ".")) or name.endswith(".") or ".." in name or "$" in name or "\0" in name:
        raise _Impossible("the name of the collection is not allowed")
    if len(name.encode()) > NAME_MAX:
        raise _Impossible(f"the name of the collection is longer than {NAME_MAX} bytes")
    return name


def _plain(value: Value, depth: int) -> Any:
    """Returns a value as BSON has it: dates of rules as dates, missing elements as null. Raises _Impossible."""
    kind = type(value)
    if kind is dict or kind is list:
        if not depth:
            raise _Impossible(f"the document has more than {DEPTH_MAX} levels")
        if kind is list:
            return [_plain(one, depth - 1) for one in value]
        return {key: _plain(one, depth - 1) for key, one in value.items()}
    if kind is MongoDate:
        return DatetimeMS(value.milliseconds)
    return None if value is UNDEFINED else value


def _encoded(document: dict[str, Any]) -> bytes:
    """Returns a document as BSON. Raises _Impossible."""
    try:
        data = bson.encode(document)
    except OverflowError:
        raise _Impossible("an integer has more than 64 bits") from None
    except (bson.errors.BSONError, ValueError, TypeError, RecursionError):
        raise _Impossible("a key or a value is not possible in BSON") from None
    if len(data) > DOCUMENT_MAX:
        raise _Impossible(f"the document is larger than {DOCUMENT_MAX} bytes")
    return data


def _is_of_id(error: Mapping[str, Any]) -> bool:
    """Returns whether a duplicate key is that of `_id` rather than of another unique index."""
    pattern = error.get("keyPattern")
    return set(pattern) == {"_id"} if pattern else OF_ID.match(str(error.get("errmsg", ""))) is not None


def _failure(at: int, error: Mapping[str, Any]) -> Failure:
    code = error.get("code")
    if code == DUPLICATE_KEY:
        return Failure(at, "another document has the same key of a unique index")
    if code == VALIDATION:
        return Failure(at, "the document fails the validation of the collection")
    return Failure(at, f"MongoDB error {code}", again=code in AGAIN)


def _connecting_reason(error: Exception) -> str:
    """Returns why no connection could be opened: the library keeps nothing of the error but its text."""
    text = str(error).partition(" (configured timeouts")[0]
    if reason := tls_reason(text):
        return reason
    found = ERRNO.search(text)
    if found is None:
        return "no connection"
    return "the name of the server cannot be resolved" if int(found[1]) < 0 else os.strerror(int(found[1])).lower()


def _network_reason(error: Exception) -> str:
    if isinstance(error, pymongo.errors.NotPrimaryError):
        return "the server is not the primary"
    if isinstance(error, pymongo.errors.NetworkTimeout | pymongo.errors.ServerSelectionTimeoutError):
        return "no response in time"
    return network_reason(error)
