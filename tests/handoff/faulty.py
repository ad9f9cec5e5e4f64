"""The broker, in which a process is killed in the middle of a hand-over: `python -m tests.handoff.faulty serve ...`.

HANDOFF_FAULT in the environment names a function and a moment, such as `predecessor._give:before` or
`successor.Succession.adopt:after`: the process that calls the function is killed by SIGKILL then. `...:sleep` makes it wait longer
than the other one does, `...:late` half a second, `...:long` longer than nodes of
a cluster wait for each other, `...:slow` longer than a replacement may take, `...:raise` makes the function fail, and
`...:lingers` makes it return half a second late.
With HANDOFF_ONCE, the path of a file that is made then, only the first of all calls in all processes is broken.
"""

import os
import signal
import sys
import time
from functools import wraps
from importlib import import_module
from typing import Any

from shardbroker.cli.main import main

VARIABLE, ONCE = "HANDOFF_FAULT", "HANDOFF_ONCE"
OF_SUPERVISOR = ("resize", "tree")
TOO_LONG_S = 60.0
LATE_S = {"late": 0.5, "long": 1.6, "slow": 6.0}
REACHED = "the fault of the test"


def break_at(fault: str) -> None:
    place, _, moment = fault.partition(":")
    module, *names = place.split(".")
    import_module("shardbroker.worker.handoff.predecessor").ADOPTED_S = 2.0  # type: ignore[attr-defined]
    import_module("shardbroker.supervisor.tree").REPLACE_S = 4.0  # type: ignore[attr-defined]
    package = "supervisor" if module in OF_SUPERVISOR else "worker.handoff"
    owner: Any = import_module(f"shardbroker.{package}.{module}")
    for name in names[:-1]:
        owner = getattr(owner, name)
    whole = getattr(owner, names[-1])

    @wraps(whole)
    def broken(*given: Any) -> Any:
        if ONCE in os.environ:
            try:
                os.close(os.open(os.environ[ONCE], os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return whole(*given)
        print(REACHED, flush=True)
        if moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if moment == "sleep":  # longer than the other one waits
            time.sleep(TOO_LONG_S)
        if moment in LATE_S:
            time.sleep(LATE_S[moment])
            return whole(*given)
        if moment == "raise":
            raise import_module("shardbroker.supervisor").StartError(REACHED) if package == "supervisor" else ValueError(REACHED)
        found = whole(*given)
        if moment == "lingers":
            time.sleep(LATE_S["late"])
            return found
        os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(owner, names[-1], broken)


if __name__ == "__main__":
    if os.environ.get(VARIABLE):
        break_at(os.environ[VARIABLE])
    sys.exit(main())
