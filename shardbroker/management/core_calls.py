"""Requests to the process `cluster`."""

import asyncio
import os
import socket
import time
from typing import Any

import cbor2

from shardbroker.control import ControlError
from shm.topology import Topology

__all__ = ["CoreCalls"]

ANSWER_S = 15.0
"""Longest wait for an answer: a few calls of etcd, each of which ends in 2 s for each endpoint."""
CHANGE_S = 90.0
"""Longest wait for a change of the core: its new member starts and takes over all keys."""
ANSWER_MAX = 65536


class CoreCalls:
    """One request at a time; {"id", "verb", "node"} and more for some verbs, answered with {"id", "error", "result"}."""

    def __init__(self, topology: Topology) -> None:
        self._socket: socket.socket | None = None
        if topology.settings.cluster.has_core:
            (end,) = topology.sending_ends("core")
            self._socket = socket.socket(fileno=os.dup(end))
            self._socket.setblocking(False)
        self._number = time.time_ns()  # answers to an earlier manager have other numbers
        self._turn = asyncio.Lock()

    async def ask(self, verb: str, node: str = "", code: str = "BAD_REQUEST", **more: Any) -> Any:
        """Returns the result of a verb: `force-leave`, `forget`, `core add` and `core remove` of a node, `core status` and `core
        recover`, `adopt check`, `begin`, `finish` and `stop` with the `uuid` of a data directory, `config read`, and `config
        change` with `more`. Raises ControlError with what speaks against it, and this code."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        async with self._turn:
            self._number += 1
            try:
                async with asyncio.timeout(CHANGE_S if verb.startswith("core ") else ANSWER_S):
                    await loop.sock_sendall(self._socket, cbor2.dumps({"id": self._number, "verb": verb, "node": node, **more}))
                    while (answer := cbor2.loads(await loop.sock_recv(self._socket, ANSWER_MAX)))["id"] != self._number:
                        pass
            except TimeoutError:
                raise ControlError("NOT_AVAILABLE", "process cluster did not respond: timed out") from None
        if answer["error"]:
            raise ControlError(code, answer["error"])
        return answer["result"]
