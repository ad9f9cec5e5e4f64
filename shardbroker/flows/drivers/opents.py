"""Rows as points of OpenTSDB, by `/api/put` over HTTP.

A point that is written again with the same metric, tags, time and value changes nothing. The server names the points that it
rejects; where it does not, the batch is halved.
"""

import asyncio
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import aiohttp

from shardbroker.config.sinks.opents import OpentsAction, OpentsConnector, OpentsPoint
from shardbroker.connectors.errors import ConnectorError
from shardbroker.connectors.http_server import HttpServer
from shardbroker.connectors.reasons import network_reason
from shardbroker.flows.drivers.getters import encoded, placeholders
from shardbroker.flows.sinks.driver import ConnectorDriver, Driver, Failure, Refused, Unusable
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["connect", "make"]

REQUEST_BYTES = 8000
"""Most bytes of a request: OpenTSDB takes longer ones only with tsd.http.request.enable_chunked, which is off by default."""
NOT_REACHED = (aiohttp.ClientError, ConnectorError, OSError)
NUMBER = re.compile(r"[+-]?(\d{1,19}|\d*\.\d+|\d+\.?)([eE][+-]?\d{1,3})?", re.ASCII)
TIME = re.compile(r"\d{1,13}", re.ASCII)
TIME_MAX = 10**13 - 1
NAME = re.compile(r"[\w./-]{1,255}")
"""What OpenTSDB takes as metric, tag and value of a tag: letters and digits of any script, and - _ . /."""
NAMES_KEPT = 4096
"""Names whose check is kept: a tag or a metric is in many points."""
TAGS_MAX = 8
"""Most tags of a point, by OpenTSDB's default."""

CITED = ("metric", "timestamp", "value", "tags")
KNOWN_REASONS = (
    "Unable to parse value to a number", "Unknown metric", "Invalid timestamp", "Storage exception", "Timeout", "No such name",
    "Missing tags", "Invalid tag", "Metric name was empty", "Empty value",
)  # fmt: skip
"""What the server says about points, without what it cites of them."""

Point = tuple[str, int, int | float, dict[str, str]]
"""Metric, time, value, tags."""
Key = tuple[str, int, float, frozenset[tuple[str, str]]]


class _Impossible(Exception):
    """A row has no point; the text has no value of it."""


@dataclass(frozen=True, slots=True)
class _Request:
    """Points in a request: the places of their rows and their text."""

    places: list[int]
    points: list[Point]
    texts: list[bytes]


class _Server(HttpServer):
    async def probe(self) -> None:
        """Asks for the version; servers with no more than the API for points answer that there is no such page, too."""
        try:
            status, _ = await self.get("/api/version")
        except NOT_REACHED as error:
            explained = self.unreachable(error)
            self.health.lost(explained)
            raise explained from error
        if status in (401, 403):
            raise Unusable(f"{self.settings.server}: the server demands a login, which OpenTSDB does not have")
        if status >= 500:
            raise ConnectorError(f"{self.settings.server}: the server answers with status {status}")

    def unreachable(self, error: Exception) -> ConnectorError:
        return ConnectorError(f"{self.settings.server}: {error if isinstance(error, ConnectorError) else network_reason(error)}")


def connect(settings: OpentsConnector, key: str) -> _Server:
    return _Server(settings, key, {})


def make(action: OpentsAction, connector: _Server, id: str) -> Driver:
    settings = connector.settings
    assert isinstance(settings, OpentsConnector)
    points = []
    for number, one in enumerate(action.parameters.data):
        try:
            points.append(_template(one))
        except ValueError as error:
            raise ValueError(f"{id}: parameters.data[{number}].{error}") from None
    return _OpentsDriver(connector, settings, points)


# --- points -----------------------------------------------------------------------------------------------------------------------


