"""Authenticators, sources of rules and ExHook servers: made, changed, ordered and removed, as in EMQX.

By hand: EMQX's ids (`password_based:http`) and types (`built_in_database`), settings beside them in one object, and responses
without a body.
"""

import json
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from shardbroker.api.calls import Call
from shardbroker.api.shapes import Body
from shardbroker.control import ControlError

__all__ = ["router"]

router = APIRouter()
PASSWORD = "password_based"
IDS = {"scram": "scram:built_in_database", "jwt": "jwt", "builtin": f"{PASSWORD}:built_in_database"}
"""Members of auth.chain -> EMQX's ids; others are password_based:NAME."""
NAMES = {id: name for name, id in IDS.items()}
BUILT_IN = "built_in_database"
"""Type of the source `builtin`."""
HASHES = {
    "name": "hash", "salt_position": "salt_position", "mac_fun": "pbkdf2_mac", "iterations": "pbkdf2_iterations",
    "dk_length": "pbkdf2_length",
}  # fmt: skip
"""Keys of EMQX's password_hash_algorithm -> ours. `salt_rounds` is of new hashes, which EMQX and this broker only make in their own
databases."""
MEMBERS_MAX = 1000
"""Most members in a request; a list has each once."""


class Position(Body):
    position: str = Field(max_length=100, description="front, rear, before:NAME or after:NAME.", examples=["front"])


class OfId(Body):
    id: str = Field(max_length=100)


class OfType(Body):
    type: str = Field(max_length=100)


Ids = Annotated[list[OfId], Field(max_length=MEMBERS_MAX)]
Types = Annotated[list[OfType], Field(max_length=MEMBERS_MAX)]


# --- authentication ---------------------------------------------------------------------------------------------------------------


@router.get("/authentication", tags=["Access"])
async def authentication(call: Call) -> list[dict[str, Any]]:
    """The members of auth.chain in their order, with their settings; secrets are masked."""
    return [_authenticator(row) for row in (await call("auth list"))["data"]]


