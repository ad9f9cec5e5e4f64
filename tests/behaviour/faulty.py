"""The broker with a fault inside: events of a message whose payload begins with FAULT, or of a subscription to such, raise.

`python -m tests.behaviour.faulty serve ...`. While there are subscribers to `$event/#`, the fault is met wherever such a message is
delivered or dropped, by whatever road it has come.
"""

import sys
from typing import Any

from shardbroker.cli.main import main
from shardbroker.worker import event_messages

FAULT = b"fault"
_message, _subscribed = event_messages.message, event_messages.subscribed


def _faulty_message(*given: Any) -> dict[str, Any]:
    if given[3].startswith(FAULT):
        raise RuntimeError("a fault of the test")
    return _message(*given)


def _faulty_subscribed(filter: bytes, options: Any) -> dict[str, Any]:
    if filter.startswith(FAULT):
        raise RuntimeError("a fault of the test")
    return _subscribed(filter, options)


if __name__ == "__main__":
    event_messages.message, event_messages.subscribed = _faulty_message, _faulty_subscribed  # type: ignore[assignment]
    sys.exit(main())
