"""Notices of acceptors: log lines about connections that no worker has seen."""

import os
import socket

from acceptor.notices import NOTICE_BYTES, read_notice
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import log_line
from shm.topology import Topology

__all__ = ["Notices"]

NOTICES_A_PASS = 100
"""Notices that are read before other work gets its turn."""


class Notices:
    """The manager's end of the channel `notices`."""

    def __init__(self, topology: Topology, log: Log) -> None:
        self.socket = socket.socket(fileno=os.dup(topology.receiving_ends("notices")[0]))
        self._log = log

    def drain(self) -> None:
        """Logs what has arrived."""
        for _ in range(NOTICES_A_PASS):
            try:
                level, text, unsent = read_notice(self.socket.recv(NOTICE_BYTES))
            except BlockingIOError:
                break
            if unsent:
                self._log.add("warning", log_line("log lines dropped", count=unsent, reason="too many refused connections"))
            self._log.add(level, text)
        self._log.flush()
