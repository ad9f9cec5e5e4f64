"""Clients and sessions, subscriptions, topics and routes.

By hand: lists with EMQX's filters (`node`, times as text) and `meta.count`, flags of subscriptions as 0 and 1, requests for many
clients or topics, and a path where the verb takes a list of client ids.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from shardbroker.api.calls import Call
from shardbroker.api.paging import Place, listed
from shardbroker.api.shapes import Body, TimeMs, timed
from shardbroker.control import ControlError
from shardbroker.control.verbs import MESSAGE_BYTES_MAX, MESSAGES_MAX

__all__ = ["router"]

router = APIRouter(tags=["Clients"])
KICKED_MAX = 10_000
"""Most clients in one request."""
BULK_MAX = 1000
"""Most subscriptions in one request."""
NO_POSITION = "none"
"""Position of the first page."""
Qos = Annotated[int, Field(ge=0, le=2)]


class ClientPlace(Place):
    """Filter of clients; all conditions must hold."""

    node: str | None = Field(None, description="Name of the node.")
    clientid: str | None = Field(None, min_length=1, description="Exactly this client id.")
    username: str | None = Field(None, description="Exactly this user name.")
    like_clientid: str | None = Field(None, description="Client ids that contain this text.")
    like_username: str | None = Field(None, description="User names that contain this text.")
    ip_address: str | None = Field(None, description="Peers with this address.")
    conn_state: Literal["connected", "disconnected"] | None = Field(None, description="Connected, or a session without connection.")
    proto_ver: int | None = Field(None, ge=3, le=5, description="3: MQTT 3.1, 4: 3.1.1, 5: 5.0.")
    clean_start: bool | None = Field(None, description="Clean Start of the CONNECT.")
    listener: str | None = Field(None, description="Name of the listener.")
    worker: int | None = Field(None, ge=0, description="Number of the worker.")
    gte_connected_at: TimeMs | None = Field(None, description="Connected at this time or later: Unix ms or RFC 3339.")
    lte_connected_at: TimeMs | None = Field(None, description="Connected at this time or earlier: Unix ms or RFC 3339.")


class SubscriptionPlace(Place):
    node: str | None = Field(None, description="Name of the node.")
    clientid: str | None = Field(None, min_length=1, description="Of this client.")
    topic: str | None = Field(None, min_length=1, description="With exactly this filter.")
    match_topic: str | None = Field(None, min_length=1, description="With a filter that matches this topic.")
    qos: Qos | None = Field(None, description="With this QoS.")
    share_group: str | None = Field(None, description="Of this shared group.")


class TopicPlace(Place):
    node: str | None = Field(None, description="Name of the node.")
    topic: str | None = Field(None, min_length=1, description="Exactly this filter.")


class MessagePlace(BaseModel):
    """A page of messages of a session."""

    model_config = ConfigDict(extra="forbid")
    limit: int = Field(100, ge=1, le=MESSAGES_MAX, description="Messages of a page.")
    position: str | None = Field(None, max_length=200, description="`meta.position` of the page before; none: the first page.")
    payload: Literal["none", "base64", "plain"] = Field("base64", description="How payloads are shown.")
    max_payload_bytes: int = Field(
        1 << 20, ge=128, le=MESSAGE_BYTES_MAX, description="Topics and payloads of a page, bytes; one message is returned anyway."
    )


class Unsubscribe(Body):
    topic: str = Field(min_length=1, max_length=65535)


class Subscribe(Unsubscribe):
    qos: Qos = 0
    nl: Annotated[int, Field(ge=0, le=1)] = 0
    rap: Annotated[int, Field(ge=0, le=1)] = 0
    rh: Annotated[int, Field(ge=0, le=2)] = 0

    def params(self) -> dict[str, Any]:
        """Returns the parameters of the verb."""
        return {"topic": self.topic, "qos": self.qos, "nl": bool(self.nl), "rap": bool(self.rap), "rh": self.rh}


@router.get("/clients")
async def list_clients(call: Call, place: Annotated[ClientPlace, Query()]) -> dict[str, Any]:
    """Clients, and sessions without connection, by page or cursor; of all nodes without `node`. They are read from shared memory,
    without load on workers. `meta.missing` names nodes that did not answer."""
    return await _clients(call, place, False)


@router.get("/clients_v2")
async def list_clients_by_cursor(call: Call, place: Annotated[ClientPlace, Query()]) -> dict[str, Any]:
    """As /clients, by cursor only: the cost of a page does not depend on the number of clients. A filtered page may be short or
    empty and still have a cursor."""
    return await _clients(call, place, True)


@router.get("/sessions_count")
async def count_sessions(call: Call) -> int:
    """Sessions, connected or not."""
    return await _sessions(call)


@router.post("/clients/kickout/bulk")
async def kick_many(
    call: Call, clientids: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=KICKED_MAX)]
) -> list[str]:
    """Ends connections and sessions; returns the client ids that existed."""
    if not clientids:
        return []
    try:
        return list((await call("clients kick", clientids=clientids))["kicked"])
    except ControlError as error:
        if error.code == "CLIENTID_NOT_FOUND":
            return []
        raise


@router.delete("/clients/{clientid:name}", status_code=204)
async def kick(call: Call, clientid: str) -> None:
    """Ends connection and session; a 5.0 client gets DISCONNECT 0x98."""
    await call("clients kick", clientids=[clientid])


@router.get("/clients/{clientid:name}/subscriptions")
async def subscriptions_of(call: Call, clientid: str) -> list[dict[str, Any]]:
    """Subscriptions of a client, 10,000 at most; /subscriptions has all."""
    found = await call.at_or_all(None)("subscriptions list", clientid=clientid, limit=10_000)
    return [{"node": call.node, **row} for row in found["data"]]


@router.post("/clients/{clientid:name}/subscribe")
async def subscribe(call: Call, clientid: str, body: Subscribe) -> dict[str, Any]:
    """Subscribes a connected client."""
    return _subscribed(call, await call("subscriptions add", clientid=clientid, **body.params()))


@router.post("/clients/{clientid:name}/subscribe/bulk")
async def subscribe_many(
    call: Call, clientid: str, body: Annotated[list[Subscribe], Field(min_length=1, max_length=BULK_MAX)]
) -> list[dict[str, Any]]:
    """Subscribes a connected client to several filters in order; stops at the first error."""
    return [_subscribed(call, await call("subscriptions add", clientid=clientid, **one.params())) for one in body]


@router.post("/clients/{clientid:name}/unsubscribe/bulk", status_code=204)
async def unsubscribe_many(
    call: Call, clientid: str, body: Annotated[list[Unsubscribe], Field(min_length=1, max_length=BULK_MAX)]
) -> None:
    """Removes several subscriptions in order; stops at the first that does not exist."""
    for one in body:
        await call("subscriptions delete", clientid=clientid, topic=one.topic)


@router.get("/clients/{clientid:name}/mqueue_messages")
async def queued_messages(call: Call, clientid: str, place: Annotated[MessagePlace, Query()]) -> dict[str, Any]:
    """Messages that wait for a client, the next one first. `meta.position` is where the next page starts; an empty page is the
    end."""
    return await _messages(call, "sessions queue", clientid, place)


@router.get("/clients/{clientid:name}/inflight_messages")
async def inflight_messages(call: Call, clientid: str, place: Annotated[MessagePlace, Query()]) -> dict[str, Any]:
    """Messages that are sent to a client and not acknowledged, with pages as those of `mqueue_messages`. One that waits for PUBCOMP
    is only a packet id."""
    return await _messages(call, "sessions inflight", clientid, place)


@router.get("/subscriptions")
async def list_subscriptions(call: Call, place: Annotated[SubscriptionPlace, Query()]) -> dict[str, Any]:
    """Subscriptions of clients, read from the workers, 200 clients at a time; of all nodes without `node`."""
    filters = place.model_dump(exclude={"page", "limit", "cursor", "node"}, exclude_none=True)
    call = call.at_or_all(place.node)
    return await listed(call, "subscriptions list", place, lambda row: {"node": call.node, **row}, **filters)


@router.get("/topics")
async def list_topics(call: Call, place: Annotated[TopicPlace, Query()]) -> dict[str, Any]:
    """Topic filters with a subscription, from the route table; of all nodes without `node`."""
    return await listed(call.at_or_all(place.node), "topics list", place, lambda row: {"node": call.node, **row}, topic=place.topic)


@router.get("/topics/{topic:topic}")
async def show_topic(call: Call, topic: str) -> dict[str, Any]:
    """One filter, with # and + escaped as %23 and %2B."""
    for row in (await call.at_or_all(None)("topics list", topic=topic))["data"]:
        return dict(row)
    raise ControlError("NOT_FOUND", f"no subscription to {topic!r}")


