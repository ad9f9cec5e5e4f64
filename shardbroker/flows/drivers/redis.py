"""Rows as commands of Redis, one pipeline for each batch.

A command is packed here with its arguments, so that no value can become a part of another argument or a command of its own.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hiredis
import redis.exceptions

from shardbroker.config.connectors import RedisConnection
from shardbroker.config.sinks.redis import RedisAction, RedisConnector
from shardbroker.connectors.errors import ConnectorError
from shardbroker.connectors.reasons import causes, network_reason
from shardbroker.connectors.redis import LOST, Redis
from shardbroker.flows.drivers.getters import Getter, encoded, placeholders, rendered
from shardbroker.flows.sinks.driver import ConnectorDriver, Driver, Failure, Unusable
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.values import EvaluationError

__all__ = ["connect", "make"]

NO_REPLY_EACH = {
    "ASKING", "AUTH", "CLIENT", "DEBUG", "DISCARD", "EXEC", "FAILOVER", "HELLO", "MONITOR", "MULTI", "PSUBSCRIBE", "PSYNC",
    "PUNSUBSCRIBE", "QUIT", "READONLY", "READWRITE", "REPLCONF", "REPLICAOF", "RESET", "SCRIPT", "SELECT", "SHUTDOWN",
    "SLAVEOF", "SSUBSCRIBE", "SUBSCRIBE", "SUNSUBSCRIBE", "SWAPDB", "SYNC", "UNSUBSCRIBE", "UNWATCH", "WAIT", "WAITAOF",
    "WATCH",
}  # fmt: skip
"""Commands that change the connection, wait, or are not answered one by one: the rows behind them would be written wrongly."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
KEYS_COUNTED = {"EVAL", "EVALSHA", "FCALL"}
"""NAME SCRIPT NUMBER KEY ...: the server does not give a fixed place of their first key."""
OF_HASHES = {"HSET", "HMSET"}
SPREAD = "map_to_redis_hset_args"
"""First element of the array of that function: fields and values of a hash, each an argument."""
AGAIN = {
    "ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN",
}  # fmt: skip
"""Errors that are of the server's state rather than of the row."""
OWN_WORDS = re.compile(r"(?:don't|[A-Za-z ,()-])+")
"""Start of an error that is text of the server: what it cites of a command is quoted, a number, or behind a colon."""
REASON_MAX = 120
NOT_REACHED = (redis.exceptions.RedisError, *LOST)
"""What is raised by a request as a whole, including a connection that the server does not let begin."""

Argument = Callable[[Row], bytes]
pack: Any = hiredis.pack_command  # its type hints know one argument only


class _Server(Redis):
    """Raises Unusable or ConnectorError in place of the library's errors."""

    async def probe(self) -> None:
        with self._explaining():
            await super().probe()

    async def pipeline(self, commands: Sequence[bytes], keys: Sequence[bytes] | None = None) -> Sequence[Any]:
        with self._explaining():
            return await super().pipeline(commands, keys)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except NOT_REACHED as error:
            explained = _explained(error, self.settings)
            self.health.last_error = str(explained)
            raise explained from error


def connect(settings: RedisConnector, key: str) -> Redis:
    return _Server(settings, key, as_text=False)


def make(action: RedisAction, connector: Redis, id: str) -> Driver:
    words = action.parameters.command_template
    name = words[0].upper() if words else ""
    if not NAME.fullmatch(name) or name in NO_REPLY_EACH:
        must = "a command without placeholders that is answered once and leaves the connection as it is, such as HSET"
        raise ValueError(f"{id}: parameters.command_template: must begin with {must}, got {name[:100]!r}")
    return _RedisDriver(connector, name, words[1:])


