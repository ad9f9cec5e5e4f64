"""Settings of delayed messages.

By hand: a section of the configuration as JSON, where the verbs take keys and TOML.
"""

from typing import Any

from fastapi import APIRouter

from shardbroker.api.calls import Call
from shardbroker.api.routes.configuration import section_of, set_section

__all__ = ["router"]

router = APIRouter(tags=["Delayed messages"])


@router.get("/mqtt/delayed")
async def status(call: Call) -> dict[str, Any]:
    """The settings of `delayed`."""
    return await section_of(call, "delayed")


@router.put("/mqtt/delayed")
async def change(call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """Changes settings of `delayed`; omitted ones are kept."""
    return await set_section(call, "delayed", body)
