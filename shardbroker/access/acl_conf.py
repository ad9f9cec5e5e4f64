"""Reads EMQX's acl.conf: Erlang terms, one rule each; the first match decides.

    {allow, {user, "dashboard"}, subscribe, ["$SYS/#"]}.
    {deny, {'or', [{ipaddr, "10.0.0.0/8"}, {client, {re, "^test"}}]}, {publish, [{qos, 1}, {retain, false}]}, [{eq, "#"}, "a/#"]}.
    {allow, all}.                                                            % a comment
"""

import re
from dataclasses import dataclass
from typing import Any

from shardbroker.access.rules import EQ, Rule, RuleError, Who, actions_of, pattern_of, topic_of, who_of

__all__ = ["parse_acl_conf"]

_TOKEN = re.compile(
    r"""(?P<space>\s+|%[^\n]*)
    |(?P<punctuation>[{}\[\],]|<<|>>)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<quoted>'(?:[^'\\]|\\.)*')
    |(?P<number>-?\d+)
    |(?P<atom>[a-z][A-Za-z0-9_@]*)
    |(?P<end>\.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
WHO_NAMES = {"user": "username", "username": "username", "client": "clientid", "clientid": "clientid", "listener": "listener"}
DEEPEST = 32
"""Limit of the nesting of terms: no valid rule is deeper."""


@dataclass(frozen=True)
class Atom:
    name: str


@dataclass(frozen=True)
class Tuple:
    items: tuple[Any, ...]


def parse_acl_conf(text: str) -> list[Rule]:
    """Returns the rules of a file. Raises RuleError with the line."""
    reader = _Reader(text)
    rules = []
    while not reader.at_end():
        line = reader.line()
        try:
            rules.append(_rule(reader.term(0)))
            reader.expect(".")
        except RuleError as error:
            raise RuleError(f"line {line}: {error}") from None
    return rules


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise RuleError(f"line {text.count(chr(10), 0, at) + 1}: {text[at : at + 20]!r} is not an Erlang term")
            if match.lastgroup != "space":
                self._tokens.append((match.lastgroup or "", match.group(), at))
            at = match.end()
        self._at = 0

    def at_end(self) -> bool:
        return self._at >= len(self._tokens)

    def line(self) -> int:
        return self._text.count("\n", 0, self._tokens[self._at][2]) + 1

    def take(self) -> tuple[str, str]:
        if self.at_end():
            raise RuleError("file ends within a rule; a rule ends with a full stop")
        kind, text, _ = self._tokens[self._at]
        self._at += 1
        return kind, text

    def peek(self) -> str:
        return "" if self.at_end() else self._tokens[self._at][1]

    def expect(self, wanted: str) -> None:
        _, text = self.take()
        if text != wanted:
            raise RuleError(f"expected {wanted!r}, got {text!r}")

    def term(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise RuleError(f"terms nested deeper than {DEEPEST} levels")
        kind, text = self.take()
        if kind == "string":
            return _unescaped(text)
        if kind == "number":
            return int(text)
        if kind in ("atom", "quoted"):
            return Atom(text if kind == "atom" else _unescaped(text))
        if text == "{":
            return Tuple(self.items("}", depth))
        if text == "[":
            return list(self.items("]", depth))
        if text == "<<":
            inner = self.term(depth + 1)
            self.expect(">>")
            return inner
        raise RuleError(f"expected a term, got {text!r}")

    def items(self, closing: str, depth: int) -> tuple[Any, ...]:
        found: list[Any] = []
        if self.peek() == closing:
            self.take()
            return ()
        while True:
            found.append(self.term(depth + 1))
            _, text = self.take()
            if text == closing:
                return tuple(found)
            if text != ",":
                raise RuleError(f"expected a comma or {closing!r}, got {text!r}")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text[1:-1], flags=re.DOTALL)


def _rule(term: Any) -> Rule:
    match term:
        case Tuple((Atom("allow" | "deny" as permission), Atom("all"))):
            return Rule(permission == "allow")
        case Tuple((Atom("allow" | "deny" as permission), who)):
            return Rule(permission == "allow", _who(who))
        case Tuple((Atom("allow" | "deny" as permission), who, action)):
            actions, qos, retain = _action(action)
            return Rule(permission == "allow", _who(who), actions, qos, retain)
        case Tuple((Atom("allow" | "deny" as permission), who, action, topics)):
            actions, qos, retain = _action(action)
            return Rule(permission == "allow", _who(who), actions, qos, retain, _topics(topics))
    raise RuleError("rule: must be {allow | deny, Who}, {allow | deny, Who, Action} or {allow | deny, Who, Action, Topics}")


def _who(term: Any) -> Who:
    match term:
        case Atom("all"):
            return Who("all")
        case Tuple((Atom(name), Tuple((Atom("re"), str(pattern))))) if name in WHO_NAMES:
            return who_of(WHO_NAMES[name], pattern_of(pattern))
        case Tuple((Atom(name), str(text))) if name in WHO_NAMES:
            return who_of(WHO_NAMES[name], text)
        case Tuple((Atom(name), Atom("all"))) if name in WHO_NAMES:
            return Who("all")
        case Tuple((Atom("listener"), Atom(text))):
            return who_of("listener", text)
        case Tuple((Atom("ipaddr"), str(text))):
            return who_of("ipaddr", text)
        case Tuple((Atom("ipaddrs"), list(texts))):
            return who_of("ipaddr", texts)
        case Tuple((Atom("and" | "or" as name), list(terms))):
            return Who(name, tuple(_who(one) for one in terms))
        case Tuple((Atom("zone" | "client_attr" as name), *_)):
            raise RuleError(f"{name}: not supported by this broker")
    raise RuleError(
        "who: must be all, {user | client, Text or {re, Text}}, {ipaddr, Text}, {ipaddrs, [Text]}, {listener, Text}, "
        "{'and' | 'or', [Who]}"
    )


def _action(term: Any) -> tuple[int, tuple[int, ...] | None, bool | None]:
    match term:
        case Atom(name):
            return actions_of(name), None, None
        case Tuple((Atom(name), list(options))):
            qos: tuple[int, ...] | None = None
            retain: bool | None = None
            for option in options:
                match option:
                    case Tuple((Atom("qos"), int(level))) if level in (0, 1, 2):
                        qos = (level,)
                    case Tuple((Atom("qos"), list(levels))) if levels and all(level in (0, 1, 2) for level in levels):
                        qos = tuple(levels)
                    case Tuple((Atom("retain"), Atom("true" | "false" as flag))):
                        retain = flag == "true"
                    case Tuple((Atom("retain"), Atom("all") | 0 | 1 as flag)):
                        retain = None if isinstance(flag, Atom) else bool(flag)
                    case _:
                        raise RuleError("option of an action: must be {qos, 0..2 or a list} or {retain, true | false | all}")
            return actions_of(name), qos, retain
    raise RuleError("action: must be publish, subscribe, all, or {one of them, [{qos, ...}, {retain, ...}]}")


def _topics(term: Any) -> tuple[Any, ...] | None:
    if term == Atom("all"):
        return None
    if isinstance(term, str):
        term = [term]
    if not isinstance(term, list):
        raise RuleError("topics: must be a list")
    topics = []
    for one in term:
        match one:
            case Atom("all"):
                return None
            case str(text):
                topics.append(topic_of(text))
            case Tuple((Atom("eq"), str(text))):
                topics.append(topic_of(EQ + text))
            case _:
                raise RuleError("topic: must be Text or {eq, Text}")
    return tuple(topics)