class _RedisDriver(ConnectorDriver[Redis]):
    def __init__(self, connector: Redis, name: str, words: Sequence[str]) -> None:
        super().__init__(connector)
        self._name = name
        self._verb = name.encode()
        self._arguments: list[Argument] = [rendered(word) for word in words]
        self._fields: Getter | None = None
        """The placeholder of a hash's fields and values."""
        if name in OF_HASHES and len(words) == 2:
            parts = placeholders(words[1])
            if len(parts) == 1 and not isinstance(parts[0], str):
                self._fields = parts[0]
        self._key_at = 1
        """Place of the key that decides on the node of a cluster; 0: any node."""

    async def open(self) -> None:
        """Checks that the server has the command, with as many arguments."""
        about = pack(("COMMAND", "INFO", self._name))
        (reply,) = await self._connector.pipeline([about], [b""])
        if isinstance(reply, Exception):
            return  # for want of a right, or by a proxy
        if not reply or not reply[0]:
            raise Unusable(f"the server has no command {self._name}")
        self._examine(reply[0])

    def _examine(self, about: Sequence[Any]) -> None:
        _, arity, flags, first_key, *_ = about
        count = 1 + len(self._arguments)
        if self._fields is None and (count != arity if arity > 0 else count < -arity):
            must = f"{arity - 1}" if arity > 0 else f"at least {-arity - 1}"
            raise Unusable(f"parameters.command_template: {self._name} must have {must} arguments, got {count - 1}")
        names = {one.decode() if isinstance(one, bytes) else str(one) for one in flags}
        if "blocking" in names:
            raise Unusable(f"parameters.command_template: {self._name} waits, and the rows behind it would wait too")
        if self._name in KEYS_COUNTED:
            self._key_at = 3 if len(self._arguments) > 2 else 0
        elif not first_key and "movablekeys" in names and self._connector.is_cluster:
            raise Unusable(f"parameters.command_template: {self._name} has no fixed key, which a cluster needs")
        else:
            self._key_at = first_key

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        failures: list[Failure] = []
        commands: list[bytes] = []
        keys: list[bytes] = []
        places: list[int] = []
        for at, row in enumerate(rows):
            try:
                words = self._words(row)
                command = pack(words)
            except (EvaluationError, UnicodeEncodeError):
                failures.append(Failure(at, "a value cannot be written as text"))
                continue
            commands.append(command)
            keys.append(words[self._key_at] if 0 < self._key_at < len(words) else b"")
            places.append(at)
        if commands:
            replies = await self._connector.pipeline(commands, keys)
            failures += self._failures(places, replies)
        return failures

    def _words(self, row: Row) -> tuple[bytes, ...]:
        if self._fields is not None:
            found = self._fields(row)
            if type(found) is list and found and found[0] == SPREAD:
                return (self._verb, self._arguments[0](row), *map(encoded, found[1:]))
        return (self._verb, *[one(row) for one in self._arguments])

    def _failures(self, places: Sequence[int], replies: Sequence[Any]) -> list[Failure]:
        failures = []
        for at, reply in zip(places, replies, strict=True):
            if not isinstance(reply, Exception):
                continue
            if isinstance(reply, LOST):
                failures.append(Failure(at, str(_explained(reply, self._connector.settings)), again=True))
                continue
            code, text = _code(reply), str(reply)
            if "unknown command" in text or (code == "NOPERM" and "command" in text):
                raise Unusable(f"the server does not let this user run {self._name}")
            failures.append(Failure(at, self._reason(reply), again=code in AGAIN))
        return failures

    def _reason(self, error: Exception) -> str:
        """Returns the text of an error; only the code if it is of a script or a module, whose texts may contain values."""
        return _code(error) if self._name in KEYS_COUNTED or "." in self._name else _reason(error)


def _code(error: Exception) -> str:
    """Returns the first word of an error, such as WRONGTYPE."""
    known: str | None = getattr(error, "status_code", None)
    first = known or str(error).partition(" ")[0]
    return first if first.isalpha() and first.isupper() and len(first) < 32 else "ERR"


def _reason(error: Exception) -> str:
    code, text = _code(error), str(error)
    own = OWN_WORDS.match(text.removeprefix(code).strip())
    return f"{code} {own[0].strip() if own else ''}"[:REASON_MAX].strip()


def _explained(error: Exception, settings: RedisConnection) -> Exception:
    """Returns an error that says what is wrong."""
    text = str(error)
    where = ", ".join(settings.servers) if settings.redis_type != "single" else settings.server
    if any(isinstance(one, redis.exceptions.AuthenticationError) for one in causes(error)):
        return Unusable(f"{where}: the server rejects username or password")
    if isinstance(error, redis.exceptions.BusyLoadingError):
        return ConnectorError(f"{where}: the server is loading its data")
    if "DB index" in text or "SELECT is not allowed" in text:
        return Unusable(f"{where}: the server has no database {settings.database}")
    if "No master found" in text:
        return ConnectorError(f"{where}: no sentinel knows a reachable master {settings.sentinel!r}")
    if "Cluster mode is not enabled" in text:
        return Unusable(f"{where}: the server is no cluster")
    return ConnectorError(f"{where}: {network_reason(error)}")
