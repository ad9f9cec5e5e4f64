"""The driver of an action: a connection and a reader for each journal of this process."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from shardbroker.cluster.faults import PeerFault
from shardbroker.config.sinks.shardbroker import ShardbrokerAction
from shardbroker.connectors.errors import ConnectorError, describe
from shardbroker.connectors.shardbroker import Shardbroker, Streams
from shardbroker.flows.bridge.action import BridgeAction
from shardbroker.flows.bridge.protocol import CLOSED, Channel, Stream, dial
from shardbroker.flows.bridge.records import Picked, Picker
from shardbroker.flows.cursors import Cursor
from shardbroker.flows.filters import FilterTree
from shardbroker.flows.sinks.driver import Failure, Unusable
from shardbroker.flows.sinks.row import Row
from shardbroker.journal.follow import Place
from shardbroker.link.frames import FrameType

__all__ = ["Sender", "greet"]

PING_S = 15.0
"""Silence after which a PING is sent, and after which without an answer the connection is lost."""
LOOK_S = 1.0
"""Between two looks at a journal for which nothing has rung."""
PAUSE_S = 0.0002
"""Behind a read that has reached the end: what arrives meanwhile is read at once."""


class _Sent(NamedTuple):
    """What waits for an acknowledgement. is_sent: False: nothing was wanted, so it is done with what is before it."""

    place: Cursor
    size: int
    messages: int
    is_sent: bool


async def greet(connector: Shardbroker, streams: Streams, stream: Stream | None = None) -> tuple[Channel, bytes]:
    """Returns the channel and the id of the far broker. Raises Unusable, OSError, TimeoutError."""
    channel = Channel(*streams)
    try:
        site = connector.site or "0" * 16
        hello = await dial(channel, connector.secret, site.encode(), connector.origin or "probe", stream)
    except (PeerFault, ConnectorError) as error:
        text = str(error) if isinstance(error, ConnectorError) else "the answer is not that of a source of the type shardbroker"
        raise Unusable(f"{connector.settings.server}: {text}") from None
    except ConnectionError:
        raise Unusable(f"{connector.settings.server}: {CLOSED}") from None
    return channel, hello.site


class Sender:
    """journals: where they are; set by attach() before open()."""

    def __init__(self, settings: ShardbrokerAction, connector: Shardbroker, id: str) -> None:
        self._settings, self._connector, self._id = settings, connector, id
        self._action: BridgeAction | None = None
        self._journals = Path()
        self._lost: Callable[[str], None] = lambda reason: None
        self._filters: Sequence[bytes] = ()
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._events: dict[str, asyncio.Event] = {}
        self._pickers: dict[str, Picker] = {}
        self._is_open = False

    def attach(self, action: BridgeAction, journals: Path, lost: Callable[[str], None]) -> None:
        """Sets what is shipped."""
        self._action, self._journals, self._lost = action, journals, lost

    def follow(self, filters: Sequence[bytes]) -> None:
        """Sets the topics, in any thread."""
        if tuple(filters) != tuple(self._filters):
            self._filters = tuple(filters)
            for picker in list(self._pickers.values()):
                picker.forget(self._matches())

    def _matches(self) -> Callable[[bytes], bool]:
        tree: FilterTree[bool] = FilterTree()
        for filter in self._filters:
            tree.add(filter, True)
        return lambda topic: bool(tree.match(topic))

    # --- the contract of drivers ----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Checks that the far broker answers, and begins all journals."""
        self.leave()
        await self._connector.probe()
        self._is_open = True
        self._begin_missing()

    async def probe(self) -> None:
        """Begins journals that are new; connections have PING of their own."""
        if self._action is None:
            await self._connector.probe()
        else:
            self._begin_missing()

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        raise AssertionError("no row is admitted")

    async def close(self) -> None:
        tasks = list(self._streams.values())
        self.leave()
        await asyncio.gather(*tasks, return_exceptions=True)

    def leave(self) -> None:
        """Ends all connections."""
        self._is_open = False
        for task in self._streams.values():
            task.cancel()
        self._streams.clear()

    def moved(self) -> None:
        """Has journals read; in the loop."""
        if self._is_open:
            self._begin_missing()
            for event in self._events.values():
                event.set()

    def _begin_missing(self) -> None:
        assert self._action is not None
        for journal in list(self._action.journals):
            if journal not in self._streams:
                self._events[journal] = asyncio.Event()
                self._streams[journal] = asyncio.get_running_loop().create_task(self._serve(journal))

    # --- one journal ----------------------------------------------------------------------------------------------------------

    async def _serve(self, journal: str) -> None:
        try:
            await self._ship(journal)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if self._is_open:
                self.leave()
                self._lost(describe(error))

    async def _ship(self, journal: str) -> None:
        """Ships a journal until it is cancelled. Raises any exception when the far broker is lost."""
        prefix = self._settings.parameters.topic_prefix.encode()
        streams = await self._connector.open()
        waiting: deque[_Sent] = deque()
        action = self._action
        assert action is not None
        try:
            async with asyncio.timeout(PING_S):
                channel, far = await greet(self._connector, streams, Stream(self._id, journal, prefix))
            with action.lock:
                cursor = action.resumes_at(journal)
            place = Place(cursor.segment, cursor.offset, cursor.position) if cursor.offset or cursor.position else None
            picker = Picker(self._journals / journal, place, matches=self._matches(), far=far)
            self._pickers[journal] = picker
            answers = asyncio.get_running_loop().create_task(self._take_answers(channel, journal, waiting))
            sending = asyncio.get_running_loop().create_task(self._send(channel, journal, picker, waiting))
            try:
                await asyncio.wait({answers, sending}, return_when=asyncio.FIRST_COMPLETED)
                for task in (answers, sending):
                    if task.done():
                        task.result()
            finally:
                for task in (answers, sending):
                    task.cancel()
                await asyncio.gather(answers, sending, return_exceptions=True)
                self._pickers.pop(journal, None)
                picker.close()
        finally:
            streams[1].close()
            with action.lock:
                action.returned(sum(one.messages for one in waiting))

    async def _send(self, channel: Channel, journal: str, picker: Picker, waiting: deque[_Sent]) -> None:
        event, action = self._events[journal], self._action
        assert action is not None
        pinged_s = asyncio.get_running_loop().time()
        while True:
            now_s = asyncio.get_running_loop().time()
            if now_s - pinged_s >= PING_S / 3:
                pinged_s = now_s
                channel.send(FrameType.PING)
            if sum(one.size for one in waiting) >= self._settings.parameters.window:
                await self._wait(event)
                continue
            before = picker.place
            frames, lost = picker.pick()
            place = picker.place
            if lost:
                with action.lock:
                    action.lost(lost)
            if place is not None and place != before:
                await self._put(channel, journal, frames, before, place, waiting)
            if picker.at_end:
                await self._wait(event)
                await asyncio.sleep(PAUSE_S)
            else:
                await asyncio.sleep(0)

    async def _put(
        self, channel: Channel, journal: str, frames: list[Picked], before: Place | None, place: Place, waiting: deque[_Sent]
    ) -> None:
        action = self._action
        assert action is not None
        for frame in frames:
            at = place if frame is frames[-1] else before or Place(0, 0, 0)
            waiting.append(_Sent(Cursor(frame.position, at.segment, at.offset), len(frame.body), frame.count, True))
            with action.lock:
                action.sent(frame.count)
            channel.send(FrameType.DATA, frame.body, frame.position)
            await channel.drain()
        if not frames:
            waiting.append(_Sent(Cursor(place.position, place.segment, place.offset), 0, 0, False))
            if len(waiting) > 1 and not waiting[-2].is_sent:
                del waiting[-2]
            self._acknowledge(journal, waiting, 0)

    async def _wait(self, event: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await event.wait()
        event.clear()

    async def _take_answers(self, channel: Channel, journal: str, waiting: deque[_Sent]) -> None:
        while True:
            try:
                async with asyncio.timeout(PING_S):
                    frame = await channel.frame()
            except TimeoutError:
                raise ConnectorError(f"no answer within {PING_S:g} s") from None
            if frame.type is FrameType.DATA_ACK:
                self._acknowledge(journal, waiting, frame.position)
                self._events[journal].set()
            elif frame.type is not FrameType.PONG:
                raise ConnectorError("the far broker has sent a frame that is not allowed")

    def _acknowledge(self, journal: str, waiting: deque[_Sent], position: int) -> None:
        action = self._action
        assert action is not None
        with action.lock:
            while waiting and (not waiting[0].is_sent or waiting[0].place.position <= position):
                one = waiting.popleft()
                action.acknowledged(journal, one.place, one.messages)
