"""Rows as objects of S3: one for each row, or one for many rows of a journal.

Aggregated rows are there once: the name of an object has the places of its rows. Before the first object of a journal, and after
each error, the names that follow that of the first row are listed; rows that an object has already are not written again.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from shardbroker.config.sinks.s3 import S3Action, S3Connector, S3Parameters
from shardbroker.connectors.errors import ConnectorError
from shardbroker.connectors.reasons import network_reason
from shardbroker.connectors.s3 import S3, code_of
from shardbroker.flows.drivers.getters import rendered
from shardbroker.flows.drivers.s3_objects import (
    OBJECT_MAX,
    ImpossibleKey,
    Place,
    csv_line,
    folder_of,
    json_line,
    key_template,
    name_of,
    packed,
    place_in,
)  # fmt: skip
from shardbroker.flows.sinks.driver import Driver, Failure, Refused, Unusable
from shardbroker.flows.sinks.json_bytes import json_bytes
from shardbroker.flows.sinks.limits import Limits
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.values import EvaluationError

__all__ = ["connect", "make"]

AT_A_TIME = 8
"""Direct objects of a batch under way."""

WRONG_KEY = {
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "AuthFailure", "InvalidSecurity", "NotSignedUp",
}  # fmt: skip
WRONG_REGION = {
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "301",
    "IllegalLocationConstraintException",
    "TemporaryRedirect",
}
OF_OBJECT = {"KeyTooLongError", "EntityTooLarge", "InvalidArgument", "InvalidObjectName", "XMinioInvalidObjectName", "InvalidURI"}
"""What is the fault of one object."""
TYPES = {"json_lines": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
SUFFIXES = {"json_lines": ".jsonl", "csv": ".csv"}
UNPRINTABLE = (ValueError, RecursionError, EvaluationError)


class _Server(S3):
    async def probe(self) -> None:
        """Raises Unusable or ConnectorError."""
        try:
            await super().probe()
        except (ClientError, BotoCoreError, OSError) as error:
            explained = self.explained(error)
            self.health.last_error = str(explained)
            raise explained from None

    def explained(self, error: Exception, bucket: str = "", right: str = "") -> Exception:
        """Returns an error that says what is wrong. right: what the account needs."""
        where = self.where
        if isinstance(error, ParamValidationError):
            return Refused("the key or the bucket is not valid")
        if not isinstance(error, ClientError):
            return ConnectorError(f"{where}: {network_reason(error)}")
        code = code_of(error)
        if code in WRONG_KEY:
            return Unusable(f"{where}: the server rejects access_key_id or secret_access_key")
        if code == "RequestTimeTooSkewed":
            return Unusable(f"{where}: the clock of this machine differs from that of the server")
        if code == "NoSuchBucket":
            return Unusable(f"{where}: there is no bucket {bucket!r}")
        if code in WRONG_REGION:
            return Unusable(f"{where}: the bucket {bucket!r} is not in the region {self.settings.region!r} or not at this server")
        if code in ("AccessDenied", "AllAccessDisabled", "403"):
            return Unusable(f"{where}: the account has no right for {right or 'this request'} of the bucket {bucket!r}")
        if code in OF_OBJECT:
            return Refused(f"the server rejects the object: {code}")
        return ConnectorError(f"{where}: S3 error {code[:64]}")


def connect(settings: S3Connector, key: str) -> _Server:
    return _Server(settings, key)


def make(action: S3Action, connector: _Server, id: str) -> Driver:
    parameters = action.parameters
    if not parameters.bucket:
        raise ValueError(f"{id}: parameters.bucket: must be the name of a bucket, got ''")
    if parameters.mode == "direct":
        try:
            return _Direct(connector, parameters, key_template(parameters.key))
        except ValueError as error:
            raise ValueError(f"{id}: parameters.key: {error}") from None
    if parameters.container.type == "csv" and not parameters.container.column_order:
        raise ValueError(f"{id}: parameters.container.column_order: must be a list of fields of the row with csv, got []")
    try:
        folder_of(parameters.key, "0" * 32, "n", id.partition(":")[2])
    except ValueError as error:
        raise ValueError(f"{id}: parameters.key: {error}") from None
    return _Aggregated(connector, parameters)


class _Base:
    def __init__(self, connector: _Server, parameters: S3Parameters) -> None:
        self._connector, self._parameters = connector, parameters
        self._bucket = parameters.bucket
        self._more: dict[str, str] = {}
        if parameters.acl:
            self._more["ACL"] = parameters.acl.replace("_", "-")
        self._is_packed = parameters.compression == "gzip"
        if self._is_packed:
            self._more["ContentEncoding"] = "gzip"

    async def open(self) -> None:
        """Checks account and bucket."""
        await self.probe()

    async def probe(self) -> None:
        """Lists at most one object."""
        await self._listed({"MaxKeys": 1})

    async def close(self) -> None:
        """Has nothing of its own: the connector is its owner's."""

    async def _listed(self, query: Mapping[str, Any]) -> Any:
        return await self._called("list_objects_v2", "s3:ListBucket", {"Bucket": self._bucket, **query})

    async def _put(self, key: str, content: bytes, kind: str) -> None:
        body = packed(content) if self._is_packed else content
        query = {"Bucket": self._bucket, "Key": key, "Body": body, "ContentType": kind, **self._more}
        await self._called("put_object", "s3:PutObject", query)

    async def _called(self, name: str, right: str, query: Mapping[str, Any]) -> Any:
        """Raises Unusable, Refused, ConnectorError."""
        try:
            async with self._connector.connection() as client:
                return await getattr(client, name)(**query)
        except (ClientError, BotoCoreError, OSError) as error:
            explained = self._connector.explained(error, self._bucket, right)
            if isinstance(explained, Unusable):
                self._connector.health.lost(explained)
            raise explained from None


