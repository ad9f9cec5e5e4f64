"""Named streams.

By hand: paths and fields of EMQX 6, whose limits are by shard; a journal takes the place of a shard.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from shardbroker.api.calls import Call
from shardbroker.api.paging import Place, listed
from shardbroker.api.shapes import Body, timed

__all__ = ["router"]

router = APIRouter(prefix="/message_streams", tags=["Streams"])
KEYS = {"message.from": "${clientid}", "message.topic": "${topic}"}
"""Expressions of EMQX that are keys here."""
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Limits(Body):
    max_shard_message_bytes: str | int = Field("1GB", description="Size of each journal up to which it is kept for the stream.")
    max_shard_message_count: Literal["infinity"] = Field("infinity", description="There is no limit of messages.")


class StreamBody(Body):
    is_lastvalue: bool = Field(False, description="Whether only the newest message of each key is delivered from the past.")
    key_expression: str = Field(
        "message.from", description="Template such as ${payload.id}; or EMQX's `message.from` or `message.topic`."
    )
    data_retention_period: str | int = Field("7d", description="Age up to which messages are kept, such as 7d, or ms.")
    limits: Limits = Limits()
    description: str = Field("", description="What the stream is for.")
    enable: bool = Field(True, description="Whether messages are kept for it, and clients may subscribe to it.")

    def params(self) -> dict[str, Any]:
        """Returns the parameters of the verbs."""
        period = self.data_retention_period
        return {
            "last_value": self.is_lastvalue,
            "key": KEYS.get(self.key_expression, self.key_expression),
            "age": f"{period}ms" if isinstance(period, int) else period,
            "bytes": str(self.limits.max_shard_message_bytes),
            "description": self.description,
            "enable": self.enable,
        }


class NewStream(StreamBody):
    name: str = Field(min_length=1, description="Name, by which clients subscribe.")
    topic_filter: str = Field(min_length=1, description="Topic filter of its messages.")


class StreamPlace(Place):
    like_name: str | None = Field(None, description="Names that contain this text.")


@router.get("/streams")
async def list_streams(call: Call, place: Annotated[StreamPlace, Query()]) -> dict[str, Any]:
    """Named streams."""
    return await listed(call, "streams list", place, _shaped, like_name=place.like_name)


@router.post("/streams")
async def create_stream(call: Call, body: NewStream) -> dict[str, Any]:
    """Makes a stream; it has each message published after the response."""
    return _shaped(await call("streams add", name=body.name, topic_filter=body.topic_filter, **body.params()))


@router.get("/streams/{name}")
async def show_stream(call: Call, name: str) -> dict[str, Any]:
    """One stream."""
    return _shaped(await call("streams show", name=name))


@router.put("/streams/{name}")
async def update_stream(call: Call, name: str, body: StreamBody) -> dict[str, Any]:
    """Replaces a stream but for its topic filter; its subscriptions continue at their positions."""
    return _shaped(await call("streams change", name=name, **body.params()))


@router.delete("/streams/{name}", status_code=204)
async def delete_stream(call: Call, name: str) -> None:
    """Removes a stream; its subscriptions get nothing more."""
    await call("streams delete", name=name)


def _shaped(row: dict[str, Any]) -> dict[str, Any]:
    keys = {key: expression for expression, key in KEYS.items()}
    own = {name: row[name] for name in ("description", "enable", "origin", "held_bytes", "oldest_at", "subscribers")}
    return {
        "name": row["name"],
        "topic_filter": row["topic_filter"],
        "is_lastvalue": row["last_value"],
        "key_expression": keys.get(row["key"], row["key"]),
        "data_retention_period": _period(row["age"]),
        "limits": {"max_shard_message_bytes": row["bytes"], "max_shard_message_count": "infinity"},
        **timed(own, "oldest_at"),
    }


def _period(age: str) -> int | str:
    """Returns a time in ms, as EMQX shows it."""
    number = age.rstrip("abcdefghijklmnopqrstuvwxyz")
    return round(float(number) * UNITS_MS[age[len(number) :]]) if number else age
