"""The broker with a fault inside: events of a message whose payload begins with FAULT, or of a subscription to such, raise. So does
the second step of the look-up of a topic `breaks/<process>/...` in this process.

`python -m tests.behaviour.faulty serve ...`. While there are subscribers to `$event/#`, the fault is met wherever such a message is
delivered or dropped, by whatever road it has come.
"""

import sys
from pathlib import Path
from typing import Any

from shardbroker.cli.main import main
from shardbroker.worker.features import event_messages
from shm.routes import Match, Search

FAULT = b"fault"
_message, _subscribed, _step = event_messages.message, event_messages.subscribed, Search.step


def _faulty_message(*given: Any) -> dict[str, Any]:
    if given[3].startswith(FAULT):
        raise RuntimeError("a fault of the test")
    return _message(*given)


def _faulty_subscribed(filter: bytes, options: Any) -> dict[str, Any]:
    if filter.startswith(FAULT):
        raise RuntimeError("a fault of the test")
    return _subscribed(filter, options)


def _faulty_step(search: Search, most: int) -> Match | None:
    if search._topic.startswith(b"breaks/%b/" % Path("/proc/self/comm").read_bytes().strip()):
        part = search._part
        if part._begun:
            raise RuntimeError("a fault of the test")
        part._begun, search.visits = True, most
        return None
    return _step(search, most)


if __name__ == "__main__":
    Search.step = _faulty_step  # type: ignore[method-assign]
    event_messages.message, event_messages.subscribed = _faulty_message, _faulty_subscribed  # type: ignore[assignment]
    sys.exit(main())
