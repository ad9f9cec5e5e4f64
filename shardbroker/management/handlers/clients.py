"""Clients and sessions: lists are read from the registry in shared memory, single ones from their worker."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from shardbroker.control import ControlError
from shardbroker.control.verbs import BulkKick, ClientFilter, ClientList, ManyClients, OneClient, Page
from shardbroker.management.context import Context, breathe, handles
from shardbroker.management.paging import decode_cursor, encode_cursor
from shm.events import EXPIRY_NEVER

__all__ = ["client_row", "matching", "page_of_clients"]

LOOKED_AT = 10_000
"""Records read for one page: some 50 ms of the manager. A page may be empty without being the last."""
STEP = 500
"""Records read between two turns of the event loop."""
KICKS_AT_ONCE = 100
"""Clients in one command."""

Record = dict[str, Any]
GATEWAY_NAMES = {"coap": "CoAP", "exproto": "ExProto", "mqttsn": "MQTT-SN"}
"""Names of protocols that are not the capitals of their gateway's."""


@handles("clients list")
@handles("sessions list")
async def list_clients(context: Context, params: ClientList) -> dict[str, Any]:
    if params.clientid is not None:
        return {"data": [client_row(*one) for one in one_client(context, params)], "cursor": None}
    return await page_of_clients(context, params, matching(params), params.worker)


async def page_of_clients(
    context: Context, page: Page, fits: Callable[[Record], bool], of_worker: int | None = None
) -> dict[str, Any]:
    """Returns a page of the clients whose record fits, worker by worker."""
    worker, after = decode_cursor(page.cursor, int, bytes) if page.cursor else (0, b"")
    rows: list[Record] = []
    looked_at = 0
    while worker < len(context.registries):
        read = []
        if of_worker in (None, worker):
            read = list(context.registries[worker].items(after, STEP))
        for record in read:
            after = record["client_id"]
            looked_at += 1
            if fits(record):
                rows.append(client_row(record, worker))
                if len(rows) >= page.limit:
                    return {"data": rows, "cursor": encode_cursor(worker, after)}
        if len(read) < STEP:
            worker, after = worker + 1, b""
        elif looked_at >= LOOKED_AT:
            return {"data": rows, "cursor": encode_cursor(worker, after)}
        await breathe()
    return {"data": rows, "cursor": None}


def one_client(context: Context, params: ClientFilter) -> Iterator[tuple[Record, int]]:
    """Yields the record of params.clientid, if it exists and matches the rest of the filter."""
    client_id = str(params.clientid).encode()
    worker = context.worker_of(client_id)
    record = context.registries[worker].get(client_id)
    if record is not None and params.worker in (None, worker) and matching(params)(record):
        yield record, worker


def matching(wanted: ClientFilter) -> Callable[[Record], bool]:
    """Returns a test of records of the registry, with the conditions that are set."""
    tests: list[Callable[[Record], bool]] = []

    def exactly(field: str, value: Any) -> None:
        if value is not None:
            tests.append(lambda record: record.get(field) == value)

    def holds(field: str, text: str | None) -> None:
        if text is not None:
            part = text.encode()
            tests.append(lambda record: part in record.get(field, b""))

    exactly("client_id", None if wanted.clientid is None else wanted.clientid.encode())
    exactly("username", None if wanted.username is None else wanted.username.encode())
    exactly("version", wanted.proto_ver)
    exactly("clean_start", wanted.clean_start)
    exactly("listener", wanted.listener)
    exactly("connected", None if wanted.conn_state is None else wanted.conn_state == "connected")
    holds("client_id", wanted.like_clientid)
    holds("username", wanted.like_username)
    if wanted.ip_address is not None:
        tests.append(lambda record: split_peer(record.get("peer", ""))[0] == wanted.ip_address)
    low, high = wanted.gte_connected_at, wanted.lte_connected_at
    if low is not None or high is not None:
        tests.append(lambda record: record["connected"] and (low or 0) <= record.get("since_ms", 0) <= (high or 1 << 63))
    return lambda record: all(test(record) for test in tests)


def client_row(record: Record, worker: int) -> dict[str, Any]:
    """Returns a record with EMQX's names of fields; times in Unix ms."""
    connected = record["connected"]
    host, port = split_peer(record.get("peer", ""))
    since_ms = record.get("since_ms")
    return {
        "clientid": record["client_id"].decode(errors="replace"),
        "username": text_or_none(record.get("username")),
        "connected": connected,
        "conn_state": "connected" if connected else "disconnected",
        "ip_address": host or None,
        "port": port,
        "listener": record.get("listener"),
        "proto_name": protocol_name(record),
        "proto_ver": record.get("version"),
        "keepalive": record.get("keepalive_s"),
        "clean_start": record.get("clean_start"),
        "expiry_interval": expiry(record.get("expiry_s", 0)),
        "created_at": record["created_ms"],
        "connected_at": since_ms if connected else None,
        "disconnected_at": None if connected else since_ms,
        "worker": worker,
    }