def _template(one: OpentsPoint) -> Callable[[Row], Point]:
    """Returns what makes a point of a row. Raises ValueError."""
    metric = _text(one.metric)
    tags = _tags(one.tags)
    value = _alone(one.value, "value")
    time = _alone(one.timestamp, "timestamp") if one.timestamp != "" else None

    def make(row: Row) -> Point:
        found = None if time is None else time(row)
        at = row.at_ms if found is UNDEFINED or found is None else _time(found)
        return _name(metric(row), "metric"), at, _number(value(row)), tags(row)

    return make


def _text(template: str) -> Callable[[Row], str | None]:
    """Returns what makes the text for a row; None if the template is one placeholder whose value is missing."""
    parts = placeholders(template)
    if len(parts) == 1 and not isinstance(parts[0], str):
        get = parts[0]
        return lambda row: _shown(get(row))
    if all(isinstance(one, str) for one in parts):
        return lambda row: template
    return lambda row: "".join([one if isinstance(one, str) else encoded(one(row)).decode(errors="replace") for one in parts])


def _shown(value: Value) -> str | None:
    return None if value is UNDEFINED or value is None else encoded(value).decode(errors="replace")


def _tags(given: str | dict[str, str]) -> Callable[[Row], dict[str, str]]:
    if isinstance(given, str):
        get = _alone(given, "tags")
        return lambda row: _checked_tags(_of_map(get(row)))
    pairs = [(_text(name), _text(value)) for name, value in given.items()]
    return lambda row: _checked_tags([(name(row), value(row)) for name, value in pairs])


def _of_map(value: Value) -> list[tuple[str | None, str | None]]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if type(value) is not dict:
        raise _Impossible("tags must be a map")
    return [(_shown(name), _shown(one)) for name, one in value.items()]


def _checked_tags(pairs: Sequence[tuple[str | None, str | None]]) -> dict[str, str]:
    tags = {_name(name, "name of a tag"): _name(value, "value of a tag") for name, value in pairs if name and value}
    if not 1 <= len(tags) <= TAGS_MAX:
        raise _Impossible(f"a point must have 1 to {TAGS_MAX} tags")
    return tags


def _alone(template: str | int | float, name: str) -> Callable[[Row], Value]:
    """Returns the value of a template that is one placeholder or a constant."""
    if not isinstance(template, str):
        return lambda row: template
    parts = placeholders(template)
    if len(parts) != 1:
        raise ValueError(f"{name}: must be one placeholder, or a constant, got {template[:100]!r}")
    (only,) = parts
    if not isinstance(only, str):
        found: Callable[[Row], Value] = only
        return found
    if name == "tags" or not NUMBER.fullmatch(only):
        raise ValueError(f"{name}: must be a placeholder{'' if name == 'tags' else ' or a number'}, got {only[:100]!r}")
    return lambda row: only


@lru_cache(NAMES_KEPT)
def _is_name(text: str) -> bool:
    return NAME.fullmatch(text) is not None


def _name(text: str | None, what: str) -> str:
    if text is None or not _is_name(text):
        raise _Impossible(f"the {what} must be 1 to 255 letters, digits, -, _, . and /")
    return text


def _number(value: Value) -> int | float:
    kind = type(value)
    if kind is str and NUMBER.fullmatch(value):
        return _number(float(value) if any(one in value for one in ".eE") else int(value))
    if (kind is float and math.isfinite(value)) or (kind is int and -(2**63) <= value < 2**63):
        return value  # type: ignore[no-any-return]
    raise _Impossible("value must be a finite number of 64 bits")


def _time(value: Value) -> int:
    if type(value) is float and value.is_integer():
        value = int(value)
    if isinstance(value, str) and TIME.fullmatch(value):
        value = int(value)
    if type(value) is not int or not 0 < value <= TIME_MAX:
        raise _Impossible(f"timestamp must be an integer from 1 to {TIME_MAX}")
    return value


def _encoded(point: Point) -> bytes:
    """Returns a point as JSON. Names have no character that JSON escapes."""
    metric, at, value, tags = point
    pairs = ",".join([f'"{name}":"{text}"' for name, text in tags.items()])
    return f'{{"metric":"{metric}","timestamp":{at},"value":{value!r},"tags":{{{pairs}}}}}'.encode()


