"""Topics that the configuration changes or adds: `rewrite.rules` and `auto_subscribe.topics` (docs/topics.md).

The cache entry of a topic has its rule for PUBLISH, so that a topic without a rule costs one test.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardbroker.access.placeholders import Template, UnfitValueError, check_level
from shardbroker.config.auto_subscribe import AUTO_NAMES
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import matches, parse_subscription

__all__ = ["AutoTopics", "Rewriting", "Rule"]

_PART = re.compile(r"\$(?:(\d+)|\{(\w+)\})")


class Rule:
    """One of `rewrite.rules`, ready to be used."""

    __slots__ = ("filter", "parts", "pattern")

    def __init__(self, filter: str, pattern: str, dest: str) -> None:
        self.filter = filter.encode()
        self.pattern = re.compile(pattern)
        # text, group or None, placeholder or None, text, ...
        self.parts: list[str | None] = _PART.split(dest)

    def apply(self, topic: bytes, client_id: bytes, username: bytes | None) -> bytes | None:
        """What becomes of a topic; None: it stays, since `re` finds nothing in it, the client has no user name, or one that is more
        than a level: the rules of access have looked at the topic alone, not at what would become of it."""
        found = self.pattern.search(topic.decode())
        if found is None:
            return None
        values = {"clientid": client_id.decode(), "username": None if username is None else username.decode()}
        text = self.parts[0] or ""
        for place in range(1, len(self.parts), 3):
            group, name, following = self.parts[place : place + 3]
            value = found.group(int(group)) or "" if group else values[name or ""]
            if value is None:
                return None
            if name:
                try:
                    check_level(name, value, text)
                except UnfitValueError:
                    return None
            text += value + (following or "")
        return text.encode()


class Rewriting:
    """All rules, by what they are for."""

    def __init__(self, rules: Iterable[Any]) -> None:
        made = [(rule.action, Rule(rule.source_topic, rule.re, rule.dest_topic)) for rule in rules]
        self._publish = [rule for action, rule in made if action != "subscribe"]
        self._subscribe = [rule for action, rule in made if action != "publish"]

    def of_topic(self, topic: bytes) -> Rule | None:
        """Returns the rule for a PUBLISH to this topic, or None."""
        return _first(self._publish, topic)

    def filter(self, wire_filter: bytes, client_id: bytes, username: bytes | None) -> bytes:
        """A filter of SUBSCRIBE or UNSUBSCRIBE as it is used; a shared one keeps its group."""
        try:
            _, filter = parse_subscription(wire_filter)
        except MqttError:
            return wire_filter  # refused where it is used
        rule = _first(self._subscribe, filter)
        changed = None if rule is None else rule.apply(filter, client_id, username)
        return wire_filter if changed is None else wire_filter[: len(wire_filter) - len(filter)] + changed


def _first(rules: Sequence[Rule], topic: bytes) -> Rule | None:
    return next((rule for rule in rules if matches(rule.filter, topic)), None)


class AutoTopics:
    """`auto_subscribe.topics`, ready to be used."""

    def __init__(self, topics: Iterable[Any]) -> None:
        self._topics = [
            (Template.parse(one.topic, AUTO_NAMES), one.qos | one.nl << 2 | one.rap << 3 | one.rh << 4) for one in topics
        ]

    def of(self, values: Mapping[str, str | None]) -> list[tuple[bytes, int]]:
        """(filter, subscription options byte) for a client with these placeholders.

        Left out is what needs a value that the client does not have, or one that would make another filter than was meant.
        """
        found = []
        for template, options in self._topics:
            try:
                filter = template.fill_topic(values)
            except UnfitValueError:
                continue
            if filter is not None:
                found.append((filter.encode(), options))
        return found