def protocol_name(record: Record) -> str:
    """Returns the name in CONNECT, or the protocol of a gateway: its listeners are named `stomp:tcp:default`."""
    gateway, colon, _ = (record.get("listener") or "").partition(":")
    return GATEWAY_NAMES.get(gateway, gateway.upper()) if colon else "MQIsdp" if record.get("version") == 3 else "MQTT"


def expiry(seconds: int) -> int | str:
    """Returns a Session Expiry Interval as `ctl` and REST show it."""
    return "infinity" if seconds == EXPIRY_NEVER else seconds


def text_or_none(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def split_peer(peer: str) -> tuple[str, int | None]:
    """Returns (address, port) of a peer as in the registry."""
    host, _, port = peer.rpartition(":")
    return host.strip("[]"), int(port) if port.isdecimal() else None


@handles("clients show")
@handles("sessions show")
async def show_client(context: Context, params: OneClient) -> dict[str, Any]:
    client_id = params.clientid.encode()
    worker = context.worker_of(client_id)
    known = await context.workers.call(worker, "session", client_id=client_id)
    record = {**known, "since_ms": known.get("connected_ms")}
    return {
        **client_row(record, worker),
        "subscriptions_cnt": known["subscriptions"],
        "subscriptions_max": known["subscriptions_max"] or "infinity",
        "inflight_cnt": known["inflight"],
        "inflight_max": known["inflight_max"],
        "mqueue_len": known["mqueue"],
        "mqueue_max": known["mqueue_max"] or "infinity",
        "awaiting_rel_cnt": known["awaiting_rel"],
        "awaiting_rel_max": known["awaiting_rel_max"] or "infinity",
        "will": known["will"],
        "durable": known["durable"],
        "expires_at": known["expires_at_ms"] or None,
        "output_bytes": known.get("output_bytes", 0),
        "receive_maximum": known.get("receive_maximum"),
        "max_packet_size": known.get("max_packet") or None,
    }


@handles("clients kick")
async def kick(context: Context, params: ManyClients) -> dict[str, Any]:
    """A single client has to exist; of several, those that exist are kicked."""
    found = await kick_all(context, [text.encode() for text in params.clientids])
    if len(params.clientids) == 1 and not found:
        raise ControlError("CLIENTID_NOT_FOUND", f"no session with client id {params.clientids[0]!r}")
    return {"kicked": [client_id.decode(errors="replace") for client_id in found]}


async def kick_all(context: Context, client_ids: list[bytes]) -> list[bytes]:
    """Kicks clients, KICKS_AT_ONCE in one command to a worker, and returns those that existed."""
    by_worker: dict[int, list[bytes]] = {}
    for client_id in dict.fromkeys(client_ids):
        by_worker.setdefault(context.worker_of(client_id), []).append(client_id)
    found: list[bytes] = []
    for worker, of_worker in by_worker.items():
        for start in range(0, len(of_worker), KICKS_AT_ONCE):
            batch = of_worker[start : start + KICKS_AT_ONCE]
            was_there = await context.workers.call(worker, "kick", clients=batch, reason="kicked by an administrator")
            found += [client_id for client_id, there in zip(batch, was_there, strict=True) if there]
    return found


@handles("clients kick-all")
async def bulk_kick(context: Context, params: BulkKick) -> AsyncIterator[dict[str, Any]]:
    """Reads the registry at `rate` clients per second; yields its progress every second."""
    filters = params.model_dump(exclude={"everybody", "rate"}, exclude_none=True)
    if not filters and not params.everybody:
        raise ControlError("BAD_REQUEST", "filter: must not be empty; set `everybody` to kick all clients")
    kicked = looked_at = 0
    began = last = time.monotonic()
    async for batch in batches(context, params):
        looked_at += len(batch)
        kicked += len(await kick_all(context, batch))
        now = time.monotonic()
        if now - last >= 1:
            last = now
            yield {"kicked": kicked, "done": False}
        await asyncio.sleep(max(0.0, began + looked_at / params.rate - now))
    yield {"kicked": kicked, "done": True}


async def batches(context: Context, wanted: ClientFilter) -> AsyncIterator[list[bytes]]:
    """Yields client ids that match, up to KICKS_AT_ONCE at a time; clients that connect meanwhile may be missing."""
    if wanted.clientid is not None:
        yield [record["client_id"] for record, _ in one_client(context, wanted)]
        return
    fits = matching(wanted)
    for worker, registry in enumerate(context.registries):
        if wanted.worker not in (None, worker):
            continue
        after = b""
        while page := list(registry.items(after, STEP)):
            after = page[-1]["client_id"]
            chosen = [record["client_id"] for record in page if fits(record)]
            for start in range(0, len(chosen), KICKS_AT_ONCE):
                yield chosen[start : start + KICKS_AT_ONCE]
            await breathe()
