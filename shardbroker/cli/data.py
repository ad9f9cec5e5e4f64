"""`shardbroker ctl data export` and `import` with files of this machine, besides the verbs."""

import json
import os
from pathlib import Path
from typing import Any

import click

from shardbroker.cli import render
from shardbroker.cli.locate import Target
from shardbroker.control import Control, ControlError
from shardbroker.control.data_verbs import FILE_BYTES_MAX, PART_BYTES, PARTS
from shardbroker.stores.files import replacing

__all__ = ["export", "import_file"]

COLUMNS = ("part", "imported", "unchanged", "failed")


@click.command("export", short_help="Write settings made at run time, users, rules, connectors and retained messages to a file.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File on this machine; default: one of `data list`.")
@click.option("--parts", type=click.Choice(PARTS), multiple=True, help="Parts of the file; default: all.")
@click.option("--json", "json_here", is_flag=True, help="JSON, for programs.")
@click.pass_context
def export(context: click.Context, /, out: Path | None, parts: tuple[str, ...], json_here: bool) -> int:
    """Write what was configured at run time, users, rules, bans, accounts, keys, definitions and retained messages to a file.

    The file has hashes of passwords, and secrets of connectors in clear; its mode is 0600.
    """
    target: Target = context.obj
    with target.connect() as control:
        done = control.call("data export", parts=list(parts))
        if out is not None:
            try:
                _download(control, done["filename"], out)
            finally:
                control.call("data delete", filename=done["filename"])
            done["filename"] = str(out)
    if json_here or target.as_json:
        print(json.dumps(done))
    else:
        print(f"{done['filename']}: {done['size']:,} bytes")
        for part, count in done["left_out"].items():
            print(f"{part}: {count} entries are too long for a file, and left out")
    return 0


@click.command("import", short_help="Import a file: its entries replace those of the same names, others stay.")
@click.argument("file")
@click.option("--json", "json_here", is_flag=True, help="JSON, for programs.")
@click.pass_context
def import_file(context: click.Context, /, file: str, json_here: bool) -> int:
    """Import FILE, a file of this machine, or else one of `data list`.

    Exit code 1: some entries were refused; others are imported.
    """
    target: Target = context.obj
    with target.connect() as control:
        if Path(file).is_file():
            name = f"ctl-{os.getpid()}.tar.gz"
            _upload(control, Path(file), name)
            try:
                done = control.call("data import", filename=name)
            finally:
                control.call("data delete", filename=name)
            done["filename"] = file
        else:
            done = control.call("data import", filename=file)
    if json_here or target.as_json:
        print(json.dumps(done))
    else:
        _show(done)
    return 1 if done["db_errors"] or done["config_errors"] else 0


def _show(done: dict[str, Any]) -> None:
    rows = [{"part": part, **counts} for part, counts in done["parts"].items()]
    render.rows(COLUMNS, rows, None, lambda name, value: str(value))
    for errors in (done["config_errors"], done["db_errors"], done["skipped"]):
        for part, found in errors.items():
            for name, reason in found.items():
                print(f"{part}: {name}: {reason}")
    for key, text in done["remarks"].items():
        print(f"{key}: {text}")
    if done["needs_restart"]:
        print(f"from the next start on: {', '.join(done['needs_restart'])}")


def _download(control: Control, name: str, out: Path) -> None:
    position, size = 0, 1
    try:
        with replacing(out) as file:
            while position < size:
                part = control.call("data read", filename=name, position=position)
                file.write(part["data"])
                position, size = part["position"], part["size"]
    except OSError as error:
        raise ControlError("NOT_AVAILABLE", f"{out}: {error.strerror}") from None


def _upload(control: Control, path: Path, name: str) -> None:
    try:
        with path.open("rb") as file:
            size, position = os.fstat(file.fileno()).st_size, 0
            if not 0 < size <= FILE_BYTES_MAX:
                raise ControlError("BAD_REQUEST", f"{path}: must have 1 to {FILE_BYTES_MAX} bytes, got {size}")
            while position < size and (data := file.read(min(PART_BYTES, size - position))):
                control.call("data upload", filename=name, payload=data, position=position, size=size)
                position += len(data)
    except OSError as error:
        raise ControlError("NOT_AVAILABLE", f"{path}: {error.strerror}") from None
