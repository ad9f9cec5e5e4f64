"""Bans, users and rules of the broker's own database.

By hand: EMQX's names of fields and of authenticators, pages of lists that the verbs return whole, and rules as JSON.
"""

import json
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from shardbroker.api.calls import Call
from shardbroker.api.paging import Place, sliced
from shardbroker.api.shapes import Body, TimeMs, moment
from shardbroker.control import ControlError

__all__ = ["router"]

router = APIRouter(tags=["Access"])
BUILT_IN = {"password_based:built_in_database": False, "scram:built_in_database": True}
"""Authenticators with a user database -> whether its users are for SCRAM."""
RULES = "/authorization/sources/built_in_database/rules"
KINDS = {"users": "username", "clients": "clientid"}
"""Segment of the path -> kind of the owner of rules, which is also the name of the field."""
RULES_MAX = 100
"""Most rules of one user, client or all, as EMQX's default."""

BanKind = Literal["clientid", "username", "peerhost", "clientid_re", "username_re", "peerhost_net"]
Of = Literal["users", "clients"]
UserKind = Literal["username", "clientid"]
Authenticator = Literal["password_based:built_in_database", "scram:built_in_database"]


class Ban(Body):
    as_: BanKind = Field(alias="as")
    who: str = Field(min_length=1, max_length=65535)
    by: str | None = Field(None, max_length=400)
    reason: str = Field("", max_length=400)
    until: TimeMs | Literal["infinity"] = Field("infinity", description="Unix ms, RFC 3339 or infinity.")
    seconds: float | None = Field(None, gt=0, le=1e10, description="Duration, instead of `until`.")


class UserPlace(Place):
    user_id_type: UserKind = Field("username", description="Kind of `user_id`.")
    like_user_id: str | None = Field(None, description="Names that contain this text.")
    is_superuser: bool | None = None


class UserChange(Body):
    password: str = Field(min_length=1, max_length=65535)
    is_superuser: bool = False
    user_id_type: UserKind = "username"


class NewUser(UserChange):
    user_id: str = Field(min_length=1, max_length=65535)


class Rule(Body):
    topic: str = Field(min_length=1, max_length=65535)
    permission: Literal["allow", "deny"]
    action: Literal["publish", "subscribe", "all"]
    qos: list[Annotated[int, Field(ge=0, le=2)]] | None = None
    retain: bool | Literal["all"] | None = None


class Rules(Body):
    rules: list[Rule] = Field(max_length=RULES_MAX)


class RulesOf(Rules):
    username: str | None = Field(None, min_length=1, max_length=65535)
    clientid: str | None = Field(None, min_length=1, max_length=65535)


# --- bans -------------------------------------------------------------------------------------------------------------------------


@router.get("/banned")
async def list_bans(call: Call, place: Annotated[Place, Query()]) -> dict[str, Any]:
    """Bans."""
    return sliced([_ban(row) for row in (await call("banned list"))["data"]], place)


@router.post("/banned")
async def add_ban(call: Call, body: Ban) -> dict[str, Any]:
    """Adds a ban and disconnects the clients that match."""
    seconds = body.seconds
    if seconds is None and body.until != "infinity":
        seconds = body.until / 1000 - time.time()
        if seconds <= 0:
            raise ControlError("BAD_REQUEST", f"until: must be in the future, got {body.until}")
    by = body.by or (call.caller.name if call.caller else "rest")
    await call("banned add", kind=body.as_, value=body.who, seconds=seconds, reason=body.reason, by=by)
    for row in (await call("banned list"))["data"]:
        if (row["kind"], row["value"]) == (body.as_, body.who):
            return _ban(row)
    raise ControlError("NOT_FOUND", "the ban has already ended")


# --- authentication ---------------------------------------------------------------------------------------------------------------


@router.get("/authentication/{id}/users")
async def list_users(call: Call, id: Authenticator, place: Annotated[UserPlace, Query()]) -> dict[str, Any]:
    """Users of the broker's own database."""
    found = await call("users list", kind=place.user_id_type, scram=BUILT_IN[id])
    rows = [{"user_id": row["name"], "is_superuser": row["superuser"]} for row in found["data"]]
    if place.like_user_id is not None:
        rows = [row for row in rows if place.like_user_id in row["user_id"]]
    if place.is_superuser is not None:
        rows = [row for row in rows if row["is_superuser"] == place.is_superuser]
    return sliced(rows, place)


@router.post("/authentication/{id}/users", status_code=201)
async def add_user(call: Call, id: Authenticator, body: NewUser) -> dict[str, Any]:
    """Adds a user."""
    if await _user(call, id, body.user_id_type, body.user_id) is not None:
        raise ControlError("ALREADY_EXISTS", f"user {body.user_id!r} already exists")
    return await _put_user(call, id, body.user_id, body)


@router.get("/authentication/{id}/users/{user_id:name}")
async def show_user(call: Call, id: Authenticator, user_id: str, user_id_type: UserKind = "username") -> dict[str, Any]:
    """One user, without the password."""
    found = await _user(call, id, user_id_type, user_id)
    if found is None:
        raise ControlError("NOT_FOUND", f"no user {user_id!r}")
    return found


