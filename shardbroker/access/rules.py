"""Rules for publishing and subscribing, the common form of those in files, stores, back ends and tokens.

    Rule (as read) -> RuleSet (in order) -> for_client(): the rules for one client, placeholders filled -> decide()

A rule's topic covers a topic name as an MQTT filter matches it. It covers a subscription's filter if it covers everything that the
filter matches: `a/+` covers `a/b` and `a/+`, not `a/#`. A rule that denies is stricter: `a/+` denies `a/#` too. As in MQTT, a
wildcard in front covers no topic that begins with `$`.

A client chooses the value of a placeholder, so a value counts only if it stays within its own level, see
`placeholders.check_level`. With another value, such as `+` or `a/b`, an allowing topic covers nothing, and a denying one everything
from that level on: at least all that the value could have meant.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from shardbroker.access.contract import AuthRequest, Client
from shardbroker.access.placeholders import Template, UnfitValueError, values_of

__all__ = ["ClientRules", "Rule", "RuleError", "RuleSet", "client_rules", "rule_of"]

PUBLISH, SUBSCRIBE = 1, 2
ACTIONS = {"publish": PUBLISH, "subscribe": SUBSCRIBE, "all": PUBLISH | SUBSCRIBE, "pubsub": PUBLISH | SUBSCRIBE}
EQ = "eq "
"""Prefix of a topic that is meant literally, wildcards too."""
TOPIC_NAMES = ("username", "clientid", "cert_common_name", "listener", "peerhost")
"""Placeholders allowed in the topics of rules."""
WHO_KEYS = ("username", "clientid", "ipaddr", "listener", "and", "or")

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class RuleError(ValueError):
    """An invalid rule; the text gives the invalid part and the allowed ones."""


@dataclass(frozen=True)
class Who:
    """A condition on a client. `value` is text, a pattern, networks, or a tuple of further conditions."""

    key: str
    value: Any = None

    def matches(self, client: Client) -> bool:
        if self.key == "all":
            return True
        if self.key == "and":
            return all(one.matches(client) for one in self.value)
        if self.key == "or":
            return any(one.matches(client) for one in self.value)
        if self.key == "ipaddr":
            return _in_networks(client.peerhost, self.value)
        text = {"username": client.username, "clientid": client.client_id, "listener": client.listener}[self.key]
        if text is None:
            return False
        return self.value.search(text) is not None if isinstance(self.value, re.Pattern) else bool(text == self.value)


@dataclass(frozen=True)
class Rule:
    """One rule as written. topics None: every topic. qos and retain None: any."""

    allow: bool
    who: Who = Who("all")
    actions: int = PUBLISH | SUBSCRIBE
    qos: tuple[int, ...] | None = None
    retain: bool | None = None
    topics: tuple["Topic", ...] | None = None


@dataclass(frozen=True)
class Topic:
    """A topic of a rule. levels: one template each, or the wildcards themselves; with `eq` these are templates too."""

    text: str
    literal: bool = False

    @cached_property
    def levels(self) -> tuple[Template | str, ...]:
        return tuple(
            level if level in ("+", "#") and not self.literal else Template.parse(level, TOPIC_NAMES)
            for level in self.text.split("/")
        )

    def fill(self, values: Mapping[str, str | None], allow: bool) -> "Levels | None":
        """Returns the levels for one client.

        None: the topic covers nothing, since the client has no value for a placeholder, or one that must not allow.
        """
        filled: list[str | None] = []
        for place, level in enumerate(self.levels):
            if isinstance(level, str):
                filled.append(_ANY if level == "+" else _REST)
                continue
            try:
                text = level.fill_topic(values, "/" if place else "")
            except UnfitValueError:
                return None if allow else (*filled, _ALL)
            if text is None:
                return None
            filled.append(text)
        return tuple(filled)


Levels: TypeAlias = tuple[str | None, ...]
_ANY = None
_REST = "\0#"
"""Represents `#`; no topic contains a NUL."""
_ALL = "\0$"
"""Represents a `#` that also covers topics with `$` in front."""


@dataclass(frozen=True)
class ClientRules:
    """The rules that apply to one client."""

    rules: tuple[tuple[bool, int, tuple[int, ...] | None, bool | None, tuple[Levels, ...] | None], ...]

    def decide(self, request: AuthRequest) -> bool | None:
        """Returns the decision of the first rule that matches, or None."""
        action = ACTIONS[request.action]
        levels = request.topic.split("/")
        for allow, actions, qos, retain, topics in self.rules:
            if not actions & action or (qos is not None and request.qos not in qos):
                continue
            if action == PUBLISH and retain is not None and retain != request.retain:
                continue
            if topics is None or any(_covers(topic, levels, allow) for topic in topics):
                return allow
        return None


class RuleSet:
    """An ordered set of rules; the first that matches decides."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules = tuple(rules)

    def for_client(self, client: Client) -> ClientRules:
        """Returns the rules for a client, with placeholders filled. Called once per client."""
        values = values_of(client)
        found = []
        for rule in self.rules:
            if not rule.who.matches(client):
                continue
            topics = None
            if rule.topics is not None:
                filled = [topic.fill(values, rule.allow) for topic in rule.topics]
                topics = tuple(topic for topic in filled if topic is not None)
            found.append((rule.allow, rule.actions, rule.qos, rule.retain, topics))
        return ClientRules(tuple(found))


