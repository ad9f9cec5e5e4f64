"""Snapshots: sessions, subscriptions, retained messages and routes at one time, for Spark (docs/snapshot-format.md).

    registry, workers, retained store, route table -> pages -> <data>/snapshots/.new-<time>/ -> fsync -> rename -> snapshots/<time>/

The manager writes them without delaying any process: lists are read from shared memory page by page, and facts held by a worker
only are requested for CLIENTS_AT_ONCE clients at a time, between two passes of its loop. So a snapshot covers the time between its
`taken` and its `finished`; facts that did not change in between are exact.

A directory without a leading dot is a whole snapshot: its files and their names were on the disk before it got its name.
"""

import asyncio
import base64
import json
import shutil
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

from shardbroker import __version__
from shardbroker.control import ControlError
from shardbroker.management.context import Context, breathe
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import parse_subscription
from shardbroker.stores.files import sync_path
from shm.destinations import destination_name
from shm.events import EXPIRY_NEVER

__all__ = ["DIRECTORY", "FORMAT", "MANIFEST", "newest_us", "take"]

FORMAT = 1
DIRECTORY, MANIFEST = "snapshots", "manifest.json"
NEW = ".new-"
"""Prefix of an unfinished snapshot's name."""
CLIENTS_AT_ONCE = 100
"""Clients in one command to a worker, which takes it some 0.5 ms."""
ROWS_AT_ONCE = 1000
"""Subscriptions in one answer."""
RETAINED_AT_ONCE = 500
RETAINED_BYTES = 8 << 20
"""Bytes of retained messages in one page."""
ROUTES_AT_ONCE = 1000
REGISTRY_LAG_S = 0.3
"""Workers write the registry every 200 ms: after this wait it has all that existed when the snapshot was requested."""
PROGRESS_S = 1.0

Row = dict[str, Any]


async def take(context: Context) -> AsyncIterator[Row]:
    """Takes a snapshot and removes surplus ones; yields the progress every second, and the result at the end.

    Raises ControlError: TRY_AGAIN while another one is taken, WORKER_DOWN, WORKER_TIMEOUT, NOT_AVAILABLE if the disk refuses it.
    """
    if context.snapshot_lock.locked():
        raise ControlError("TRY_AGAIN", "another snapshot is being taken")
    async with context.snapshot_lock:
        root = context.topology.data_dir / DIRECTORY
        name = _free_name(root)
        new = root / f"{NEW}{name}"
        try:
            root.mkdir(mode=0o700, exist_ok=True)
            for left in root.glob(f"{NEW}*"):
                shutil.rmtree(left)
            new.mkdir(mode=0o700)
            async for item in _write(context, new, name):
                yield item
            await asyncio.to_thread(_publish, new, root / name)
            _remove_old(root, context.configuration.settings.snapshot.keep)
        except OSError as error:
            raise ControlError("NOT_AVAILABLE", f"{new}: {error.strerror or error}") from None
        finally:
            shutil.rmtree(new, ignore_errors=True)


def newest_us(data_dir: Path) -> int:
    """Returns the time of the newest snapshot; 0 without one."""
    newest = max((path for path in _all(data_dir / DIRECTORY)), default=None)
    if newest is None:
        return 0
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((newest / MANIFEST).read_bytes())["taken_us"])
    return 0


def _all(root: Path) -> list[Path]:
    """Returns the whole snapshots, oldest first: names are times."""
    try:
        return sorted(path for path in root.iterdir() if not path.name.startswith(".") and (path / MANIFEST).is_file())
    except FileNotFoundError:
        return []


def _free_name(root: Path) -> str:
    """Returns the current time in µs as a name: names are in the order of time and unique."""
    while True:
        now = time.time_ns() // 1000
        name = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now // 1_000_000)) + f".{now % 1_000_000:06}Z"
        if not (root / name).exists():
            return name


async def _write(context: Context, new: Path, name: str) -> AsyncIterator[Row]:
    """Writes all files. The last item is the answer."""
    taken_us, began = time.time_ns() // 1000, time.monotonic()
    states = await context.workers.call_all("journal")
    positions = {str(worker): state["next_sequence"] for worker, state in enumerate(states) if state}
    await asyncio.sleep(REGISTRY_LAG_S)
    files: list[_File] = []
    for worker in range(context.topology.workers):
        sessions, subscriptions = _File(new, "sessions", worker), _File(new, "subscriptions", worker)
        files += [sessions, subscriptions]
        async for known, subscribed in _of_worker(context, worker):
            sessions.add(known)
            subscriptions.add(subscribed)
            if time.monotonic() - began >= PROGRESS_S:
                began = time.monotonic()
                yield {"snapshot": name, "rows": sum(file.rows for file in files), "done": False}
    for table, pages in (("retained", _retained(context)), ("routes", _routes(context))):
        file = _File(new, table)
        files.append(file)
        async for rows in pages:
            file.add(rows)
    entries = [file.close() for file in files]
    manifest = {
        "format": FORMAT, "node": context.topology.node_name, "node_id": context.topology.node_id, "version": __version__,
        "taken_us": taken_us, "finished_us": time.time_ns() // 1000, "positions": positions, "files": entries,
    }  # fmt: skip
    (new / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry["table"]] = counts.get(entry["table"], 0) + entry["rows"]
    yield {"snapshot": name, **counts, "bytes": sum(entry["bytes"] for entry in entries), "done": True}


