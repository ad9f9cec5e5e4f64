"""Pulsar, by pulsar-client, which is C++ with threads of its own.

    event loop of the connector                 threads of the library
    request(): a call with a callback   ----->  connections, batches, answers
    wakes once for all answers so far   <-----  callbacks put answers into a queue, the first one rings

An error in a callback would end the process: callbacks here raise none. Threads begin with the first request, in the process that
makes it; the library's own log is discarded, as it has names of topics that clients choose: reasons are made of its results.
"""

import asyncio
import math
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import _pulsar  # the calls below those of the package's modules, which make a future of each message

from shardbroker.config.connectors import PULSAR_TLS, PulsarConnection
from shardbroker.connectors.connector import Connector
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.connectors.pulsar_login import PulsarLogin, log_in
from shardbroker.connectors.reasons import network_reason
from shardbroker.connectors.server import context_of

__all__ = ["REASONS", "Pulsar", "PulsarError", "Sends"]

Result: Final = _pulsar.Result
NOWHERE: Final = "persistent://public/shardbroker-probe/none"
"""A topic of a namespace that does not exist: any answer to a question about it is one, and no topic is made."""
DISCARDED: Final = "/dev/null"
SYSTEM_CAS: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Files of CA certificates of Debian, Fedora and others; the library's own OpenSSL does not know them."""
GRACE_S: Final = 2.0
"""Longer than the library's own time limits, which are whole seconds: it answers before the wait for it ends."""
CLOSE_S: Final = 2.0
"""Longest wait for the server when a client ends."""
LOST: Final = frozenset(
    {
        Result.Timeout, Result.LookupError, Result.ConnectError, Result.ReadError, Result.NotConnected, Result.AlreadyClosed,
        Result.AuthenticationError, Result.ErrorGettingAuthenticationData, Result.Interrupted,
    }
)  # fmt: skip
"""Results that mean that the server cannot be used."""
REASONS: Final[dict[Any, str]] = {
    Result.AlreadyClosed: "the connection was closed",
    Result.AuthenticationError: "the server rejects username, password or token",
    Result.AuthorizationError: "the account may not use the topic",
    Result.BrokerMetadataError: "the server has no access to its metadata",
    Result.BrokerPersistenceError: "the server cannot store messages",
    Result.ConnectError: "no connection",
    Result.ConsumerBusy: "the subscription has a consumer that excludes others",
    Result.IncompatibleSchema: "the topic has a schema that bytes do not fit",
    Result.InvalidTopicName: "the name of the topic is not allowed",
    Result.LookupError: "the server does not find the owner of the topic",
    Result.MessageTooBig: "the message is larger than the server takes",
    Result.NotAllowedError: "the server does not allow this",
    Result.NotConnected: "no connection",
    Result.ProducerBlockedQuotaExceededError: "the backlog of the topic is at its quota",
    Result.ProducerBlockedQuotaExceededException: "the backlog of the topic is at its quota",
    Result.ProducerBusy: "the producer of an earlier connection is still there",
    Result.ProducerFenced: "the topic has a producer that excludes others",
    Result.ServiceUnitNotReady: "the server does not own the topic yet",
    Result.Timeout: "no response in time",
    Result.TopicNotFound: "the topic does not exist",
    Result.TopicTerminated: "the topic is terminated",
}
"""Results in words; texts of the server may contain names of topics."""


class PulsarError(ConnectorError):
    """The library or the server rejects a request."""

    def __init__(self, where: str, result: Any) -> None:
        self.result = result
        super().__init__(f"{where}: {REASONS.get(result) or f'Pulsar answers {result.name}'}")


