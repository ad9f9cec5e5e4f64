"""Kafka, by aiokafka: a connection for requests about topics, and the options of producers and consumers, which have their own."""

import asyncio
import base64
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote_plus

from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.errors import BrokerResponseError, KafkaError, SaslAuthenticationFailed, for_code, kafka_errors
from aiokafka.protocol.metadata import MetadataRequest

from shardbroker.config.connectors import HttpConnection, KafkaConnection
from shardbroker.connectors.connector import Connector
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.connectors.server import tls_of

__all__ = ["CLIENT_ID", "InvalidRecord", "Kafka", "topic_error"]

CLIENT_ID: Final = "shardbroker"
"""Name of the client in logs and quotas of the cluster."""
MECHANISMS: Final = {
    "plain": "PLAIN", "scram_sha_256": "SCRAM-SHA-256", "scram_sha_512": "SCRAM-SHA-512", "oauthbearer": "OAUTHBEARER",
}  # fmt: skip
TOKEN_MAX: Final = 64 << 10
"""Most bytes of the answer of a token service."""
TOKEN_LIFE_S: Final = 300.0
"""Lifetime of a token without `expires_in`."""
TOKEN_SHARE: Final = 0.8
"""Share of its lifetime for which a token is used."""
METADATA_AGE_MS: Final = 60_000
"""Time after which a client looks for new partitions and leaders, as partition_count_refresh_interval of EMQX."""

logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # errors of requests are raised or kept as the state of the connector


class InvalidRecord(BrokerResponseError):  # type: ignore[misc]
    """The topic rejects a record, such as one without a key where it is compacted. The library does not know this error."""

    errno = 87
    message = "INVALID_RECORD"
    description = "The broker rejects a record."


kafka_errors.setdefault(InvalidRecord.errno, InvalidRecord)


class Kafka(Connector[AIOKafkaConnection]):
    """Lends a connection to one of the bootstrap servers; requests over it are answered in their order."""

    def __init__(self, settings: KafkaConnection, key: str) -> None:
        super().__init__(settings.timeout)
        self.settings = settings
        if not settings.bootstrap_hosts:
            raise ConnectionSettingError(f"{key}.bootstrap_hosts", "a list of HOST:PORT", settings.bootstrap_hosts)
        self._tls = tls_of(settings, key)
        self._tokens: _Tokens | None = None
        if settings.mechanism == "oauthbearer":
            self._tokens = _tokens(settings, key)
        elif settings.mechanism != "none":
            for name in ("username", "password"):
                if not getattr(settings, name):
                    raise ConnectionSettingError(f"{key}.{name}", f"text, as mechanism is {settings.mechanism}", "")
        elif settings.username:
            raise ConnectionSettingError(f"{key}.mechanism", "plain or another one, as there is username", "none")
        self._hosts = list(settings.bootstrap_hosts)
        """The one that is tried first is at the front: one that does not answer takes the whole timeout."""
        self._connecting = asyncio.Lock()
        self._connection: AIOKafkaConnection | None = None

    @property
    def where(self) -> str:
        """The servers, for errors."""
        return ", ".join(self.settings.bootstrap_hosts)

    @property
    def timeout_ms(self) -> int:
        return max(1, int(self.settings.timeout * 1000))

    def options(self) -> dict[str, Any]:
        """Returns what producers and consumers have in common."""
        return {
            "bootstrap_servers": list(self._hosts),
            "client_id": CLIENT_ID,
            "request_timeout_ms": self.timeout_ms,
            "metadata_max_age_ms": METADATA_AGE_MS,
            **self._security(),
        }

    def _security(self) -> dict[str, Any]:
        settings = self.settings
        has_login = settings.mechanism != "none"
        found: dict[str, Any] = {
            "security_protocol": f"{'SASL_' if has_login else ''}{'SSL' if settings.tls else 'PLAINTEXT'}",
            "ssl_context": self._tls,
        }
        if has_login:
            found["sasl_mechanism"] = MECHANISMS[settings.mechanism]
            if self._tokens is not None:
                found["sasl_oauth_token_provider"] = self._tokens
            else:
                found |= {"sasl_plain_username": settings.username, "sasl_plain_password": settings.password}
        return found

    async def topic(self, name: str, within_s: float = float("inf")) -> tuple[int, int]:
        """Returns the error code of a topic, and the number of its partitions. The topic is not created.

        Raises errors of the library, TimeoutError.
        """
        async with self.connection(within_s) as connection:
            answer = await connection.send(MetadataRequest([name], allow_auto_topic_creation=False))
            (one,) = answer.topics
            return one[0], len(one[-1])

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[AIOKafkaConnection]:
        async with self._connecting:
            if self._connection is None or not self._connection.connected():
                self._connection = await self._connected()
            connection = self._connection
        try:
            yield connection
        except BaseException:
            if self._connection is connection:  # an answer may still be on its way
                self._connection = None
                connection.close()
            raise

    async def _connected(self) -> AIOKafkaConnection:
        """Returns a connection to the first server that accepts one. Raises the error of the last one."""
        last: Exception = ConnectionRefusedError()
        for address in tuple(self._hosts):
            self._hosts = [*self._hosts[1:], address]
            host, _, port = address.rpartition(":")
            try:
                found = await create_conn(
                    host.strip("[]"), int(port), client_id=CLIENT_ID, request_timeout_ms=self.timeout_ms, **self._security()
                )
            except SaslAuthenticationFailed:
                raise
            except (KafkaError, OSError) as error:
                last = error
            else:
                self._hosts = [address, *self._hosts[:-1]]
                return found
        raise last

    async def _ping(self, lent: AIOKafkaConnection) -> None:
        await lent.send(MetadataRequest([]))

    def _is_lost(self, error: Exception) -> bool:
        return isinstance(error, OSError | KafkaError | ConnectorError)

    async def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._tokens is not None:
            await self._tokens.close()


