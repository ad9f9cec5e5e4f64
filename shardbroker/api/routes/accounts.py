"""Logins, accounts, keys, the audit log.

By hand: logins, which are a matter of this process, and EMQX's names of fields and `infinity` as a time.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field

from shardbroker import __version__
from shardbroker.api.calls import Call
from shardbroker.api.guard import Caller, Logins
from shardbroker.api.paging import Place, listed
from shardbroker.api.shapes import Body, TimeMs, moment, timed
from shardbroker.control import ControlError

__all__ = ["router"]

router = APIRouter(tags=["Accounts"])
Role = Literal["administrator", "viewer"]


class Login(Body):
    username: str = Field(max_length=256)
    password: str = Field(max_length=1024)


class NewUser(Login):
    role: Role = "administrator"
    description: str = ""


class UserChange(Body):
    role: Role | None = None
    description: str | None = None


class PasswordChange(Body):
    old_pwd: str = Field(max_length=1024)
    new_pwd: str = Field(max_length=1024)


class KeyChange(Body):
    role: Role | None = None
    desc: str | None = None
    enable: bool | None = None
    expired_at: TimeMs | Literal["infinity"] | None = None


class NewKey(KeyChange):
    name: str
    role: Role | None = "administrator"


class AuditPlace(Place):
    by: str | None = Field(None, description="Changes by exactly this author, such as `rest:admin`.")
    gte_created_at: TimeMs | None = Field(None, description="At this time or later: Unix ms or RFC 3339.")
    lte_created_at: TimeMs | None = Field(None, description="At this time or earlier: Unix ms or RFC 3339.")


@router.post("/login")
async def log_in(request: Request, body: Login) -> dict[str, Any]:
    """Returns a token for an account, to be sent as `Authorization: Bearer TOKEN`."""
    token, role = await _logins(request).log_in(body.username, body.password, _address(request))
    return {"token": token, "role": role, "version": __version__}


@router.post("/logout", status_code=204)
async def log_out(request: Request) -> None:
    """Ends the token of the request."""
    caller: Caller = request.state.caller
    if not caller.token:
        raise ControlError("BAD_REQUEST", "an API key has no login to end")
    _logins(request).accounts.log_out(caller.token)


@router.get("/users")
async def list_users(call: Call) -> list[dict[str, Any]]:
    """Accounts."""
    return [_user(row) for row in (await call("admins list"))["data"]]


@router.post("/users")
async def add_user(call: Call, body: NewUser) -> dict[str, Any]:
    """Adds an account."""
    params = {"name": body.username, "password": body.password, "role": body.role, "description": body.description}
    return _user(await call("admins add", **params))


@router.put("/users/{username}")
async def change_user(call: Call, username: str, body: UserChange) -> dict[str, Any]:
    """Changes the role or description of an account."""
    return _user(await call("admins update", name=username, role=body.role, description=body.description))


@router.post("/users/{username}/change_pwd", status_code=204)
async def change_password(request: Request, call: Call, username: str, body: PasswordChange) -> None:
    """Changes a password, given the old one, and ends the logins of the account."""
    await _logins(request).check(username, body.old_pwd, _address(request))
    await call("admins passwd", name=username, password=body.new_pwd)


@router.get("/api_key")
async def list_keys(call: Call) -> list[dict[str, Any]]:
    """Keys without their secrets. A key and its secret are sent as `Authorization: Basic`."""
    return [_key(row) for row in (await call("api-keys list"))["data"]]


@router.post("/api_key")
async def add_key(call: Call, body: NewKey) -> dict[str, Any]:
    """Creates a key; its secret is shown only once."""
    if body.enable is False:
        raise ControlError("BAD_REQUEST", "enable: must be true for a new key")
    expires = None if body.expired_at == "infinity" else body.expired_at
    return _key(await call("api-keys add", name=body.name, role=body.role, description=body.desc, expired_at=expires))


@router.get("/api_key/{name}")
async def show_key(call: Call, name: str) -> dict[str, Any]:
    """One key."""
    for row in (await call("api-keys list"))["data"]:
        if row["name"] == name:
            return _key(row)
    raise ControlError("NOT_FOUND", f"no key {name!r}")


@router.put("/api_key/{name}")
async def change_key(call: Call, name: str, body: KeyChange) -> dict[str, Any]:
    """Changes the given fields of a key."""
    expires = 0 if body.expired_at == "infinity" else body.expired_at
    changes = {"role": body.role, "description": body.desc, "enable": body.enable, "expired_at": expires}
    return _key(await call("api-keys update", name=name, **changes))


@router.get("/audit")
async def audit(call: Call, place: Annotated[AuditPlace, Query()]) -> dict[str, Any]:
    """Changes by REST, dashboard and `ctl`, newest first. Publishes are only in the log of the broker."""

    def shape(row: dict[str, Any]) -> dict[str, Any]:
        return {
            "created_at": moment(row["at"]),
            "source": row["by"],
            "operation_name": row["verb"],
            "operation_result": row["code"],
            "args": row["params"],
        }

    return await listed(
        call, "audit list", place, shape, by=place.by, gte_at=place.gte_created_at, lte_at=place.lte_created_at
    )  # fmt: skip


def _logins(request: Request) -> Logins:
    logins: Logins = request.app.state.logins
    return logins


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _user(row: dict[str, Any]) -> dict[str, Any]:
    return {"username": row["name"], "role": row["role"], "description": row["description"], "backend": "local"}


def _key(row: dict[str, Any]) -> dict[str, Any]:
    shown = timed(row, "created_at", "expired_at")
    shown["desc"] = shown.pop("description")
    return shown | {"expired_at": shown["expired_at"] or "infinity"}
