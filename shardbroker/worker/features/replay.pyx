"""Replays; see replay.pxd."""

import os

from cython cimport final
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from shardbroker.pubsub.message cimport Message
from shardbroker.pubsub.subscriptions cimport OPTION_NO_LOCAL, OPTION_RETAIN_AS_PUBLISHED, Subscription
from shardbroker.pubsub.topic_cache cimport encode_identifier
from shm.records cimport ReplayPlace, record_size

from collections import deque

from shardbroker.logs.phrases import log_line
from shardbroker.mqtt.topics import STREAM, STREAM_SINCE, covers
from shardbroker.worker.features.streams import Streams
from shm.replays import MESSAGE_MAX, WINDOW_RECORDS, decode, encode

__all__ = ["JournalReplays"]

cdef enum:
    BATCH = 512                            # messages of one replay in a pass
    COVER_COST = 8                         # units of the budget for one filter that is compared, about 1 µs

CREDIT_AT = WINDOW_RECORDS // 4
"""Records that are returned together while more of them wait."""


@final
cdef class JournalReplays:
    """context: clock, settings and log. channels: to the processes flows; empty: no process reads journals."""

    def __init__(self, WorkerContext context not None):
        self.context = context
        self.channels = []
        self.running = {}
        self.starting = deque()
        self.unsent = []
        self.kept = ()
        self.streams = Streams()
        self.of_streams = {}
        self.without_stream = {}
        # Different from those of a worker that was killed, whose records may be in the ring.
        self.last = context.now_ms << 20

    def connect(self, channels) -> None:
        """Uses these descriptors. No replay of an earlier worker runs from now on."""
        self.channels = list(channels)
        for process in range(len(self.channels)):
            self.post(process, encode("reset"))

    def configure(self, settings) -> None:
        """Applies the settings. Replays that run go on."""
        self.kept = tuple([filter.encode() for filter in settings.journal.capture])
        self.replays_max = settings.replay.max_replays
        self.rate = settings.replay.rate

    cdef bint is_on(self) noexcept:
        return self.replays_max != 0 and bool(self.channels)

    cdef bint may_replay(self, bytes filter) except -1:
        if not self.is_on():
            return False
        self.context.budget -= COVER_COST * <int64_t>(len(self.kept) + len(self.streams.filters))
        return any([covers(kept, filter) for kept in self.kept + self.streams.filters])

    # --- streams -----------------------------------------------------------------------------------------------------------------

    def take_streams(self, list definitions) -> None:
        """Makes these the streams in force. Those of changed streams begin again at their positions, or wait for their stream."""
        cdef ReplaySubscription replay
        self.streams.set(definitions)
        for number, before in list(self.of_streams.items()):
            replay = self.current(self.running[number], number)
            if self.streams.of(replay.wire_filter, replay.filter) != before:
                replay.number = number
                self.halt(replay, False)
                self.start_one(replay)
        waiting, self.without_stream = self.without_stream, {}
        for replay in waiting.values():
            if is_wanted(replay, <Session>replay.subscriber):
                self.start_one(replay)

    def subscribers(self) -> dict[str, int]:
        """Returns the number of subscriptions that run, by name of the stream."""
        cdef dict found = {}
        for stream in self.of_streams.values():
            found[stream.name.decode()] = found.get(stream.name.decode(), 0) + 1
        return found

    # --- begin and end -----------------------------------------------------------------------------------------------------------

    cdef int start(self, Session session) except -1:
        cdef Subscription subscription
        for subscription in session.all_subscriptions():
            if isinstance(subscription, ReplaySubscription):
                self.start_one(<ReplaySubscription>subscription)
        return 0

    cdef list start_new(self, list subscriptions):
        cdef Subscription subscription
        cdef list others = []
        for subscription in subscriptions:
            if isinstance(subscription, ReplaySubscription):
                self.start_one(<ReplaySubscription>subscription)
            else:
                others.append(subscription)
        return others

    cdef int start_one(self, ReplaySubscription replay) except -1:
        if not replay.number and not replay.over and not replay.starting:
            replay.starting = True
            self.starting.append(replay)
            self.active = True
        return 0

    cdef int begin_some(self) except -1:
        cdef ReplaySubscription replay
        cdef Session session
        while self.starting and len(self.running) < <Py_ssize_t>self.replays_max and self.channels:
            replay = self.starting.popleft()
            replay.starting = False
            session = <Session>replay.subscriber
            if replay.number or not is_wanted(replay, session):
                continue
            stream = None
            if replay.wire_filter.startswith((STREAM, STREAM_SINCE)):
                stream = self.streams.of(replay.wire_filter, replay.filter)
                if stream is None:         # removed or changed: until there is one again
                    self.without_stream[session.key, replay.wire_filter] = replay
                    continue
            self.last += 1
            replay.number = self.last
            if stream is not None:
                self.of_streams[replay.number] = stream
            replay.waiting = deque()
            replay.records_done = replay.bytes_done = 0
            self.running[replay.number] = replay
            end_us = None if replay.end_us == <uint64_t>-1 else replay.end_us
            self.post(replay.number % <uint64_t>len(self.channels), encode(
                "begin", replay.number, replay.filter, replay.start_us, end_us, replay.positions, replay.incarnations, self.rate,
                0 if stream is None else stream.age_us, None if stream is None else stream.key))
        return 0

    cdef int halt(self, ReplaySubscription replay, bint announced) except -1:
        """The replay does not run any more. announced: the process flows knows."""
        if not announced:
            self.post(replay.number % <uint64_t>len(self.channels), encode("end", replay.number))
        self.running.pop(replay.number, None)
        self.of_streams.pop(replay.number, None)
        replay.number = 0
        replay.waiting = None
        return 0

    def fileno_of(self, int fd) -> bool:
        """Returns whether a descriptor is one of the channels."""
        return fd in self.channels

    def receive(self, int fd) -> None:
        """Takes messages of a process flows."""
        cdef ReplaySubscription replay
        cdef int process = self.channels.index(fd)
        while True:
            try:
                message = os.read(fd, MESSAGE_MAX)
            except (BlockingIOError, InterruptedError):
                return
            if not message:
                return
            try:
                verb = decode(message)[0]
            except ValueError as error:
                self.context.log_failure(log_line("replay message not used"), error)
                continue
            if verb != "hello":
                continue
            # It has started again: all begin again at their positions.
            self.unsent = [(one, waiting) for one, waiting in self.unsent if one != process]
            self.post(process, encode("reset"))
            if self.lookups is not None:
                self.lookups.restarted(process)
            for replay in list(self.running.values()):
                if replay.number % <uint64_t>len(self.channels) == <uint64_t>process:
                    self.halt(replay, True)
                    self.start_one(replay)
            self.active = True

    # --- messages ----------------------------------------------------------------------------------------------------------------

    cdef int take(self, const RecordHeader* header, const uint8_t* names, Publication publication) except -1:
        cdef ReplayPlace place
        cdef ReplaySubscription replay = self.running.get(header.member)
        if replay is None or header.group_size != sizeof(place):
            return 0                       # of a replay that has ended
        memcpy(&place, names, sizeof(place))
        replay.waiting.append((
            publication.keep() if header.topic_size else None, place.journal, place.position, place.incarnation, bool(place.over),
            record_size(header)))
        return 0

    cdef int go_on(self) except -1:
        cdef ReplaySubscription replay
        cdef Session session
        cdef Publication publication = None
        self.moved = False
        self.stuck = False
        if self.unsent:
            self.send_unsent()
        for number, replay in list(self.running.items()):
            session = <Session>replay.subscriber
            replay = self.current(replay, number)
            if not is_wanted(replay, session):
                replay.number = number
                self.halt(replay, False)
                continue
            if not replay.waiting:
                continue
            self.running[number] = self.running.pop(number)    # behind those that this step may be too short for
            if publication is None:
                publication = Publication.__new__(Publication)
                publication.stored = True
            try:
                self.deliver_some(replay, session, publication)
            except Exception as error:     # the client connects again, and resumes at the position
                self.halt(replay, False)
                if session.link is not None:
                    session.link.failed(error)
            if self.context.step_is_over():
                break
        if self.starting:
            self.begin_some()
        self.active = bool(self.running) or bool(self.starting) or bool(self.unsent)
        return 0

    cdef ReplaySubscription current(self, ReplaySubscription replay, object number):
        """Returns the subscription that runs under a number: another one once the client has subscribed again."""
        if not replay.number:
            found = (<Session>replay.subscriber).find_subscription(replay.wire_filter)
            if isinstance(found, ReplaySubscription) and (<ReplaySubscription>found).number == <uint64_t>number:
                replay = self.running[number] = found
        return replay

    cdef int deliver_some(self, ReplaySubscription replay, Session session, Publication publication) except -1:
        cdef Message message
        cdef bytes ids = None
        cdef bint changed = False
        cdef int _
        if session.logged and self.context.disk_full:
            return 0
        if replay.identifier:
            ids = encode_identifier(replay.identifier)
        for _ in range(BATCH):
            if not replay.waiting or (replay.waiting[0][0] is not None and not session.idle_for_replay()):
                break
            message, journal, position, incarnation, over, size = replay.waiting.popleft()
            replay.records_done += 1
            replay.bytes_done += size
            changed = True
            if over:
                replay.over = True
                break
            replay.positions[journal] = position
            replay.incarnations[journal] = incarnation
            if message is None or (replay.flags & OPTION_NO_LOCAL and message.client_id == session.client_id):
                continue                   # [MQTT-3.8.3-3]
            publication.borrow(message)
            session.deliver(publication, replay.qos, message.retain and replay.flags & OPTION_RETAIN_AS_PUBLISHED != 0, ids, None)
        publication.release()
        if not changed:
            return 0
        if session.logged:
            self.context.recorder.replayed(replay)
        if replay.over:
            return self.halt(replay, True)
        if replay.records_done >= <uint64_t>CREDIT_AT or not replay.waiting:
            self.post(replay.number % <uint64_t>len(self.channels), encode(
                "credit", replay.number, replay.records_done, replay.bytes_done))
            replay.records_done = replay.bytes_done = 0
        if replay.waiting and session.idle_for_replay():
            self.moved = True
        return 0

    # --- channels ----------------------------------------------------------------------------------------------------------------

    cdef int post(self, object process, bytes message) except -1:
        """Sends a message, behind those that wait for room."""
        if self.unsent or not self.send(process, message):
            self.unsent.append((process, message))
            self.active = self.stuck = True
        return 0

    cdef bint send(self, object process, bytes message) except -1:
        try:
            os.write(self.channels[process], message)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:           # larger than a message may be on this machine: the replay stands still, its worker does not end
            self.context.log_failure(log_line("replay message not used"), error)
        return True

    cdef int send_unsent(self) except -1:
        while self.unsent:
            process, message = self.unsent[0]
            if not self.send(process, message):
                self.stuck = True
                return 0
            self.unsent.pop(0)
        return 0


cdef bint is_wanted(ReplaySubscription replay, Session session) except -1:
    """Whether a connected client still has this subscription."""
    return session.link is not None and not session.ended and session.find_subscription(replay.wire_filter) is replay
