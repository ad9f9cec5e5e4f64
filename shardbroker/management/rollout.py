"""Brings changed settings to the processes that they reach and waits for their acknowledgements; see shm/in_force.py."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

from shardbroker.config import Settings
from shardbroker.control import ControlError
from shardbroker.logs.phrases import Line, log_line
from shardbroker.stores.files import replace_file
from shm.channels import SUPERVISOR
from shm.counters import Counters, ProcessState
from shm.in_force import encode_in_force, read_in_force, settings_file
from shm.topology import Topology

__all__ = ["Rollout"]

TIMEOUT_S = 5.0
"""How long a process may take to apply a change: some passes of a worker, one second of an idle acceptor."""
POLL_S = 0.005
"""Between two looks at the acknowledgements, which are words in shared memory."""


class Rollout:
    """The manager's end of the road. `settings` are those in force.

    request_supervisor: requests that the supervisor loads the file; its answer is the acknowledgement. complain: logs an error.
    """

    def __init__(
        self,
        topology: Topology,
        counters: Counters,
        request_supervisor: Callable[[], Awaitable[object]],
        complain: Callable[[Line], None],
    ) -> None:
        self._topology, self._counters = topology, counters
        self._request_supervisor, self._complain = request_supervisor, complain
        generation, settings = read_in_force(topology)
        self._generation: int = generation
        self.settings: Settings = settings
        self._supervisor_request: asyncio.Task[None] | None = None
        """The request to the supervisor that was sent last."""

    def resume(self) -> None:
        """Announces a change whose manager ended before all processes knew of it."""
        if self._counters.settings_wanted(self._topology.manager) < self._generation:
            self._announce(frozenset({SUPERVISOR, *(place.role.name for place in self._topology.places)}))

    def publish(self, settings: Settings, reached: frozenset[str]) -> None:
        """Puts settings in force in the processes of these roles. Raises OSError; nothing has changed then."""
        replace_file(settings_file(self._topology.runtime_dir), encode_in_force(self._generation + 1, settings), sync=False)
        self._generation += 1
        self.settings = settings
        self._announce(reached)

    def _announce(self, reached: frozenset[str]) -> None:
        manager = self._topology.manager
        for place in self._topology.places:
            if place.role.name in reached and place.slot != manager:
                self._counters.want_settings(place.slot, self._generation)
                if place.role.inbox:
                    os.eventfd_write(self._topology.doorbells[place.slot], 1)
        if SUPERVISOR in reached:
            self._supervisor_request = asyncio.create_task(self._notify_supervisor())
        # The last word to be written: see resume().
        self._counters.want_settings(manager, self._generation)
        self._counters.acknowledge_settings(manager, self._generation)

    async def _notify_supervisor(self) -> None:
        try:
            await self._request_supervisor()
        except ControlError as error:
            self._complain(log_line("settings not applied by the supervisor", reason=error))
            raise

    async def behind(self) -> list[str]:
        """Returns the titles of the processes that serve and have not applied the settings in force within TIMEOUT_S."""
        deadline = time.monotonic() + TIMEOUT_S
        waited_for = [(place, self._counters.settings_wanted(place.slot)) for place in self._topology.places]
        request = self._supervisor_request
        if request is not None:
            await asyncio.wait([request], timeout=TIMEOUT_S)
        while True:
            waited_for = [
                (place, generation)
                for place, generation in waited_for
                if self._counters.settings_applied(place.slot) < generation
                and self._counters.state(place.slot) == ProcessState.READY
            ]
            if not waited_for or time.monotonic() >= deadline:
                break
            await asyncio.sleep(POLL_S)
        acknowledged = request is None or (request.done() and not request.cancelled() and request.exception() is None)
        return [place.title for place, _ in waited_for] + ([] if acknowledged else [SUPERVISOR])