class _File:
    """Rows of a table as lines of JSON."""

    def __init__(self, directory: Path, table: str, worker: int | None = None) -> None:
        self.table = table
        self.rows = 0
        self._name = f"{table}.jsonl" if worker is None else f"{table}-{worker}.jsonl"
        self._worker = worker
        self._size = self._checksum = 0
        self._file = (directory / self._name).open("xb")

    def add(self, rows: Iterable[Row]) -> None:
        """Writes rows. Raises OSError."""
        lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
        if lines:
            data = ("\n".join(lines) + "\n").encode(errors="replace")
            self._file.write(data)
            self.rows += len(lines)
            self._size += len(data)
            self._checksum = crc32(data, self._checksum)

    def close(self) -> Row:
        """Closes the file and returns its entry in the manifest."""
        self._file.close()
        return {
            "name": self._name, "table": self.table, "worker": self._worker, "rows": self.rows, "bytes": self._size,
            "crc32": f"{self._checksum:08x}",
        }  # fmt: skip


async def _of_worker(context: Context, worker: int) -> AsyncIterator[tuple[list[Row], list[Row]]]:
    """Yields sessions of a worker with their subscriptions, page by page."""
    after = b""
    while records := list(context.registries[worker].items(after, CLIENTS_AT_ONCE)):
        client_ids = [record["client_id"] for record in records]
        after = client_ids[-1]
        known = await context.workers.call(worker, "sessions", clients=client_ids)
        sessions = [
            _session_row({**record, **state}, worker) for record, state in zip(records, known, strict=True) if state is not None
        ]
        subscriptions, start, left = [], 0, client_ids
        while left:
            page = await context.workers.call(worker, "subscriptions", clients=left, start=start, limit=ROWS_AT_ONCE)
            subscriptions += [_subscription_row(row, worker) for row in page["rows"]]
            if page["next"] is None:
                break
            place, start = page["next"]
            left = left[place:]
        yield sessions, subscriptions
        await breathe()


def _session_row(known: Row, worker: int) -> Row:
    connected = known["connected"]
    since = known.get("connected_ms") if connected else known.get("since_ms")
    return {
        "worker": worker,
        "client_id": _text(known["client_id"]),
        "connected": connected,
        "username": _text(known.get("username")),
        "peer": known.get("peer") or None,
        "listener": known.get("listener"),
        "protocol_version": known.get("version"),
        "keepalive_s": known.get("keepalive_s"),
        "clean_start": known.get("clean_start"),
        "session_expiry_s": None if known["expiry_s"] >= EXPIRY_NEVER else known["expiry_s"],
        "created": known["created_ms"],
        "connected_at": since if connected else None,
        "disconnected_at": None if connected else since,
        "expires": known["expires_at_ms"] or None,
        "subscriptions": known["subscriptions"],
        "inflight": known["inflight"],
        "queued": known["mqueue"],
        "awaiting_release": known["awaiting_rel"],
        "will": known["will"],
        "durable": known["durable"],
    }


def _subscription_row(known: Row, worker: int) -> Row:
    try:
        group, topic_filter = parse_subscription(known["topic"])
    except MqttError:
        group, topic_filter = None, known["topic"]
    return {
        "worker": worker,
        "client_id": _text(known["client_id"]),
        "topic_filter": _text(topic_filter),
        "share_group": _text(group),
        "qos": known["qos"],
        "no_local": bool(known["nl"]),
        "retain_as_published": bool(known["rap"]),
        "retain_handling": known["rh"],
        "subscription_identifier": known["identifier"] or None,
    }


async def _retained(context: Context) -> AsyncIterator[list[Row]]:
    """Yields unexpired retained messages; `#` matches no topic that begins with $."""
    for topic_filter in (b"#", b"$SYS/#"):
        place, now_ms = None, time.time_ns() // 1_000_000
        while True:
            found, place = context.retained.scan(topic_filter, place, RETAINED_AT_ONCE, RETAINED_BYTES, now_ms)
            yield [
                {
                    "topic": _text(one.topic),
                    "payload": base64.b64encode(one.payload).decode(),
                    "qos": one.qos,
                    "properties": base64.b64encode(one.properties).decode(),
                    "message_id": one.message_id.hex(),
                    "client_id": _text(one.client_id),
                    "published": one.created_ms,
                    "expires": one.expires_ms or None,
                }
                for one in found
            ]
            if place is None:
                break
            await breathe()


async def _routes(context: Context) -> AsyncIterator[list[Row]]:
    place = None
    while True:
        page, place = context.routes.page(place, ROUTES_AT_ONCE)
        yield [
            {
                "topic_filter": _text(topic_filter),
                "destination": destination_name(to),
                "share_group": _text(group) or None,
                "members": count if group else None,
            }
            for topic_filter, routes in page
            for to, group, count in routes
        ]
        if place is None:
            return
        await breathe()


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _publish(new: Path, final: Path) -> None:
    """Syncs all files before the directory gets its name, and the name before this returns."""
    for path in new.iterdir():
        sync_path(path)
    sync_path(new)
    new.rename(final)
    sync_path(final.parent)


def _remove_old(root: Path, keep: int) -> None:
    """Removes old snapshots, each renamed first, so that a partial one never looks complete."""
    for path in _all(root)[:-keep]:
        gone = path.rename(root / f"{NEW}{path.name}")
        shutil.rmtree(gone)
