"""The management plane: the manager process, its log lines and $SYS topics.

`main` is the process: it sleeps on its doorbell, takes the events that workers put into its inbox, and publishes `$SYS` through a
worker at its intervals. `lines` makes log lines of events, `log` writes them on a thread of its own, so that a slow standard
error stops nothing and fills no memory. `sys_topics` names gauges and counters as EMQX does.

Nothing here stands in the way of a message: a worker whose ring to the manager is full drops the event and counts it.
"""

from shardbroker.management.main import run

__all__ = ["run"]
