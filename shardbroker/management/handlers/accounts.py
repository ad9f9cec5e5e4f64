"""Accounts and keys of the REST API, and the audit log."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shardbroker.access.accounts import AccountError, Accounts
from shardbroker.access.contract import BackendError
from shardbroker.access.hashing import hash_password
from shardbroker.control import ControlError
from shardbroker.control.account_verbs import (
    AccountAdd,
    AccountPassword,
    AccountUpdate,
    AuditList,
    KeyAdd,
    KeyUpdate,
    OneAccount,
    OneKey,
)  # fmt: skip
from shardbroker.control.verbs import Params
from shardbroker.management.context import Context, handles
from shardbroker.management.paging import decode_cursor, encode_cursor


@contextmanager
def opened(context: Context) -> Iterator[Accounts]:
    """Opens the accounts for one verb, with AccountError as ControlError."""
    try:
        with Accounts(context.topology.data_dir) as accounts:
            yield accounts
    except AccountError as error:
        raise ControlError(error.code, str(error)) from None


async def hashed(password: str) -> str:
    """Returns the hash of a password, made in a thread since it takes some 20 ms."""
    try:
        return await asyncio.to_thread(hash_password, password.encode())
    except (BackendError, ImportError) as error:
        raise ControlError("NOT_AVAILABLE", f"passwords need argon2: pip install 'shardbroker[api]' ({error})") from None
    except UnicodeError:
        raise ControlError("BAD_REQUEST", "password: must be valid Unicode") from None


@handles("admins list")
async def list_accounts(context: Context, params: Params) -> dict[str, Any]:
    with opened(context) as accounts:
        return {"data": accounts.accounts(), "cursor": None}


@handles("admins add")
async def add_account(context: Context, params: AccountAdd) -> dict[str, Any]:
    made = await hashed(params.password)
    with opened(context) as accounts:
        accounts.add(params.name, made, params.role, params.description)
    return params.model_dump(exclude={"password"})


@handles("admins update")
async def update_account(context: Context, params: AccountUpdate) -> dict[str, Any]:
    with opened(context) as accounts:
        accounts.update(params.name, params.role, params.description)
        return next(row for row in accounts.accounts() if row["name"] == params.name)


@handles("admins passwd")
async def set_password(context: Context, params: AccountPassword) -> dict[str, Any]:
    made = await hashed(params.password)
    with opened(context) as accounts:
        accounts.set_password(params.name, made)
    return {"name": params.name}


@handles("admins delete")
async def delete_account(context: Context, params: OneAccount) -> dict[str, Any]:
    with opened(context) as accounts:
        accounts.delete(params.name)
    return {"name": params.name}


@handles("api-keys list")
async def list_keys(context: Context, params: Params) -> dict[str, Any]:
    with opened(context) as accounts:
        return {"data": accounts.api_keys(), "cursor": None}


@handles("api-keys add")
async def add_key(context: Context, params: KeyAdd) -> dict[str, Any]:
    with opened(context) as accounts:
        key, secret = accounts.add_key(params.name, params.role, params.description, params.expired_at or None)
        return {**key_row(accounts, params.name), "api_key": key, "api_secret": secret}


@handles("api-keys update")
async def update_key(context: Context, params: KeyUpdate) -> dict[str, Any]:
    with opened(context) as accounts:
        accounts.update_key(params.name, params.role, params.description, params.enable, params.expired_at)
        return key_row(accounts, params.name)


@handles("api-keys delete")
async def delete_key(context: Context, params: OneKey) -> dict[str, Any]:
    with opened(context) as accounts:
        accounts.delete_key(params.name)
    return {"name": params.name}


def key_row(accounts: Accounts, name: str) -> dict[str, Any]:
    return next(row for row in accounts.api_keys() if row["name"] == name)


@handles("audit list")
async def list_audit(context: Context, params: AuditList) -> dict[str, Any]:
    before = decode_cursor(params.cursor, int)[0] if params.cursor else None
    rows = context.audit.newest(before, params.limit, params.gte_at, params.lte_at, params.by)
    return {"data": rows, "cursor": encode_cursor(rows[-1]["id"]) if len(rows) == params.limit else None}