def _covers(topic: Levels, levels: Sequence[str], allow: bool) -> bool:
    if levels[0].startswith("$") and topic[0] in (_ANY, _REST):
        return False
    for place, level in enumerate(topic):
        if level in (_REST, _ALL):
            return True
        if place >= len(levels):
            return False
        if level is _ANY:
            if levels[place] == "#" and allow:
                return False  # the subscription would match more than this rule allows
        elif level != levels[place]:
            return False
    return len(topic) == len(levels)


def _in_networks(host: str, networks: Sequence[Network]) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


# --- reading rules ------------------------------------------------------------------------------------------------------------


def rule_of(plain: Mapping[str, Any]) -> Rule:
    """Returns a rule from a table: of TOML, JSON, a row, a document. Raises RuleError."""
    known = {"permission", "who", "action", "qos", "retain", "topic", "topics", "username", "clientid", "ipaddress"}
    if not isinstance(plain, Mapping):
        raise RuleError(f"rule: must be a table of {', '.join(sorted(known))}, got {plain!r}")
    permission = str(plain.get("permission", "")).lower()
    if permission not in ("allow", "deny"):
        raise RuleError(f"permission: must be allow or deny, got {plain.get('permission')!r}")
    topics = plain.get("topics", plain.get("topic"))
    return Rule(
        permission == "allow",
        _who_of_row(plain),
        actions_of(plain.get("action", "all")),
        _qos(plain.get("qos")),
        _retain(plain.get("retain")),
        None if topics is None else tuple(topic_of(one) for one in ([topics] if isinstance(topics, str) else topics)),
    )


def client_rules(acl: Any) -> RuleSet:
    """Returns the rules that an authenticator or a token gives to one client. Raises RuleError.

    A list of tables, checked before the sources, or {"pub": [...], "sub": [...], "all": [...]}, which denies the rest.
    """
    if isinstance(acl, Mapping):
        rules = []
        for key, action in (("pub", "publish"), ("sub", "subscribe"), ("all", "all")):
            topics = acl.get(key, ())
            if not isinstance(topics, list | tuple) or not all(isinstance(topic, str) for topic in topics):
                raise RuleError(f"{key} of a client's acl: must be a list of topics")
            rules.append(Rule(True, actions=ACTIONS[action], topics=tuple(topic_of(topic) for topic in topics)))
        return RuleSet([*rules, Rule(False)])
    if not isinstance(acl, list | tuple):
        raise RuleError("a client's acl: must be a list of rules, or a table of pub, sub, all")
    return RuleSet(rule_of(one) for one in acl)


