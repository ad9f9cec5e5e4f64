"""DynamoDB, by aiodynamo over aiohttp."""

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiodynamo import errors
from aiodynamo.client import Client
from aiodynamo.credentials import Key, StaticCredentials
from aiodynamo.http.types import Request, Response
from aiodynamo.models import StaticDelayRetry
from yarl import URL

from shardbroker.config.connectors import DynamodbConnection
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.connectors.http import PORTS, SessionConnector, read_body
from shardbroker.connectors.reasons import network_reason
from shardbroker.connectors.server import context_of

__all__ = ["Dynamodb", "error_of"]

ANSWER_MAX = 17 << 20
"""Most bytes of an answer: BatchWriteItem returns the items that were not processed, up to 16 MB."""
OF_AWS = re.compile(r"dynamodb(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|api\.aws)")
"""Hosts of AWS; the group is the region."""
ONCE = StaticDelayRetry(time_limit_secs=-1)
"""One attempt: waiting is decided where the rows are."""


class Dynamodb(SessionConnector):
    """One server. The library signs requests; connections, time limits and bounds are those of all connectors."""

    def __init__(self, settings: DynamodbConnection, key: str) -> None:
        self.region = _region(settings, key)
        url = settings.url or f"https://dynamodb.{self.region}.amazonaws.com"
        parts = urlsplit(url)
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ConnectionSettingError(f"{key}.url", "http://HOST:PORT or https://HOST:PORT, without a path", settings.url)
        for name in ("aws_access_key_id", "aws_secret_access_key"):
            text = getattr(settings, name)
            if not text or not text.isascii() or not text.isprintable() or " " in text:
                raise ConnectionSettingError(f"{key}.{name}", "text of printable ASCII", "other text" if text else "")
        tls = context_of(settings, key) if parts.scheme == "https" else None
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        super().__init__(settings.timeout, (host, port), settings.pool_size, tls)
        self.settings = settings
        self.where = parts.netloc
        credentials = StaticCredentials(Key(settings.aws_access_key_id, settings.aws_secret_access_key))
        # The library signs the host without its port, and servers check the header that arrives: _send() sends the former.
        self._client = Client(self._send, credentials, self.region, URL(f"{parts.scheme}://{parts.netloc}/"), throttle_config=ONCE)

    async def request(self, action: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Returns an answer. Raises AIODynamoError of the library, ConnectorError if there is no answer."""
        try:
            return await self._client.send_request(action=action, payload=payload)
        except (ValueError, RecursionError):
            raise ConnectorError(f"{self.where}: the answer is no JSON") from None

    async def _send(self, request: Request) -> Response:
        headers = {**(request.headers or {}), "Host": URL(request.url).host or ""}
        try:
            async with self.connection() as session:
                asked = session.post(request.url, data=request.body, headers=headers, allow_redirects=False)
                async with asked as answer:
                    return Response(answer.status, await read_body(answer, ANSWER_MAX))
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectorError(f"{self.where}: {network_reason(error)}") from error

    async def probe(self) -> None:
        """Asks for the name of one table. An account that may not list tables is a right one. Raises what request() raises."""
        try:
            await self.request("ListTables", {"Limit": 1})
        except errors.AccessDenied:
            pass
        except Exception as error:
            self.health.lost(error)
            raise
        self.health.reached()


def _region(settings: DynamodbConnection, key: str) -> str:
    if settings.region:
        return settings.region
    found = OF_AWS.fullmatch(urlsplit(settings.url).hostname or "")
    if found is None:
        raise ConnectionSettingError(f"{key}.region", "the name of a region, such as eu-central-1", "")
    return found[1]


def error_of(error: errors.AIODynamoError) -> tuple[str, str]:
    """Returns the name that DynamoDB gives to an error, or its status, and its text, which may cite an item."""
    found: object = error.args[0] if error.args else {}
    if isinstance(error, errors.UnknownError):
        try:
            found = json.loads(error.body)
        except (ValueError, RecursionError):
            return f"status {error.status}", ""
    if not isinstance(found, dict):
        return type(error).__name__, ""
    name = str(found.get("__type", "")).rpartition("#")[2] or type(error).__name__
    return name, str(found.get("message") or found.get("Message") or "")