class _Direct(_Base):
    """An object for each row. Rows with the same key are written one after the other."""

    def __init__(self, connector: _Server, parameters: S3Parameters, key: Callable[[Row], str]) -> None:
        super().__init__(connector, parameters)
        self._key = key
        self._content = rendered(parameters.content) if parameters.content else lambda row: json_bytes(row.values)
        self._kind = "application/octet-stream" if parameters.content else "application/json"

    async def probe(self) -> None:
        """Lists at most one object; an account that may only write is a right one."""
        try:
            await super().probe()
        except Unusable as error:
            if "s3:ListBucket" not in str(error):
                raise
            self._connector.health.reached()

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        """Writes a batch; see the contract of drivers."""
        failures: list[Failure] = []
        group: dict[str, tuple[int, bytes]] = {}
        for at, row in enumerate(rows):
            try:
                key, content = self._key(row), self._content(row)
            except ImpossibleKey as error:
                failures.append(Failure(at, str(error)))
                continue
            except UNPRINTABLE:
                failures.append(Failure(at, "a value cannot be written as text"))
                continue
            if len(content) > OBJECT_MAX:
                failures.append(Failure(at, f"the object is larger than {OBJECT_MAX} bytes"))
                continue
            if key in group or len(group) == AT_A_TIME:
                failures += await self._written(group)
                group = {}
            group[key] = at, content
        return [*failures, *await self._written(group)]

    async def _written(self, group: Mapping[str, tuple[int, bytes]]) -> list[Failure]:
        puts = [self._put(key, content, self._kind) for key, (_, content) in group.items()]
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        failures = []
        for (at, _), outcome in zip(group.values(), outcomes, strict=True):
            if isinstance(outcome, Refused):
                failures.append(Failure(at, str(outcome)))
            elif isinstance(outcome, BaseException):
                raise outcome
        return failures


class _Aggregated(_Base):
    """Objects of many rows, in the order of the journal. cursor_key: `origin/node/type:name`, set by the owner."""

    stores_cursor = True
    cursor_key = ""

    def __init__(self, connector: _Server, parameters: S3Parameters) -> None:
        super().__init__(connector, parameters)
        container = parameters.container
        self._header, self._line = (b"", json_line) if container.type == "json_lines" else csv_line(container.column_order)
        self._kind = TYPES[container.type]
        self._suffix = SUFFIXES[container.type] + (".gz" if self._is_packed else "")
        self._last: dict[str, Place] = {}
        """Journal -> the last row that an object has."""

    def limits(self, limits: Limits) -> Limits:
        """Returns limits with those of objects; the buffer has room for two objects by bytes."""
        given = self._parameters.aggregation
        return replace(
            limits,
            batch_size=given.max_records,
            batch_bytes=given.max_bytes,
            batch_time_s=given.time_interval,
            buffer_records=max(limits.buffer_records, 2 * given.max_records),
            buffer_bytes=max(limits.buffer_bytes, 2 * given.max_bytes),
        )

    async def stored(self) -> Mapping[str, int]:
        """Returns nothing: names are listed where they are needed, from the first row that is to be written."""
        return {}

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        """Writes rows of one journal; see the contract of drivers."""
        journal = rows[0].journal
        failures: list[Failure] = []
        lines: list[tuple[Place, bytes]] = []
        for at, row in enumerate(rows):
            try:
                line = self._line(row)
            except UNPRINTABLE:
                failures.append(Failure(at, "a value cannot be written as text"))
                continue
            if len(line) > OBJECT_MAX - len(self._header):
                failures.append(Failure(at, f"the line is larger than an object of {OBJECT_MAX} bytes"))
                continue
            lines.append((Place(row.position, row.number), line))
        try:
            last = self._last.get(journal) or await self._listed_last(journal, Place(rows[0].position, rows[0].number))
            for part in _parts([one for one in lines if one[0] > last], OBJECT_MAX - len(self._header)):
                name = name_of(part[0][0], part[-1][0], self._suffix)
                content = self._header + b"".join([line for _, line in part])
                await self._put(f"{self._folder()}/{journal}/{name}", content, self._kind)
                self._last[journal] = part[-1][0]
        except Refused as error:  # no row is at fault: a rejected batch would be halved, and all its rows fail
            self._last.pop(journal, None)
            raise Unusable(f"{self._connector.where}: {error}") from None
        except BaseException:
            self._last.pop(journal, None)
            raise
        return failures

    def _folder(self) -> str:
        origin, _, rest = self.cursor_key.partition("/")
        node, _, id = rest.rpartition("/")
        return folder_of(self._parameters.key, origin, node, id.partition(":")[2])

    async def _listed_last(self, journal: str, first: Place) -> Place:
        """Returns the last row of the objects that have this row or a later one; the place before all without such an object."""
        prefix, last = f"{self._folder()}/{journal}/", Place(-1, 0)
        query: dict[str, Any] = {"Prefix": prefix, "StartAfter": f"{prefix}{first}"}
        while True:
            found = await self._listed(query)
            places = [place_in(one["Key"].removeprefix(prefix)) for one in found.get("Contents", [])]
            last = max([last, *(one for one in places if one is not None)])
            if not found.get("IsTruncated"):
                return last
            query["ContinuationToken"] = found["NextContinuationToken"]


def _parts(lines: Sequence[tuple[Place, bytes]], size: int) -> list[list[tuple[Place, bytes]]]:
    """Returns the lines of each object, of at most so many bytes."""
    parts: list[list[tuple[Place, bytes]]] = []
    left = -1
    for one in lines:
        left -= len(one[1])
        if left < 0:
            parts.append([])
            left = size - len(one[1])
        parts[-1].append(one)
    return parts
