"""Cassandra, by cassandra-driver, which has threads of its own.

    event loop of the connector                  threads of the library
    execute(): up to IN_FLIGHT requests  ----->  reactor: one connection to each node, answers
    wakes once for all answers so far    <-----  callbacks put answers into a queue, the first one rings

What blocks in the library (connecting, preparing a statement, the end) is done in threads of the connector.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from cassandra import (
    AuthenticationFailed,
    InvalidRequest,
    OperationTimedOut,
    ProtocolVersion,
    RequestExecutionException,
    Unauthorized,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.connection import ConnectionBusy, ConnectionException
from cassandra.policies import ConstantReconnectionPolicy, DCAwareRoundRobinPolicy, TokenAwarePolicy
from cassandra.query import PreparedStatement, SimpleStatement

from shardbroker.config.connectors import CassandraConnection
from shardbroker.connectors.connector import Connector
from shardbroker.connectors.errors import ConnectionSettingError
from shardbroker.connectors.server import context_of

__all__ = ["Cassandra", "is_refused"]

IN_FLIGHT: Final = 32
"""Requests of one call of execute() under way; `concurrent_writes` of a node is 32 by default."""
THREADS: Final = 4
"""Of what blocks: an attempt to connect may outlast the wait for it."""
BUSY_S: Final = 0.01
"""Pause before statements are sent again for which the sockets had no room."""
RECONNECT_S: Final = 2.0
"""Between two attempts of the library to reach a node that is down."""
HEARTBEAT_S: Final = 5.0
"""Between two checks of an idle connection."""
PROTOCOL: Final = ProtocolVersion.V5
"""That of Cassandra 4 and later; the library tries older ones after it."""
PING: Final = "SELECT key FROM system.local"

T = TypeVar("T")


def is_refused(error: Exception | None) -> bool:
    """Returns whether a node rejects one request for what it contains."""
    return isinstance(error, InvalidRequest)


class Cassandra(Connector[Session]):
    """Lends the session of a cluster. Raises ConnectionSettingError."""

    def __init__(self, settings: CassandraConnection, key: str) -> None:
        super().__init__(settings.timeout)
        if not settings.servers:
            raise ConnectionSettingError(f"{key}.servers", 'a list of HOST:PORT, such as ["a:9042", "b:9042"]', settings.servers)
        self.settings = settings
        self._tls = context_of(settings, key) if settings.tls else None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="cassandra")
        self._session: Session | None = None
        self._opening: asyncio.Future[Session] | None = None
        self._ending: set[asyncio.Future[None]] = set()
        self._queries: dict[str, tuple[Session, PreparedStatement]] = {}
        """Those of rows(), and the session in which they are prepared."""
        self._is_closed = False

    async def in_thread(self, call: Callable[..., T], *args: Any) -> T:
        """Makes a call that blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def is_current(self, session: Session) -> bool:
        """Returns whether a session can still be used; statements are prepared again for another one."""
        return session is self._session

    async def execute(self, session: Session, statements: Sequence[Any]) -> list[Exception | None]:
        """Executes statements, several at a time; returns the error of each one. Raises TimeoutError.

        Nothing is sent after an error that is not a node's opinion of one statement; the rest get the same error.
        """
        requests = _Requests(session, statements, 2 * self._timeout_s)
        try:
            errors = await requests.done()
        except TimeoutError as error:
            self.health.lost(error)
            raise
        found = requests.fatal
        if isinstance(found, NoHostAvailable):
            self._drop(session)
        if found is not None and self._is_lost(found):
            self.health.lost(found)
        elif found is None:
            self.health.reached()
        return errors

    def prepare(self, session: Session, cql: str) -> PreparedStatement:
        """Has a statement prepared, in a thread. Raises errors of the library."""
        return session.prepare(cql, keyspace=self.settings.keyspace if _has_keyspaces(session) else None)

    def run(self, session: Session, cql: str) -> None:
        """Executes a statement without parameters, in a thread. Raises errors of the library."""
        session.execute(SimpleStatement(cql, keyspace=self.settings.keyspace if _has_keyspaces(session) else None))

    def rows(self, session: Session, cql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        """Executes a query with values for its markers, in a thread; returns its rows by column. Raises errors of the library."""
        known = self._queries.get(cql)
        if known is None or known[0] is not session:
            known = self._queries[cql] = session, self.prepare(session, cql)
        found = session.execute(known[1], values)
        return [row._asdict() for row in found]

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[Session]:
        session = await self._opened()
        try:
            yield session
        except NoHostAvailable:
            self._drop(session)
            raise

    async def _opened(self) -> Session:
        if self._session is None:
            if self._is_closed:
                raise ConnectionError
            if self._opening is None:
                self._opening = asyncio.get_running_loop().run_in_executor(self._threads, self._connect)
                self._opening.add_done_callback(self._has_opened)
            return await asyncio.shield(self._opening)
        return self._session

    def _has_opened(self, opening: asyncio.Future[Session]) -> None:
        self._opening = None
        if opening.cancelled() or opening.exception() is not None:
            return
        if self._is_closed:
            self._end(opening.result())
        else:
            self._session = opening.result()

    def _connect(self) -> Session:
        """Returns a session, in a thread. Raises errors of the library."""
        settings, wait_s = self.settings, self._timeout_s
        cluster = Cluster(
            [_address(one) for one in settings.servers],
            auth_provider=PlainTextAuthProvider(settings.username, settings.password) if settings.username else None,
            ssl_context=self._tls,
            execution_profiles={EXEC_PROFILE_DEFAULT: ExecutionProfile(_policy(settings.datacenter), request_timeout=wait_s)},
            connect_timeout=wait_s,
            control_connection_timeout=wait_s,
            idle_heartbeat_interval=HEARTBEAT_S,
            idle_heartbeat_timeout=wait_s,
            reconnection_policy=ConstantReconnectionPolicy(RECONNECT_S, None),
            prepare_on_all_hosts=False,
        )
        try:
            cluster.protocol_version = PROTOCOL
            session = cluster.connect()
            if settings.keyspace not in cluster.metadata.keyspaces:
                raise InvalidRequest(f"Keyspace {settings.keyspace!r} does not exist")
            if not _has_keyspaces(session):
                session.set_keyspace(settings.keyspace)
        except BaseException:
            cluster.shutdown()
            raise
        return session

    def _drop(self, session: Session) -> None:
        """Ends a session that reaches no node: addresses are looked up again for the next one."""
        if session is self._session:
            self._session = None
            self._end(session)

    def _end(self, session: Session) -> None:
        ending = asyncio.get_running_loop().run_in_executor(self._threads, session.cluster.shutdown)
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _ping(self, lent: Session) -> None:
        (error,) = await _Requests(lent, [SimpleStatement(PING)], 2 * self._timeout_s).done()
        if error is not None:
            raise error

    def _is_lost(self, error: Exception) -> bool:
        if isinstance(error, Unauthorized | InvalidRequest):
            return False
        lost = (OSError, NoHostAvailable, AuthenticationFailed, OperationTimedOut, RequestExecutionException, ConnectionException)
        return isinstance(error, lost)

    async def _close(self) -> None:
        self._is_closed = True
        try:
            if self._session is not None:
                self._drop(self._session)
            if self._opening is not None:
                await asyncio.wait([self._opening])
                await asyncio.sleep(0)  # a session that is open by now is ended in the next turn
            await asyncio.gather(*self._ending, return_exceptions=True)
        finally:
            self._threads.shutdown(wait=False)


class _Requests:
    """Statements on their way. silence_s: the longest time without an answer, which the library should not exceed."""

    def __init__(self, session: Session, statements: Sequence[Any], silence_s: float) -> None:
        self._session, self._statements, self._silence_s = session, statements, silence_s
        self._loop = asyncio.get_running_loop()
        self._answers: deque[tuple[int, Exception | None]] = deque()
        self._is_ringing = False
        self._bell: asyncio.Future[None] = self._loop.create_future()
        self.fatal: Exception | None = None
        """The first error that is about more than one statement."""

    async def done(self) -> list[Exception | None]:
        """Returns the error of each statement."""
        errors: list[Exception | None] = [None] * len(self._statements)
        waiting, under_way, answered_s = deque(range(len(errors))), 0, self._loop.time()
        while under_way or (waiting and self.fatal is None):
            while waiting and under_way < IN_FLIGHT and self.fatal is None:
                self._send(waiting.popleft())
                under_way += 1
            await self._rung()
            not_sent = []
            while self._answers:
                at, error = self._answers.popleft()
                under_way -= 1
                if _is_busy(error):
                    not_sent.append(at)
                    continue
                answered_s = self._loop.time()
                errors[at] = error
                if error is not None and self.fatal is None and not is_refused(error):
                    self.fatal = error
            if not_sent:
                if self._loop.time() - answered_s > self._silence_s:
                    raise TimeoutError
                waiting.extendleft(reversed(not_sent))
                await asyncio.sleep(BUSY_S)
        for at in waiting:
            errors[at] = self.fatal
        return errors

    def _send(self, at: int) -> None:
        try:
            future = self._session.execute_async(self._statements[at])
            future.add_callbacks(self._succeeded, self._failed, callback_args=(at,), errback_args=(at,))
        except Exception as error:  # of a session that another task has ended
            self._failed(error, at)

    # --- in threads of the library ------------------------------------------------------------------------------------------------

    def _succeeded(self, result: object, at: int) -> None:
        self._answers.append((at, None))
        self._ring()

    def _failed(self, error: object, at: int) -> None:
        self._answers.append((at, error if isinstance(error, Exception) else ConnectionError()))
        self._ring()

    def _ring(self) -> None:
        """Wakes the loop, once for all answers until it looks: it takes the flag back before it looks."""
        if not self._is_ringing:
            self._is_ringing = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the loop has ended
                pass

    # --- in the loop --------------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._is_ringing = False
        if not self._bell.done():
            self._bell.set_result(None)

    async def _rung(self) -> None:
        if not self._answers:
            async with asyncio.timeout(self._silence_s):
                await self._bell
        if self._bell.done():
            self._bell = self._loop.create_future()


def _is_busy(error: Exception | None) -> bool:
    """Returns whether a statement was not sent, since sockets take no more for now: of a batch with large values."""
    found = error.errors if isinstance(error, NoHostAvailable) and isinstance(error.errors, dict) else {}
    return any(isinstance(one, ConnectionBusy) for one in found.values())


def _address(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    return host.strip("[]"), int(port)


def _has_keyspaces(session: Session) -> bool:
    """Returns whether a statement is prepared for a keyspace, from Cassandra 4 on; USE is one keyspace for all of a connection."""
    return bool(ProtocolVersion.uses_keyspace_flag(session.cluster.protocol_version))


def _policy(datacenter: str) -> TokenAwarePolicy:
    """Returns the choice of a node: a replica of the row, in one data center."""
    return TokenAwarePolicy(DCAwareRoundRobinPolicy(datacenter))
