"""A worker's end of access control: what it decides itself, and whom it asks about the rest.

Nothing here waits. A question that cannot be sent, because integrations takes no more, fails at once, and the configuration says
what that means.
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
from shardbroker.access.wire import EVERYBODY, MESSAGE_MAX, AuthResult, Kind, Status, WireError, decode_verdict, encode_question
from shardbroker.stores.files import replace_file

__all__ = [
    "LOCAL_SOURCES", "AuthClient", "file_rules", "needs_integrations", "publish_rules", "published_rules", "rules_dir", "users_dir",
]  # fmt: skip

LOCAL_SOURCES = ("file", "builtin")
"""Sources that a worker evaluates itself, up to the first that it cannot."""
TOLD_A_SECOND = 10
"""Log lines of one worker about what clients may not do; the counter has them all."""
READS_A_PASS = 256
"""Verdicts taken in one pass of the loop."""
FIRST_ID_SHIFT = 20
"""Ids begin at the start's Unix milliseconds times 2^20: a successor's are greater."""
INHERIT = "inherit"
"""A listener without a chain of its own has that of `auth.chain`."""


def rules_dir(data_dir: Path) -> Path:
    """The store of rules and bans."""
    return data_dir / "access" / "rules"


def users_dir(data_dir: Path) -> Path:
    """The store of users."""
    return data_dir / "access" / "users"


def published_rules(runtime_dir: Path) -> Path:
    """Where workers find the rules of `acl.file.path`: a copy that was found to be right."""
    return runtime_dir / "acl.rules"


def publish_rules(settings: Any, runtime_dir: Path) -> None:
    """Checks the file of rules and puts it where workers read it. Raises FileError; then nothing has changed."""
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
    """The rules of `acl.file.path` as they were published last; None: there are none. Raises FileError."""
    for suffix in (".conf", ".toml"):
        path = published_rules(runtime_dir).with_suffix(suffix)
        if path.exists():
            return RuleSet(read_rules(path))
    return None


def needs_integrations(settings: Any, listeners: Iterable[Any]) -> bool:
    """Whether there is anybody to be asked: then the process integrations runs. `listeners`: their settings."""
    return (
        bool(settings.exhook.enabled)
        or any(_chain(settings.auth, one.enable_authn, one.auth_chain) for one in listeners)
        or any(name not in LOCAL_SOURCES for name in settings.acl.sources)
    )


class Waiter(Protocol):
    """Who asked, and is told."""

    def on_verdict(self, verdict: AuthResult) -> None: ...


@dataclass(frozen=True, slots=True)
class Entrance:
    """What a listener asks of its clients. `chain`: empty: nobody is asked."""

    chain: list[str]
    methods: tuple[str, ...]
    """Authentication methods of MQTT 5.0 that they may use."""
    denies_anonymous: bool
    """Whether one without a user name is refused before anybody is asked."""

    @classmethod
    def of(cls, auth: Any, enable_authn: bool | str, chain: Sequence[str]) -> "Entrance":
        names = _chain(auth, enable_authn, chain)
        methods = (f"SCRAM-SHA-{auth.scram.algorithm.removeprefix('sha')}",) if "scram" in names else ()
        return cls(names, methods, auth.quick_deny_anonymous or enable_authn == "quick_deny_anonymous")


class AuthClient:
    """Made once in each worker. `settings`: gives those that are in force now."""

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
        """Of the questions without a verdict."""
        self._told_s = 0
        self._told = 0
        self.on_wanted: Waiter | None = None
        """Is told what programs behind hooks want."""

    def _take_settings(self) -> None:
        settings = self._settings()
        self.auth, self.acl = settings.auth, settings.acl
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
            bool(sources) or self.flapping is not None or any(one.chain or one.denies_anonymous for one in entrances)
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
        """Whether nothing at all is to be checked at a CONNECT."""
        return not self._checks and not self.banned.any

    def ban_of(self, client: Client) -> Ban | None:
        return self.banned.find(client.client_id, client.username, client.peerhost) if self.banned.any else None

    def entrance(self, listener: str, own: Sequence[Any] | None) -> Entrance:
        """`own`: (enable_authn, auth_chain) of a listener that has come or changed since the start."""
        return self._entrances.get(listener, self._general) if own is None else Entrance.of(self.auth, own[0], own[1])

    def may_tell(self, now_ms: int) -> bool:
        """Whether one more line about what was denied may be written in this second."""
        if now_ms // 1000 != self._told_s:
            self._told_s, self._told = now_ms // 1000, 0
        self._told += 1
        return self._told <= TOLD_A_SECOND

    def local_rules(self, client: Client) -> list[ClientRules]:
        """What the sources in front say about a client, as far as a worker can tell."""
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
        """Bans have changed, or rules and settings too."""
        if rules:
            self._take_settings()
        self.banned.reload()

    def _read_file(self) -> None:
        if "file" not in self._local:
            return
        try:
            self._file_rules = file_rules(self._runtime_dir) or self._file_rules
        except FileError:
            pass  # it was right when it was published; the rules before it stay

    # --- what others are asked --------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def waiting(self) -> int:
        """Questions without a verdict."""
        return len(self._waiters)

    def ask(self, kind: Kind, waiter: Waiter, client: Client, details: Sequence[Any], timeout_s: float) -> int:
        """Sends a question; its id, or 0 if it cannot be sent."""
        self._next_id += 1
        deadline = time.monotonic() + timeout_s
        message = encode_question(self._next_id, kind, deadline, client, details)
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
        """Nobody waits for this one any more."""
        self._take(number)

    def _take(self, number: int) -> Waiter | None:
        _, waiter, size = self._waiters.pop(number, (0.0, None, 0))
        self.waiting_bytes -= size
        return waiter

    def take_verdicts(self) -> Iterator[tuple[Waiter, AuthResult]]:
        """Those that have come, as far as somebody still waits for them."""
        for _ in range(READS_A_PASS):
            try:
                message = self._socket.recv(MESSAGE_MAX)
            except (BlockingIOError, InterruptedError):
                return
            if not message:
                return
            try:
                verdict = decode_verdict(message)
            except WireError:
                continue
            if verdict.id == EVERYBODY and self.on_wanted is not None:
                yield self.on_wanted, verdict
            waiter = self._take(verdict.id)
            if waiter is not None:
                yield waiter, verdict

    def overdue(self) -> Iterator[tuple[Waiter, AuthResult]]:
        """Those that nobody has answered in time, with a verdict that says so. Who is not taken comes again the next time."""
        if not self._waiters:
            return
        now = time.monotonic()
        for number in [number for number, (deadline, _, _) in self._waiters.items() if deadline <= now]:
            waiter = self._take(number)
            if waiter is not None:
                yield waiter, AuthResult(number, Status.FAILED, ["no verdict in time"])


def _chain(auth: Any, enable_authn: bool | str, chain: Sequence[str]) -> list[str]:
    if enable_authn is False:
        return []
    return list(auth.chain if list(chain) == [INHERIT] else chain)