def _key(metric: Any, at: Any, value: Any, tags: Any) -> Key:
    """Returns what identifies a point also as the server cites it: numbers may be text there."""
    return metric, int(at), float(value), frozenset(tags.items())


# --- requests ---------------------------------------------------------------------------------------------------------------------


class _OpentsDriver(ConnectorDriver[_Server]):
    def __init__(self, connector: _Server, settings: OpentsConnector, points: Sequence[Callable[[Row], Point]]) -> None:
        super().__init__(connector)
        self._points = points
        self._query: dict[str, str] = {}
        if settings.summary:
            self._query["summary"] = "true"
        if settings.details:
            self._query["details"] = "true"
        if settings.sync:
            self._query |= {"sync": "true", "sync_timeout": str(int(settings.sync_timeout * 1000))}

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        failures: dict[int, Failure] = {}
        requests: list[_Request] = []
        size = REQUEST_BYTES
        for at, row in enumerate(rows):
            try:
                points = [make(row) for make in self._points]
            except _Impossible as error:
                failures[at] = Failure(at, str(error))
                continue
            except EvaluationError:
                failures[at] = Failure(at, "a value cannot be written as text")
                continue
            for point in points:
                text = _encoded(point)
                size += len(text) + 1
                if size > REQUEST_BYTES:
                    requests.append(_Request([], [], []))
                    size = len(text) + 2
                requests[-1].places.append(at)
                requests[-1].points.append(point)
                requests[-1].texts.append(text)
        for found in await self._put_all(requests):
            failures |= found
        return list(failures.values())

    async def _put_all(self, requests: Sequence[_Request]) -> list[dict[int, Failure]]:
        """One after the other; several at a time if each waits for the disks of the server."""
        if "sync" not in self._query:
            return [await self._put(one) for one in requests]
        places = asyncio.Semaphore(self._connector.settings.pool_size)

        async def put(one: _Request) -> dict[int, Failure]:
            async with places:
                return await self._put(one)

        found = await asyncio.gather(*map(put, requests), return_exceptions=True)
        if errors := [one for one in found if isinstance(one, BaseException)]:
            raise next((one for one in errors if not isinstance(one, Refused)), errors[0])
        return [one for one in found if not isinstance(one, BaseException)]

    async def _put(self, request: _Request) -> dict[int, Failure]:
        """Returns the failures of a request by the place of the row."""
        body = b"[" + b",".join(request.texts) + b"]"
        try:
            status, answer = await self._connector.post("/api/put", body, self._query, {"Content-Type": "application/json"})
        except NOT_REACHED as error:
            raise self._connector.unreachable(error) from error
        if status in (401, 403, 404, 405):
            raise Unusable(f"{self._connector.settings.server}: the server has no /api/put, or demands a login; status {status}")
        if status not in (200, 204, 400, 413):
            raise ConnectorError(f"{self._connector.settings.server}: the server answers with status {status}")
        return self._rejected(status, answer, request)

    def _rejected(self, status: int, answer: bytes, request: _Request) -> dict[int, Failure]:
        """Returns the failures of points that the answer names. Raises Refused if it names none."""
        if status == 204:
            return {}
        try:
            told = json.loads(answer)
            failed, errors = int(told.get("failed", 0)), told.get("errors") or []
            if status == 200 and not failed:
                return {}
            known = {_key(*map(one["datapoint"].get, CITED)): str(one["error"]) for one in errors}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            known = {}
        found = {}
        for at, point in zip(request.places, request.points, strict=True):
            if (key := _key(*point)) in known:
                found[at] = Failure(at, _reason(known[key]))
        if not found:
            raise Refused(f"the server rejects the point with status {status}")
        return found


def _reason(text: str) -> str:
    found = next((one for one in KNOWN_REASONS if one.lower() in text.lower()), "")
    return f"the server rejects the point: {found}" if found else "the server rejects the point"