@router.get("/routes")
async def list_routes(call: Call, place: Annotated[TopicPlace, Query()]) -> dict[str, Any]:
    """Routes of messages: a row for each destination of a filter; of all nodes without `node`. `limit` counts filters."""
    call = call.at_or_all(place.node)
    return await listed(call, "routes list", place, lambda row: {"node": call.node, **row}, by_cursor=True, topic=place.topic)


async def _messages(call: Call, verb: str, clientid: str, place: MessagePlace) -> dict[str, Any]:
    given = place.model_dump(exclude={"position"})
    cursor = place.position if place.position not in (None, NO_POSITION) else None
    found = await call(verb, clientid=clientid, cursor=cursor, **given)
    rows = [timed(row, "inserted_at", "publish_at", "expires_at") for row in found["data"]]
    start, end = place.position or NO_POSITION, found["position"] or NO_POSITION
    return {"data": rows, "meta": {"start": start, "position": end, "hasnext": found["cursor"] is not None}}


async def _clients(call: Call, place: ClientPlace, by_cursor: bool) -> dict[str, Any]:
    filters = place.model_dump(exclude={"page", "limit", "cursor", "node"}, exclude_none=True)
    count = None if filters else await _sessions(call.at_or_here(place.node), place.node is None)
    call = call.at_or_all(place.node)
    return await listed(
        call, "clients list", place, lambda row: {"node": call.node, **_client(row)}, count, by_cursor, **filters
    )  # fmt: skip


async def _sessions(call: Call, of_all_nodes: bool = True) -> int:
    found = [one for _, one in await call.on_each("metrics")] if of_all_nodes else [await call("metrics")]
    return sum(int(one["sessions.count"]) for one in found)


def _client(row: dict[str, Any]) -> dict[str, Any]:
    return timed(row, "created_at", "connected_at", "disconnected_at", "expires_at")


def _subscribed(call: Call, row: dict[str, Any]) -> dict[str, Any]:
    return {"node": call.node, **row, "nl": int(row["nl"]), "rap": int(row["rap"])}
