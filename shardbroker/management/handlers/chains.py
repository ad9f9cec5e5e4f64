"""Ordered lists in the configuration: authenticators, sources of rules, ExHook servers. Changes are those of `config update`."""

import asyncio
import json
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from shardbroker.config.keys import plain
from shardbroker.control import ControlError
from shardbroker.control.chain_verbs import ChainChange, ChainMember, ChainMove, ChainNew, ChainOrder
from shardbroker.control.toml import as_toml, assignments, nested
from shardbroker.control.verbs import Params
from shardbroker.management.context import Context, handles
from shardbroker.management.handlers.configuration import everywhere

KEYS = {"auth": "auth.chain", "acl sources": "acl.sources", "exhook": "exhook.servers"}
"""Verbs begin with this -> key of their list. Members of the first two are names, whose settings are in a section beside the list;
those of the last are tables."""

_turn = asyncio.Lock()
"""A list is read and written by one verb at a time."""


@handles("auth list")
async def list_authenticators(context: Context, params: Params) -> dict[str, Any]:
    return _listed(context, "auth")


@handles("acl sources list")
async def list_sources(context: Context, params: Params) -> dict[str, Any]:
    return _listed(context, "acl sources")


@handles("exhook servers")
async def list_servers(context: Context, params: Params) -> dict[str, Any]:
    rows = [_plain(server) for server in context.configuration.settings.exhook.servers]
    return {"data": rows, "cursor": None}


def _plain(model: BaseModel) -> dict[str, Any]:
    """Returns all keys of a table as JSON has them, with those that have their defaults."""
    found: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        found[name] = _plain(value) if isinstance(value, BaseModel) else "disabled" if value is None else plain(field, value)
    return found


def _listed(context: Context, kind: str) -> dict[str, Any]:
    key = KEYS[kind]
    return {"data": [{"name": name, "settings": _settings(context, key, name)} for name in _members(context, key)], "cursor": None}


def _settings(context: Context, key: str, name: str) -> dict[str, Any]:
    """Returns the settings of a member of a list of names, its secrets masked; modules and the built-in source have none."""
    section = f"{key.partition('.')[0]}.{name}"
    try:
        return nested(context.configuration.rows(section), section)
    except ControlError:
        return {}


def _register(kind: str) -> None:
    """Registers the verbs of one list."""
    key = KEYS[kind]

    @handles(f"{kind} add")
    async def add(context: Context, params: ChainNew) -> dict[str, Any]:
        given = _object(params.definition)
        member, values = _member(context, key, params.name, given)

        def added(members: list[Any]) -> list[Any]:
            if _place(members, params.name) is not None:
                raise ControlError("ALREADY_EXISTS", f"{params.name!r} is in {key} already")
            return _inserted(members, member, params.position, key)

        return await _edit(context, key, added, values)

    @handles(f"{kind} change")
    async def change(context: Context, params: ChainChange) -> dict[str, Any]:
        given = _object(params.definition)
        _, values = _member(context, key, params.name, given)

        def changed(members: list[Any]) -> list[Any]:
            place = _found(members, params.name, key)
            if isinstance(members[place], dict):
                members[place] = _member(context, key, params.name, {**members[place], **given})[0]
            return members

        return await _edit(context, key, changed, values)

    @handles(f"{kind} delete")
    async def delete(context: Context, params: ChainMember) -> dict[str, Any]:
        def removed(members: list[Any]) -> list[Any]:
            del members[_found(members, params.name, key)]
            return members

        return await _edit(context, key, removed)

    @handles(f"{kind} move")
    async def move(context: Context, params: ChainMove) -> dict[str, Any]:
        def moved(members: list[Any]) -> list[Any]:
            member = members.pop(_found(members, params.name, key))
            if params.position in (f"before:{params.name}", f"after:{params.name}"):
                raise ControlError("BAD_REQUEST", f"position: must name another member than {params.name!r}")
            return _inserted(members, member, params.position, key)

        return await _edit(context, key, moved)

    @handles(f"{kind} order")
    async def order(context: Context, params: ChainOrder) -> dict[str, Any]:
        def ordered(members: list[Any]) -> list[Any]:
            names = [_name(one) for one in members]
            if sorted(params.names) != sorted(names):
                raise ControlError("BAD_REQUEST", f"names: must be those of {key}, each once: {', '.join(names) or 'none'}")
            return [members[names.index(name)] for name in params.names]

        return await _edit(context, key, ordered)


for _kind in KEYS:
    _register(_kind)


async def _edit(
    context: Context, key: str, change: Callable[[list[Any]], list[Any]], values: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Stores the changed list together with `values`, and returns what `config update` returns. Raises ControlError."""
    async with _turn:
        (row,) = context.configuration.rows(key)
        if row["source"] != "default" and not row["source"].startswith("file "):
            raise ControlError("NOT_AVAILABLE", f"{key}: must be set in a file to be changed here, got a value of {row['source']}")
        members = change(_members(context, key))
        done = await context.configuration.set_many({**(values or {}), key: as_toml(members)})
    return await everywhere(context, done)


def _members(context: Context, key: str) -> list[Any]:
    (row,) = context.configuration.rows(key)
    return list(tomllib.loads(f"members = {row['value']}")["members"])


def _member(context: Context, key: str, name: str, given: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """Returns a member of the list, and the keys beside it that change with their values: a masked secret that is sent back is no
    change."""
    if key == KEYS["exhook"]:
        return {**given, "name": name}, {}
    changes = _changes(given, _settings(context, key, name))
    return name, assignments(changes, f"{key.partition('.')[0]}.{name}.")


def _changes(given: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Returns the given values that differ from known ones."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        before = known.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := _changes(value, before):
                found[name] = inner
        elif name not in known or value != before:
            found[name] = value
    return found


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ControlError("BAD_REQUEST", f"definition: must be a JSON object, got {text[:80]!r}")
    return found


def _name(member: Any) -> str:
    return str(member["name"] if isinstance(member, dict) else member)


def _place(members: list[Any], name: str) -> int | None:
    return next((place for place, member in enumerate(members) if _name(member) == name), None)


def _found(members: list[Any], name: str, key: str) -> int:
    place = _place(members, name)
    if place is None:
        raise ControlError("NOT_FOUND", f"no {name!r} in {key}")
    return place


def _inserted(members: list[Any], member: Any, position: str, key: str) -> list[Any]:
    where, _, other = position.partition(":")
    place = {"front": 0, "rear": len(members)}.get(where)
    if place is None:
        place = _found(members, other, key) + (where == "after")
    return [*members[:place], member, *members[place:]]
