"""Redis, by redis-py: one server, a master that sentinels watch, or a cluster."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio
import redis.exceptions
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection
from redis.asyncio.sentinel import Sentinel
from redis.crc import key_slot

from shardbroker.config.connectors import RedisConnection
from shardbroker.connectors.connector import Connector
from shardbroker.connectors.errors import ConnectionSettingError
from shardbroker.connectors.server import address_of, tls_of

__all__ = ["Redis"]

LOST = (
    OSError,
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.RedisClusterException,
)
MOVES = (redis.exceptions.MovedError, redis.exceptions.ClusterDownError, redis.exceptions.ReadOnlyError, *LOST)
"""Errors after which the nodes of the slots are looked up again."""
ASKING = b"*1\r\n$6\r\nASKING\r\n"

Reply = Any
"""What the server answers a command with, or the exception that it is."""


class Redis(Connector[Any]):
    """Lends the client, which takes a connection of its pool for each command. as_text: whether answers are text or bytes."""

    def __init__(self, settings: RedisConnection, key: str, *, as_text: bool = True) -> None:
        super().__init__(settings.timeout)
        tls_of(settings, key)  # the library makes a context of its own
        self.settings = settings
        self._places = asyncio.Semaphore(settings.pool_size)
        self._options: dict[str, Any] = {
            "username": settings.username or None,
            "password": settings.password or None,
            "socket_timeout": settings.timeout,
            "socket_connect_timeout": settings.timeout,
            "decode_responses": as_text,
            "protocol": 2,  # nothing but replies, which old servers and proxies have too
        }
        self._sentinels: Sentinel | None = None
        self._moved = False
        make = {"single": self._single, "sentinel": self._of_sentinels, "cluster": self._cluster}
        self._client: Any = make[settings.redis_type](key)

    def _single(self, key: str) -> Any:
        host, port = address_of(self.settings, key)
        kind = SSLConnection if self.settings.tls else Connection
        options = self._options | _tls(self.settings) | {"db": self.settings.database}
        pool = ConnectionPool(kind, max_connections=self.settings.pool_size, host=host, port=port, **options)
        return redis.asyncio.Redis.from_pool(pool)

    def _of_sentinels(self, key: str) -> Any:
        settings = self.settings
        if not settings.sentinel:
            raise ConnectionSettingError(f"{key}.sentinel", "the name of a master", settings.sentinel)
        own = {name: self._options[name] for name in ("socket_timeout", "socket_connect_timeout")}
        self._sentinels = Sentinel(_addresses(settings, key), sentinel_kwargs=own)  # type: ignore[no-untyped-call]
        options = self._options | _tls(settings) | {"db": settings.database, "ssl": settings.tls}
        return self._sentinels.master_for(settings.sentinel, max_connections=settings.pool_size, **options)

    def _cluster(self, key: str) -> Any:
        settings = self.settings
        if settings.database:
            raise ConnectionSettingError(f"{key}.database", "0 in a cluster", settings.database)
        options = self._options | _tls(settings) | {"ssl": settings.tls, "max_connections": settings.pool_size}
        nodes = [ClusterNode(host, port) for host, port in _addresses(settings, key)]
        return RedisCluster(startup_nodes=nodes, **options)

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[Any]:
        async with self._places:
            if isinstance(self._client, RedisCluster):
                await self._client.initialize()
            yield self._client

    @property
    def is_cluster(self) -> bool:
        return isinstance(self._client, RedisCluster)

    async def pipeline(self, commands: Sequence[bytes], keys: Sequence[bytes] | None = None) -> Sequence[Reply]:
        """Sends packed commands and returns their replies, in order; an error is a reply. keys: of the commands, for a cluster.

        Raises an error of the library or TimeoutError if not even one answer is known.
        """
        async with self.connection() as client:
            if not self.is_cluster:
                return await _through_pool(client.connection_pool, commands)
            assert keys is not None
            return await self._through_nodes(client, commands, keys)

    async def _through_nodes(self, client: RedisCluster, commands: Sequence[bytes], keys: Sequence[bytes]) -> list[Reply]:
        if self._moved:
            await client.nodes_manager.initialize()
            self._moved = False
        try:
            replies = await _by_slot(client, commands, keys)
        except LOST:
            self._moved = True
            raise
        self._moved = self._moved or any(isinstance(one, MOVES) for one in replies)
        lost = [one for one in replies if isinstance(one, LOST)]
        if lost and len(lost) == len(replies):
            raise lost[0]
        return replies

    async def _ping(self, lent: Any) -> None:
        await lent.ping()

    def _is_lost(self, error: Exception) -> bool:
        return isinstance(error, LOST)

    async def _close(self) -> None:
        await self._client.aclose()
        if self._sentinels is not None:
            await self._sentinels.aclose()


def _addresses(settings: RedisConnection, key: str) -> list[tuple[str, int]]:
    if not settings.servers:
        raise ConnectionSettingError(f"{key}.servers", "a list of HOST:PORT", settings.servers)
    parts = [one.rpartition(":") for one in settings.servers]
    return [(host.strip("[]"), int(port)) for host, _, port in parts]


def _tls(settings: RedisConnection) -> dict[str, Any]:
    if not settings.tls:
        return {}
    return {
        "ssl_ca_certs": settings.tls_ca or None,
        "ssl_certfile": settings.tls_cert or None,
        "ssl_keyfile": settings.tls_key or settings.tls_cert or None,
        "ssl_cert_reqs": "required" if settings.tls_verify else "none",
        "ssl_check_hostname": settings.tls_verify,
    }


async def _through_pool(pool: ConnectionPool, commands: Sequence[bytes]) -> list[Reply]:
    connection: Connection = await pool.get_connection()  # type: ignore[no-untyped-call]
    try:
        return await _exchange(connection, commands)
    finally:
        await pool.release(connection)


async def _exchange(connection: Connection, commands: Sequence[bytes], replies_each: int = 1) -> list[Reply]:
    """Sends commands and reads their replies. A connection that did not get all of them is closed."""
    try:
        await connection.send_packed_command(b"".join(commands), check_health=False)
        replies: list[Reply] = []
        for _ in range(len(commands) * replies_each):
            try:
                # The time limit is that of the whole exchange.
                replies.append(await connection.read_response(timeout=math.inf, disconnect_on_error=False))
            except redis.exceptions.ResponseError as error:
                replies.append(error)
        return replies
    except BaseException:
        await connection.disconnect(nowait=True)
        raise


async def _by_slot(cluster: RedisCluster, commands: Sequence[bytes], keys: Sequence[bytes]) -> list[Reply]:
    """Sends commands to the nodes of their keys, all nodes at a time, and once more to where a slot is moving."""
    replies: list[Reply] = [None] * len(commands)

    def at_home(index: int) -> ClusterNode | None:
        return cluster.nodes_manager.get_node_from_slot(key_slot(keys[index]))

    def at_target(index: int) -> ClusterNode | None:
        return cluster.get_node(replies[index].host, replies[index].port)

    async def send(node: ClusterNode, indexes: list[int], before: bytes) -> None:
        found = await _through_node(node, [before + commands[one] for one in indexes], 2 if before else 1)
        for index, reply in zip(indexes, found, strict=True):
            replies[index] = reply

    async def send_all(indexes: Sequence[int], where: Callable[[int], ClusterNode | None], before: bytes = b"") -> None:
        by_node: dict[ClusterNode, list[int]] = {}
        for index in indexes:
            if (node := where(index)) is not None:
                by_node.setdefault(node, []).append(index)
        async with asyncio.TaskGroup() as group:
            for node, ones in by_node.items():
                group.create_task(send(node, ones, before))

    await send_all(range(len(commands)), at_home)
    # A MovedError is an AskError of redis-py.
    asked = [index for index, one in enumerate(replies) if type(one) is redis.exceptions.AskError]
    await send_all(asked, at_target, ASKING)
    return replies


async def _through_node(node: ClusterNode, commands: Sequence[bytes], replies_each: int) -> list[Reply]:
    """Returns the last reply of each command; the error for all if the node cannot be used."""
    connection = node.acquire_connection()
    try:
        await node.disconnect_if_needed(connection)
        return (await _exchange(connection, commands, replies_each))[replies_each - 1 :: replies_each]
    except LOST as error:
        return [error] * len(commands)
    finally:
        node.release(connection)
