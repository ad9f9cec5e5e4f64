"""Settings of all nodes of a cluster: values that its core has in `config/<key>`, as they were read last.

A value is a CBOR map: `value`, a TOML literal; `by`, the author; `at`, Unix ms. The process `cluster` writes what it reads to a
file in the data directory, unchecked, so that a node starts with it while the core is away. What is in the core may be of another
version or written by hand: what cannot be used here is a problem of that key alone.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import cbor2

from shardbroker.config.errors import SECRETS
from shardbroker.config.keys import KeyPath, dotted, field_at, is_secret
from shardbroker.config.sinks.ids import normal_path

__all__ = [
    "BY_MAX", "CLUSTER", "COPY_FILE", "COUNT_MAX", "KEY_BYTES_MAX", "NO_VALUES", "TOTAL_BYTES_MAX", "VALUE_BYTES_MAX",
    "ClusterValue", "ClusterValues", "Rows", "concerned", "decode_rows", "encode_rows", "encode_value", "is_below", "key_path",
    "overlaps", "read_copy", "unfit", "values_of",
]  # fmt: skip

CLUSTER = "cluster"
"""The source of these values in lists of settings."""
COPY_FILE = Path("cluster", "config")
"""Below the data directory: the values as they were read last."""
KEY_BYTES_MAX = 255
"""Bytes of a key; the longest of the schema has about 60, and names of rules and connectors up to 150."""
VALUE_BYTES_MAX = 16 << 10
"""Bytes of a value as TOML: a long rule has some KB."""
COUNT_MAX = 100
"""Most values: a node that restores those of a lost core does so in one transaction, which has at most 128 operations in etcd."""
TOTAL_BYTES_MAX = 256 << 10
"""Bytes of all keys and values: a transaction has at most 1.5 MB in etcd, and its quota is 256 MB with all revisions of an hour."""
ROW_BYTES_MAX = VALUE_BYTES_MAX + 2048
"""Bytes of a row in CBOR that is decoded."""
BY_MAX = 512
"""Characters of an author."""
AT_MAX = 1 << 53
NAME_SHOWN = 100
"""Characters of an unusable key that are shown."""


class ClusterValue(NamedTuple):
    """One value of all nodes."""

    key: str
    path: KeyPath
    value: Any
    text: str
    """The value as TOML."""
    by: str
    at: int
    """Unix ms."""
    revision: int
    """Of the last change of the key in the core."""


class ClusterValues(NamedTuple):
    """All of them, in the order of their changes."""

    values: tuple[ClusterValue, ...] = ()
    problems: Mapping[str, str] = {}
    """Keys that cannot be used on any node of this version, with the reason."""
    revision: int = 0
    """Of the last change of any of them; 0: none was ever made, or the core was never read."""
    changed: int = 0
    """Revision of the row that every change of a node replaces."""
    revisions: Mapping[str, int] = {}
    """Of all keys, usable or not."""
    names: Mapping[str, bytes] = {}
    """Of all keys, as they are in the core."""

    def value(self, key: str) -> ClusterValue | None:
        """Returns the value of a key."""
        return next((one for one in self.values if one.key == key), None)

    def without(self, path: KeyPath) -> "ClusterValues":
        """Returns them without those at a path or below."""
        return self._replace(values=tuple(one for one in self.values if not is_below(one.path, path)))


NO_VALUES = ClusterValues()


class Rows(NamedTuple):
    """The rows of the core, unchecked: (key, value, revision of its last change). `place`: prefix of all keys of the cluster."""

    revision: int = 0
    changed: int = 0
    rows: tuple[tuple[bytes, bytes, int], ...] = ()
    left_out: int = 0
    """Further rows that were not kept."""
    place: str = ""


def is_below(path: KeyPath, above: KeyPath) -> bool:
    """Returns whether a path is another one or below it."""
    return path[: len(above)] == above


def overlaps(one: KeyPath, other: KeyPath) -> bool:
    """Returns whether a path is above, at or below another one."""
    return is_below(one, other) or is_below(other, one)


def concerned(values: Iterable[ClusterValue], key: str) -> list[ClusterValue]:
    """Returns the values that a finding about a key or a section is about; those of its section if none has its key."""
    values, wanted = [*values], f"{key}."
    found = [one for one in values if wanted.startswith(f"{one.key}.") or f"{one.key}.".startswith(wanted)]
    return found or [one for one in values if one.path[0] == key.partition(".")[0]]


# --- which keys may be of all nodes -------------------------------------------------------------------------------------------

OF_ONE_NODE = {
    "process": "its processes, cores and directories are those of a machine",
    "node": "its name and id are its own",
    "cluster": "it says how a node reaches the others, and has to be known before these values are",
    "listeners": "a listener is an address of a machine, and a node that cannot open one does not start",
}
"""Sections that are different on each node, and why."""
DIRECTORY = "it is a directory of a machine"
ADDRESS = "it is an address of a machine, and a node that cannot listen there does not start"


def unfit(path: KeyPath, value: Any) -> str:
    """Returns why a value cannot be one of all nodes; empty if it can."""
    for leaf, is_listed in _leaves(path, value):
        if is_secret(leaf) or (is_listed and any(word in leaf[-1] for word in SECRETS)):
            return f"{dotted(leaf)} is a secret; set it in the configuration file of each node"
        if leaf[0] in OF_ONE_NODE:
            return _of_one_node(leaf, OF_ONE_NODE[leaf[0]])
        if leaf == ("plugins", "dir"):
            return _of_one_node(leaf, DIRECTORY)
        field, parts = field_at(leaf)  # what follows the parts is a name of a table with free keys
        if leaf[parts - 1 if field is not None else -1] == "bind" or (leaf[0] == "gateways" and "listeners" in leaf[1:3]):
            return _of_one_node(leaf, ADDRESS)
    return ""


def _of_one_node(path: KeyPath, reason: str) -> str:
    return f"{dotted(path)} is a setting of one node: {reason}; set it on each node, without --cluster"


def _leaves(path: KeyPath, value: Any, is_listed: bool = False) -> Iterator[tuple[KeyPath, bool]]:
    """Yields the paths of all values, and whether they are in a list of tables, where the schema has no keys."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves((*path, str(name)), inner, is_listed)
    elif isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        for one in value:
            yield from _leaves(path, one, True)
    else:
        yield path, is_listed


