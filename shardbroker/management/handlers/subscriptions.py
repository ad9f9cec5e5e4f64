"""Subscriptions, topics and routes.

The registry has the clients, their workers have the subscriptions, and the route table has the destinations of each filter.
"""

from collections.abc import Iterable
from typing import Any

from shardbroker.control import ControlError
from shardbroker.control.feature_verbs import ExclusiveList
from shardbroker.control.verbs import AddSubscription, DeleteSubscription, SubscriptionList, TopicList
from shardbroker.management.context import Context, breathe, handles
from shardbroker.management.paging import decode_cursor, encode_cursor
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.spec import FAILURE, REASON_CODES
from shardbroker.mqtt.topics import matches, parse_subscription
from shm.destinations import FEED_DESTINATION, KEPT_DESTINATION, destination_name
from shm.routes import FilterRoutes

CLIENTS_AT_ONCE = 200
"""Clients in one command."""
LOOKED_AT = 10_000
"""Clients read for one page. A page may be empty without being the last."""


@handles("subscriptions list")
async def list_subscriptions(context: Context, params: SubscriptionList) -> dict[str, Any]:
    if params.clientid is not None:
        client_id = params.clientid.encode()
        place = (0, 0)
        if params.cursor:
            place = decode_cursor(params.cursor, int, int)
        return await of_client(context, params, client_id, place[1])
    if params.topic is not None:
        return await with_filter(context, params)
    worker, after, start = decode_cursor(params.cursor, int, bytes, int) if params.cursor else (0, b"", 0)
    rows: list[dict[str, Any]] = []
    looked_at = 0
    while worker < len(context.registries):
        client_ids = context.registries[worker].client_ids(after, CLIENTS_AT_ONCE)
        if start:
            client_ids = [after, *client_ids]  # the last page ended in the middle of its subscriptions
        if client_ids:
            page = await context.workers.call(
                worker, "subscriptions", clients=client_ids, start=start, limit=params.limit - len(rows)
            )
            rows += [row for row in map(row_of, page["rows"]) if fits(params, row)]
            if page["next"] is not None:
                place, start = page["next"]
                after = client_ids[place] if start else client_ids[place - 1] if place else after
                return {"data": rows, "cursor": encode_cursor(worker, after, start)}
            after, start = client_ids[-1], 0
            looked_at += len(client_ids)
        if len(client_ids) < CLIENTS_AT_ONCE:
            worker, after = worker + 1, b""
        elif looked_at >= LOOKED_AT:
            break
        await breathe()
    return {"data": rows, "cursor": encode_cursor(worker, after, 0) if worker < len(context.registries) else None}


async def of_client(context: Context, params: SubscriptionList, client_id: bytes, start: int) -> dict[str, Any]:
    """Returns subscriptions of one client. Raises ControlError CLIENTID_NOT_FOUND."""
    worker = context.worker_of(client_id)
    await context.workers.call(worker, "session", client_id=client_id)
    page = await context.workers.call(worker, "subscriptions", clients=[client_id], start=start, limit=params.limit)
    rows = [row for row in map(row_of, page["rows"]) if fits(params, row)]
    return {"data": rows, "cursor": None if page["next"] is None else encode_cursor(0, page["next"][1])}


async def with_filter(context: Context, params: SubscriptionList) -> dict[str, Any]:
    """Returns subscriptions with exactly this filter, the first SUBSCRIBERS_MAX of each worker."""
    try:
        group, filter = parse_subscription(str(params.topic).encode())
    except MqttError as error:
        raise ControlError("BAD_REQUEST", f"topic: {error}") from None
    rows = []
    for found in await context.workers.call_all("subscribers", filter=filter, group=group):
        rows += [row for row in map(row_of, found["rows"]) if fits(params, row)]
    start = decode_cursor(params.cursor, int)[0] if params.cursor else 0
    end = start + params.limit
    return {"data": rows[start:end], "cursor": encode_cursor(end) if end < len(rows) else None}


