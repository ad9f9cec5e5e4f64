"""Placeholders such as ${username}, in requests to back ends and in topics: bound, encoded or checked, never just inserted.

`fill` escapes values, `bind` and `words` make parameters of them, and `fill_topic` rejects those that would leave their own level
of a topic.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from shardbroker.access.contract import AuthRequest, Client
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import parse_subscription

__all__ = ["NAMES", "PlaceholderError", "Template", "UnfitValueError", "check_level", "values_of"]

NAMES = (
    "username", "clientid", "password", "peerhost", "peerport", "cert_common_name", "cert_subject", "listener", "proto_ver",
    "topic", "action", "qos", "retain",
)  # fmt: skip
"""The names allowed between ${ and }; the last four only where topics are checked."""

_PART = re.compile(r"\$\{([^}]*)\}")
_MASK = "\0%d\0"
_BEYOND_A_LEVEL = re.compile(r"[+#/\0]")


class PlaceholderError(ValueError):
    """A template with an unknown placeholder."""


class UnfitValueError(ValueError):
    """A value that would leave its own level of a topic. The text gives the rule; `name`: the placeholder."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def check_level(name: str, value: str, before: str = "") -> None:
    """Checks a value chosen by a client, of the placeholder `name`, after the text `before` of a topic or filter.

    A wildcard, a separator or an empty value would make the topic reach into the trees of other clients. At the start of a topic
    `$` would lead to `$SYS/`, `$share/`, `$delayed/`. Raises UnfitValueError.
    """
    if not value or _BEYOND_A_LEVEL.search(value):
        raise UnfitValueError(name, "must not be empty, nor contain +, # or /")
    if value.startswith("$") and _is_head(before):
        raise UnfitValueError(name, "must not begin with $ where a topic begins")


def _is_head(before: str) -> bool:
    """Returns whether a topic begins after this text: it is empty, or such as `$share/group/`."""
    try:
        return bool(parse_subscription(f"{before}x".encode())[1] == b"x")
    except MqttError:
        return False


def values_of(client: Client, request: AuthRequest | None = None) -> dict[str, str | None]:
    """Returns the value of each placeholder; None: this client has no such value."""
    values: dict[str, str | None] = {
        "username": client.username,
        "clientid": client.client_id,
        "password": None if client.password is None else client.password.decode(errors="surrogateescape"),
        "peerhost": client.peerhost,
        "peerport": str(client.peerport),
        "cert_common_name": client.cert_common_name,
        "cert_subject": client.cert_subject,
        "listener": client.listener,
        "proto_ver": str(client.version),
    }
    if request is not None:
        values |= {
            "topic": request.topic,
            "action": request.action,
            "qos": str(request.qos),
            "retain": str(request.retain).lower(),
        }
    return values


@dataclass(frozen=True, slots=True)
class Template:
    """A text with placeholders; `${$}` is a dollar sign. `parts` alternate: text, name, text, name, ..., text."""

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, allowed: Iterable[str] = NAMES) -> "Template":
        """Parses a template. Raises PlaceholderError."""
        names = tuple(allowed)
        parts = _PART.split(text)
        merged = [parts[0]]
        for name, following in zip(parts[1::2], parts[2::2], strict=True):
            if name == "$":
                merged[-1] += "$" + following
            elif name in names:
                merged += [name, following]
            else:
                known = ", ".join(f"${{{one}}}" for one in names)
                raise PlaceholderError(f"placeholder: must be one of {known}, got ${{{name}}} in {text!r}")
        return cls(tuple(merged))

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the placeholders in order, each as often as it occurs."""
        return self.parts[1::2]

    def fill(self, values: Mapping[str, str | None], escape: Callable[[str], str] = str) -> str | None:
        """Returns the text with all values escaped, or None if a value is missing."""
        filled = [self.parts[0]]
        for name, following in zip(self.parts[1::2], self.parts[2::2], strict=True):
            value = values.get(name)
            if value is None:
                return None
            filled += [escape(value), following]
        return "".join(filled)

    def fill_topic(self, values: Mapping[str, str | None], before: str = "") -> str | None:
        """Returns a topic or filter, or the part of one after `before`, or None if a value is missing.

        Each value must stay within its own level. Raises UnfitValueError, see `check_level`.
        """
        before += self.parts[0]
        for name, following in zip(self.parts[1::2], self.parts[2::2], strict=True):
            value = values.get(name)
            if value is None:
                return None
            check_level(name, value, before)
            before += "x" + following
        return self.fill(values)

    def bind(self, marker: Callable[[int], str]) -> tuple[str, tuple[str, ...]]:
        """Returns (text with a marker for each parameter, names of the parameters). Quotes around a placeholder are removed."""
        count = len(self.names)
        text = "".join(part if place % 2 == 0 else _MASK % (place // 2) for place, part in enumerate(self.parts))
        for number in range(count):
            mask = _MASK % number
            for quote in ("'", '"'):
                text = text.replace(quote + mask + quote, mask)
            text = text.replace(mask, marker(number + 1))
        return text, self.names

    def words(self) -> list[Callable[[Mapping[str, str | None]], str | None]]:
        """Returns the words of a command line, each as a template of its own: a value with blanks stays one word."""
        words: list[list[str]] = [[""]]
        for place, part in enumerate(self.parts):
            if place % 2:
                words[-1] += [part, ""]
                continue
            first, *more = re.split(r"\s+", part)
            words[-1][-1] += first
            words += [[word] for word in more]
        return [partial(Template(tuple(word)).fill) for word in words if word != [""]]
