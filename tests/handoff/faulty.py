"""The broker, in which a process is killed in the middle of a hand-over: `python -m tests.handoff.faulty serve ...`.

HANDOFF_FAULT in the environment names a function and a moment, such as `predecessor._give:before` or
`successor.Succession.adopt:after`: the process that calls the function is killed by SIGKILL then. `...:sleep` makes it wait longer
than the other one does, `...:late` half a second, `...:slow` longer than a replacement
may take, and `...:raise` makes the function fail.
"""

import os
import signal
import sys
import time
from functools import wraps
from importlib import import_module
from typing import Any

from shardbroker.cli.main import main

VARIABLE = "HANDOFF_FAULT"
TOO_LONG_S = 60.0
LATE_S = {"late": 0.5, "slow": 6.0}
REACHED = "the fault of the test"


def break_at(fault: str) -> None:
    place, _, moment = fault.partition(":")
    module, *names = place.split(".")
    import_module("shardbroker.worker.handoff.predecessor").ADOPTED_S = 2.0  # type: ignore[attr-defined]
    import_module("shardbroker.supervisor.tree").REPLACE_S = 4.0  # type: ignore[attr-defined]
    owner: Any = import_module(f"shardbroker.worker.handoff.{module}")
    for name in names[:-1]:
        owner = getattr(owner, name)
    whole = getattr(owner, names[-1])

    @wraps(whole)
    def broken(*given: Any) -> Any:
        print(REACHED, flush=True)
        if moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if moment == "sleep":  # longer than the other one waits
            time.sleep(TOO_LONG_S)
        if moment in LATE_S:
            time.sleep(LATE_S[moment])
            return whole(*given)
        if moment == "raise":
            raise ValueError(REACHED)
        found = whole(*given)
        os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(owner, names[-1], broken)


if __name__ == "__main__":
    if os.environ.get(VARIABLE):
        break_at(os.environ[VARIABLE])
    sys.exit(main())
