"""Rules whose messages go to another broker as they are: without an evaluation, so their SQL selects whole messages."""

from collections.abc import Iterable

from shardbroker.rules.parser import parse
from shardbroker.rules.syntax import Rule, Star

__all__ = ["check_rule", "check_shipped", "is_shipped"]

SHIPS = "shardbroker:"
"""Begin of the ids of actions that take whole messages from the journal."""


def is_shipped(action: str) -> bool:
    """Returns whether an action, by its id, takes whole messages."""
    return action.startswith(SHIPS)


def check_shipped(tree: Rule, actions: Iterable[str]) -> None:
    """Raises ValueError for SQL that an action of this kind does not carry out."""
    if not any(map(is_shipped, actions)):
        return
    is_whole = len(tree.fields) == 1 and isinstance(tree.fields[0], Star) and tree.where is None and not tree.is_foreach
    if not is_whole or any(one.startswith("$events/") or one.startswith("$sources/") for one in tree.filters):
        raise ValueError(
            "sql: must be SELECT * FROM topic filters, without WHERE, for an action of the type shardbroker; republish what a rule "
            "makes of messages, and name that topic"
        )


def check_rule(sql: str, actions: Iterable[object]) -> None:
    """Raises ValueError for the SQL of a rule whose actions do not carry it out."""
    if any(is_shipped(str(action)) for action in actions):
        check_shipped(parse(sql), map(str, actions))
