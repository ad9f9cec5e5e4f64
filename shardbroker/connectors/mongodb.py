"""MongoDB, by pymongo."""

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import ConnectionFailure, OperationFailure

from shardbroker.config.connectors import MongodbConnection
from shardbroker.connectors.connector import Connector
from shardbroker.connectors.errors import ConnectionSettingError
from shardbroker.connectors.server import address_of, tls_of

__all__ = ["AUTHENTICATION_FAILED", "Mongodb"]

AUTHENTICATION_FAILED = 18
"""Error code of a server that rejects an account."""

Database = AsyncDatabase[dict[str, Any]]


def _tls(settings: MongodbConnection, key: str) -> dict[str, Any]:
    """Returns options of the library, which reads a certificate and its key from one file."""
    if settings.tls_key and settings.tls_key != settings.tls_cert:
        raise ConnectionSettingError(f"{key}.tls_key", "empty for MongoDB, with the key in the file of tls_cert", settings.tls_key)
    options: dict[str, Any] = {"tls": True, "tlsAllowInvalidCertificates": not settings.tls_verify}
    files = {"tlsCAFile": settings.tls_ca, "tlsCertificateKeyFile": settings.tls_cert}
    return options | {name: path for name, path in files.items() if path}


class Mongodb(Connector[Database]):
    """Lends `database`, whose client takes a connection of the pool for each command."""

    def __init__(self, settings: MongodbConnection, key: str) -> None:
        super().__init__(settings.timeout)
        tls_of(settings, key)  # the library makes a context of its own
        self.settings = settings
        milliseconds = max(1, int(settings.timeout * 1000))
        self._client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(
            maxPoolSize=settings.pool_size,
            serverSelectionTimeoutMS=milliseconds,
            connectTimeoutMS=milliseconds,
            socketTimeoutMS=milliseconds,
            **_servers(settings, key),
            **_account(settings),
            **(_tls(settings, key) if settings.tls else {}),
        )
        self.database = self._client[settings.database]

    def server_errors(self) -> list[Exception]:
        """Returns why servers cannot be used, as far as the library knows."""
        found = self._client.topology_description.server_descriptions().values()
        return [one.error for one in found if one.error is not None]

    def _lend(self) -> AbstractAsyncContextManager[Database]:
        return nullcontext(self.database)

    async def _ping(self, lent: Database) -> None:
        await lent.command("ping")

    def _is_lost(self, error: Exception) -> bool:
        if isinstance(error, OperationFailure):
            return error.code == AUTHENTICATION_FAILED
        return isinstance(error, OSError | ConnectionFailure)

    async def _close(self) -> None:
        await self._client.close()


def _servers(settings: MongodbConnection, key: str) -> dict[str, Any]:
    if settings.mongo_type == "single":
        host, port = address_of(settings, key)
        return {"host": host, "port": port}
    if not settings.servers:
        raise ConnectionSettingError(f"{key}.servers", "a list of HOST:PORT", settings.servers)
    if settings.mongo_type == "rs" and not settings.replica_set_name:
        raise ConnectionSettingError(f"{key}.replica_set_name", "the name of a replica set", "")
    named = {"replicaSet": settings.replica_set_name} if settings.mongo_type == "rs" else {}
    return {"host": settings.servers} | named


def _account(settings: MongodbConnection) -> dict[str, Any]:
    if not settings.username:
        return {}
    return {"username": settings.username, "password": settings.password, "authSource": settings.auth_source}