def topic_of(text: Any) -> Topic:
    """Returns a topic; the prefix `eq ` makes it literal. Raises RuleError."""
    if not isinstance(text, str) or not text:
        raise RuleError(f"topic: must be a topic filter, or `eq ` and a topic, got {text!r}")
    topic = Topic(text.removeprefix(EQ), True) if text.startswith(EQ) else Topic(text)
    try:
        levels = topic.levels
    except ValueError as error:
        raise RuleError(str(error)) from None
    if not topic.literal:
        for place, level in enumerate(levels):
            if level == "#" and place != len(levels) - 1:
                raise RuleError(f"topic: must have # at the end only, got {text!r}")
            if isinstance(level, Template) and any(c in part for part in level.parts[::2] for c in "+#"):
                raise RuleError(f"topic: must have + and # as whole levels only, got {text!r}")
    return topic


def actions_of(text: Any) -> int:
    """Returns the actions of a name as a mask. Raises RuleError."""
    if not isinstance(text, str) or text.lower() not in ACTIONS:
        raise RuleError(f"action: must be publish, subscribe or all, got {text!r}")
    return ACTIONS[text.lower()]


def who_of(key: str, value: Any) -> Who:
    """Returns a condition; a pattern is given as re.Pattern, addresses as texts. Raises RuleError."""
    if key in ("and", "or"):
        return Who(key, tuple(value))
    if key == "ipaddr":
        return Who(key, tuple(network_of(one) for one in ([value] if isinstance(value, str) else value)))
    if not isinstance(value, str | re.Pattern):
        raise RuleError(f"{key}: must be text or a pattern, got {value!r}")
    return Who(key, value)


def pattern_of(text: Any) -> re.Pattern[str]:
    """Returns a compiled pattern. Raises RuleError."""
    try:
        return re.compile(text)
    except (re.error, TypeError) as error:
        raise RuleError(f"pattern {text!r}: {error}") from None


def network_of(text: Any) -> Network:
    """Returns an address or a network. Raises RuleError."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise RuleError(f"address: must be such as 10.0.0.1, 10.0.0.0/8, ::1 or fd00::/8, got {text!r}") from None


def _who_of_row(plain: Mapping[str, Any]) -> Who:
    conditions = [_who(plain["who"])] if plain.get("who") is not None else []
    for key, name in (("username", "username"), ("clientid", "clientid"), ("ipaddress", "ipaddr")):
        value = plain.get(key)
        if value not in (None, ""):
            conditions.append(who_of(name, value))
    if not conditions:
        return Who("all")
    return conditions[0] if len(conditions) == 1 else Who("and", tuple(conditions))


def _who(plain: Any) -> Who:
    if plain == "all":
        return Who("all")
    if not isinstance(plain, Mapping) or len(plain) != 1:
        raise RuleError(f'who {plain!r}: allowed is "all" or a table with one of {", ".join(WHO_KEYS)}, username_re, clientid_re')
    ((key, value),) = plain.items()
    if key in ("username_re", "clientid_re"):
        return Who(key.removesuffix("_re"), pattern_of(value))
    if key in ("and", "or") and isinstance(value, list):
        return Who(key, tuple(_who(one) for one in value))
    if key in WHO_KEYS and key not in ("and", "or"):
        return who_of(key, value)
    raise RuleError(f"who: must be one of {', '.join(WHO_KEYS)}, username_re, clientid_re, got {key!r}")


def _qos(value: Any) -> tuple[int, ...] | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        value = value.split(",")
    try:
        levels = tuple(int(one) for one in (value if isinstance(value, list | tuple) else [value]))
    except (TypeError, ValueError):
        levels = (-1,)
    if any(level not in (0, 1, 2) for level in levels):
        raise RuleError(f"qos: must be 0, 1, 2 or a list of them, got {value!r}")
    return levels


def _retain(value: Any) -> bool | None:
    if value is None or value in ("", "all"):
        return None
    if isinstance(value, bool):
        return value
    known = {"true": True, "1": True, "false": False, "0": False}
    if str(value).lower() not in known:
        raise RuleError(f"retain: must be true, false or all, got {value!r}")
    return known[str(value).lower()]
