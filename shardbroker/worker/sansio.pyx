"""The protocol core driven by hand: no socket, no ring, no clock. The simulator and the session tests use it.

    router = SansIoRouter(settings, routes, number, now_ms)
    channel = router.connect("peer")      channel.receive(data)      channel.take_output() -> bytes
    router.advance(now_ms)                the end of a pass: timers, commits, SUBACKs
    router.outgoing                       what would have gone into rings: (destination, record), for router.deliver(record)
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardbroker.access.acl_cache cimport AclCache
from shardbroker.mqtt.buffer cimport Buffer
from shardbroker.pubsub.message cimport Message, Publication
from shardbroker.pubsub.topic_cache cimport TopicEntry
from shardbroker.journal.recorder cimport JournalRecorder
from shardbroker.session.session cimport Session
from shardbroker.worker.channel cimport CLOSING, CONNECTED, Channel
from shardbroker.worker.outlets cimport Outlets
from shardbroker.worker.protocol cimport feed
from shardbroker.worker.router cimport Router
from shm.address cimport parse_address

__all__ = ["SansIoChannel", "SansIoRouter"]


cdef class SansIoChannel(Channel):
    """A connection whose bytes the caller carries."""
    cdef bytes rest

    def receive(self, bytes data not None) -> None:
        """Bytes from the client, split anywhere."""
        cdef size_t used
        if self.state == CLOSING:
            return
        data = self.rest + data
        used = feed(self, <const unsigned char*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        self.rest = data[used:]

    cdef int resume_reading(self) except -1:
        Channel.resume_reading(self)
        if self.state == CONNECTED:
            self.receive(b"")              # what has arrived meanwhile
        return 0

    def take_output(self) -> bytes:
        """What is to be sent to the client, and is forgotten here."""
        cdef bytes output = bytes(self.out)
        cdef bint congested = self.congested()
        self.out.clear()
        if self.session is not None and self.session.link is self and (congested or self.session.queue is not None):
            self.session.pump()
        return output

    def put_under_rules(self, bytes topic not None) -> None:
        """From now on it is looked up what it may publish, and that it may publish to this topic is known."""
        cdef TopicEntry entry = self.router.resolver.resolve(<const uint8_t*>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), None)
        cdef uint32_t generation = self.router.access_generation
        cdef int combination
        self.acl_cache = AclCache(1)
        for combination in range(8):
            self.acl_cache.remember(topic, False, <uint8_t>combination, True, <uint64_t>-1, generation)
        self.acl_cache.look(topic, False, 0, self.context.now_ms, generation, entry.serial)

    @property
    def is_closing(self) -> bool:
        """The broker has ended this connection."""
        return self.state == CLOSING


cdef class SansIoOutlets(Outlets):
    """Every destination has an outlet with room: a list that the simulation carries records away from."""
    cdef list outgoing

    cdef bint forward(self, long destination, Publication publication) except -1:
        self.outgoing.append((destination, (publication.keep(), None, 0, 0)))
        return True

    cdef bint forward_shared(self, long destination, uint64_t member, tuple group, Publication publication, uint8_t attempts) except -1:
        self.outgoing.append((destination, (publication.keep(), (group[0], group[1]), member, attempts)))
        return True


cdef class SansIoRouter(Router):
    """A worker's core. `routes` is shared by the shards of one simulation; it has search() and update()."""
    cdef SansIoOutlets lists
    cdef JournalRecorder journal           # the recorder; None: sessions are not recorded

    def __init__(self, settings, routes, int number, uint64_t now_ms, retained=None, seed=None, int node_id=0):
        Router.__init__(self, settings, now_ms, None, routes, retained, None, number, node_id, seed)
        self.lists = SansIoOutlets.__new__(SansIoOutlets)
        self.set_outlets(self.lists)
        self.outgoing = []

    @property
    def outgoing(self) -> list:
        """What would have gone into rings since it was set to a new list."""
        return self.lists.outgoing

    @outgoing.setter
    def outgoing(self, list records not None) -> None:
        self.lists.outgoing = records

    def connect(self, str peer, bytes assigned_id=b"auto") -> SansIoChannel:
        """A new connection."""
        cdef SansIoChannel channel = SansIoChannel.__new__(SansIoChannel)
        channel.context = self
        channel.router = self
        channel.out = Buffer.__new__(Buffer)
        channel.peer = parse_address(peer)
        channel.wanted_id = assigned_id
        channel.rest = b""
        self.timers.arm(channel, self.now_ms + self.idle_timeout_ms)
        return channel

    def cut(self, SansIoChannel channel not None) -> None:
        """The network connection is gone."""
        channel.lost("cut")

    def advance(self, uint64_t now_ms) -> None:
        """The end of a pass at this time."""
        self.now_ms = now_ms
        if self.subacks.held:
            self.subacks.take_answers()
        self.timers.advance(now_ms)
        self.run_retries()
        self.commit(True)
        self.replays.go_on()
        if self.journal is not None:
            self.journal.writer.seal(now_ms * 1000)
            self.exclusive.release_durable(self.journal.writer.next_sequence, self.journal.writer.durable)
        else:
            self.exclusive.release_durable(0, 0)

    def keep_journal(self, JournalRecorder recorder not None) -> None:
        """Sessions that stay are recorded from here on; a pass is a block."""
        self.recorder = self.journal = recorder

    def forget_topics(self) -> None:
        """What a changed epoch does: another shard's subscriptions have moved."""
        self.resolver.invalidate_all()

    def deliver(self, tuple record) -> None:
        """A record that another shard has sent here."""
        cdef Publication publication = Publication.__new__(Publication)
        cdef TopicEntry entry
        message, share, member, attempts = record
        publication.borrow(<Message>message)
        if self.passed is not None:
            self.passed.note(publication.id_high, publication.id_low)
        entry = self.resolver.resolve(publication.topic, publication.topic_size, None)
        if share is None:
            self.deliver_locally(entry, publication, None)
        elif not self.deliver_to_member(share[0], share[1], member, publication):
            for group in entry.groups:
                if (group[0], group[1]) == share:
                    self.deliver_shared(group, publication, None, attempts + 1, (self.own_destination, member))

    def counted(self, int counter) -> int:
        """Returns a counter of this router."""
        return self.counters[counter]

    def leftovers(self) -> dict:
        """Per client id: packet ids in flight, messages queued, packet ids awaiting PUBREL."""
        cdef Session session
        return {
            session.client_id: (
                session.inflight, 0 if session.queue is None else session.queue.count, len(session.awaiting_rel or ()))
            for session in self.sessions.values()
        }
