"""The management plane: the manager process, the log lines of clients and $SYS topics.

`main` is the process: it sleeps on its doorbell, takes the events that workers put into its inbox, and publishes `$SYS` through a
worker at its intervals. `logs` makes lines of the events and writes them. `sys_topics` names gauges and counters as EMQX does.

Nothing here stands in the way of a message: a worker whose ring to the manager is full drops the event and counts it.
"""

from shardbroker.management.main import run

__all__ = ["run"]
