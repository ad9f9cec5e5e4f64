"""Export and import: files with configuration and data of the broker."""

from typing import Any

from nicegui import events, ui

from shardbroker.api.dashboard.frame import Page, card, size, table
from shardbroker.api.dashboard.session import Session
from shardbroker.api.routes.data import explained
from shardbroker.api.shapes import moment
from shardbroker.control import ControlError
from shardbroker.control.data_verbs import FILE_BYTES_MAX, PART_BYTES, PARTS

__all__ = ["page"]

COLUMNS = {"filename": "File", "shown_size": "Size", "created": "Created"}
RESULTS = {"part": "Part", "imported": "Imported", "unchanged": "Unchanged", "failed": "Refused", "reasons": "Reasons"}
REASONS = 5
"""Reasons of a part that the page shows."""


class _Files:
    """The page of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def build(self) -> None:
        """Adds the cards."""
        with card("Export"):
            ui.label(
                "What was configured at run time, users, rules, bans, accounts, keys, connectors, actions and retained messages. "
                "The file has hashes of passwords, and secrets of connectors in clear."
            ).classes("opacity-70 text-sm")
            with ui.row().classes("items-center w-full"):
                self._parts = ui.select([*PARTS], multiple=True, label="Parts; none: all").props("dense use-chips").classes("w-96")
                export = ui.button("Export", icon="archive", on_click=self._export)
        with card("Files"):
            self._table = table(COLUMNS, "filename", selection="single")
            with ui.row().classes("items-center w-full"):
                buttons = [
                    export,
                    ui.button("Download", icon="download", on_click=self._download),
                    ui.button("Import", icon="unarchive", on_click=self._ask),
                    ui.button("Delete", on_click=self._delete).props("flat"),
                ]
            if self._session.may_change:
                upload = ui.upload(label="Upload a file", auto_upload=True, max_file_size=FILE_BYTES_MAX, on_upload=self._upload)
                upload.props('accept=".gz" flat bordered').classes("w-96 max-w-full")
                self._uploads = upload
        for button in buttons:
            button.set_enabled(self._session.may_change)
        with card("Last import") as self._result:
            self._outcome = table(RESULTS, "part")
            self._remarks = ui.label().classes("text-sm")
        self._result.set_visibility(False)

    async def look(self) -> None:
        """Lists the files."""
        found = await self._session.show_errors(self._session.call("data list"))
        if found is not None:
            self._table.selected = []
            shown = [{"shown_size": size(row["size"]), "created": moment(row["created_at"])} for row in found["data"]]
            self._table.rows = [row | more for row, more in zip(found["data"], shown, strict=True)]

    def _chosen(self) -> str | None:
        """Returns the name of the file that is selected, or None after a warning."""
        if not self._table.selected:
            ui.notify("choose a file first", type="warning")
            return None
        return str(self._table.selected[0]["filename"])

    async def _export(self) -> None:
        done = await self._session.show_errors(self._session.call_at_length("data export", parts=self._parts.value or []))
        if done is not None:
            ui.notify(f"{done['filename']}: {size(done['size'])}", type="positive")
            await self.look()

    async def _download(self) -> None:
        if (name := self._chosen()) is None:
            return
        content = await self._session.show_errors(self._content(name))
        if content is not None:
            ui.download(content, name, "application/gzip")

    async def _content(self, name: str) -> bytes:
        """Returns a file. Raises ControlError."""
        content = bytearray()
        while True:
            part = await self._session.call("data read", filename=name, position=len(content))
            content += part["data"]
            if not part["data"] or len(content) >= min(part["size"], FILE_BYTES_MAX):
                return bytes(content)

    async def _upload(self, event: events.UploadEventArguments) -> None:
        done = await self._session.show_errors(self._store(event))
        self._uploads.reset()
        if done is not None:
            ui.notify(f"{event.file.name} is uploaded", type="positive")
            await self.look()

    async def _store(self, event: events.UploadEventArguments) -> bool:
        """Raises ControlError."""
        position, total = 0, event.file.size()
        if not 0 < total <= FILE_BYTES_MAX:
            raise ControlError("BAD_REQUEST", f"file: must have 1 to {FILE_BYTES_MAX} bytes, got {total}")
        async for data in event.file.iterate(chunk_size=PART_BYTES):
            given = {"payload": data, "position": position, "size": total}
            await self._session.call_at_length("data upload", filename=event.file.name, **given)
            position += len(data)
        return True

    async def _delete(self) -> None:
        if (name := self._chosen()) is not None:
            await self._session.show_errors(self._session.call("data delete", filename=name))
            await self.look()

    async def _ask(self) -> None:
        """Asks before an import, which may change the password of the account that imports."""
        if (name := self._chosen()) is None:
            return
        with ui.dialog() as dialog, ui.card().classes("max-w-lg"):
            ui.label(f"Import {name}?").classes("text-lg font-medium")
            ui.label("Its entries replace those of the same names; others stay. Accounts get the passwords that the file has.")
            with ui.row().classes("w-full justify-end"):
                ui.button("Close", on_click=lambda: dialog.submit(False)).props("flat")
                ui.button("Import now", on_click=lambda: dialog.submit(True))
        wanted = await dialog
        dialog.delete()
        if wanted:
            await self._import(name)

    async def _import(self, name: str) -> None:
        done = await self._session.show_errors(self._session.call_at_length("data import", filename=name))
        if done is None:
            return
        failed = done["db_errors"] or done["config_errors"]
        ui.notify(explained(done)[:300] if failed else f"{name} is imported", type="warning" if failed else "positive")
        self._outcome.rows = [_result(done, part, counts) for part, counts in done["parts"].items()]
        remarks = [f"{key} {text}" for key, text in done["remarks"].items()]
        if done["needs_restart"]:
            remarks.append(f"from the next start on: {', '.join(done['needs_restart'])}")
        self._remarks.set_text("; ".join(remarks))
        self._result.set_visibility(True)


def _result(done: dict[str, Any], part: str, counts: dict[str, int]) -> dict[str, Any]:
    found = [done[kind].get(part, {}) for kind in ("config_errors", "db_errors", "skipped")]
    reasons = [f"{name}: {reason}" for errors in found for name, reason in errors.items()]
    more = f"; and {len(reasons) - REASONS} more" if len(reasons) > REASONS else ""
    return {"part": part, **counts, "reasons": "; ".join(reasons[:REASONS]) + more}


async def _fill(session: Session) -> None:
    files = _Files(session)
    files.build()
    await files.look()


page = Page("/data", "Export and import", "import_export", _fill)