class Pulsar(Connector[Any]):
    """Lends the client of a cluster, a `_pulsar.Client`. Raises ConnectionSettingError."""

    def __init__(self, settings: PulsarConnection, key: str) -> None:
        super().__init__(settings.timeout + GRACE_S)
        if not settings.servers:
            must = 'a list of pulsar://HOST:PORT, such as ["pulsar://a:6650"]'
            raise ConnectionSettingError(f"{key}.servers", must, settings.servers)
        if settings.token and settings.username:
            raise ConnectionSettingError(f"{key}.username", "empty, as there is a token", settings.username)
        self.settings = settings
        self.where = ", ".join(settings.servers)
        self._tls = context_of(settings, key) if settings.servers[0].startswith(PULSAR_TLS) else None
        self._answers = _Answers()
        self._client: Any = None
        self._ending: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()

    # --- requests -------------------------------------------------------------------------------------------------------------

    async def request(self, call: Callable[..., None], *args: Any) -> Any:
        """Makes a call with a callback as its last argument; returns its value. Raises PulsarError, TimeoutError."""
        async with asyncio.timeout(self._timeout_s):
            return await self.answer(call, *args)

    async def answer(self, call: Callable[..., None], *args: Any) -> Any:
        """Does the same however long it takes, such as the wait for a message. Raises PulsarError."""
        found = await self._answers.of(call, *args)
        value = found[-1]
        if isinstance(value, _pulsar.Error):
            raise PulsarError(self.where, value.error)
        if isinstance(found[0], Result) and found[0] != Result.Ok:
            raise PulsarError(self.where, found[0])
        return value

    async def opened(self) -> Any:
        """Returns the client. Raises ConnectorError, OSError."""
        async with self._opening:
            if self._client is None:
                await self._reach()
                self._client = _pulsar.Client(",".join(self.settings.servers), self._configuration())
            return self._client

    def is_current(self, client: Any) -> bool:
        """Returns whether a client can still be used; its producers and consumers are made again for another one."""
        return client is self._client

    def drop(self, client: Any, error: Exception) -> None:
        """Ends a client whose server was lost: the library would wait up to a minute before it connects again."""
        self.health.lost(error)
        if client is self._client and client is not None:
            self._client = None
            task = asyncio.get_running_loop().create_task(self._end(client))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def is_lost(self, error: Exception) -> bool:
        """Returns whether an error means that the server cannot be used, rather than that it rejects one request."""
        return error.result in LOST if isinstance(error, PulsarError) else isinstance(error, OSError | ConnectorError)

    def explained(self, error: Exception) -> ConnectorError:
        """Returns an error that says what is wrong."""
        return error if isinstance(error, ConnectorError) else ConnectorError(f"{self.where}: {network_reason(error)}")

    # --- the client -----------------------------------------------------------------------------------------------------------

    def _configuration(self) -> Any:
        settings = self.settings
        made = _pulsar.ClientConfiguration()
        made.set_file_logger(_pulsar.LoggerLevel.Error, DISCARDED)
        made.operation_timeout_seconds(math.ceil(self.settings.timeout))
        made.connection_timeout(math.ceil(self.settings.timeout * 1000))
        made.stats_interval_in_seconds(0)
        if settings.token:
            made.authentication(_pulsar.AuthenticationToken.create(settings.token))
        elif settings.username:
            made.authentication(_pulsar.AuthenticationBasic.create(settings.username, settings.password, "basic"))
        if self._tls is not None:
            made.tls_trust_certs_file_path(settings.tls_ca or _system_cas())
            made.tls_allow_insecure_connection(not settings.tls_verify)
            made.tls_validate_hostname(settings.tls_verify)
            if settings.tls_cert:
                made.tls_certificate_file_path(settings.tls_cert)
                made.tls_private_key_file_path(settings.tls_key or settings.tls_cert)
                if not settings.token and not settings.username:
                    auth = _pulsar.AuthenticationTLS.create(settings.tls_cert, settings.tls_key or settings.tls_cert)
                    made.authentication(auth)
        return made

    def _login(self) -> PulsarLogin:
        settings = self.settings
        if settings.token:
            return b"token", settings.token.encode()
        if settings.username:
            return b"basic", f"{settings.username}:{settings.password}".encode()
        return (b"tls", b"") if self._tls is not None and settings.tls_cert else (b"", b"")

    async def _reach(self) -> None:
        """Logs in at any server, and closes the connection: the library keeps no reason why it has none. Raises ConnectorError."""
        first: ConnectorError | None = None
        for server in self.settings.servers:
            try:
                async with asyncio.timeout(self.settings.timeout):
                    is_accepted = await self._try(server)
            except (OSError, EOFError, ValueError) as error:
                reason = str(error) if type(error) is ValueError else network_reason(error)
                first = first or ConnectorError(f"{self.where}: {reason}")
                continue
            if not is_accepted:
                raise PulsarError(self.where, Result.AuthenticationError)
            return
        assert first is not None
        raise first

    async def _try(self, server: str) -> bool:
        """Returns whether a server accepts the login. Raises OSError, EOFError, ValueError."""
        host, _, port = server.rpartition("://")[2].rpartition(":")
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=self._tls)
        try:
            return await log_in(reader, writer, self._login())
        finally:
            writer.transport.abort()

    async def _end(self, client: Any) -> None:
        with suppress(ConnectorError, TimeoutError):
            await self.request(client.close_async)

    # --- of all connectors ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[Any]:
        client = await self.opened()
        try:
            yield client
        except Exception as error:
            if self.is_lost(error):
                self.drop(client, error)
            raise

    async def _ping(self, lent: Any) -> None:
        try:
            await self.request(lent.get_topic_partitions_async, NOWHERE)
        except PulsarError as error:
            if error.result in LOST:
                raise

    def _is_lost(self, error: Exception) -> bool:
        return self.is_lost(error)

    async def _close(self) -> None:
        if self._client is not None:
            self.drop(self._client, PulsarError(self.where, Result.AlreadyClosed))
        if self._ending:
            await asyncio.wait(self._ending, timeout=CLOSE_S)


