"""Verbs of ordered lists in the configuration: authenticators, sources of rules, ExHook servers."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shardbroker.control.verbs import Params, Verb, argument, table

__all__ = ["ChainChange", "ChainMember", "ChainMove", "ChainNew", "ChainOrder"]

MEMBERS_MAX = 1000
"""Most names in a request; a chain has each name once."""
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Position = Annotated[str, StringConstraints(pattern=r"^(front|rear|(before|after):[A-Za-z0-9][A-Za-z0-9_.-]{0,63})$")]
Settings = Annotated[str, StringConstraints(max_length=262_144)]
SETTINGS = """Settings as a JSON object, such as '{"url": "http://127.0.0.1:8080"}'; secrets only in the configuration file."""
POSITION = "front, rear, before:NAME or after:NAME."


class ChainMember(Params):
    """A member of the list."""

    name: Name = argument("Name of the member.")


class ChainNew(ChainMember):
    """A member that is added."""

    definition: Settings = argument(SETTINGS, "{}")
    position: Position = Field("rear", description=POSITION)


class ChainChange(ChainMember):
    """Settings that change; others stay as they are."""

    definition: Settings = argument(SETTINGS)


class ChainMove(ChainMember):
    """Where a member is moved to."""

    position: Position = argument(POSITION)


class ChainOrder(Params):
    """All members."""

    names: Annotated[list[Name], Field(max_length=MEMBERS_MAX)] = argument("Names of all members, in their new order.")


def _verbs(kind: Literal["auth", "acl sources", "exhook"], one: str, its: str) -> None:
    table(
        Verb(f"{kind} add", f"Adds {one}, in force at once and after restarts.", ChainNew, changes=True),
        Verb(f"{kind} change", f"Changes settings of {one}.", ChainChange, changes=True),
        Verb(f"{kind} delete", f"Removes {one}{its}.", ChainMember, changes=True),
        Verb(f"{kind} move", f"Moves {one} to another position.", ChainMove, changes=True),
        Verb(f"{kind} order", f"Puts all members into an order: {one} is used before those behind it.", ChainOrder, changes=True),
    )


table(
    Verb("auth list", "Authenticators of auth.chain in their order, with their settings.", columns=("name", "settings")),
    Verb("acl sources list", "Sources of rules in their order, with their settings.", columns=("name", "settings")),
    Verb("exhook servers", "Settings of ExHook servers, in the order in which they are called.", columns=("name", "enable", "url")),
)
_verbs("auth", "an authenticator", " from auth.chain; its settings and users are kept")
_verbs("acl sources", "a source of rules", " from acl.sources; its settings and rules are kept")
_verbs("exhook", "an ExHook server", " with its settings")
