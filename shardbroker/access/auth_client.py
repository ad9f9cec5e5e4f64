"""A worker's end of access control: the decisions of its own, and requests to integrations for all others.

No function here blocks. A request that cannot be sent, because integrations accepts no more, fails at once; the configuration
decides how such a failure is treated.
"""

import errno
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shardbroker.access.bans import Banned, Flapping
from shardbroker.access.contract import Client
from shardbroker.access.files import FileError, read_rules
from shardbroker.access.rules import ClientRules, RuleError, RuleSet
from shardbroker.access.stores import Ban, RuleStore, StoreError
from shardbroker.access.wire import MESSAGE_MAX, UNSOLICITED, AuthResult, Kind, Status, WireError, decode_result, encode_request
from shardbroker.stores.files import replace_file

__all__ = [
    "LOCAL_SOURCES", "AuthClient", "file_rules", "needs_integrations", "publish_rules", "published_rules", "rules_dir", "users_dir",
]  # fmt: skip

LOCAL_SOURCES = ("file", "builtin")
"""Sources that a worker evaluates itself, up to the first other one."""
DENIALS_LOGGED_A_SECOND = 10
"""Log lines of one worker per second about denied actions; the counter counts all of them."""
READS_A_PASS = 256
"""Results taken in one pass of the loop."""
FIRST_ID_SHIFT = 20
"""Ids begin at the start's Unix milliseconds times 2^20: those of a later process are greater."""
INHERIT = "inherit"
"""The chain of a listener that uses `auth.chain`."""


def rules_dir(data_dir: Path) -> Path:
    """Returns the directory of the store of rules and bans."""
    return data_dir / "access" / "rules"


def users_dir(data_dir: Path) -> Path:
    """Returns the directory of the store of users."""
    return data_dir / "access" / "users"


def published_rules(runtime_dir: Path) -> Path:
    """Returns the path at which workers find the rules of `acl.file.path`: a copy that has passed the check."""
    return runtime_dir / "acl.rules"


def publish_rules(settings: Any, runtime_dir: Path) -> None:
    """Checks the file of rules and copies it for the workers. Raises FileError; then nothing has changed."""
    if "file" not in settings.acl.sources:
        return
    path = Path(settings.acl.file.path)
    if not settings.acl.file.path:
        raise FileError("acl.sources names file, but acl.file.path is empty")
    read_rules(path)
    target = published_rules(runtime_dir).with_suffix(path.suffix if path.suffix == ".toml" else ".conf")
    other = target.with_suffix(".conf" if path.suffix == ".toml" else ".toml")
    replace_file(target, path.read_bytes(), sync=False)
    other.unlink(missing_ok=True)


def file_rules(runtime_dir: Path) -> RuleSet | None:
    """Returns the rules of `acl.file.path` as last published, or None. Raises FileError."""
    for suffix in (".conf", ".toml"):
        path = published_rules(runtime_dir).with_suffix(suffix)
        if path.exists():
            return RuleSet(read_rules(path))
    return None


def needs_integrations(settings: Any, listeners: Iterable[Any]) -> bool:
    """Returns whether the process integrations is needed for requests. `listeners`: their settings."""
    return (
        bool(settings.exhook.enabled)
        or any(_chain(settings.auth, one.enable_authn, one.auth_chain) for one in listeners)
        or any(name not in LOCAL_SOURCES for name in settings.acl.sources)
        or bool(settings.auto_subscribe.sources)
    )


class Waiter(Protocol):
    """The sender of a request, which receives its result."""

    def on_result(self, result: AuthResult) -> None: ...


@dataclass(frozen=True, slots=True)
class Entrance:
    """The requirements of a listener for its clients. `chain`: empty: no authentication."""

    chain: list[str]
    methods: tuple[str, ...]
    """Authentication methods of MQTT 5.0 that clients may use."""
    denies_anonymous: bool
    """Whether a client without a user name is denied without a request."""

    @classmethod
    def of(cls, auth: Any, enable_authn: bool | str, chain: Sequence[str]) -> "Entrance":
        names = _chain(auth, enable_authn, chain)
        methods = (f"SCRAM-SHA-{auth.scram.algorithm.removeprefix('sha')}",) if "scram" in names else ()
        return cls(names, methods, auth.quick_deny_anonymous or enable_authn == "quick_deny_anonymous")


