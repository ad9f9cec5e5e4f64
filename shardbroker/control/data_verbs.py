"""Verbs of exports: configuration made at run time and data of the whole cluster, in files of the data directory."""

from typing import Annotated, Literal, get_args

from pydantic import Field, StringConstraints

from shardbroker.control.verbs import TIME_MAX, Params, Verb, argument, table

__all__ = ["FILE_BYTES_MAX", "PARTS", "PART_BYTES", "SETTINGS_PARTS", "DataExport", "DataRead", "DataUpload", "OneFile", "PartName"]

PART_BYTES = 4 << 20
"""Most bytes of a file in one request or response: it fits a frame between nodes."""
FILE_BYTES_MAX = 256 << 20
"""Most bytes of a file, compressed: a million retained messages of 200 bytes."""
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,112}\.tar\.gz$")]
PartName = Literal[
    "settings", "users", "scram_users", "acl", "banned", "accounts", "api_keys", "connectors", "actions", "sources", "rules",
    "streams", "retained",
]  # fmt: skip
PARTS: tuple[PartName, ...] = get_args(PartName)
"""Parts of a file, in the order in which they are imported: each may refer to those before it."""
SETTINGS_PARTS: tuple[PartName, ...] = ("settings", "connectors", "actions", "sources", "rules", "streams")
"""Those that are configuration; the others are data."""


class DataExport(Params):
    """What is exported."""

    parts: list[PartName] = Field([], max_length=len(PARTS), description="Parts of the file; by default all.")


class OneFile(Params):
    """A file in the directory `exports` of the data directory."""

    filename: FileName = argument("Name of the file: letters, digits, - _ and ., with .tar.gz at its end.")


class DataRead(OneFile):
    """A part of a file."""

    position: int = Field(0, ge=0, le=TIME_MAX, description="Offset in the file, in bytes.")


class DataUpload(OneFile):
    """A part of a file that is uploaded, from its start to its end."""

    payload: bytes = Field(b"", max_length=PART_BYTES, description="The next bytes.")
    position: int = Field(0, ge=0, le=FILE_BYTES_MAX, description="Offset of these bytes; 0 begins the upload.")
    size: int = Field(ge=1, le=FILE_BYTES_MAX, description="Bytes of the whole file.")


table(
    Verb("data export", "Writes settings made at run time, users, rules, connectors and retained messages to a file.", DataExport,
         changes=True, stream=True),
    Verb("data import", "Imports a file: its entries replace those of the same names, others stay.", OneFile, changes=True,
         stream=True),
    Verb("data list", "Files of exports and uploads, the newest first.", columns=("filename", "size", "created_at")),
    Verb("data delete", "Deletes a file.", OneFile, changes=True),
    Verb("data read", "A part of a file, which has hashes of passwords and secrets of connectors.", DataRead, changes=True),
    Verb("data upload", "Adds a part to a file that is uploaded; the last one is stored once the whole file has been checked.",
         DataUpload, changes=True),
)  # fmt: skip
