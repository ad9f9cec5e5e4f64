"""Sections of the configuration at the paths of EMQX: GET returns the settings of a section, PUT changes some of them.

By hand: JSON, where the verbs take keys and TOML, and lists alone where EMQX has no section around them.
"""

from typing import Any

from fastapi import APIRouter

from shardbroker.api.calls import Call
from shardbroker.api.routes.configuration import section_of, set_section
from shardbroker.control import ControlError

__all__ = ["router"]

SECTIONS = (
    ("Messages", "/mqtt/retainer", "retainer", "retainer", "set_retainer"),
    ("Delayed messages", "/mqtt/delayed", "delayed", "status", "change"),
    ("Diagnose", "/slow_subscriptions/settings", "slow_subs", "slow_settings", "set_slow_settings"),
    ("Access", "/authorization/settings", "acl", "authorization", "set_authorization"),
)
"""Section of docs/rest.md, path, section of the configuration, operations of GET and PUT."""
LISTS = (
    ("Messages", "/mqtt/topic_rewrite", "rewrite", "rules", "topic_rewrite", {"action": "all"}),
    ("Messages", "/mqtt/auto_subscribe", "auto_subscribe", "topics", "auto_subscribe", {"qos": 0, "nl": 0, "rap": 0, "rh": 0}),
)
"""Section of docs/rest.md, path, section of the configuration, key of the list, operation of GET (that of PUT begins with set_),
and defaults of a member, which the configuration leaves out."""
router = APIRouter()


def _add(tag: str, path: str, section: str, show: str, change: str) -> None:
    @router.get(path, tags=[tag], name=show, description=f"The settings of `{section}`.")
    async def get(call: Call) -> dict[str, Any]:
        return await section_of(call, section)

    @router.put(path, tags=[tag], name=change, description=f"Changes settings of `{section}`; omitted ones are kept.")
    async def put(call: Call, body: dict[str, Any]) -> dict[str, Any]:
        return await set_section(call, section, body)


for _row in SECTIONS:
    _add(*_row)


def _add_list(tag: str, path: str, section: str, key: str, show: str, defaults: dict[str, Any]) -> None:
    @router.get(path, tags=[tag], name=show, description=f"The members of `{section}.{key}`.")
    async def get(call: Call) -> list[dict[str, Any]]:
        return [defaults | row for row in (await section_of(call, section))[key]]

    @router.put(path, tags=[tag], name=f"set_{show}", description=f"Replaces the members of `{section}.{key}`, and returns them.")
    async def put(call: Call, body: list[dict[str, Any]]) -> list[dict[str, Any]]:
        done = await set_section(call, section, {key: body})
        if by := done["changed"]["shadowed_by"]:
            text = f"{section}.{key}: is kept, but a value of {', '.join(by.values())} is in force"
            raise ControlError("NOT_AVAILABLE", text)
        return [defaults | row for row in done[key]]


for _list in LISTS:
    _add_list(*_list)