# --- rows ---------------------------------------------------------------------------------------------------------------------


def encode_value(text: str, by: str, at: int) -> bytes:
    """Returns the row of a value. text: the value as TOML."""
    return cbor2.dumps({"value": text, "by": by[:BY_MAX], "at": at}, canonical=True)


def encode_rows(rows: Rows) -> bytes:
    """Returns rows for `decode_rows`."""
    return cbor2.dumps([rows.revision, rows.changed, [list(row) for row in rows.rows], rows.left_out, rows.place])


def decode_rows(text: bytes) -> Rows:
    """Returns encoded rows. Raises ValueError."""
    try:
        revision, changed, rows, left_out, place = cbor2.loads(text)
        found = tuple((bytes(key), bytes(value), int(number)) for key, value, number in rows)
        return Rows(int(revision), int(changed), found, int(left_out), str(place))
    except (cbor2.CBORError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"must be a list of settings: {type(error).__name__}") from None


def key_path(key: str) -> KeyPath:
    """Returns the path of a key as it is written in the core. Raises ValueError."""
    path: KeyPath = ()
    try:
        tree: Any = tomllib.loads(f"{key} = 0") if key.isprintable() else {}
    except (ValueError, RecursionError):
        tree = {}
    while isinstance(tree, dict) and len(tree) == 1:
        ((name, tree),) = tree.items()
        path = (*path, name)
    if tree != 0 or dotted(path) != key:
        raise ValueError("must be a key such as mqtt.max_inflight")
    return normal_path(path)


def values_of(rows: Rows) -> ClusterValues:
    """Returns the values of rows; what cannot be used is in their `problems`."""
    values: list[ClusterValue] = []
    problems: dict[str, str] = {}
    revisions: dict[str, int] = {}
    names: dict[str, bytes] = {}
    total = 0
    for name, row, revision in sorted(rows.rows, key=lambda one: one[2]):
        total += len(name) + len(row)
        key = _shown(name)
        revisions[key], names[key] = revision, name
        try:
            if len(revisions) > COUNT_MAX:
                raise ValueError(f"a cluster has at most {COUNT_MAX} settings of all nodes")
            if total > TOTAL_BYTES_MAX:
                raise ValueError(f"settings of all nodes have at most {TOTAL_BYTES_MAX} bytes together")
            values.append(_value_of(name, row, revision))
        except ValueError as error:
            problems[key] = str(error)
    if rows.left_out:
        problems["config/"] = f"{rows.left_out} keys in etcd were not read: a cluster has at most {COUNT_MAX} settings of all nodes"
    return ClusterValues(tuple(values), problems, rows.revision, rows.changed, revisions, names)


def _value_of(name: bytes, row: bytes, revision: int) -> ClusterValue:
    """Raises ValueError."""
    if len(name) > KEY_BYTES_MAX:
        raise ValueError(f"a key has at most {KEY_BYTES_MAX} bytes, got {len(name)}")
    key = name.decode()
    path = key_path(key)
    if len(row) > ROW_BYTES_MAX:
        raise ValueError(f"a value has at most {VALUE_BYTES_MAX} bytes")
    try:
        found = cbor2.loads(row)
    except (cbor2.CBORError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"the value must be CBOR: {type(error).__name__}") from None
    if not isinstance(found, dict) or not isinstance(found.get("value"), str):
        raise ValueError("the value must be a CBOR map with value, by and at")
    text, by, at = found["value"], found.get("by"), found.get("at")
    if len(text.encode(errors="replace")) > VALUE_BYTES_MAX:
        raise ValueError(f"a value has at most {VALUE_BYTES_MAX} bytes")
    if not isinstance(by, str) or len(by) > BY_MAX or not by.isprintable():
        raise ValueError(f"by: must be a text of up to {BY_MAX} characters")
    if not isinstance(at, int) or isinstance(at, bool) or not 0 <= at <= AT_MAX:
        raise ValueError("at: must be a time in Unix ms")
    value = parsed(text)
    if reason := unfit(path, value):
        raise ValueError(reason)
    return ClusterValue(key, path, value, text, by, at, revision)


def parsed(text: str) -> Any:
    """Returns the value of a TOML literal. Raises ValueError."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        found = {}
    if len(found) != 1 or "value" not in found:
        raise ValueError("the value must be TOML, text in quotes")
    return found["value"]


def _shown(name: bytes) -> str:
    """Returns a key for lists; one that is no text has its bytes escaped."""
    text = name.decode(errors="backslashreplace")
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= KEY_BYTES_MAX else f"{text[:NAME_SHOWN]}... ({len(name)} bytes)"


def read_copy(data_dir: Path, place: str) -> ClusterValues:
    """Returns the values as they were read last. A file of another cluster has none; one that is damaged is a problem, too."""
    path = data_dir / COPY_FILE
    try:
        rows = decode_rows(path.read_bytes())
        return values_of(rows) if rows.place == place else NO_VALUES
    except FileNotFoundError:
        return NO_VALUES
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return ClusterValues(problems={str(path): f"{reason}; its settings apply once the core is reached"})
