"""The broker, whose worker 1 waits LATE_S before it recovers its sessions: `python -m tests.management.late_worker serve ...`."""

import sys
import time
from functools import partial
from typing import Any

import shardbroker.worker.main as worker
from shardbroker.cli.main import main

LATE_S = 2.0


def late(recover: Any, one: Any, topology: Any, number: int, *given: Any) -> None:
    if number == 1:
        time.sleep(LATE_S)
    recover(one, topology, number, *given)


if __name__ == "__main__":
    worker.recover = partial(late, worker.recover)
    sys.exit(main())
