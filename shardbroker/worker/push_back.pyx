"""Publishers wait for full queues; see push_back.pxd."""

from cython cimport final
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t
from libc.string cimport memset

from shardbroker.pubsub.subscriptions cimport Subscription
from shardbroker.pubsub.topic_cache cimport TopicEntry
from shardbroker.session.overflow cimport (
    DROP_OLDEST, FULL, LEAVE, OPEN, STALLED, TAKE, pressed_queue, size_in_queue,
)
from shardbroker.worker.connection cimport Connection
from shardbroker.worker.channel cimport CONNECTED
from shm.counters cimport DELIVERY_DROPPED_QUEUE_FULL, OVERLOAD_SUBSCRIBERS_STALLED
from shm.records cimport FLAG_ANSWERED, RECORD_PRESSED, RECORD_RELEASED, RecordHeader

from itertools import islice

from shardbroker.logs.phrases import log_line
from shardbroker.mqtt.topics import matches
from shm.counters import ProcessState

__all__ = ["PushBack"]

cdef enum:
    RESERVE_BYTES = 16777216               # of one queue beyond mqtt.max_mqueue_len: twice what waits in the largest ring (4 MB), with room
    PUBLISHERS_MAX = 4096                  # that one queue makes wait; messages of further ones use the reserve
    RENEW_MS = 500                         # after which a publisher that continues is reported again: a full ring may have dropped the report
    TICK_MS = 100                          # between two looks at what waits
    LOW_SHARE = 8                          # part of the queue that is free before publishers go on: fewer changes than messages
    SOURCES_MAX = 64                       # full queues that one publisher waits for by name; further ones make no difference to it
    MEMBERS_TRIED = 16                     # of a shared group, for one with room in its queue
    LOG_MS = 1000                          # least time between two log lines


@final
cdef class PushBackTimer(Timed):
    cdef int expire(self, uint64_t now_ms) except -1:
        return self.owner.look(now_ms)


