"""Publishing, and retained messages.

By hand: status and body of EMQX's `/publish`, many messages in one request, and shorter pages of retained messages.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from pydantic import Field

from shardbroker.api.calls import Call
from shardbroker.api.paging import Place, listed
from shardbroker.api.shapes import PublishBody, timed
from shardbroker.control import ControlError

__all__ = ["router"]

router = APIRouter(tags=["Messages"])
BULK_MAX = 1000
"""Most messages in one request."""
NO_SUBSCRIBERS = {"reason_code": 16, "message": "no_matching_subscribers"}
"""Body for a message without a matching subscription, as in MQTT 5.0."""
RETAINED_PAGE_MAX = 1000
"""Most retained messages of a page."""


class RetainedPlace(Place):
    limit: int = Field(100, ge=1, le=RETAINED_PAGE_MAX, description="Rows of a page.")
    topic: str = Field("#", min_length=1, description="Topics that this filter matches.")
    payload: bool = Field(False, description="Include payloads, in base64.")


@router.post("/publish", responses={202: {"description": "Published, without a matching subscription."}})
async def publish(call: Call, body: PublishBody) -> JSONResponse:
    """Publishes a message: 200 with its id, or 202 if no subscription matches."""
    answer = _published(await call("publish", **body.params()))
    return JSONResponse(answer, 202 if "reason_code" in answer else 200)


@router.post("/publish/bulk", responses={202: {"description": "Some messages were rejected or match no subscription."}})
async def publish_many(call: Call, body: Annotated[list[PublishBody], Field(min_length=1, max_length=BULK_MAX)]) -> JSONResponse:
    """Publishes messages in this order; the response has for each what /publish returns. A rejected one has `code` and `message`,
    and the others are published. 200 if each matches a subscription, otherwise 202."""
    answers = []
    for given in [one.params() for one in body]:
        try:
            answers.append(_published(await call("publish", **given)))
        except ControlError as error:
            if error.code != "BAD_REQUEST":
                raise
            answers.append({"code": error.code, "message": str(error)})
    return JSONResponse(answers, 200 if all("message" not in one for one in answers) else 202)


@router.get("/mqtt/retainer/messages")
async def list_retained(call: Call, place: Annotated[RetainedPlace, Query()]) -> dict[str, Any]:
    """Retained messages."""
    return await listed(call, "retained list", place, _retained, topic=place.topic, payload=place.payload)


def _published(answer: dict[str, Any]) -> dict[str, Any]:
    return {"id": answer["id"]} if answer["matched"] else {"id": answer["id"], **NO_SUBSCRIBERS}


def _retained(row: dict[str, Any]) -> dict[str, Any]:
    return timed(row, "publish_at", "expires_at")
