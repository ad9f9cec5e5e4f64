"""The supervisor: owns the process tree and the resources shared by its processes.

`layout` makes everything shared before the first fork: lock of the data directory, segments, descriptors, listening sockets. `tree`
starts the processes, restarts one that dies (one for one, with back-off), and drains them: acceptors, workers, manager. `child` is
one place in the tree and the first lines that run in its process; `signals` turns SIGTERM and SIGINT into something that can be
waited for.

It is synchronous, has one thread and opens no LMDB environment, so it can fork at any time. Every process inherits what it needs
and dies with the supervisor. Since children inherit the lock's descriptor too, a data directory stays locked until the last process
of a killed broker has ended, and its successor never cleans up beneath live processes.
"""

from shardbroker.supervisor.layout import StartError
from shardbroker.supervisor.tree import Supervisor

__all__ = ["StartError", "Supervisor"]