class AuthClient:
    """The access control of one worker. `settings` returns the settings in force."""

    def __init__(self, settings: Callable[[], Any], data_dir: Path, runtime_dir: Path, channel: int) -> None:
        self._settings = settings
        self._runtime_dir = runtime_dir
        self._socket = socket.socket(fileno=channel)
        self._socket.setblocking(False)
        self._store = RuleStore(rules_dir(data_dir))
        self.banned = Banned(self._store)
        self.flapping: Flapping | None = None
        self._flapping_settings: Any = None
        self._file_rules = RuleSet()
        self._take_settings()
        self._next_id = time.time_ns() // 1_000_000 << FIRST_ID_SHIFT
        self._waiters: dict[int, tuple[float, Waiter, int]] = {}
        self.waiting_bytes = 0
        """Bytes of the requests without a result."""
        self._logged_s = 0
        self._logged = 0
        self.on_wanted: Waiter | None = None
        """Receives the requirements of programs behind hooks."""

    def _take_settings(self) -> None:
        settings = self._settings()
        self.auth, self.acl, self.subscriptions = settings.auth, settings.acl, settings.auto_subscribe
        flapping = settings.flapping_detect
        if flapping != self._flapping_settings:
            self._flapping_settings = flapping
            self.flapping = Flapping(flapping.window_time, flapping.max_count, flapping.ban_time) if flapping.enable else None
        self._entrances = {
            name: Entrance.of(self.auth, one.enable_authn, one.auth_chain) for name, one in settings.listeners.items()
        }
        self._general = Entrance.of(self.auth, True, [INHERIT])
        sources = list(self.acl.sources)
        entrances = [self._general, *self._entrances.values()]
        self._checks: bool = (
            bool(sources)
            or bool(self.subscriptions.sources)
            or self.flapping is not None
            or any(one.chain or one.denies_anonymous for one in entrances)
        )
        self._local: list[str] = []
        while sources and sources[0] in LOCAL_SOURCES:
            self._local.append(sources.pop(0))
        self.has_sources = bool(self.acl.sources)
        self.has_remote = bool(sources)
        self._read_file()

    # --- what is decided here ---------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Returns whether a CONNECT needs no check at all."""
        return not self._checks and not self.banned.any

    def ban_of(self, client: Client) -> Ban | None:
        return self.banned.find(client.client_id, client.username, client.peerhost) if self.banned.any else None

    def entrance(self, listener: str, own: Sequence[Any] | None) -> Entrance:
        """Returns the entrance of a listener.

        `own`: (enable_authn, auth_chain) of a listener that was added or changed since the start.
        """
        return self._entrances.get(listener, self._general) if own is None else Entrance.of(self.auth, own[0], own[1])

    def may_report(self, now_ms: int) -> bool:
        """Returns whether one more line about a denied action may be logged in this second."""
        if now_ms // 1000 != self._logged_s:
            self._logged_s, self._logged = now_ms // 1000, 0
        self._logged += 1
        return self._logged <= DENIALS_LOGGED_A_SECOND

    def local_rules(self, client: Client) -> list[ClientRules]:
        """Returns the rules of the leading local sources for a client."""
        found = []
        for name in self._local:
            if name == "file":
                found.append(self._file_rules.for_client(client))
            else:
                try:
                    found.append(RuleSet(self._store.rules(client.client_id, client.username)).for_client(client))
                except (StoreError, RuleError):
                    found.append(RuleSet().for_client(client))
        return found

    def reload(self, rules: bool) -> None:
        """Applies changed bans, or with `rules` changed rules and settings too."""
        if rules:
            self._take_settings()
        self.banned.reload()

    def _read_file(self) -> None:
        if "file" not in self._local:
            return
        try:
            self._file_rules = file_rules(self._runtime_dir) or self._file_rules
        except FileError:
            pass  # the file was valid when it was published; the old rules stay in force

    # --- requests to integrations -----------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def waiting(self) -> int:
        """Returns the number of requests without a result."""
        return len(self._waiters)

    def request(self, kind: Kind, waiter: Waiter, client: Client, details: Sequence[Any], timeout_s: float) -> int:
        """Sends a request; returns its id, or 0 if it cannot be sent."""
        self._next_id += 1
        deadline = time.monotonic() + timeout_s
        message = encode_request(self._next_id, kind, deadline, client, details)
        try:
            self._socket.send(message)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EMSGSIZE, errno.ENOBUFS, errno.ENOMEM, errno.EPIPE, errno.ECONNREFUSED):
                return 0
            raise
        if kind not in (Kind.FORGET, Kind.HOOKS):
            self._waiters[self._next_id] = deadline, waiter, len(message)
            self.waiting_bytes += len(message)
        return self._next_id

    def forget(self, number: int) -> None:
        """Drops a request: its result is no longer needed."""
        self._take(number)

    def _take(self, number: int) -> Waiter | None:
        _, waiter, size = self._waiters.pop(number, (0.0, None, 0))
        self.waiting_bytes -= size
        return waiter

    def take_results(self) -> Iterator[tuple[Waiter, AuthResult]]:
        """Yields the results that have arrived, for requests that still wait."""
        for _ in range(READS_A_PASS):
            try:
                message = self._socket.recv(MESSAGE_MAX)
            except (BlockingIOError, InterruptedError):
                return
            if not message:
                return
            try:
                result = decode_result(message)
            except WireError:
                continue
            if result.id == UNSOLICITED and self.on_wanted is not None:
                yield self.on_wanted, result
            waiter = self._take(result.id)
            if waiter is not None:
                yield waiter, result

    def overdue(self) -> Iterator[tuple[Waiter, AuthResult]]:
        """Yields a failed result for each request that has timed out. Those not consumed are yielded by the next call."""
        if not self._waiters:
            return
        now = time.monotonic()
        for number in [number for number, (deadline, _, _) in self._waiters.items() if deadline <= now]:
            waiter = self._take(number)
            if waiter is not None:
                yield waiter, AuthResult(number, Status.FAILED, ["no response within the timeout"])


def _chain(auth: Any, enable_authn: bool | str, chain: Sequence[str]) -> list[str]:
    if enable_authn is False:
        return []
    return list(auth.chain if list(chain) == [INHERIT] else chain)