@router.put("/authentication/{id}/users/{user_id:name}")
async def change_user(call: Call, id: Authenticator, user_id: str, body: UserChange) -> dict[str, Any]:
    """Changes the password and the superuser flag of a user."""
    if await _user(call, id, body.user_id_type, user_id) is None:
        raise ControlError("NOT_FOUND", f"no user {user_id!r}")
    return await _put_user(call, id, user_id, body)


@router.delete("/authentication/{id}/users/{user_id:name}", status_code=204)
async def delete_user(call: Call, id: Authenticator, user_id: str, user_id_type: UserKind = "username") -> None:
    """Removes a user; open connections are kept."""
    await call("users delete", name=user_id, kind=user_id_type, scram=BUILT_IN[id])


# --- authorization ----------------------------------------------------------------------------------------------------------------


@router.get(f"{RULES}/all")
async def rules_of_all(call: Call) -> dict[str, Any]:
    """Rules for all clients."""
    return {"rules": await _rules(call, "all", "")}


@router.post(f"{RULES}/all", status_code=204)
async def set_rules_of_all(call: Call, body: Rules) -> None:
    """Replaces the rules for all clients."""
    await _set_rules(call, "all", "", body.rules)


@router.delete(f"{RULES}/all", status_code=204)
async def delete_rules_of_all(call: Call) -> None:
    """Removes the rules for all clients."""
    await call("acl delete", kind="all", name="")


@router.get(f"{RULES}/{{of}}")
async def list_rules(call: Call, of: Of, place: Annotated[Place, Query()]) -> dict[str, Any]:
    """Rules of users, or of clients."""
    rows = [row for row in (await call("acl list"))["data"] if row["kind"] == KINDS[of]]
    return sliced([{KINDS[of]: row["name"], "rules": row["rules"]} for row in rows], place)


@router.post(f"{RULES}/{{of}}", status_code=204)
async def add_rules(call: Call, of: Of, body: Annotated[list[RulesOf], Field(min_length=1, max_length=RULES_MAX)]) -> None:
    """Adds rules of users or clients that have no rules."""
    names = [one.username if of == "users" else one.clientid for one in body]
    for name in names:
        if name is None:
            raise ControlError("BAD_REQUEST", f"{KINDS[of]} is missing")
        if names.count(name) > 1 or await _rules(call, KINDS[of], name):
            raise ControlError("ALREADY_EXISTS", f"rules of {name!r} already exist")
    for name, one in zip(names, body, strict=True):
        await _set_rules(call, KINDS[of], str(name), one.rules)


@router.get(f"{RULES}/{{of}}/{{name:name}}")
async def show_rules(call: Call, of: Of, name: str) -> dict[str, Any]:
    """Rules of a user or client."""
    rules = await _rules(call, KINDS[of], name)
    if not rules:
        raise ControlError("NOT_FOUND", f"no rules of {name!r}")
    return {KINDS[of]: name, "rules": rules}


@router.put(f"{RULES}/{{of}}/{{name:name}}", status_code=204)
async def set_rules(call: Call, of: Of, name: str, body: RulesOf) -> None:
    """Replaces the rules of a user or client."""
    await _set_rules(call, KINDS[of], name, body.rules)


@router.delete(f"{RULES}/{{of}}/{{name:name}}", status_code=204)
async def delete_rules(call: Call, of: Of, name: str) -> None:
    """Removes the rules of a user or client."""
    if not await _rules(call, KINDS[of], name):
        raise ControlError("NOT_FOUND", f"no rules of {name!r}")
    await call("acl delete", kind=KINDS[of], name=name)


def _ban(row: dict[str, Any]) -> dict[str, Any]:
    until = None if row["until"] is None else row["until"] * 1000
    return {"as": row["kind"], "who": row["value"], "by": row["by"], "reason": row["reason"], "at": moment(row["at"] * 1000),
            "until": moment(until) or "infinity"}  # fmt: skip


async def _user(call: Call, id: Authenticator, kind: UserKind, name: str) -> dict[str, Any] | None:
    for row in (await call("users list", kind=kind, scram=BUILT_IN[id]))["data"]:
        if row["name"] == name:
            return {"user_id": name, "is_superuser": row["superuser"]}
    return None


async def _put_user(call: Call, id: Authenticator, name: str, body: UserChange) -> dict[str, Any]:
    flags = {"superuser": body.is_superuser, "kind": body.user_id_type, "scram": BUILT_IN[id]}
    await call("users add", name=name, password=body.password, **flags)
    return {"user_id": name, "is_superuser": body.is_superuser}


async def _rules(call: Call, kind: str, name: str) -> list[dict[str, Any]]:
    for row in (await call("acl list"))["data"]:
        if row["kind"] == kind and (kind == "all" or row["name"] == name):
            return list(row["rules"])
    return []


async def _set_rules(call: Call, kind: str, name: str, rules: list[Rule]) -> None:
    texts = []
    for rule in rules:
        given = rule.model_dump(exclude_none=True)
        if given.get("retain") == "all":
            del given["retain"]
        texts.append(json.dumps(given))
    await call("acl set", kind=kind, name=name, rules=texts)
