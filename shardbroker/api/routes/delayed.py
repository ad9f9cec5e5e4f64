"""Messages that wait for their time."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from shardbroker.api.asking import Ask
from shardbroker.api.paging import Place, listed
from shardbroker.api.routes.configuration import section_of, set_section
from shardbroker.api.shapes import timed
from shardbroker.control import ControlError

__all__ = ["router"]

router = APIRouter(tags=["Delayed messages"])


@router.get("/mqtt/delayed")
async def status(ask: Ask) -> dict[str, Any]:
    """The settings of `delayed`."""
    return await section_of(ask, "delayed")


@router.put("/mqtt/delayed")
async def change(ask: Ask, body: dict[str, Any]) -> dict[str, Any]:
    """Changes settings of `delayed`; those that are not given stay."""
    return await set_section(ask, "delayed", body)


@router.get("/mqtt/delayed/messages")
async def list_messages(ask: Ask, place: Annotated[Place, Query()]) -> dict[str, Any]:
    """Messages that wait, worker by worker, in the order in which they came."""
    return await listed(ask, "delayed list", place, _shaped)


@router.get("/mqtt/delayed/messages/{node}/{msgid}")
async def show_message(ask: Ask, node: str, msgid: str) -> dict[str, Any]:
    """One message, its payload in base64."""
    return _here(node, _shaped(await ask("delayed show", msgid=msgid)))


@router.delete("/mqtt/delayed/messages/{node}/{msgid}", status_code=204)
async def delete_message(ask: Ask, node: str, msgid: str) -> None:
    """Deletes one message: nobody gets it."""
    _here(node, await ask("delayed show", msgid=msgid))
    await ask("delayed delete", msgid=msgid)


def _shaped(row: dict[str, Any]) -> dict[str, Any]:
    return timed(row, "publish_at", "expected_at")


def _here(node: str, row: dict[str, Any]) -> dict[str, Any]:
    """The row, if it is of this node. Raises ControlError."""
    if row["node"] != node:
        raise ControlError("NOT_FOUND", f"no node {node!r}")
    return row
