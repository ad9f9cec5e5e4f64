"""Reports of the link processes for the manager: what changes too often for the view (shm/view.pxd), each second in a file of JSON.

    link-0                loads: node id -> fields of a LOAD, this node's with its own id;   errors: address -> text;
                          retained: node id -> synced or syncing, of linked nodes that take retained messages;
                          access: the same of users, rules, bans, accounts and API keys
    link-1 and above      links: node id -> connected, spool_bytes;   errors: address -> text
"""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardbroker.stores.files import replace_file

__all__ = ["ERROR_MAX", "REPORT_MS", "read_report", "write_report"]

REPORT_MS = 1_000
"""Interval of reports."""
VALID_MS = 5_000
"""Age above which a report is that of a process that is gone, or stuck."""
ERROR_MAX = 300
"""Characters of an error."""


def write_report(path: Path, **report: Any) -> None:
    """Replaces the report of this process, unless shared memory has no room for it."""
    with suppress(OSError):
        replace_file(path, json.dumps({"at_ms": _now_ms(), **report}).encode(), sync=False)


def read_report(path: Path) -> dict[str, Any]:
    """Returns the report of a process, or an empty one if the last one is missing or old."""
    with suppress(OSError, ValueError, KeyError):
        found: dict[str, Any] = json.loads(path.read_bytes())
        if _now_ms() - found["at_ms"] <= VALID_MS:
            return found
    return {}


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
