"""S3, by aiobotocore."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NotConnected

from shardbroker.config.connectors import S3Connection
from shardbroker.connectors.connector import Connector
from shardbroker.connectors.errors import ConnectionSettingError
from shardbroker.connectors.server import tls_of

__all__ = ["S3", "code_of"]


class S3(Connector[Any]):
    """Lends the client of the library, which takes a connection of its pool for each request, and repeats none by itself."""

    def __init__(self, settings: S3Connection, key: str) -> None:
        super().__init__(settings.timeout)
        tls_of(settings, key)  # the library makes a context of its own
        for name in ("access_key_id", "secret_access_key"):
            text = getattr(settings, name)
            if not text or not text.isascii() or not text.isprintable() or " " in text:
                raise ConnectionSettingError(f"{key}.{name}", "text of printable ASCII", "other text" if text else "")
        self.settings = settings
        host = settings.host or f"s3.{settings.region}.amazonaws.com"
        self.where = f"{host}:{settings.port}"
        self._url = f"{'https' if settings.tls else 'http'}://{self.where}"
        self._open = AsyncExitStack()
        self._client: Any = None

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[Any]:
        if self._client is None:
            self._client = await self._open.enter_async_context(self._made())
            self._client.meta.events.register_last("before-call.s3", _send_at_once)
        yield self._client

    def _made(self) -> Any:
        settings = self.settings
        certificate = (settings.tls_cert, settings.tls_key) if settings.tls_key else settings.tls_cert
        config = AioConfig(
            connect_timeout=settings.timeout,
            read_timeout=settings.timeout,
            max_pool_connections=settings.pool_size,
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "virtual" if settings.access_method == "vhost" else "path"},
            request_checksum_calculation="when_required",  # other servers do not have those of AWS
            response_checksum_validation="when_required",
            client_cert=certificate or None,
        )
        return get_session().create_client(
            "s3",
            endpoint_url=self._url,
            region_name=settings.region,
            aws_access_key_id=settings.access_key_id,
            aws_secret_access_key=settings.secret_access_key,
            verify=(settings.tls_ca or True) if settings.tls_verify else False,
            config=config,
        )

    async def _ping(self, lent: Any) -> None:
        """Lists buckets. An account that may not do so is a right one."""
        try:
            await lent.list_buckets(MaxBuckets=1)
        except ClientError as error:
            if code_of(error) != "AccessDenied":
                raise

    def _is_lost(self, error: Exception) -> bool:
        return isinstance(error, OSError | NotConnected | HTTPClientError)

    async def _close(self) -> None:
        await self._open.aclose()


def _send_at_once(params: dict[str, Any], **_more: Any) -> None:
    """Removes `Expect: 100-continue`: it costs a round trip for each object, and where the server goes meanwhile, aiohttp leaves an
    error that is on standard error."""
    params["headers"].pop("Expect", None)


def code_of(error: ClientError) -> str:
    """Returns the code of an error of the server, or its status."""
    return str(error.response.get("Error", {}).get("Code") or error.response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
