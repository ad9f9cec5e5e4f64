"""Requests to a web service, one for each row or for each batch.

A client controls values of placeholders: they are encoded for where they are, so that they can add no part to a path, no header and
no field to a body. Requests for the same publisher keep their order, and `pool_size` publishers are served at a time.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, quote_plus, unquote

import aiohttp
from yarl import URL

from shardbroker.config.sinks.http import HttpAction, HttpConnector
from shardbroker.connectors.errors import ConnectorError, describe
from shardbroker.connectors.http import HEADER, Http
from shardbroker.flows.sinks.driver import ConnectorDriver, Failure, Refused
from shardbroker.flows.sinks.json_bytes import json_bytes
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.functions.texts import text_of
from shardbroker.rules.payload import nested
from shardbroker.rules.templates import Template, template
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["HttpSink", "connect", "make"]

KEY = "Idempotency-Key"
"""Header by which a service knows a request that it has got before."""
RESERVED = frozenset({"connection", "content-length", "host", "transfer-encoding", KEY.lower()})
"""Headers that the request itself needs."""
AGAIN = frozenset({408, 425, 429})
"""Answers of 4xx that another attempt may change."""
OF_URLS = "!#$%&'()*+,/:;=?@[]~"
"""Characters of URLs besides letters, digits and `-._`."""
FORM = "application/x-www-form-urlencoded"


def connect(settings: HttpConnector, key: str) -> Http:
    """Raises ConnectionSettingError."""
    return Http(settings, key)


def make(action: HttpAction, connector: Http, id: str) -> "HttpSink":
    """Raises ValueError, EvaluationError."""
    return HttpSink(action, connector)


class _NotMade(Exception):
    """A request cannot be made for a row."""


class _Unanswered(ConnectorError):
    """The service is not able to answer now."""


class HttpSink(ConnectorDriver[Http]):
    """The driver of an action."""

    def __init__(self, action: HttpAction, service: Http) -> None:
        super().__init__(service)
        parameters = action.parameters
        self._method, self._batch = parameters.method.upper(), parameters.batch
        self._most = service.settings.max_answer_size
        self._url = _quoted(template(_joined(service.settings.url, parameters.path)))
        headers = {**service.settings.headers, **parameters.headers}
        self._headers = [(name, template(text)) for name, text in headers.items()]
        self._type = next((text.lower() for name, text in headers.items() if name.lower() == "content-type"), "")
        self._body = _body_of(parameters.body, self._method, self._type)
        self._check()

    def _check(self) -> None:
        for name, _ in self._headers:
            if not HEADER.fullmatch(name) or name.lower() in RESERVED:
                reserved = ", ".join(sorted(RESERVED))
                raise ValueError(f"parameters.headers: must be names of headers other than {reserved}, got {name!r:.200}")
        if self._batch:
            if not self._url.is_constant or not all(text.is_constant for _, text in self._headers):
                raise ValueError("parameters.batch: must be false if the path or a header has a placeholder")
            if self._body is None or (self._type and "json" not in self._type):
                raise ValueError("parameters.batch: must be false without a body of JSON")

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        """Raises Refused, ConnectorError, OSError, aiohttp.ClientError."""
        return await (self._write_together(rows) if self._batch else self._write_each(rows))

    # --- a request for a batch ------------------------------------------------------------------------------------------------

    async def _write_together(self, rows: Sequence[Row]) -> list[Failure]:
        assert self._body is not None
        failures: list[Failure] = []
        bodies: list[bytes] = []
        keys = hashlib.sha256()
        for at, row in enumerate(rows):
            try:
                bodies.append(self._body(row))
            except (EvaluationError, ValueError, RecursionError) as error:
                failures.append(Failure(at, f"body not made: {type(error).__name__}"))
                continue
            keys.update(row.key.encode(errors="backslashreplace") + b"\0")
        if bodies:
            body = b"[" + b",".join(bodies) + b"]"
            await self._request(self._url_of(rows[0]), self._headers_of(rows[0], keys.hexdigest()[:32]), body)
        return failures

    # --- a request for each row -----------------------------------------------------------------------------------------------

    async def _write_each(self, rows: Sequence[Row]) -> list[Failure]:
        of_clients: dict[str, deque[int]] = {}
        for at, row in enumerate(rows):
            of_clients.setdefault(row.client, deque()).append(at)
        waiting = deque(of_clients.values())
        failures: list[Failure] = []
        lost: list[str] = []
        senders = min(len(waiting), self._connector.settings.pool_size)
        await asyncio.gather(*(self._send(rows, waiting, failures, lost) for _ in range(senders)))
        left = [at for numbers in waiting for at in numbers]
        return failures + [Failure(at, lost[0], again=True) for at in left]

    async def _send(
        self, rows: Sequence[Row], waiting: deque[deque[int]], failures: list[Failure], lost: list[str]
    ) -> None:
        """Writes the rows of one client after another. After a loss, what is left stays in `waiting`."""
        while waiting and not lost:
            numbers = waiting.popleft()
            while numbers and not lost:
                at = numbers[0]
                try:
                    await self._write_one(rows[at])
                except (Refused, _NotMade) as error:
                    failures.append(Failure(at, str(error)))
                except (OSError, aiohttp.ClientError, ConnectorError) as error:
                    lost.append(describe(error))
                    break
                numbers.popleft()
            if numbers:
                waiting.append(numbers)

    async def _write_one(self, row: Row) -> None:
        try:
            url, body = self._url_of(row), self._body(row) if self._body is not None else None
            headers = self._headers_of(row, row.key)
        except (EvaluationError, ValueError, RecursionError) as error:
            raise _NotMade(f"request not made: {type(error).__name__}") from None
        await self._request(url, headers, body)

    async def _request(self, url: URL, headers: dict[str, str], body: bytes | None) -> None:
        """Raises Refused if the service refuses it for good."""
        async with self._connector.connection() as session:
            request = session.request(self._method, url, headers=headers, data=body, allow_redirects=False)
            async with request as answer:
                if await answer.content.read(self._most) and not answer.content.at_eof():
                    answer.close()
                status = answer.status
        if 200 <= status < 300:
            return
        if 400 <= status < 500 and status not in AGAIN:
            raise Refused(f"status {status}")
        raise _Unanswered(f"status {status}")

    def _url_of(self, row: Row) -> URL:
        if self._url.is_constant:
            return URL(self._url.render({}), encoded=True)
        text = _rendered(self._url, row, lambda value: quote(text_of(_present(value)), safe=""))
        path = text.partition("?")[0]
        if any(unquote(part) in (".", "..") for part in path.split("/")):
            raise _NotMade("request not made: the path has a part . or ..")
        return URL(text, encoded=True)

    def _headers_of(self, row: Row, key: str) -> dict[str, str]:
        headers = {KEY: quote(key, safe="/-")}
        if self._body is not None and not self._type:
            headers["Content-Type"] = "application/json"
        for name, text in self._headers:
            value = row.text(text)
            if any(c < " " or c == "\x7f" for c in value):
                raise _NotMade(f"request not made: header {name} has a control character")
            headers[name] = value
        return headers


def _joined(url: str, path: str) -> str:
    if not path or path.startswith("?"):
        return url + path
    return f"{url.rstrip('/')}/{path.lstrip('/')}"


def _quoted(text: Template) -> Template:
    """Returns a template of a URL whose constant parts have no character that a request line cannot have."""
    return Template(tuple(quote(part, safe=OF_URLS) if isinstance(part, str) else part for part in text.parts))


def _present(value: Value) -> Value:
    return "undefined" if value is UNDEFINED else value


def _rendered(text: Template, row: Row, encode: Callable[[Value], str]) -> str:
    return "".join(part if isinstance(part, str) else encode(row.value(part)) for part in text.parts)


# --- bodies -------------------------------------------------------------------------------------------------------------------


def _body_of(text: str, method: str, content_type: str) -> Callable[[Row], bytes] | None:
    """Returns what makes the body of a row; None: requests have no body."""
    if not text:
        return None if method in ("GET", "DELETE") else lambda row: json_bytes(row.values)
    parsed = template(text)
    if not content_type or "json" in content_type:
        return _JsonBody(parsed)
    if content_type.startswith(FORM):
        return lambda row: _rendered(parsed, row, lambda value: quote_plus(text_of(_present(value)))).encode()
    return lambda row: row.text(parsed).encode(errors="backslashreplace")


class _JsonBody:
    """A template of JSON: a placeholder between quotes becomes characters of that text, any other a value.

    Text that is an object or array of JSON, such as a payload, becomes that value.
    """

    def __init__(self, parsed: Template) -> None:
        self._parts: list[tuple[bytes, Any, bool]] = []
        """Constant text; or the steps of a placeholder, and whether it is between quotes."""
        is_quoted = False
        for part in parsed.parts:
            if isinstance(part, str):
                is_quoted = _ends_quoted(part, is_quoted)
                self._parts.append((part.encode(errors="backslashreplace"), None, False))
            else:
                self._parts.append((b"", part, is_quoted))

    def __call__(self, row: Row) -> bytes:
        """Raises EvaluationError, ValueError."""
        return b"".join([text if steps is None else self._value(row.value(steps), quoted) for text, steps, quoted in self._parts])

    @staticmethod
    def _value(value: Value, is_quoted: bool) -> bytes:
        if is_quoted:
            text = text_of(_present(value))
            return json_bytes(text if isinstance(text, str) else text.decode(errors="replace"))[1:-1]
        if value is UNDEFINED:
            return b"null"
        if isinstance(value, str) and type(found := nested(value)) in (dict, list):
            value = found
        return json_bytes(value)


def _ends_quoted(text: str, is_quoted: bool) -> bool:
    """Returns whether a text ends within quotes."""
    escaped = False
    for c in text:
        if escaped:
            escaped = False
        elif c == "\\" and is_quoted:
            escaped = True
        elif c == '"':
            is_quoted = not is_quoted
    return is_quoted
