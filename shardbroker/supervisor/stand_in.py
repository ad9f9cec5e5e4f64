"""A stand-in for a node that died: `python -m shardbroker.supervisor.stand_in`, a child of the manager that adopts its directory.

It is a broker with the name, the id and the data directory of that node, so recovery, spools of other nodes and evacuation are as
for a node that returns. No client reaches it: its one listener is a unix socket in the runtime directory of the node that adopts.

Standard input has a CBOR map: `settings`, and `parent`, the pid of the manager. The settings are fixed: files, the environment and
settings of all nodes do not change them. It stops, as by SIGTERM, when the manager ends, which starts another one.
"""

import ctypes
import faulthandler
import os
import signal
import sys
from typing import Any

import cbor2

from shardbroker.config import Loaded, Settings
from shardbroker.config.cluster_values import NO_VALUES, ClusterValues
from shardbroker.config.live import parse
from shardbroker.supervisor import StartError, Supervisor

__all__ = ["fixed", "main"]

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def fixed(settings: Settings) -> Loaded:
    """Returns settings that no other source changes; those of all nodes count as applied."""

    def again(cluster: ClusterValues = NO_VALUES, **_: Any) -> Loaded:
        return Loaded(settings, {}, again, cluster)

    return Loaded(settings, {}, again)


def main() -> int:
    """Serves until SIGTERM; returns the exit code."""
    faulthandler.enable()
    try:
        given = cbor2.loads(sys.stdin.buffer.read())
    except cbor2.CBORDecodeEOF:
        return 1  # the manager was killed while it wrote
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != given["parent"]:
        return 1
    settings = parse(given["settings"])
    try:
        return Supervisor(settings, loaded=fixed(settings)).run()
    except StartError as error:
        sys.exit(f"stand-in cannot start: {error}")


if __name__ == "__main__":
    sys.exit(main())