@final
cdef class PushBack(QueueOverflow):
    def __init__(self, Router router not None, RingOutlets rings not None, Inlets inlets not None, settings):
        self.router = router
        self.rings = rings
        self.number = rings.number
        self.inlets = inlets
        self.full = {}
        self.holding = {}
        self.timer = PushBackTimer.__new__(PushBackTimer)
        self.timer.owner = self
        self.configure(settings)

    cdef int configure(self, object settings) except -1:
        self.topic = None
        self.by_listener = {
            name: one.mqueue_overflow == "push_back" for name, one in settings.listeners.items() if one.mqueue_overflow != "inherit"}
        if self.router.push_back or self.router.push_back_topics or any(self.by_listener.values()):
            self.router.overflow = self
        elif self.router.overflow is not None:
            self.router.overflow = None
            self.release_all()
        return 0

    # --- the subscriber's worker ------------------------------------------------------------------------------------------------

    cdef int on_full(self, object whom, Publication publication, tuple share) except -1:
        cdef Session session = <Session>whom
        cdef PressedQueue queue
        cdef int source
        if session.link is None or not self.applies(session, publication):
            return DROP_OLDEST
        if session.place is not None and session.queue is session.place.behind:
            return DROP_OLDEST                     # its former node has sent what is in front
        if share is not None and self.redirect(session, publication, share):
            return LEAVE
        if not isinstance(session.queue, PressedQueue):
            session.queue = pressed_queue(session.queue, self, session.key)
        queue = <PressedQueue>session.queue
        if queue.state == STALLED:
            return DROP_OLDEST
        source = self.source_of(publication)
        if source < 0:
            # Those in the queue have been acknowledged, or will be: this one is lost instead.
            self.router.delivery_dropped(session, publication, DELIVERY_DROPPED_QUEUE_FULL, "queue_full")
            return LEAVE
        if queue.state == OPEN:
            queue.state = FULL
            queue.full_ms = self.router.now_ms
            queue.reserve = queue.measure(self.router.max_mqueue_len) if queue.count > self.router.max_mqueue_len else 0
            queue.low = self.low()
            self.full[session.key] = queue
            if isinstance(session.link, Connection):
                (<Connection>session.link).read_held()     # its own acknowledgements must arrive, or two clients could wait for each other
            self.arm()
        if not self.has_reserve(queue, publication):
            self.stall(queue)
            return DROP_OLDEST
        self.press(queue, publication.client_id, source, share)
        return TAKE

    cdef bint applies(self, Session session, Publication publication) except -1:
        cdef object by_listener
        if self.by_listener:
            by_listener = self.by_listener.get((<object>session.link).listener) if isinstance(session.link, Connection) else None
            if by_listener is not None:
                return by_listener
        if self.router.push_back:
            return True
        if not self.router.push_back_topics:
            return False
        topic = PyBytes_FromStringAndSize(<const char*>publication.topic, publication.topic_size)
        if topic != self.topic:                    # one message for many full queues is compared once
            self.topic = topic
            self.topic_applies = any([matches(filter, topic) for filter in self.router.push_back_topics])
        return self.topic_applies

    cdef int source_of(self, Publication publication) noexcept:
        if publication.qos == 0 or publication.client_id is None:
            return -1
        if publication is not self.inlets.incoming:
            return self.number if publication.answered else -1
        # A record has its header in front of the topic.
        if self.inlets.arriving or not (<const RecordHeader*>(publication.topic - sizeof(RecordHeader))).flags & FLAG_ANSWERED:
            return -1
        return self.inlets.draining_lane

    cdef bint redirect(self, Session full, Publication publication, tuple share) except -1:
        """Delivers to another member of the group: of this worker if one has room, else of another worker, which decides alone. If no
        queue has room, the member that has acknowledged most recently takes it: one that has stopped must not make publishers wait."""
        cdef TopicEntry entry = self.router.resolver.resolve(publication.topic, publication.topic_size, None)
        cdef Subscription subscription
        cdef Session other
        cdef uint64_t newest = oldest_sent_ms(full)
        cdef tuple members, remote = None
        cdef object best = None
        cdef Py_ssize_t i, count
        if entry is None:
            return False
        for group in entry.groups:
            if group[0] != share[0] or group[1] != share[1]:
                continue
            members = <tuple>(<tuple>group)[2]
            count = len(members)
            for i in range(min(count, <Py_ssize_t>MEMBERS_TRIED)):
                destination, member = <tuple>members[(<Py_ssize_t>(publication.id_low & 0xFFFF) + i) % count]
                if member == full.key and destination == self.router.own_destination:
                    continue
                if destination != self.router.own_destination:
                    remote = (destination, member)
                    continue
                subscription = self.router.subscriptions.table.shared_member(share[0], share[1], member)
                other = None if subscription is None else <Session>subscription.subscriber
                if other is None or other.link is None:
                    continue
                if other.queue is None or other.queue.count < self.router.max_mqueue_len:
                    return self.router.deliver_to_member(share[0], share[1], member, publication)
                if oldest_sent_ms(other) > newest:
                    newest = oldest_sent_ms(other)
                    best = member
            if remote is not None and publication is self.router.publication:
                self.router.forward_shared(remote[0], remote[1], <tuple>group, publication, 1)
                return True
            if best is not None:           # which finds no better one, and queues it
                return self.router.deliver_to_member(share[0], share[1], best, publication)
        return False

    cdef bint has_reserve(self, PressedQueue queue, Publication publication) noexcept:
        """Whether the queue may take this message too. While memory is short no queue has a reserve."""
        if self.router.memory_level:
            return False
        queue.reserve += size_in_queue(publication)
        if queue.reserve > <uint64_t>RESERVE_BYTES:
            # An upper bound: what leaves is not subtracted. Measured again at most once in half of the reserve, since the queue stalls else.
            queue.reserve = queue.measure(self.router.max_mqueue_len) + size_in_queue(publication)
            return queue.reserve <= <uint64_t>RESERVE_BYTES // 2
        return True

    cdef uint32_t low(self) noexcept:
        """Number of messages in a queue at which its publishers continue."""
        return self.router.max_mqueue_len - self.share()

    cdef uint32_t share(self) noexcept:
        return max(self.router.max_mqueue_len // LOW_SHARE, <uint32_t>1)

    cdef int press(self, PressedQueue queue, bytes client_id, int source, tuple share) except -1:
        cdef object known = queue.publishers.get(client_id)
        if known is None:
            if len(queue.publishers) >= PUBLISHERS_MAX:
                return 0
        else:
            if known[2] != share:
                share = None                       # room of another member would not be enough
            if known[1] + RENEW_MS > self.router.now_ms:
                queue.publishers[client_id] = (known[0], known[1], share)
                return 0
        queue.publishers[client_id] = (source, self.router.now_ms, share)
        if share is not None:
            queue.shares.add(share)
        if source == self.number:
            return self.hold_back(client_id, source, queue.key)
        return self.send(RECORD_PRESSED, source, queue.key, client_id)

    cdef int stall(self, PressedQueue queue) except -1:
        cdef Session session = self.router.by_key.get(queue.key)
        self.end_full(queue)
        queue.state = STALLED
        self.router.count(OVERLOAD_SUBSCRIBERS_STALLED)
        if self.router.now_ms >= self.logged_ms + LOG_MS and session is not None:
            self.logged_ms = self.router.now_ms
            self.router.log("warning", log_line("subscriber stalled", client_id=session.client_id, queued=queue.count))
        return 0

    cdef int end_full(self, PressedQueue queue) except -1:
        """No acknowledgement waits for this queue any more."""
        cdef dict publishers = queue.publishers
        queue.state = OPEN
        queue.publishers = {}
        queue.shares = set()
        self.full.pop(queue.key, None)
        for client_id, (process, _, _) in publishers.items():
            self.free(queue, client_id, process)
        return 0

    cdef int free(self, PressedQueue queue, bytes client_id, int process) except -1:
        """The acknowledgements of this publisher do not wait for this queue any more."""
        if process == self.number:
            return self.release(client_id, process, queue.key)
        return self.send(RECORD_RELEASED, process, queue.key, client_id)

    cdef int free_of_groups(self, PressedQueue queue) except -1:
        """Publishers to a shared group whose members were all full continue once another member has room: that one takes what follows."""
        cdef set rooms = {share for share in queue.shares if self.has_room_beside(queue.key, share)}
        if not rooms:
            return 0
        queue.shares -= rooms
        for client_id, (process, _, share) in list(queue.publishers.items()):
            if share in rooms:
                del queue.publishers[client_id]
                self.free(queue, client_id, process)
        return 0

    cdef bint has_room_beside(self, uint64_t key, tuple share) except -1:
        """Whether another member of the shared group in this worker has room, of the first few."""
        cdef Session other
        members = self.router.subscriptions.table.shared.get(share)
        if members is None:
            return False
        for subscription in islice((<dict>members).values(), MEMBERS_TRIED):
            other = <Session>(<Subscription>subscription).subscriber
            if other.key != key and other.link is not None and (other.queue is None or other.queue.count <= self.low()):
                return True
        return False

    cdef void drained(self, PressedQueue queue) noexcept:
        if queue.count > queue.low:
            # Each message that leaves is worth its share of the time: with an eighth of the limit in push_back_timeout it never stalls.
            queue.full_ms = min(
                self.router.now_ms, queue.full_ms + max(self.router.push_back_timeout_ms // self.share(), <uint64_t>1))
            return
        try:
            self.end_full(queue)
        except Exception as error:
            try:
                self.router.log_failure(log_line("publishers not released"), error)
            except Exception:
                pass                               # their acknowledgements leave after push_back_timeout

    cdef int send(self, int kind, int process, uint64_t key, bytes client_id) except -1:
        """Lost if the ring has no room: a report is repeated, and a release takes place after push_back_timeout at the latest."""
        cdef RecordHeader header
        if self.router.counters_segment.state(process) != ProcessState.READY:
            return 0
        memset(&header, 0, sizeof(header))
        header.kind = <unsigned char>kind
        header.sent_us = <uint32_t>self.rings.pass_us
        header.client_size = <uint32_t>PyBytes_GET_SIZE(client_id)
        header.member = key
        return self.rings.put_plain(process, &header, client_id)

    # --- the publisher's worker -------------------------------------------------------------------------------------------------

    cdef int hold_back(self, bytes client_id, int process, uint64_t key) except -1:
        cdef Session session = self.router.sessions.get(client_id)
        cdef Connection connection
        if session is None or not isinstance(session.link, Connection):
            return 0
        connection = <Connection>session.link
        if connection.state != CONNECTED or connection.fd < 0:
            return 0
        if connection.held is None:
            connection.held = HeldAcks.__new__(HeldAcks)
            connection.held.connection = connection
        if len(connection.held.sources) >= SOURCES_MAX and (process, key) not in connection.held.sources:
            return 0                               # they wait anyway
        connection.held.sources[(process, key)] = self.router.now_ms + self.router.push_back_timeout_ms
        self.holding[client_id] = connection.held
        return self.arm()

    cdef int release(self, bytes client_id, int process, uint64_t key) except -1:
        cdef HeldAcks held = self.holding.get(client_id)
        if held is None or held.sources.pop((process, key), None) is None or held.sources:
            return 0
        del self.holding[client_id]
        return (<Connection>held.connection).let_go(held)

    cdef int release_all(self) except -1:
        cdef dict holding
        cdef HeldAcks held
        for queue in list(self.full.values()):
            self.end_full(<PressedQueue>queue)
        holding = self.holding
        self.holding = {}
        for held in holding.values():
            (<Connection>held.connection).let_go(held)
        return 0

    # --- time -------------------------------------------------------------------------------------------------------------------

    cdef int look(self, uint64_t now_ms) except -1:
        cdef uint64_t timeout_ms = self.router.push_back_timeout_ms
        cdef PressedQueue queue
        cdef HeldAcks held
        cdef Session session
        self.arm()                                 # first: a failure must not end it
        for queue in list(self.full.values()):
            session = self.router.by_key.get(queue.key)
            if session is None or session.link is None or session.queue is not queue:
                self.end_full(queue)               # its client has gone
            elif now_ms >= queue.full_ms + timeout_ms:
                self.stall(queue)
            else:
                self.free_of_groups(queue)
        for client_id, held in list(self.holding.items()):
            for source, until_ms in list(held.sources.items()):
                if until_ms <= now_ms:
                    del held.sources[source]       # its release was lost, with its worker for one
            if not held.sources or (<Connection>held.connection).held is not held:
                self.holding.pop(client_id)
                (<Connection>held.connection).let_go(held)
            elif now_ms > timeout_ms:
                (<Connection>held.connection).let_go_older(now_ms - timeout_ms)
        return 0

    cdef int arm(self) except -1:
        if (self.full or self.holding) and self.timer.slot < 0:
            self.router.timers.arm(self.timer, self.router.now_ms + TICK_MS)
        return 0


cdef uint64_t oldest_sent_ms(Session session) noexcept:
    """Returns when the oldest delivery in flight was sent, Unix ms; 0 without one."""
    return 0 if session.window is None or session.window.count == 0 else session.window.at(0).sent_ms
