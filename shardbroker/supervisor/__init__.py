"""The supervisor: lays out what the processes share (`layout`), and starts, watches, restarts and drains them (`tree`)."""

from shardbroker.supervisor.layout import StartError
from shardbroker.supervisor.tree import Entries, Supervisor

__all__ = ["Entries", "StartError", "Supervisor"]