def fits(wanted: SubscriptionList, row: dict[str, Any]) -> bool:
    if wanted.qos is not None and row["qos"] != wanted.qos:
        return False
    if wanted.topic is not None and row["topic"] != wanted.topic:
        return False
    if wanted.share_group is None and wanted.match_topic is None:
        return True
    try:
        group, filter = parse_subscription(row["topic"].encode())
    except MqttError:
        return False
    if wanted.share_group is not None and (group is None or group.decode(errors="replace") != wanted.share_group):
        return False
    return wanted.match_topic is None or matches(filter, wanted.match_topic.encode())


def row_of(known: dict[str, Any]) -> dict[str, Any]:
    """Returns a subscription with EMQX's names of fields."""
    return {
        "clientid": known["client_id"].decode(errors="replace"),
        "topic": known["topic"].decode(errors="replace"),
        "qos": known["qos"],
        "nl": int(known["nl"]),
        "rap": int(known["rap"]),
        "rh": known["rh"],
        "identifier": known["identifier"] or None,
    }


@handles("subscriptions add")
async def add_subscription(context: Context, params: AddSubscription) -> dict[str, Any]:
    client_id = params.clientid.encode()
    options = params.qos | params.nl << 2 | params.rap << 3 | params.rh << 4
    codes = await context.workers.call(
        context.worker_of(client_id), "subscribe", client_id=client_id, topics=[(params.topic.encode(), options)]
    )
    if codes[0] >= FAILURE:
        raise ControlError("BAD_REQUEST", f"topic {params.topic!r}: {REASON_CODES[codes[0]][0].replace('_', ' ')}")
    return {**params.model_dump(), "qos": codes[0]}


@handles("subscriptions delete")
async def delete_subscription(context: Context, params: DeleteSubscription) -> dict[str, Any]:
    client_id = params.clientid.encode()
    found = await context.workers.call(
        context.worker_of(client_id), "unsubscribe", client_id=client_id, topics=[params.topic.encode()]
    )
    if not found[0]:
        raise ControlError("NOT_FOUND", f"{params.clientid!r} has no subscription to {params.topic!r}")
    return params.model_dump()


@handles("exclusive list")
async def list_exclusive(context: Context, params: ExclusiveList) -> dict[str, Any]:
    (after,) = decode_cursor(params.cursor, bytes) if params.cursor else (b"",)
    claims, after = context.exclusive.page(after, params.limit)
    rows = [
        {"topic": claim.filter.decode(errors="replace"), "clientid": claim.client_id.decode(errors="replace")} for claim in claims
    ]
    return {"data": rows, "cursor": encode_cursor(after) if after else None}


# --- routes -----------------------------------------------------------------------------------------------------------------


@handles("topics list")
async def list_topics(context: Context, params: TopicList) -> dict[str, Any]:
    found, cursor = routes_page(context, params)
    rows = [
        {
            "topic": filter.decode(errors="replace"),
            "node": context.topology.node_name,
            "destinations": sorted({destination_name(to) for to, _, _ in routes}),
        }
        for filter, routes in found
    ]
    return {"data": rows, "cursor": cursor}


@handles("routes list")
async def list_routes(context: Context, params: TopicList) -> dict[str, Any]:
    found, cursor = routes_page(context, params)
    rows = [
        {
            "topic": filter.decode(errors="replace"),
            "destination": destination_name(to),
            "group": group.decode(errors="replace") or None,
            "members": count if group else None,
        }
        for filter, routes in found
        for to, group, count in routes
    ]
    return {"data": rows, "cursor": cursor}


def routes_page(context: Context, params: TopicList) -> tuple[list[Any], str | None]:
    """Returns one page without routes of rules, which are no subscriptions."""
    if params.topic is not None:
        found = context.routes.routes_of(params.topic.encode())
        return _without_feed([] if found is None else [found]), None
    after = decode_cursor(params.cursor, int, bytes) if params.cursor else None
    page, place = context.routes.page(after, params.limit)
    return _without_feed(page), None if place is None else encode_cursor(*place)


def _without_feed(found: Iterable[FilterRoutes]) -> list[tuple[bytes, list[tuple[int, bytes, int]]]]:
    left_out = (FEED_DESTINATION, KEPT_DESTINATION)
    kept = ((filter, [route for route in routes if route[0] not in left_out]) for filter, routes in found)
    return [(filter, routes) for filter, routes in kept if routes]
