"""Import of the acl_file of mosquitto as rules of this broker.

In mosquitto, `deny` lines of a section precede those that allow, lines of a user precede patterns, and a client may subscribe to
any filter and receives the topics that it may read. Here the first matching rule decides, and a filter as a whole is allowed or
denied. So read access to a filter is not imported if a denied topic lies within it: a subscription to the filter would deliver that
topic, too.
"""

from typing import Any

from shardbroker.config.foreign import Imported

__all__ = ["convert_acl"]

ACTIONS = {"read": "subscribe", "write": "publish", "readwrite": "all"}


class _Unfit(Exception):
    """Raised for a line that cannot be expressed; nothing of the file is imported then."""


def convert_acl(found: Imported, text: str, anonymous: bool) -> None:
    """Adds the rules to `found`, or restricts it. `anonymous`: whether clients without a user name may connect."""
    try:
        found.rules = _rules(found, text, anonymous)
    except _Unfit as error:
        found.close_rules(f"acl_file: {error}")
        return
    found.settings["acl", "sources"] = ["file"]
    found.settings["acl", "no_match"] = "deny"


def _rules(found: Imported, text: str, anonymous: bool) -> list[dict[str, Any]]:
    sections: dict[tuple[str, str], list[tuple[str, str]]] = {}
    user = ("anonymous", "")
    for number, line in enumerate(text.splitlines(), 1):
        key, _, value = line.strip().partition(" ")
        value = value.strip()
        if not key or key.startswith("#"):
            continue
        if key == "user" and value:
            user = ("user", value)
        elif key in ("topic", "pattern") and value:
            access, _, topic = value.partition(" ")
            if access not in (*ACTIONS, "deny"):
                access, topic = "readwrite", value
            section = ("pattern", "") if key == "pattern" else user
            sections.setdefault(section, []).append((access, _topic(number, topic.strip(), key == "pattern")))
        else:
            raise _Unfit(f"line {number}: {line.strip()!r} is not understood")
    rules: list[dict[str, Any]] = []
    for (kind, name), lines in sections.items():
        if kind == "user":
            rules += _section(found, {"username": name}, lines, _denied(lines))
    everywhere = [topic for lines in sections.values() for topic in _denied(lines)]  # a user's denials precede patterns
    rules += _section(found, "all", sections.get(("pattern", ""), []), everywhere)
    if anonymous and ("anonymous", "") in sections:
        raise _Unfit("lines before the first user are for clients without a name, which no rule here stands for")
    return rules


def _denied(lines: list[tuple[str, str]]) -> list[str]:
    return [topic for access, topic in lines if access == "deny"]


def _section(found: Imported, who: object, lines: list[tuple[str, str]], denied: list[str]) -> list[dict[str, Any]]:
    """`denied`: topics that the clients of the section must not receive."""
    rules: list[dict[str, Any]] = [
        {"permission": "deny", "who": who, "action": "all", "topics": [topic]} for topic in _denied(lines)
    ]
    for access, topic in lines:
        if access == "deny":
            continue
        action = ACTIONS[access]
        if action != "publish" and any(_overlap(topic, one) for one in denied):
            found.remark(f"acl_file: reading {topic}: a deny lies within it, so a subscription to it would get too much; left out")
            if action == "subscribe":
                continue
            action = "publish"
        rules.append({"permission": "allow", "who": who, "action": action, "topics": [topic]})
    return rules


def _topic(number: int, topic: str, pattern: bool) -> str:
    if not topic or "${" in topic or topic.startswith("eq "):
        raise _Unfit(f"line {number}: the topic {topic!r} cannot be written as a rule")
    return topic.replace("%c", "${clientid}").replace("%u", "${username}") if pattern else topic


def _overlap(one: str, other: str) -> bool:
    """Whether some topic matches both filters. A placeholder may be any level."""
    for left, right in zip(one.split("/"), other.split("/"), strict=False):
        if "#" in (left, right):
            return True
        if left != right and "+" not in (left, right) and "${" not in left + right:
            return False
    return one.count("/") == other.count("/") or one.endswith("#") or other.endswith("#")
