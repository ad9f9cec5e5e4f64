"""The contract of authenticators and authorizers: those of the broker and those of modules.

A module is a class that is registered as an entry point, in the group `shardbroker.authenticators` or `shardbroker.authorizers`:

    [project.entry-points."shardbroker.authenticators"]
    tokens = "my_package:Tokens"

It is made once, in the process `integrations`, with its settings: those keys of `auth.module_settings` (or `acl.module_settings`)
that begin with its name and a dot, without these. Its methods are coroutines on that process's event loop: what computes for
longer than a few milliseconds goes to a thread. What it raises counts as a failure of a back end (`auth.on_error`).
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
    """A back end failed or said what nobody can understand. The text holds no secret: it is logged."""


class SettingError(BackendError):
    """A back end cannot be made because of one setting. `must`: what the setting must be, for the text."""

    def __init__(self, key: str, must: str, got: object, detail: str = "") -> None:
        super().__init__(f"{key}: must be {must}, got {got!r}{detail and ': '}{detail}")
        self.key = key


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks. `password` is left out of every representation."""

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
    """What an authenticator says."""

    OK = "ok"
    IGNORE = "ignore"
    """It does not know this client: the next one is asked."""
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Answer:
    """What an authenticator says, and what comes with it. Use `allow`, `deny` and `IGNORE`."""

    outcome: Outcome
    reason_code: int = 0
    """Of CONNACK when denied: 0x86 bad user name or password, 0x87 not authorized."""
    is_superuser: bool = False
    acl: Any = None
    """Rules of this client, see `rules.client_rules`; None: none of its own."""
    expires_at: float | None = None
    """Unix seconds at which the connection ends; None: it does not."""
    data: bytes | None = None
    """Authentication Data of CONNACK, of an enhanced authentication."""


IGNORE = Answer(Outcome.IGNORE)


def allow(*, is_superuser: bool = False, acl: Any = None, expires_at: float | None = None, data: bytes | None = None) -> Answer:
    """This client may connect."""
    return Answer(Outcome.OK, 0, is_superuser, acl, expires_at, data)


def deny(reason_code: int = ReasonCode.BAD_USER_NAME_OR_PASSWORD) -> Answer:
    """This client may not connect; nobody else is asked."""
    return Answer(Outcome.DENY, int(reason_code))


class Authenticator(Protocol):
    """Says who may connect."""

    priority: int
    """Of modules: where `modules` stands in the chain, those with the highest come first."""

    async def authenticate(self, client: Client) -> Answer:
        """OK and DENY end the chain; IGNORE asks the next. Raises for a failure."""
        ...

    async def close(self) -> None:
        """The process ends."""
        ...


class Exchange(Protocol):
    """A conversation of enhanced authentication (MQTT 5.0 §4.12)."""

    async def step(self, data: bytes) -> bytes | Answer:
        """Authentication Data for the client, who is to answer it, or the end."""
        ...


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """May a client do this? `topic` is a topic name, or the topic filter of a subscription without `$share/...`."""

    action: str
    """publish or subscribe."""
    topic: str
    qos: int
    retain: bool = False


class Authorizer(Protocol):
    """Says what clients may do."""

    priority: int

    async def authorize(self, client: Client, questions: Sequence[AuthRequest]) -> Sequence[bool | None]:
        """For each question True, False, or None if it has no rule for it. Raises for a failure."""
        ...

    async def close(self) -> None:
        """The process ends."""
        ...
