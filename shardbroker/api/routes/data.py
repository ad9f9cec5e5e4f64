"""Exports and imports of configuration and data.

By hand: files in a form and in responses, the node of a file beside its name, and EMQX's status if an import refuses entries.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import Field
from starlette.datastructures import UploadFile

from shardbroker.api.calls import Call, VerbCall
from shardbroker.api.guard import error_body
from shardbroker.api.paging import Place, sliced
from shardbroker.api.shapes import Body, moment
from shardbroker.control import ControlError
from shardbroker.control.data_verbs import FILE_BYTES_MAX, PART_BYTES, PARTS, PartName

__all__ = ["explained", "router"]

router = APIRouter(tags=["Export and import"])
FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["filename"],
                    "properties": {"filename": {"type": "string", "format": "binary", "description": "The file, with its name."}},
                }
            }
        },
    }
}
FILE: dict[int | str, dict[str, Any]] = {200: {"content": {"application/gzip": {"schema": {"type": "string", "format": "binary"}}}}}
Node = Annotated[str | None, Query(description="Node that has the file; by default this one.")]


class WhatIsExported(Body):
    parts: list[PartName] = Field([], max_length=len(PARTS), description="Parts of the file; by default all.")


class WhatIsImported(Body):
    filename: str = Field(max_length=256, description="Name of a file of `/data/files`.")
    node: str | None = Field(None, description="Node that has the file and imports it; by default this one.")


@router.post("/data/export")
async def export_data(call: Call, body: WhatIsExported | None = None) -> dict[str, Any]:
    """Writes a file with what was configured at run time, users, rules, bans, accounts, keys, definitions and retained messages.
    It has hashes of passwords, and secrets of connectors in clear."""
    done = await call.at_length("data export", parts=body.parts if body else [])
    return {**_row(call.node, done), "parts": done["parts"], "left_out": done["left_out"]}


@router.post("/data/import")
async def import_data(call: Call, body: WhatIsImported) -> Any:
    """Imports a file: its entries replace those with the same names, others stay. `parts` counts what was imported. If some entries
    were refused, the response has status 400, and all others were imported: `config_errors` and `db_errors` have the reasons."""
    done = await call.at_or_here(body.node).at_length("data import", filename=body.filename)
    if done["db_errors"] or done["config_errors"]:
        return JSONResponse({**error_body("BAD_REQUEST", explained(done)), **done}, 400)
    return done


@router.get("/data/files")
async def list_files(call: Call, place: Annotated[Place, Query()]) -> dict[str, Any]:
    """Files of exports and uploads on all nodes, the newest first."""
    found = (await call.at_or_all(None)("data list"))["data"]
    rows = sorted(found, key=lambda row: (row["created_at"], row["filename"]), reverse=True)
    return sliced([_row(row["node"], row) for row in rows], place)


@router.post("/data/files", status_code=204, openapi_extra=FORM)
async def upload_file(call: Call, request: Request) -> None:
    """Uploads a file as the field `filename` of a form (multipart/form-data). It is checked before it is kept."""
    async with request.form(max_files=1, max_fields=1) as form:
        file = form.get("filename")
        if not isinstance(file, UploadFile) or not file.filename:
            raise ControlError("BAD_REQUEST", "filename: must be a file in a form (multipart/form-data)")
        await _upload(call, file.filename, file)


@router.get("/data/files/{filename}", response_class=Response, responses=FILE)
async def download_file(call: Call, filename: str, node: Node = None) -> StreamingResponse:
    """The file; administrators only."""
    where = call.at_or_here(node)
    first = await where("data read", filename=filename)
    headers = {"Content-Disposition": f'attachment; filename="{filename}"', "Cache-Control": "no-store"}
    return StreamingResponse(_parts(where, filename, first), media_type="application/gzip", headers=headers)


@router.delete("/data/files/{filename}", status_code=204)
async def delete_file(call: Call, filename: str, node: Node = None) -> None:
    """Deletes a file."""
    await call.at_or_here(node)("data delete", filename=filename)


def explained(done: dict[str, Any]) -> str:
    """Returns what an import has refused, as text."""

    def refused() -> Iterator[str]:
        for part, errors in {**done["config_errors"], **done["db_errors"]}.items():
            yield from (f"{part}: {name}: {reason}" for name, reason in errors.items())

    good = ", ".join(f"{counts['imported']} {part}" for part, counts in done["parts"].items() if counts["imported"]) or "nothing"
    failed = sum(counts["failed"] for counts in done["parts"].values())
    return f"imported: {good}; not imported: {failed}: {'; '.join(refused())}"


async def _upload(call: VerbCall, name: str, file: UploadFile) -> None:
    size, position = file.size or 0, 0
    if not 0 < size <= FILE_BYTES_MAX:
        raise ControlError("BAD_REQUEST", f"filename: must be a file of 1 to {FILE_BYTES_MAX} bytes, got {size}")
    while data := await file.read(PART_BYTES):
        await call.at_length("data upload", filename=name, payload=data, position=position, size=size)
        position += len(data)


async def _parts(call: VerbCall, name: str, part: dict[str, Any]) -> AsyncIterator[bytes]:
    """Yields the file up to the size that it had at first."""
    size = part["size"]
    while part["data"]:
        yield part["data"]
        if part["position"] >= size:
            return
        part = await call("data read", filename=name, position=part["position"])


def _row(node: str, row: dict[str, Any]) -> dict[str, Any]:
    """Returns a file with EMQX's names of fields."""
    at = row["created_at"]
    return {"filename": row["filename"], "size": row["size"], "created_at": moment(at), "created_at_sec": at // 1000, "node": node}
