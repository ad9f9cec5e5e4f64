"""Sections of the configuration at the paths of EMQX: GET returns the settings of a section, PUT changes some of them.

By hand: JSON, where the verbs take keys and TOML.
"""

from typing import Any

from fastapi import APIRouter

from shardbroker.api.calls import Call
from shardbroker.api.routes.configuration import section_of, set_section

__all__ = ["router"]

SECTIONS = (
    ("Messages", "/mqtt/retainer", "retainer", "retainer", "set_retainer"),
    ("Delayed messages", "/mqtt/delayed", "delayed", "status", "change"),
    ("Diagnose", "/slow_subscriptions/settings", "slow_subs", "slow_settings", "set_slow_settings"),
    ("Access", "/authorization/settings", "acl", "authorization", "set_authorization"),
)
"""Section of docs/rest.md, path, section of the configuration, operations of GET and PUT."""
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
