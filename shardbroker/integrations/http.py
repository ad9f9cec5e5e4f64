"""A service that is asked by HTTP about clients, or about what they may do.

As in EMQX, 200 with {"result": "allow" | "deny" | "ignore", ...} decides, 204 allows, 4xx and 5xx ignore. All else is a failure.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from shardbroker.access.contract import IGNORE, Answer, BackendError, Client, Question, SettingError, allow, deny
from shardbroker.access.placeholders import Template, values_of
from shardbroker.integrations.connecting import PLAIN, read_body

__all__ = ["HttpAuthenticator", "HttpAuthorizer", "HttpService"]

Values = Mapping[str, str | None]
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A field name: a token of RFC 9110."""


class HttpService:
    """Asks one URL."""

    def __init__(self, section: Any, name: str) -> None:
        if not section.url:
            raise SettingError(f"{name}.url", "http://HOST/PATH or https://HOST/PATH", section.url)
        for header in section.headers:
            if not _HEADER.fullmatch(header):
                raise SettingError(f"{name}.headers", "a table of header = text", header)
        self._section = section
        self._url = Template.parse(section.url)
        self._body = {key: Template.parse(text) for key, text in section.body.items()}
        self._headers = {key: Template.parse(text) for key, text in section.headers.items()}
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, values: Values) -> tuple[int, Any]:
        """(status, body as JSON or None). Raises BackendError, TimeoutError, aiohttp.ClientError."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._section.pool_size),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=PLAIN,
                auto_decompress=False,
            )
        fields = {key: _sendable(text) for key, template in self._body.items() if (text := template.fill(values)) is not None}
        url = URL(self._url.fill({name: value or "" for name, value in values.items()}, _quoted) or "", encoded=True)
        if not _DOTS.isdisjoint(url.raw_path.split("/")):
            raise BackendError("a value of the client would be . or .. in the path of the URL")
        headers = {key: (template.fill(values) or "").translate(_NO_LINES) for key, template in self._headers.items()}
        options: dict[str, Any] = {"params": fields} if self._section.method == "get" else {"json": fields}
        async with (
            asyncio.timeout(self._section.timeout),
            self._session.request(
                self._section.method, url, headers=headers, allow_redirects=False, **options
            ) as answer,
        ):
            if answer.status != 200:
                return answer.status, None
            return 200, _parsed(await read_body(answer, self._section.max_answer_size))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class HttpAuthenticator:
    """auth.http"""

    priority = 0

    def __init__(self, service: HttpService) -> None:
        self._service = service

    async def authenticate(self, client: Client) -> Answer:
        status, body = await self._service.ask(values_of(client))
        result = _result(status, body)
        if result is None:
            return IGNORE
        if not result:
            return deny()
        expires_at = body.get("expire_at") if body else None
        if expires_at is not None and (isinstance(expires_at, bool) or not isinstance(expires_at, int | float)):
            raise BackendError("expire_at is no number of seconds")
        return allow(
            is_superuser=bool(body) and body.get("is_superuser") is True,
            acl=body.get("acl") if body else None,
            expires_at=expires_at,
        )

    async def close(self) -> None:
        await self._service.close()


class HttpAuthorizer:
    """acl.http: one request for each topic, as many at a time as the pool has connections."""

    priority = 0

    def __init__(self, service: HttpService) -> None:
        self._service = service

    async def authorize(self, client: Client, questions: Sequence[Question]) -> Sequence[bool | None]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._service.ask(values_of(client, question))) for question in questions]
        return [_result(*task.result()) for task in tasks]

    async def close(self) -> None:
        await self._service.close()


_NO_LINES = {ord(c): None for c in "\r\n\0"}
"""What a value must not bring into a header."""
_DOTS = {".", ".."}
"""Segments of a path that lead to another one (RFC 3986 §5.2.4). They cannot be quoted: `%2E` means the same."""


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="replace")


def _sendable(text: str) -> str:
    return text.encode(errors="surrogateescape").decode(errors="replace")


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise BackendError("its answer is no JSON") from None


def _result(status: int, body: Any) -> bool | None:
    if status == 204:
        return True
    if 400 <= status < 600:
        return None
    if status != 200:
        raise BackendError(f"its answer has the status {status}")
    result = body.get("result") if isinstance(body, dict) else None
    if result not in ("allow", "deny", "ignore"):
        raise BackendError("its answer has no result of allow, deny or ignore")
    return {"allow": True, "deny": False, "ignore": None}[result]
