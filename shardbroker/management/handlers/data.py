"""Exports and imports while the broker runs: files are those of management/exports.py, parts those of data_parts.py."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import closing
from typing import Any

from shardbroker.control import ControlError
from shardbroker.control.data_verbs import PARTS, SETTINGS_PARTS, DataExport, DataRead, DataUpload, OneFile
from shardbroker.control.verbs import Params
from shardbroker.management.context import Context, handles
from shardbroker.management.exports import UNPACKED_MAX, Exported, ExportFiles, PartWriter
from shardbroker.management.handlers.data_parts import TABLE, Outcome

PROGRESS_S = 1.0
"""Between two items of an export or import under way, which show a waiting client that the broker is alive."""
RESERVED = 1 << 20
"""Bytes of headers of a file."""

_turn = asyncio.Lock()
"""One export, import or check of an upload at a time: each reads or writes up to UNPACKED_MAX."""
_under_way: set[asyncio.Task[Any]] = set()


@handles("data export")
async def export(context: Context, params: DataExport) -> AsyncIterator[dict[str, Any]]:
    progress = {"part": ""}
    async for item in _followed(_export(context, params, progress), progress):
        yield item


@handles("data import")
async def import_file(context: Context, params: OneFile) -> AsyncIterator[dict[str, Any]]:
    progress = {"part": ""}
    async for item in _followed(_import(context, params.filename, progress), progress):
        yield item


@handles("data list")
async def list_files(context: Context, params: Params) -> dict[str, Any]:
    return {"data": await asyncio.to_thread(_files(context).listed), "cursor": None}


@handles("data read")
async def read(context: Context, params: DataRead) -> dict[str, Any]:
    return await asyncio.to_thread(_files(context).read, params.filename, params.position)


@handles("data delete")
async def delete(context: Context, params: OneFile) -> None:
    await asyncio.to_thread(_files(context).delete, params.filename)


@handles("data upload")
async def upload(context: Context, params: DataUpload) -> dict[str, Any]:
    files, name = _files(context), params.filename
    await asyncio.to_thread(files.prepare)
    complete = await asyncio.to_thread(files.upload, name, params.position, params.payload, params.size)
    if complete:
        try:
            async with _one_at_a_time():
                await asyncio.to_thread(_check_upload, files, name)
        finally:
            files.discard(name)
    return {"filename": name, "position": params.position + len(params.payload), "complete": complete}


def _files(context: Context) -> ExportFiles:
    return ExportFiles(context.topology.data_dir)


def _check_upload(files: ExportFiles, name: str) -> None:
    with closing(files.open(name, uploading=True)) as found:
        _check(found)
    files.store(name)


class _one_at_a_time:
    """Holds the turn, or refuses: a queue of imports would be carried out long after their callers are gone."""

    async def __aenter__(self) -> None:
        if _turn.locked():
            raise ControlError("NOT_AVAILABLE", "another export, import or upload is under way: try again once it has ended")
        await _turn.acquire()

    async def __aexit__(self, *exc: object) -> None:
        _turn.release()


async def _followed(work: Coroutine[Any, Any, dict[str, Any]], progress: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Yields the progress of work, and its result last. The work continues if the connection of its caller is lost."""
    task = asyncio.create_task(work)
    _under_way.add(task)
    task.add_done_callback(_ended)
    while not (await asyncio.wait({task}, timeout=PROGRESS_S))[0]:
        yield dict(progress)
    yield await task


def _ended(task: asyncio.Task[Any]) -> None:
    _under_way.discard(task)
    if not task.cancelled():
        task.exception()  # nothing else retrieves it once the connection of the caller is lost


# --- export -------------------------------------------------------------------------------------------------------------------


async def _export(context: Context, params: DataExport, progress: dict[str, Any]) -> dict[str, Any]:
    files = _files(context)
    async with _one_at_a_time():
        await asyncio.to_thread(files.prepare)
        await asyncio.to_thread(files.check_room, 0)
        left = UNPACKED_MAX - RESERVED

        def room(size: int) -> None:
            nonlocal left
            left -= size
            if left < 0:
                text = f"export: must have at most {UNPACKED_MAX} bytes before compression; leave parts out, such as retained"
                raise ControlError("EXCEED_LIMIT", text)

        writers: dict[str, PartWriter] = {}
        try:
            for name in [name for name in PARTS if name in params.parts or not params.parts]:
                progress["part"] = name
                writers[name] = writer = PartWriter(files.directory, room)
                async for batch in TABLE[name].entries(context):
                    await asyncio.to_thread(writer.add, batch)
            row = await asyncio.to_thread(files.write, context.topology.node_name, writers)
        except OSError as error:
            raise ControlError("NOT_AVAILABLE", f"{files.directory}: {error.strerror or error}") from None
        finally:
            for writer in writers.values():
                writer.file.close()
    left_out = {name: writer.left_out for name, writer in writers.items() if writer.left_out}
    return {**row, "parts": {name: writer.entries for name, writer in writers.items()}, "left_out": left_out}


# --- import -------------------------------------------------------------------------------------------------------------------


async def _import(context: Context, name: str, progress: dict[str, Any]) -> dict[str, Any]:
    files = _files(context)
    async with _one_at_a_time():
        found = await asyncio.to_thread(files.open, name)
        with closing(found):
            await asyncio.to_thread(_check, found)
            outcomes = {}
            for part in found.parts:
                progress["part"] = part
                outcomes[part] = outcome = Outcome()
                try:
                    await TABLE[part].take(context, name, _entries(found, part), outcome)
                except ControlError as error:
                    outcome.fail(part, str(error))
    return {"filename": name, **{key: found.manifest[key] for key in ("version", "node", "created_at")}, **_answer(outcomes)}


def _answer(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    errors: dict[bool, dict[str, Any]] = {
        of_settings: {part: one.errors for part, one in outcomes.items() if one.failed and (part in SETTINGS_PARTS) == of_settings}
        for of_settings in (False, True)
    }
    counts = {part: {key: getattr(one, key) for key in ("imported", "unchanged", "failed")} for part, one in outcomes.items()}
    return {
        "parts": counts,
        "db_errors": errors[False],
        "config_errors": errors[True],
        "skipped": {part: one.skipped for part, one in outcomes.items() if one.skipped},
        "needs_restart": [key for one in outcomes.values() for key in one.needs_restart],
        "remarks": {key: text for one in outcomes.values() for key, text in one.remarks.items()},
    }


def _check(found: Exported) -> None:
    """Checks all entries, before the first one is imported. Raises ControlError."""
    for part in found.parts:
        for _ in _entries(found, part):
            pass


def _entries(found: Exported, part: str) -> Iterator[Any]:
    """Yields the checked entries of a part. Raises ControlError, which names the entry."""
    for number, entry in enumerate(found.lines(part), 1):
        try:
            yield TABLE[part].checked(entry)
        except (ValueError, RecursionError) as error:
            raise ControlError("BAD_REQUEST", f"file: {part}, entry {number}: {str(error)[:500]}") from None
