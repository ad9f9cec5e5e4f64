"""The contract of authenticators and authorizers, for those of the broker and those of modules.

A module is a class that is registered as an entry point, in the group `shardbroker.authenticators` or `shardbroker.authorizers`:

    [project.entry-points."shardbroker.authenticators"]
    tokens = "my_package:Tokens"

It is instantiated once, in the process `integrations`, with its settings: the keys of `auth.module_settings` (or
`acl.module_settings`) that begin with its name and a dot, without this prefix. Its methods are coroutines on that process's event
loop: computations of more than a few milliseconds belong in a thread. An exception counts as a failure (`auth.on_error`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from shardbroker.mqtt.spec import ReasonCode

__all__ = [
    "IGNORE",
    "Answer",
    "AuthRequest",
    "Authenticator",
    "Authorizer",
    "BackendError",
    "Client",
    "Exchange",
    "Outcome",
    "SettingError",
    "allow",
    "deny",
]


class BackendError(Exception):
    """A failure or an unintelligible answer of a back end. The text contains no secret: it is logged."""


class SettingError(BackendError):
    """A setting that makes a back end impossible. `must`: what the setting must be, for the text."""

    def __init__(self, key: str, must: str, got: object, detail: str = "") -> None:
        super().__init__(f"{key}: must be {must}, got {got!r}{detail and ': '}{detail}")
        self.key = key


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a request. `password` is left out of every representation."""

    client_id: str
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    peerhost: str = ""
    peerport: int = 0
    listener: str = ""
    version: int = 5
    cert_common_name: str | None = None
    cert_subject: str | None = None


class Outcome(Enum):
    """The kinds of answers of an authenticator."""

    OK = "ok"
    IGNORE = "ignore"
    """The client is unknown: the next authenticator decides."""
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of an authenticator, with its details. Use `allow`, `deny` and `IGNORE`."""

    outcome: Outcome
    reason_code: int = 0
    """The reason code of CONNACK if denied: 0x86 bad user name or password, 0x87 not authorized."""
    is_superuser: bool = False
    acl: Any = None
    """The rules of this client, see `rules.client_rules`; None: no rules of its own."""
    expires_at: float | None = None
    """The end of the connection, Unix seconds; None: no limit."""
    data: bytes | None = None
    """Authentication Data of CONNACK, for an enhanced authentication."""


IGNORE = Answer(Outcome.IGNORE)


def allow(*, is_superuser: bool = False, acl: Any = None, expires_at: float | None = None, data: bytes | None = None) -> Answer:
    """Returns an answer that lets the client connect."""
    return Answer(Outcome.OK, 0, is_superuser, acl, expires_at, data)


def deny(reason_code: int = ReasonCode.BAD_USER_NAME_OR_PASSWORD) -> Answer:
    """Returns an answer that denies the connection; it ends the chain."""
    return Answer(Outcome.DENY, int(reason_code))


class Authenticator(Protocol):
    """Decides which clients may connect."""

    priority: int
    """For modules: their order within `modules` in the chain, highest first."""

    async def authenticate(self, client: Client) -> Answer:
        """Returns the answer for a client: OK and DENY end the chain, IGNORE continues it. Raises for a failure."""
        ...

    async def close(self) -> None:
        """Releases resources at the end of the process."""
        ...


class Exchange(Protocol):
    """An exchange of enhanced authentication (MQTT 5.0 §4.12)."""

    async def step(self, data: bytes) -> bytes | Answer:
        """Returns Authentication Data for the client, which the client must answer, or the final answer."""
        ...


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """An action to authorize. `topic` is a topic name, or the topic filter of a subscription without `$share/...`."""

    action: str
    """publish or subscribe."""
    topic: str
    qos: int
    retain: bool = False


class Authorizer(Protocol):
    """Decides what clients may publish and subscribe to."""

    priority: int

    async def authorize(self, client: Client, requests: Sequence[AuthRequest]) -> Sequence[bool | None]:
        """Returns True or False for each request, or None if it has no rule for it. Raises for a failure."""
        ...

    async def close(self) -> None:
        """Releases resources at the end of the process."""
        ...
