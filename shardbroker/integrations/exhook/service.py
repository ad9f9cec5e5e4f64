"""The hooks part of the process integrations: takes the workers' events and requests, and sends the programs' requirements."""

import asyncio
import json
import os
import socket
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from shardbroker.access.contract import BackendError
from shardbroker.access.wire import UNSOLICITED, Kind, Request, Status, encode_result, request_of
from shardbroker.config import Settings
from shardbroker.config.exhook import STATE_FILE
from shardbroker.hooks.exhook import EVENT_MAX, Wanted, decode_event
from shardbroker.integrations.failures import Report
from shardbroker.mqtt.spec import ReasonCode
from shardbroker.stores.files import replace_file
from shm.topology import Topology

if TYPE_CHECKING:
    from shardbroker.integrations.exhook.programs import Programs

__all__ = ["HookService"]

READS_A_TURN = 64
"""Events taken from one worker before others get their turn."""
WRITE_STATE_S = 0.5
"""Interval of the check for changed figures."""


class HookService:
    """The service for all workers. `broadcast`: sends a result to every worker. gRPC is loaded only if there are programs."""

    def __init__(self, topology: Topology, report: Report, broadcast: Callable[[bytes], None]) -> None:
        self._topology, self._report, self._broadcast = topology, report, broadcast
        self._programs: Programs | None = None
        self._made_from: object = None
        self._state_file = topology.runtime_dir / STATE_FILE
        self._sockets: list[socket.socket] = []

    def start(self, settings: Settings) -> None:
        """Starts the programs and reads events. Raises BackendError."""
        self._programs = self._made(settings)
        self._made_from = settings.exhook, settings.mqtt.max_packet_size
        loop = asyncio.get_running_loop()
        for end in self._topology.receiving_ends("events"):
            link = socket.socket(fileno=os.dup(end))
            link.setblocking(False)
            self._sockets.append(link)
            loop.add_reader(link, self._read, link)
        if self._programs is not None:
            self._programs.start()

    async def use(self, settings: Settings) -> bool:
        """Applies new settings; returns whether the programs have changed. Raises BackendError; the old programs then remain."""
        made_from = settings.exhook, settings.mqtt.max_packet_size
        if made_from == self._made_from:
            return False
        new, old = self._made(settings), self._programs
        self._programs, self._made_from = new, made_from
        if old is not None:
            await old.close()
        if new is not None:
            new.start()
        else:
            self._broadcast(_wanted_result([]))
        return True

    def _made(self, settings: Settings) -> "Programs | None":
        if not settings.exhook.enabled:
            return None
        try:
            module = import_module("shardbroker.integrations.exhook.programs")
        except ImportError as error:
            raise BackendError(f"exhook.servers needs the library {error.name}; pip install 'shardbroker[exhook]'") from None
        made: Programs = module.Programs(settings, self._topology.node_name, self._report, self._on_wanted)
        return made

    def _on_wanted(self, wanted: list[Wanted]) -> None:
        self._broadcast(_wanted_result(wanted))

    def wanted(self) -> bytes | None:
        """Returns the requirements for a worker that requests them; None: they are broadcast later."""
        wanted = [] if self._programs is None else self._programs.wanted
        return None if wanted is None else _wanted_result(wanted)

    async def result(self, request: Request) -> bytes:
        """Returns the result of a worker's request to programs."""
        if self._programs is None:
            return encode_result(request.id, Status.IGNORE)  # they were removed in the meantime
        from shardbroker.integrations.exhook.programs import MessageResult, Silent

        try:
            if request.kind is Kind.HOOK_LOGIN:
                allowed = await self._programs.authenticate(request.client)
                if allowed is None:
                    return encode_result(request.id, Status.IGNORE)
                if allowed:
                    return encode_result(request.id, Status.OK)
                return encode_result(request.id, Status.DENY, ReasonCode.NOT_AUTHORIZED, "denied by an exhook server")
            if request.kind is Kind.HOOK_ACL:
                requests = [request_of(fields) for fields in request.details]
                return encode_result(request.id, Status.DECIDED, *await self._programs.authorize(request.client, requests))
            become = await self._programs.publish(request.client, request.details)
        except Silent as error:
            return encode_result(request.id, Status.FAILED, str(error))
        if isinstance(become, MessageResult):
            return encode_result(request.id, Status.DENY if become is MessageResult.DROPPED else Status.OK)
        return encode_result(request.id, Status.OK, *become)

    def _read(self, link: socket.socket) -> None:
        for _ in range(READS_A_TURN):
            try:
                data = link.recv(EVENT_MAX)
            except (BlockingIOError, InterruptedError):
                return
            if self._programs is None:
                continue
            try:
                self._programs.notify(decode_event(data))
            except Exception as error:
                self._report("exhook", f"event not forwarded: {type(error).__name__}: {error}")

    async def keep_state(self) -> None:
        """Writes the state of the programs to a file, for ctl, REST and metrics."""
        written = None
        while True:
            text = json.dumps([] if self._programs is None else self._programs.state())
            if text != written:
                replace_file(self._state_file, text.encode(), sync=False)
                written = text
            await asyncio.sleep(WRITE_STATE_S)

    async def close(self) -> None:
        for link in self._sockets:
            asyncio.get_running_loop().remove_reader(link)
            link.close()
        if self._programs is not None:
            await self._programs.close()


def _wanted_result(wanted: list[Wanted]) -> bytes:
    return encode_result(UNSOLICITED, Status.WANTED, *([one.points, one.refuses, one.timeout_s] for one in wanted))
