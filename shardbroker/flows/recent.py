"""A rule over the last messages and events of the journals, in a child process with little memory and time.

    parent                      child: python -m shardbroker.flows.recent
    {"sql", "journals", "last"} -->  Past.last()  --> {"read", "matched", "failed", "data"} or {"error"}
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from shardbroker.flows.past import Past, Seen
from shardbroker.journal.errors import JournalError
from shardbroker.rules.encoding import encoded
from shardbroker.rules.errors import SqlError
from shardbroker.rules.sandbox import in_child, limit

__all__ = ["recent"]

SECONDS = 5
NICE = 10
"""It runs on the cores of the workers."""
MEMORY_BYTES = 256 << 20
"""Of the child: it remembers the ids of some 100,000 messages."""
TAILS = (1 << 20, 16 << 20)
"""Bytes at the end of each journal that are read; more only if the first have too few messages for the rule."""
SHOWN_MAX = 2048
"""Characters of a result; the rest is cut off."""


async def recent(sql: str, journals: Path, last: int) -> dict[str, Any]:
    """Returns counts and results for the last so many messages and events that FROM matches. Raises ValueError."""
    answer = await in_child(__name__, json.dumps({"sql": sql, "journals": str(journals), "last": last}).encode())
    if not answer:
        raise ValueError(f"sql: must end within {SECONDS} s and {MEMORY_BYTES >> 20} MB")
    found: dict[str, Any] = json.loads(answer)
    if "error" in found:
        raise ValueError(found["error"])
    return found


def main() -> None:
    """Answers one request from standard input."""
    request = json.loads(sys.stdin.buffer.read())
    limit(SECONDS, MEMORY_BYTES)
    os.nice(NICE)
    try:
        answer = _found(request["sql"], Path(request["journals"]), request["last"])
    except SqlError as error:
        answer = {"error": f"sql: {error}"}
    except (OSError, JournalError) as error:
        answer = {"error": f"journals not read: {error}"}
    except MemoryError:
        return
    sys.stdout.write(json.dumps(answer))


def _found(sql: str, journals: Path, last: int) -> dict[str, Any]:
    for tail_bytes in TAILS:
        rule = Past(sql)
        seen = rule.last(journals, last, tail_bytes)
        if rule.matched >= last:
            break
    return {"read": rule.read, "matched": rule.matched, "failed": rule.failed, "data": [_shown(one) for one in seen]}


def _shown(seen: Seen) -> dict[str, Any]:
    row = {"occurred_at": seen.time_us // 1000, "event": seen.columns["event"], "topic": seen.columns.get("topic")}
    if seen.error:
        return {**row, "error": seen.error[:SHOWN_MAX]}
    text = json.dumps(encoded(seen.result), ensure_ascii=False)
    return {**row, "result": text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."}


if __name__ == "__main__":
    main()
