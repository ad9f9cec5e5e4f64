"""Lists, paged by a cursor as in the verbs or by page number as in EMQX."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from shardbroker.api.calls import VerbCall
from shardbroker.control import ControlError

__all__ = ["Place", "listed", "sliced"]

LIMIT_MAX = 10_000
"""Most rows of a page."""
REACH_MAX = 100_000
"""Rows within reach of page numbers, since all rows before the page are read too."""
ASKS_MAX = 50
"""Calls of the verb for one page, each of which reads 10,000 clients at most."""

Row = dict[str, Any]


class Place(BaseModel):
    """Position in a list."""

    model_config = ConfigDict(extra="forbid")

    page: int = Field(1, ge=1, le=REACH_MAX, description="Number of the page; `page` times `limit` is at most 100000.")
    limit: int = Field(100, ge=1, le=LIMIT_MAX, description="Rows of a page.")
    cursor: str | None = Field(None, max_length=200_000, description="`meta.cursor` of the previous page, instead of `page`.")


async def listed(
    call: VerbCall,
    verb: str,
    place: Place,
    shape: Callable[[Row], Row],
    count: int | None = None,
    by_cursor: bool = False,
    **filters: Any,
) -> dict[str, Any]:
    """Returns one page. `count`: number of all rows, if known."""
    meta: dict[str, Any] = {"limit": place.limit}
    if count is not None:
        meta["count"] = count
    if by_cursor or place.cursor is not None:
        found = await call(verb, limit=place.limit, cursor=place.cursor or None, **filters)
        meta |= {"cursor": found["cursor"], "hasnext": found["cursor"] is not None, **_missing(found)}
        return {"data": [shape(row) for row in found["data"]], "meta": meta}
    end = place.page * place.limit
    if end > REACH_MAX:
        raise ControlError("BAD_REQUEST", f"page: must be at most {REACH_MAX // place.limit} with limit {place.limit}, "
                           f"got {place.page}; use a cursor")  # fmt: skip
    rows: list[Row] = []
    missing: Row = {}
    passed, cursor = 0, None
    for _ in range(ASKS_MAX):
        wanted = end + 1 - passed
        found = await call(verb, limit=min(LIMIT_MAX, wanted), cursor=cursor, **filters)
        first = max(0, end - place.limit - passed)
        rows += found["data"][first:]
        passed += len(found["data"])
        cursor = found["cursor"]
        missing |= _missing(found)
        if cursor is None or passed > end:
            break
    meta |= {"page": place.page, "hasnext": passed > end or cursor is not None, **missing}
    return {"data": [shape(row) for row in rows[: place.limit]], "meta": meta}


def _missing(found: Row) -> Row:
    """Returns the nodes whose rows are not in a list of all nodes, if there are any."""
    return {"missing": found["missing"]} if found.get("missing") else {}


def sliced(rows: list[Row], place: Place) -> dict[str, Any]:
    """Returns a page of a complete list."""
    if place.cursor is not None:
        raise ControlError("BAD_REQUEST", "cursor: not supported by this list, use page")
    start, end = (place.page - 1) * place.limit, place.page * place.limit
    meta = {"page": place.page, "limit": place.limit, "count": len(rows), "hasnext": end < len(rows)}
    return {"data": rows[start:end], "meta": meta}