class _Answers:
    """Answers of threads of the library for one event loop, which is woken once for many."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[asyncio.Future[tuple[Any, ...]], tuple[Any, ...]]] = deque()
        self._is_ringing = False

    async def of(self, call: Callable[..., None], *args: Any) -> tuple[Any, ...]:
        """Makes a call, and returns the arguments of its callback."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[Any, ...]] = loop.create_future()

        def answered(*found: Any) -> None:  # in a thread of the library
            self._waiting.append((future, found))
            if not self._is_ringing:
                self._is_ringing = True
                ring(loop, self._wake)

        call(*args, answered)
        return await future

    def _wake(self) -> None:
        self._is_ringing = False
        while self._waiting:
            future, found = self._waiting.popleft()
            if not future.done():
                future.set_result(found)


class Sends:
    """Messages on their way to producers of one client. silence_s: the longest time without an answer."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._rung: asyncio.Future[None] = self._loop.create_future()
        self._answers: list[tuple[int, Any]] = []
        self._expected = [-1]
        """Messages, once all are sent."""

    def send(self, producer: Any, messages: Iterable[tuple[int, Any]]) -> None:
        """Sends messages; the number of each is returned with its result."""
        send, ok = producer.send_async, Result.Ok
        answers, expected, loop, wake = self._answers, self._expected, self._loop, self._wake
        for number, message in messages:

            def answered(result: Any, _: Any, number: int = number) -> None:  # in a thread of the library
                answers.append((number, result if result != ok else None))
                if len(answers) == expected[0]:
                    ring(loop, wake)

            send(message, answered)

    async def done(self, producers: Iterable[Any], count: int) -> list[tuple[int, Any]]:
        """Returns the result of each of `count` messages, None for a stored one. Raises TimeoutError: the server is silent."""
        for producer in producers:
            producer.flush_async(_nothing)
        self._expected[0] = count
        seen = len(self._answers)
        while len(self._answers) < count:
            try:
                async with asyncio.timeout(self._silence_s):
                    await asyncio.shield(self._rung)
            except TimeoutError:
                if len(self._answers) == seen:
                    raise
                seen = len(self._answers)
        return self._answers

    def _wake(self) -> None:
        if not self._rung.done():
            self._rung.set_result(None)


def ring(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Has a call made in a loop, unless that has ended; of threads of the library."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


def _nothing(*_: Any) -> None:
    """Of an answer that is of no interest."""


def _system_cas() -> str:
    """Returns a file of CA certificates of the system, or that of the package certifi."""
    known = [ssl.get_default_verify_paths().cafile or "", *SYSTEM_CAS]
    found = next((one for one in known if one and Path(one).exists()), "")
    if found:
        return found
    import certifi

    return certifi.where()
