"""Rows as points of InfluxDB 1, 2 and 3, one request of line protocol for each batch.

A point that is written again with the same tags and time replaces itself. So a batch that the server has written in part, as it
does when it rejects some lines, is halved like one that is not written at all.
"""

import base64
import json
import re
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import aiohttp

from shardbroker.config.sinks.influxdb import InfluxdbAction, InfluxdbConnector
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.connectors.http_server import HttpServer
from shardbroker.connectors.reasons import network_reason
from shardbroker.flows.drivers.line_protocol import PointError, Points, line_protocol
from shardbroker.flows.sinks.driver import ConnectorDriver, Driver, Failure, Refused, Unusable
from shardbroker.flows.sinks.row import Row

__all__ = ["connect", "make"]

GZIP_FROM = 4096
"""Bytes of a body from which it is compressed."""
GZIP = 31
"""The wbits of zlib for a gzip header and the largest window."""
NOT_REACHED = (aiohttp.ClientError, ConnectorError, OSError)
DROPPED = re.compile(r"dropped=(\d+)")
KNOWN_REASONS = (
    "field type conflict", "points beyond retention policy", "unable to parse", "max-values-per-tag limit exceeded",
    "max-series-per-database limit exceeded", "max key length exceeded", "time outside range", "invalid column type",
    "invalid boolean", "invalid number", "schema",
)  # fmt: skip
"""What the server says about lines, without what it cites of them."""
PRECISIONS_V3 = {"ns": "nanosecond", "us": "microsecond", "ms": "millisecond", "s": "second"}


class _Api(NamedTuple):
    """Where points are written. place: what the server must have, for errors."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    place: str


def _api(settings: InfluxdbConnector, precision: str = "ms") -> _Api:
    if settings.influxdb_type == "influxdb_api_v1":
        headers = {}
        if settings.username:
            login = f"{settings.username}:{settings.password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        unit = {"ns": "n", "us": "u"}.get(precision, precision)
        return _Api("/write", {"db": settings.database, "precision": unit}, headers, f"database {settings.database!r}")
    if settings.influxdb_type == "influxdb_api_v2":
        query = {"bucket": settings.bucket, "org": settings.org, "precision": precision}
        place = f"bucket {settings.bucket!r} of the organization {settings.org!r}"
        return _Api("/api/v2/write", query, {"Authorization": f"Token {settings.token}"} if settings.token else {}, place)
    query = {"db": settings.database, "precision": PRECISIONS_V3[precision]}
    headers = {"Authorization": f"Bearer {settings.token}"} if settings.token else {}
    return _Api("/api/v3/write_lp", query, headers, f"database {settings.database!r}")


class _Server(HttpServer):
    def __init__(self, settings: InfluxdbConnector, key: str) -> None:
        self.api = _api(settings)
        super().__init__(settings, key, self.api.headers)

    async def probe(self) -> None:
        """Writes no points: the server looks at account and database, and has nothing to do."""
        try:
            status, body = await self.write(self.api, b"")
            if status != 400:  # versions 2 and 3 answer so that there is no point
                self.raise_for(status, body)
        except ConnectorError as error:
            self.health.lost(error)
            raise

    async def write(self, api: _Api, body: bytes) -> tuple[int, bytes]:
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        if len(body) >= GZIP_FROM:
            packer = zlib.compressobj(1, zlib.DEFLATED, GZIP)
            body = packer.compress(body) + packer.flush()
            headers["Content-Encoding"] = "gzip"
        try:
            return await self.post(api.path, body, api.query, headers)
        except NOT_REACHED as error:
            raise ConnectorError(f"{self.settings.server}: {_reason_of(error)}") from error

    def raise_for(self, status: int, body: bytes) -> None:
        """Raises an error that says what is wrong, unless the status is that of success."""
        if 200 <= status < 300:
            return
        where = self.settings.server
        if status == 401:
            raise Unusable(f"{where}: the server rejects username, password or token")
        if status == 403:
            raise Unusable(f"{where}: the account may not write to {self.api.place}")
        if status == 404:
            what = (
                f"there is no {self.api.place}"
                if body.startswith(b"{")
                else f"the server has no {self.api.path}; another influxdb_type?"
            )
            raise Unusable(f"{where}: {what}")
        raise ConnectorError(f"{where}: the server answers with status {status}")


def connect(settings: InfluxdbConnector, key: str) -> _Server:
    name = "bucket" if settings.influxdb_type == "influxdb_api_v2" else "database"
    if not getattr(settings, name):
        raise ConnectionSettingError(f"{key}.{name}", f"the name of a {name}", "")
    if not settings.token.isascii() or not settings.token.isprintable():
        raise ConnectionSettingError(f"{key}.token", "printable ASCII", "other characters")
    return _Server(settings, key)


def make(action: InfluxdbAction, connector: _Server, id: str) -> Driver:
    parameters = action.parameters
    try:
        points = line_protocol(parameters.write_syntax, parameters.precision)
    except ValueError as error:
        raise ValueError(f"{id}: parameters.write_syntax: {error}") from None
    settings = connector.settings
    assert isinstance(settings, InfluxdbConnector)
    return _InfluxdbDriver(connector, _api(settings, parameters.precision), points)


class _InfluxdbDriver(ConnectorDriver[_Server]):
    def __init__(self, connector: _Server, api: _Api, points: Points) -> None:
        super().__init__(connector)
        self._api = api
        self._points = points

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        failures: list[Failure] = []
        lines: list[str] = []
        places: list[int] = []
        for at, row in enumerate(rows):
            try:
                lines.append(self._points.write(row))
                places.append(at)
            except PointError as error:
                failures.append(Failure(at, str(error)))
        if lines:
            status, body = await self._connector.write(self._api, "\n".join(lines).encode(errors="replace"))
            failures += self._rejected(status, body, lines, places)
        return failures

    def _rejected(self, status: int, body: bytes, lines: Sequence[str], places: Sequence[int]) -> list[Failure]:
        """Returns the failures of lines that the server rejects. Raises if it cannot be used, or does not tell which ones."""
        if status not in (200, 400, 413, 422):
            self._connector.raise_for(status, body)
            return []
        text = body.decode(errors="replace")
        if status == 200 and "error" not in text:
            return []
        reason = _reason(status, text)
        if status != 413 and (found := _by_number(text)):
            return [Failure(at, reason) for at in self._places_of(found, places)]
        dropped = DROPPED.search(text)
        if dropped is not None and int(dropped[1]) >= len(lines) * self._points.lines:
            return [Failure(at, reason) for at in places]
        raise Refused(reason)

    def _places_of(self, numbers: set[int], places: Sequence[int]) -> Sequence[int]:
        """Returns the places of the rows of lines that are numbered from 1."""
        indexes = sorted({(number - 1) // self._points.lines for number in numbers})
        return [places[index] for index in indexes if 0 <= index < len(places)]


def _reason(status: int, text: str) -> str:
    if status == 413:
        return "the server rejects the size of the request"
    found = next((one for one in KNOWN_REASONS if one in text), "")
    return f"the server rejects the line: {found}" if found else f"the server rejects the line with status {status}"


def _reason_of(error: Exception) -> str:
    return str(error) if isinstance(error, ConnectorError) else network_reason(error)


def _by_number(text: str) -> set[int]:
    """Returns the numbers of the lines that version 3 lists, from 1."""
    try:
        answer: Any = json.loads(text)
        data = answer.get("data") or []
        return {int(one["line_number"]) for one in data}
    except (ValueError, TypeError, KeyError, AttributeError):
        return set()
