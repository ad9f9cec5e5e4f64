"""Keys and contents of objects of S3.

An aggregated object has rows of one journal, and a name by their places:

    <key>/<node>/<origin>/<journal>/<last row>-<first row>.jsonl[.gz]
                                     00000000000000004711.00000000   position, and number of the row of that record

The last row precedes the first: names that follow that of a row are those of objects that have it, or a later one.
"""

import base64
import gzip
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import quote

from shardbroker.flows.drivers.getters import Getter, encoded, placeholders
from shardbroker.flows.sinks.json_bytes import json_bytes
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = [
    "KEY_MAX",
    "OBJECT_MAX",
    "ImpossibleKey",
    "Place",
    "csv_line",
    "folder_of",
    "json_line",
    "key_template",
    "name_of",
    "packed",
    "place_in",
]

KEY_MAX = 1024
"""Most bytes of a key, by the limit of S3."""
OBJECT_MAX = 16 << 20
"""Most bytes of an object before its compression: one request has it, and memory has that twice."""
SAFE = "/!_.*'()=-"
"""Characters of values besides letters and digits that are not encoded in keys."""
GZIP_LEVEL = 6
PLACE = re.compile(r"([0-9]{20})\.([0-9]{8})-")
OF_PREFIX = {"action", "node"}
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
QUOTED = re.compile(rb'[",\r\n]')


class ImpossibleKey(Exception):
    """A row whose key is not possible; the text has no value of it."""


class Place(NamedTuple):
    """Place of a row: position in its journal, number among the rows of that record."""

    position: int
    number: int

    def __str__(self) -> str:
        return f"{self.position:020}.{self.number:08}"


def name_of(first: Place, last: Place, suffix: str) -> str:
    """Returns the last part of the key of an object."""
    return f"{last}-{first}{suffix}"


def place_in(name: str) -> Place | None:
    """Returns the place of the last row of an object; None if name_of() makes no such name."""
    found = PLACE.match(name)
    return None if found is None else Place(int(found[1]), int(found[2]))


def folder_of(template: str, origin: str, node: str, action: str) -> str:
    """Returns the part of keys before the journal. Raises ValueError for a template with placeholders of rows."""
    parts = []
    values = {"action": action, "node": quote(node, safe="")}
    for one in re.split(r"(\$\{[^}]*\})", template or "${action}"):
        name = one.removeprefix("${").removesuffix("}")
        if one.startswith("${") and name not in OF_PREFIX:
            raise ValueError(f"must have the placeholders ${{action}} and ${{node}} only with mode = aggregated, got {one!r}")
        parts.append(values[name] if one.startswith("${") else one)
    made = "".join(parts).strip("/")
    if wrong := _wrong(made):
        raise ValueError(wrong)
    return f"{made}/{quote(node, safe='')}/{origin}"


def _wrong(key: str) -> str:
    """Returns why a key is not possible, or nothing."""
    if not key:
        return "the key is empty"
    if CONTROL.search(key):
        return "the key has a control character"
    if any(part in (".", "..") for part in key.split("/")):
        return "the key has a part . or .., which programs resolve as a path"
    if len(key.encode()) > KEY_MAX:
        return f"the key is longer than {KEY_MAX} bytes"
    return ""


def key_template(text: str) -> Callable[[Row], str]:
    """Returns what makes the key of a row, which raises ImpossibleKey. Raises ValueError for a template that cannot work.

    Values are encoded but for letters, digits, `/` and some signs: no value has control characters or spaces.
    """
    if not text.strip("/"):
        raise ValueError("must be a template such as ${clientid}/${id}.json, got ''")
    if CONTROL.search(text):
        raise ValueError("must have no control characters")
    parts = placeholders(text)

    def make(row: Row) -> str:
        try:
            key = "".join([one if isinstance(one, str) else quote(encoded(one(row)), safe=SAFE) for one in parts])
        except (EvaluationError, UnicodeError):
            raise ImpossibleKey("a value of the key cannot be written as text") from None
        if wrong := _wrong(key):
            raise ImpossibleKey(wrong)
        return key

    return make


def json_line(row: Row) -> bytes:
    """Returns a row as a line of JSON, with its position. Raises ValueError, RecursionError."""
    return json_bytes({"position": row.value(("position",)), **row.values}) + b"\n"


def csv_line(columns: Sequence[str]) -> tuple[bytes, Callable[[Row], bytes]]:
    """Returns the header, and what makes the line of a row, by RFC 4180.

    The latter raises ValueError, RecursionError, EvaluationError.
    """
    getters = [Getter((name,)) for name in columns]

    def line(row: Row) -> bytes:
        return b",".join([_field(_cell(get(row))) for get in getters]) + b"\r\n"

    return b",".join([_field(name.encode()) for name in columns]) + b"\r\n", line


def _cell(value: Value) -> bytes:
    if value is None or value is UNDEFINED:
        return b""
    if type(value) is bytes:
        return base64.b64encode(value)
    if type(value) is dict or type(value) is list:
        return json_bytes(value)
    text: bytes = encoded(value)
    return text


def _field(text: bytes) -> bytes:
    return b'"' + text.replace(b'"', b'""') + b'"' if QUOTED.search(text) else text


def packed(content: bytes) -> bytes:
    """Returns content compressed; the same bytes each time."""
    return gzip.compress(content, GZIP_LEVEL, mtime=0)