@router.post("/authentication", tags=["Access"])
async def add_authenticator(call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """Adds an authenticator at the end of auth.chain: `mechanism`, `backend`, and settings named as in `auth.NAME`. Secrets are set
    in the configuration file."""
    mechanism, backend = str(body.get("mechanism", "")), str(body.get("backend", ""))
    id = mechanism if not backend or mechanism == "jwt" else f"{mechanism}:{backend}"
    await call("auth add", name=_name(id), definition=_settings(body, id))
    return await _one(call, id)


@router.put("/authentication/order", tags=["Access"], status_code=204)
async def order_authenticators(call: Call, body: Ids) -> None:
    """Puts all members of auth.chain into an order."""
    await call("auth order", names=[_name(one.id) for one in body])


@router.get("/authentication/{id}", tags=["Access"])
async def show_authenticator(call: Call, id: str) -> dict[str, Any]:
    """A member of auth.chain with its settings; secrets are masked."""
    return await _one(call, id)


@router.put("/authentication/{id}", tags=["Access"])
async def change_authenticator(call: Call, id: str, body: dict[str, Any]) -> dict[str, Any]:
    """Changes the given settings of a member of auth.chain; omitted ones are kept."""
    await call("auth change", name=_name(id), definition=_settings(body, id))
    return await _one(call, id)


@router.delete("/authentication/{id}", tags=["Access"], status_code=204)
async def delete_authenticator(call: Call, id: str) -> None:
    """Removes a member from auth.chain; its settings and users are kept."""
    await call("auth delete", name=_name(id))


@router.put("/authentication/{id}/position/{position}", tags=["Access"], status_code=204)
async def move_authenticator(call: Call, id: str, position: str) -> None:
    """Moves a member of auth.chain to `front`, `rear`, `before:ID` or `after:ID`."""
    await call("auth move", name=_name(id), position=_position(position, _name))


# --- authorization ----------------------------------------------------------------------------------------------------------------


@router.get("/authorization/sources", tags=["Access"])
async def sources(call: Call) -> dict[str, Any]:
    """The sources of rules in their order, with their settings; secrets are masked."""
    return {"sources": [_source(row) for row in (await call("acl sources list"))["data"]]}


@router.post("/authorization/sources", tags=["Access"], status_code=204)
async def add_source(call: Call, body: dict[str, Any]) -> None:
    """Adds a source of rules in front of the others, as EMQX does: `type`, and settings named as in `acl.TYPE`. Secrets are set in
    the configuration file."""
    type = str(body.get("type", ""))
    await call("acl sources add", name=_source_name(type), definition=_source_settings(body, type), position="front")


@router.put("/authorization/sources/order", tags=["Access"], status_code=204)
async def order_sources(call: Call, body: Types) -> None:
    """Puts all sources of rules into an order."""
    await call("acl sources order", names=[_source_name(one.type) for one in body])


@router.get("/authorization/sources/{type}", tags=["Access"])
async def show_source(call: Call, type: str) -> dict[str, Any]:
    """A source of rules with its settings; secrets are masked."""
    return _source(await _row(call, "acl sources list", _source_name(type), f"source {type!r} in acl.sources"))


@router.put("/authorization/sources/{type}", tags=["Access"], status_code=204)
async def change_source(call: Call, type: str, body: dict[str, Any]) -> None:
    """Changes the given settings of a source of rules; omitted ones are kept."""
    await call("acl sources change", name=_source_name(type), definition=_source_settings(body, type))


@router.delete("/authorization/sources/{type}", tags=["Access"], status_code=204)
async def delete_source(call: Call, type: str) -> None:
    """Removes a source of rules; its settings and rules are kept."""
    await call("acl sources delete", name=_source_name(type))


@router.post("/authorization/sources/{type}/move", tags=["Access"], status_code=204)
async def move_source(call: Call, type: str, body: Position) -> None:
    """Moves a source of rules to `front`, `rear`, `before:TYPE` or `after:TYPE`."""
    await call("acl sources move", name=_source_name(type), position=_position(body.position, _source_name))


# --- ExHook -----------------------------------------------------------------------------------------------------------------------


@router.post("/exhooks", tags=["ExHook"])
async def add_server(call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """Adds an ExHook server behind the others: `name`, `url`, and other settings of `exhook.servers`."""
    given = dict(body)
    name = str(given.pop("name", ""))
    await call("exhook add", name=name, definition=json.dumps(given))
    return await _server(call, name)


@router.put("/exhooks/{name}", tags=["ExHook"])
async def change_server(call: Call, name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Changes the given settings of an ExHook server; omitted ones are kept."""
    given = dict(body)
    _same("name", given, name)
    await call("exhook change", name=name, definition=json.dumps(given))
    return await _server(call, name)


@router.delete("/exhooks/{name}", tags=["ExHook"], status_code=204)
async def delete_server(call: Call, name: str) -> None:
    """Removes an ExHook server."""
    await call("exhook delete", name=name)


@router.post("/exhooks/{name}/move", tags=["ExHook"], status_code=204)
async def move_server(call: Call, name: str, body: Position) -> None:
    """Moves an ExHook server to `front`, `rear`, `before:NAME` or `after:NAME`."""
    await call("exhook move", name=name, position=body.position)


async def _server(call: Call, name: str) -> dict[str, Any]:
    """Returns the settings of an ExHook server."""
    return await _row(call, "exhook servers", name, f"server {name!r} in exhook.servers")


async def _one(call: Call, id: str) -> dict[str, Any]:
    return _authenticator(await _row(call, "auth list", _name(id), f"authenticator {id!r} in auth.chain"))


async def _row(call: Call, verb: str, name: str, what: str) -> dict[str, Any]:
    """Returns the member of this name in a list. Raises ControlError."""
    for row in (await call(verb))["data"]:
        if row["name"] == name:
            return dict(row)
    raise ControlError("NOT_FOUND", f"no {what}")


def _authenticator(row: dict[str, Any]) -> dict[str, Any]:
    id = IDS.get(row["name"], f"{PASSWORD}:{row['name']}")
    mechanism, _, backend = id.partition(":")
    head = {"id": id, "mechanism": mechanism, "enable": True, "name": row["name"]}
    return {**head, **({"backend": backend} if backend else {}), **row["settings"]}


def _name(id: str) -> str:
    """Returns the member of auth.chain. Raises ControlError."""
    mechanism, _, backend = id.partition(":")
    if id in NAMES:
        return NAMES[id]
    if mechanism != PASSWORD or not backend:
        allowed = f"{', '.join(NAMES)}, or {PASSWORD}:BACKEND"
        raise ControlError("BAD_REQUEST", f"id: must be {allowed}, got {id[:80]!r}")
    return backend


def _settings(body: dict[str, Any], id: str) -> str:
    """Returns the settings of an authenticator as JSON, without what names it. Raises ControlError."""
    given = dict(body)
    mechanism, _, backend = id.partition(":")
    for name, value in (("id", id), ("mechanism", mechanism), ("backend", backend or "jwt"), ("name", _name(id))):
        _same(name, given, value)
    _enabled(given)
    algorithm = given.get("password_hash_algorithm")
    if isinstance(algorithm, dict) and _name(id) not in NAMES.values():
        del given["password_hash_algorithm"]
        for name, value in algorithm.items():
            if name not in (*HASHES, "salt_rounds"):
                allowed = f"{', '.join(HASHES)}, salt_rounds"
                raise ControlError("BAD_REQUEST", f"password_hash_algorithm: must have {allowed}, got {name[:80]!r}")
            if name in HASHES:
                given[HASHES[name]] = value
    return json.dumps(given)


def _source(row: dict[str, Any]) -> dict[str, Any]:
    return {"type": BUILT_IN if row["name"] == "builtin" else row["name"], "enable": True, **row["settings"]}


def _source_name(type: str) -> str:
    if type == "builtin":
        raise ControlError("BAD_REQUEST", f"type: must be {BUILT_IN}, as in EMQX, got builtin")
    return "builtin" if type == BUILT_IN else type


def _source_settings(body: dict[str, Any], type: str) -> str:
    given = dict(body)
    _same("type", given, type)
    _enabled(given)
    return json.dumps(given)


def _same(name: str, given: dict[str, Any], value: str) -> None:
    """Takes what only names the member out of a body. Raises ControlError if it names another one."""
    if given.pop(name, value) != value:
        raise ControlError("BAD_REQUEST", f"{name}: must be {value}, which cannot change")


def _enabled(given: dict[str, Any]) -> None:
    if given.pop("enable", True) is not True:
        raise ControlError("BAD_REQUEST", "enable: must be true; what is not to be used is deleted, and its settings are kept")


def _position(text: str, name_of: Any) -> str:
    """Returns a position with names as the verbs have them."""
    where, separator, other = text.partition(":")
    return f"{where}:{name_of(other)}" if separator and where in ("before", "after") else text
