"""A worker's end of access control: what it decides itself, and whom it asks about the rest.

Nothing here waits. A question that cannot be sent, because integrations takes no more, fails at once, and the configuration says
what that means.
"""

import errno
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from shardbroker.access.bans import Banned, Flapping
from shardbroker.access.contract import Client
from shardbroker.access.files import FileError, read_rules
from shardbroker.access.rules import ClientRules, RuleError, RuleSet
from shardbroker.access.stores import Ban, RuleStore, StoreError
from shardbroker.access.wire import MESSAGE_MAX, Kind, Status, Verdict, WireError, decode_verdict, encode_question

__all__ = [
    "LOCAL_SOURCES", "Gate", "file_rules", "needs_integrations", "publish_rules", "published_rules", "rules_dir", "users_dir",
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
    new = target.with_name(target.name + ".new")
    new.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    new.chmod(0o600)
    new.replace(target)


def file_rules(runtime_dir: Path) -> RuleSet | None:
    """The rules of `acl.file.path` as they were published last; None: there are none. Raises FileError."""
    for suffix in (".conf", ".toml"):
        path = published_rules(runtime_dir).with_suffix(suffix)
        if path.exists():
            return RuleSet(read_rules(path))
    return None


def needs_integrations(settings: Any) -> bool:
    """Whether there is anybody to be asked: then the process integrations runs."""
    return any(_chain(settings, listener) for listener in settings.listeners.values()) or any(
        name not in LOCAL_SOURCES for name in settings.acl.sources
    )


class Waiter(Protocol):
    """Who asked, and is told."""

    def on_verdict(self, verdict: Verdict) -> None: ...


class Gate:
    """Made once in each worker."""

    def __init__(self, settings: Any, data_dir: Path, runtime_dir: Path, channel: int) -> None:
        self._auth, self._acl = settings.auth, settings.acl
        self._runtime_dir = runtime_dir
        self._socket = socket.socket(fileno=channel)
        self._socket.setblocking(False)
        self._store = RuleStore(rules_dir(data_dir))
        self.banned = Banned(self._store)
        flapping = settings.flapping_detect
        self.flapping = Flapping(flapping.window_time, flapping.max_count, flapping.ban_time) if flapping.enable else None
        self._chains = {name: _chain(settings, listener) for name, listener in settings.listeners.items()}
        self._quick_deny = {
            name: self._auth.quick_deny_anonymous or listener.enable_authn == "quick_deny_anonymous"
            for name, listener in settings.listeners.items()
        }
        sources = list(self._acl.sources)
        self._checks: bool = bool(
            sources or self._auth.chain or any(self._chains.values()) or any(self._quick_deny.values()) or self.flapping is not None
        )
        self._local: list[str] = []
        while sources and sources[0] in LOCAL_SOURCES:
            self._local.append(sources.pop(0))
        self.has_sources = bool(self._acl.sources)
        self.has_remote = bool(sources)
        self._file_rules = RuleSet()
        self._read_file()
        self._next_id = time.time_ns() // 1_000_000 << FIRST_ID_SHIFT
        self._waiters: dict[int, tuple[float, Waiter]] = {}
        self._told_s = 0
        self._told = 0

    # --- what is decided here ---------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing at all is to be checked at a CONNECT."""
        return not self._checks and not self.banned.any

    def ban_of(self, client: Client) -> Ban | None:
        return self.banned.find(client.client_id, client.username, client.peerhost) if self.banned.any else None

    def denies_anonymous(self, listener: str) -> bool:
        """Whether a client without a user name is refused before anybody is asked."""
        return bool(self._quick_deny.get(listener, self._auth.quick_deny_anonymous))

    def methods_of(self, listener: str) -> tuple[str, ...]:
        """Authentication methods of MQTT 5.0 that this listener's clients may use."""
        return (f"SCRAM-SHA-{self._auth.scram.algorithm.removeprefix('sha')}",) if "scram" in self.chain_of(listener) else ()

    def may_tell(self, now_ms: int) -> bool:
        """Whether one more line about what was denied may be written in this second."""
        if now_ms // 1000 != self._told_s:
            self._told_s, self._told = now_ms // 1000, 0
        self._told += 1
        return self._told <= TOLD_A_SECOND

    def chain_of(self, listener: str) -> list[str]:
        """Who is asked about clients of this listener; empty: nobody. One that was added since has the general chain."""
        return self._chains.get(listener) or list(self._auth.chain if listener not in self._chains else ())

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
        """Bans have changed, or rules too."""
        if rules:
            self._read_file()
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
        if kind is not Kind.FORGET:
            self._waiters[self._next_id] = deadline, waiter
        return self._next_id

    def forget(self, number: int) -> None:
        """Nobody waits for this one any more."""
        self._waiters.pop(number, None)

    def take_verdicts(self) -> Iterator[tuple[Waiter, Verdict]]:
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
            found = self._waiters.pop(verdict.id, None)
            if found is not None:
                yield found[1], verdict

    def overdue(self) -> list[tuple[Waiter, Verdict]]:
        """Those that nobody has answered in time, with a verdict that says so."""
        if not self._waiters:
            return []
        now = time.monotonic()
        late = [number for number, (deadline, _) in self._waiters.items() if deadline <= now]
        return [
            (self._waiters.pop(number)[1], Verdict(number, Status.FAILED, ["no verdict in time"])) for number in late
        ]


def _chain(settings: Any, listener: Any) -> list[str]:
    if listener.enable_authn is False:
        return []
    return list(settings.auth.chain if listener.auth_chain == [INHERIT] else listener.auth_chain)
