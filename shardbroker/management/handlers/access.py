"""Users, rules and bans."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from shardbroker.access.auth_client import LOCAL_SOURCES
from shardbroker.access.contract import AuthRequest, Client
from shardbroker.control import ControlError
from shardbroker.control.access_verbs import AclAdd, AclOf, AclSet, AclTest, BannedAdd, BannedDelete, UserAdd, UserDelete, UserList
from shardbroker.control.verbs import Params
from shardbroker.management.access import AccessAdmin, AccessError
from shardbroker.management.context import Context, handles

RESULTS = {True: "allow", False: "deny", None: "no rule"}
"""Result of a source, as `ctl` shows it."""


@contextmanager
def admin(context: Context) -> Iterator[AccessAdmin]:
    """Opens the stores for one verb, with AccessError as ControlError."""
    try:
        with AccessAdmin(context.configuration.settings, context.topology.data_dir, context.counters) as access:
            yield access
    except AccessError as error:
        raise ControlError("BAD_REQUEST", str(error)) from None


@handles("users list")
async def list_users(context: Context, params: UserList) -> dict[str, Any]:
    with admin(context) as access:
        return {"data": access.scram_users() if params.scram else access.users(params.kind), "cursor": None}


@handles("users add")
async def add_user(context: Context, params: UserAdd) -> dict[str, Any]:
    with admin(context) as access:
        access.add_user(params.name, params.password, kind=params.kind, superuser=params.superuser, scram=params.scram)
    return {"name": params.name}


@handles("users delete")
async def delete_user(context: Context, params: UserDelete) -> dict[str, Any]:
    with admin(context) as access:
        if not access.delete_user(params.name, kind=params.kind, scram=params.scram):
            raise ControlError("NOT_FOUND", f"no user {params.name!r}")
    return {"name": params.name}


@handles("acl list")
async def list_rules(context: Context, params: Params) -> dict[str, Any]:
    with admin(context) as access:
        return {"data": access.rules(), "cursor": None}


@handles("acl set")
async def set_rules(context: Context, params: AclSet) -> dict[str, Any]:
    try:
        rules = [json.loads(text) for text in params.rules]
    except ValueError as error:
        raise ControlError("BAD_REQUEST", f"rules: must be JSON: {error}") from None
    with admin(context) as access:
        access.set_rules(params.kind, params.name, rules)
    return {"rules": len(rules)}


@handles("acl add")
async def add_rule(context: Context, params: AclAdd) -> dict[str, Any]:
    rule = {"permission": params.permission, "action": params.action, "topic": params.topic}
    rule |= {key: value for key, value in (("qos", params.qos), ("retain", params.retain)) if value is not None}
    with admin(context) as access:
        access.add_rule(params.kind, params.name, rule)
    return rule


@handles("acl test")
async def test_rules(context: Context, params: AclTest) -> dict[str, Any]:
    """`allowed` is None if the decision is up to a source that only the process integrations can query. Superusers, and rules that
    an authentication returned, are not considered."""
    acl = context.configuration.settings.acl
    client = Client(params.clientid, params.username, peerhost=params.ip_address, listener=params.listener)
    with admin(context) as access:
        results = access.test_rules(client, AuthRequest(params.action, params.topic, params.qos, params.retain))
    sources = [{"source": name, "says": RESULTS[answer] if name in LOCAL_SOURCES else "not asked"} for name, answer in results]
    if results and results[-1][0] not in LOCAL_SOURCES:
        return {"allowed": None, "decided_by": results[-1][0], "sources": sources}
    if results and results[-1][1] is not None:
        return {"allowed": results[-1][1], "decided_by": results[-1][0], "sources": sources}
    if not acl.sources:
        return {"allowed": True, "decided_by": None, "sources": []}
    return {"allowed": acl.no_match == "allow", "decided_by": "acl.no_match", "sources": sources}


@handles("acl delete")
async def delete_rules(context: Context, params: AclOf) -> dict[str, Any]:
    with admin(context) as access:
        access.set_rules(params.kind, params.name, [])
    return {"kind": params.kind, "name": params.name}


@handles("acl reload")
async def reload(context: Context, params: Params) -> dict[str, Any]:
    with admin(context) as access:
        return {"reloaded": access.reload()}


@handles("banned list")
async def list_bans(context: Context, params: Params) -> dict[str, Any]:
    with admin(context) as access:
        return {"data": [asdict(ban) for ban in access.bans()], "cursor": None}


@handles("banned add")
async def ban(context: Context, params: BannedAdd) -> dict[str, Any]:
    with admin(context) as access:
        access.ban(params.kind, params.value, seconds=params.seconds, by=params.by, reason=params.reason)
    return {"kind": params.kind, "value": params.value}


@handles("banned delete")
async def unban(context: Context, params: BannedDelete) -> dict[str, Any]:
    with admin(context) as access:
        if not access.unban(params.kind, params.value):
            raise ControlError("NOT_FOUND", f"no ban of {params.kind} {params.value!r}")
    return {"kind": params.kind, "value": params.value}
