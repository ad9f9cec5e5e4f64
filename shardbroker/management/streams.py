"""Named streams: those of the configuration, and those that are made while the broker runs; kept over restarts, put in force.

    <data_dir>/streams.json       the streams made at run time; replaced and synced by each change
    <runtime_dir>/streams.json    all streams in force, for workers that start

A change is in force once it is answered: what is published after it is kept, and clients can subscribe at every worker.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from math import inf
from typing import Any

from pydantic import ValidationError

from shardbroker.config.streams import STREAM_NAME, STREAMS_FILE, STREAMS_MAX, Stream
from shardbroker.config.units import format_duration
from shardbroker.control import ControlError
from shardbroker.logs.phrases import Line, log_line
from shardbroker.management.feed import Feed
from shardbroker.management.stream_holds import StreamHolds, Use
from shardbroker.management.workers import Workers
from shardbroker.stores.files import replace_file
from shardbroker.stores.stream_definitions import write_streams
from shm.routes import RouteTableFull
from shm.topology import Topology

__all__ = ["CONFIGURATION", "RUNTIME", "Streams"]

CONFIGURATION, RUNTIME = "configuration", "runtime"
"""Origins of a stream."""


class Streams:
    """configured: of the settings. start_processes: has the supervisor start the processes flows if there are streams."""

    def __init__(
        self,
        topology: Topology,
        configured: Mapping[str, Stream],
        feed: Feed,
        workers: Workers,
        start_processes: Callable[[], Awaitable[Any]],
        complain: Callable[[Line], None],
    ) -> None:
        self._feed, self._workers, self._start_processes, self._complain = feed, workers, start_processes, complain
        self._kept, self._runtime_dir = topology.data_dir / STREAMS_FILE, topology.runtime_dir
        self._holds = StreamHolds(topology.data_dir, topology.settings.journal.segment_bytes)
        self._has_journal = topology.settings.durability.level != "none"
        self._configured = dict(configured)
        self._made: dict[str, Stream] = {}
        self._problem = ""
        self._turn = asyncio.Lock()
        self._configuring: asyncio.Task[None] | None = None

    # --- what there is ----------------------------------------------------------------------------------------------------------

    def all(self) -> dict[str, Stream]:
        """Returns all streams by name; of two with the same name, that of the configuration."""
        streams = {**self._made, **self._configured}
        return {name: streams[name] for name in sorted(streams)}

    def find(self, name: str) -> Stream:
        """Returns a stream. Raises ControlError NOT_FOUND."""
        stream = self._configured.get(name) or self._made.get(name)
        if stream is None:
            raise ControlError("NOT_FOUND", f"no stream {name[:100]!r}")
        return stream

    def origin(self, name: str) -> str:
        """Returns where a stream is defined."""
        return CONFIGURATION if name in self._configured else RUNTIME

    async def uses(self, names: Iterable[str]) -> dict[str, Use]:
        """Returns what is kept for these streams. Raises OSError."""
        found = {name: self.find(name) for name in names}
        kept = [stream.retention for stream in found.values()]
        return dict(zip(found, await asyncio.to_thread(self._holds.uses, kept, _now_us()), strict=True))

    async def subscribers(self) -> dict[str, int]:
        """Returns the number of connected subscribers, by stream, of the workers that answer."""
        total: dict[str, int] = {}
        for found in await self._workers.call_available("stream subscribers"):
            for name, count in (found or {}).items():
                total[name] = total.get(name, 0) + count
        return total

    # --- changes ----------------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Puts all streams in force, before the broker serves. Those of a file that cannot be read are not, and it is kept."""
        try:
            self._made = self._read_kept()
            if self._made and not self._has_journal:
                raise ValueError("streams need a journal: durability.level must be process or machine, got none")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._made, self._problem = {}, f"{self._kept}: {error}"
            self._complain(log_line("streams not loaded", reason=self._problem))
        if not self.all() and not self._kept.exists():
            return
        try:
            self._holds.hold(self._retained(), _now_us())
            self._apply()
        except (OSError, RouteTableFull) as error:
            self._complain(log_line("streams not loaded", reason=str(error)))

    def configure(self, streams: Mapping[str, Stream]) -> None:
        """Puts the streams of a new configuration in force; see settled()."""
        if dict(streams) != self._configured:
            self._configured = dict(streams)
            self._configuring = asyncio.get_running_loop().create_task(self._configure())

    async def settled(self) -> None:
        """Returns once the streams of the configuration are in force. The change does not end with a caller that gives up."""
        if self._configuring is not None:
            await asyncio.shield(self._configuring)

    async def _configure(self) -> None:
        async with self._turn:
            try:
                await self._put_in_force()
            except ControlError as error:
                self._complain(log_line("streams not loaded", reason=str(error)))

    async def add(self, name: str, given: dict[str, Any]) -> Stream:
        """Makes a stream; returns it when it is in force. Raises ControlError."""
        if not STREAM_NAME.fullmatch(name):
            raise ControlError(
                "BAD_REQUEST", f"name: must be 1 to 64 letters, digits, - _ and ., a letter or digit first, got {name[:100]!r}"
            )
        stream = _checked(given)
        async with self._turn:
            if name in self.all():
                raise ControlError("ALREADY_EXISTS", f"name: must be new, got {name}")
            if len(self.all()) >= STREAMS_MAX:
                raise ControlError("EXCEED_LIMIT", f"streams: must be at most {STREAMS_MAX}")
            await self._change({**self._made, name: stream})
        return stream

    async def change(self, name: str, given: dict[str, Any]) -> Stream:
        """Changes fields of a stream; returns it when that is in force. Raises ControlError."""
        async with self._turn:
            before = self._own(name).model_dump()
            given["retention"] = {**before["retention"], **given.get("retention", {})}
            stream = _checked({**before, **given})
            await self._change({**self._made, name: stream})
        return stream

    async def delete(self, name: str) -> None:
        """Removes a stream. Raises ControlError."""
        async with self._turn:
            self._own(name)
            await self._change({other: stream for other, stream in self._made.items() if other != name})

    async def hold(self) -> None:
        """Lets go of what is too old for all streams; called every few seconds. Raises OSError."""
        async with self._turn:
            if self.all():
                await asyncio.to_thread(self._holds.hold, self._retained(), _now_us())

    def _own(self, name: str) -> Stream:
        """Returns a stream that was made at run time. Raises ControlError."""
        if name in self._configured:
            raise ControlError(
                "BAD_REQUEST", f"stream {name} is in the configuration (streams.{name}): change it there, and reload"
            )
        return self.find(name)

    async def _change(self, made: dict[str, Stream]) -> None:
        """Puts other streams made at run time in force; what cannot be put in force is taken back. Raises ControlError."""
        if not self._has_journal:
            raise ControlError("BAD_REQUEST", "streams need a journal: durability.level must be process or machine, got none")
        if self._problem:
            raise ControlError("NOT_AVAILABLE", f"streams cannot be changed before this is mended: {self._problem}")
        before = self._made
        try:
            self._store(made)
            await self._put_in_force()
        except ControlError:
            with suppress(ControlError):  # the next change tries again
                self._store(before)
                await self._put_in_force()
            raise

    async def _put_in_force(self) -> None:
        """Raises ControlError."""
        try:
            await self._start_processes()
            await asyncio.to_thread(self._holds.hold, self._retained(), _now_us())
            self._apply()
        except RouteTableFull as error:
            raise ControlError("EXCEED_LIMIT", str(error)) from None
        except OSError as error:
            raise ControlError("NOT_AVAILABLE", str(error)) from None
        if late := await self._workers.caught_up():
            raise ControlError("WORKER_TIMEOUT", f"worker {late[0]} did not respond")

    def _apply(self) -> None:
        """Has messages captured, and tells workers. Raises OSError, RouteTableFull."""
        enabled = {name: stream for name, stream in self.all().items() if stream.enable}
        definitions = [
            [
                name.encode(),
                stream.topic_filter.encode(),
                0 if stream.retention.age == inf else int(stream.retention.age * 1e6),
                stream.key if stream.last_value else None,
            ]
            for name, stream in enabled.items()
        ]
        self._feed.keep(stream.topic_filter for stream in enabled.values())
        write_streams(self._runtime_dir, definitions)
        self._workers.send_all("streams", streams=definitions)

    def _retained(self) -> list[Any]:
        return [stream.retention for stream in self.all().values() if stream.enable]

    # --- the file ---------------------------------------------------------------------------------------------------------------

    def _read_kept(self) -> dict[str, Stream]:
        try:
            content = json.loads(self._kept.read_bytes())
        except FileNotFoundError:
            return {}
        return {name: Stream.model_validate(stream) for name, stream in content["streams"].items()}

    def _store(self, made: dict[str, Stream]) -> None:
        """Raises ControlError."""
        streams = {name: _plain(stream) for name, stream in made.items()}
        try:
            replace_file(self._kept, json.dumps({"streams": streams}).encode())
        except OSError as error:
            raise ControlError("NOT_AVAILABLE", f"streams not written: {error}") from None
        self._made = made


def _plain(stream: Stream) -> dict[str, Any]:
    """Returns a stream as JSON has it: an age without end is a text."""
    plain = stream.model_dump()
    plain["retention"]["age"] = format_duration(stream.retention.age)
    return plain


def _checked(given: dict[str, Any]) -> Stream:
    """Returns a stream. Raises ControlError BAD_REQUEST, with the field."""
    try:
        return Stream.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        text = first["msg"].removeprefix("Value error, ")
        raise ControlError("BAD_REQUEST", f"{field}: {text}") from None


def _now_us() -> int:
    return time.time_ns() // 1000
