"""The management plane: the manager process, the log lines of clients and $SYS topics.

`main` is the process: it sleeps on its doorbell, reads the events that workers put into its inbox, and publishes `$SYS` through a
worker at its intervals. `logs` formats the events and writes the lines. `sys_topics` maps gauges and counters to EMQX's names.

The plane never delays a message: a worker whose ring to the manager is full drops the event and counts it.
"""

from shardbroker.management.main import run

__all__ = ["run"]