def topic_error(code: int) -> str:
    """Returns the name of an error of Kafka, such as UNKNOWN_TOPIC_OR_PARTITION."""
    return str(getattr(for_code(code), "message", "")) or f"error {code}"


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Bearer tokens of a service of OAuth 2, each used for most of its lifetime."""

    def __init__(self, http: Any, username: str, password: str, scope: str) -> None:
        self._http = http
        self._form = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
        account = f"{quote_plus(username)}:{quote_plus(password)}"  # as RFC 6749 §2.3.1 has it
        self._headers = {"Authorization": f"Basic {base64.b64encode(account.encode()).decode()}"}
        self._token, self._until_s = "", float("-inf")

    async def token(self) -> str:
        """Returns a token. Raises ConnectorError, OSError."""
        if time.monotonic() >= self._until_s:
            self._token, life_s = await self._requested()
            self._until_s = time.monotonic() + life_s * TOKEN_SHARE
        return self._token

    async def _requested(self) -> tuple[str, float]:
        from shardbroker.connectors.http import read_body

        async with self._http.connection() as session:
            request = session.post(self._http.settings.url, data=self._form, headers=self._headers, allow_redirects=False)
            async with request as answer:
                if answer.status != 200:
                    raise ConnectorError(f"token_url: the service has answered with status {answer.status}")
                body = await read_body(answer, TOKEN_MAX)
        try:
            found = json.loads(body)
            token, life_s = found["access_token"], float(found.get("expires_in", TOKEN_LIFE_S))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConnectorError("token_url: the answer of the service has no access_token") from None
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise ConnectorError("token_url: the access_token is not text of printable ASCII")
        return token, life_s

    async def close(self) -> None:
        await self._http.close()


def _tokens(settings: KafkaConnection, key: str) -> _Tokens:
    """Raises ConnectionSettingError."""
    from shardbroker.connectors.http import Http

    if not settings.token_url:
        raise ConnectionSettingError(f"{key}.token_url", "a URL, as mechanism is oauthbearer", "")
    for name in ("username", "password"):
        if not getattr(settings, name):
            raise ConnectionSettingError(f"{key}.{name}", "text, as mechanism is oauthbearer", "")
    tls = {name: getattr(settings, name) for name in ("tls_ca", "tls_cert", "tls_key", "tls_verify")}
    service = HttpConnection.model_validate({"url": settings.token_url, "timeout": settings.timeout, "pool_size": 1, **tls})
    return _Tokens(Http(service, key), settings.username, settings.password, settings.scope)
