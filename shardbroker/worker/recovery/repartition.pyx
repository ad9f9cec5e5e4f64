"""Another number of workers; see repartition.pxd."""

from shardbroker.pubsub.message cimport Message, Publication
from shardbroker.session.image cimport bytes_field
from shardbroker.session.session cimport Session
from shardbroker.worker.deferred cimport DEFERRED_FOR_LOCAL
from shardbroker.worker.recovery.replay cimport ONE_MESSAGE, TAKER_SHIFT, TAKERS_SHIFT, is_for_members, until_arrived
from shm.destinations cimport NODE, RETAINED_STORE, kind_of
from shm.records cimport RECORD_PUBLISH
from shm.ring cimport Inbox

__all__ = ["Repartition"]


cdef class Repartition:
    def __init__(self, Replay replay not None):
        self.replay = replay
        self.worker = replay.worker
        self.router = replay.router

    cdef list take_part(self, rings, int worker):
        cdef Session session
        cdef list others = []
        cdef set takers = self.replay.takers.get(rings, set())
        cdef list divisions = [division for taker, division in takers if taker == worker]
        for session in self.replay.by_key.values():
            if not session.ended and (self.replay.origins[session.key] != worker or any(
                    [division.worker_of(session.client_id) == worker for division in divisions])):
                session.ended = True
                others.append(session)
        if self.replay.homes is not None or takers:
            self.worker.inlets.elsewhere = self.replay.elsewhere
            self.worker.inlets.heir = self.is_heir_of(worker) and not any(
                [taker == worker % division.workers for taker, division in takers])
        return others

    cdef int note_taken(self, rings, int producer, position) except -1:
        cdef object mark = 0
        cdef bytes weights = None
        if self.replay.homes is not None:
            mark, weights = self.mark()
        self.worker.durability.arrivals[rings, producer | mark] = position, weights
        return self.worker.durability.recorder.consumed(rings, producer | mark, position, weights)

    cdef tuple mark(self):
        """Returns the mark of this worker for CONSUMED records, and the weights of its division or None."""
        division = self.worker.topology.division
        return division.workers << TAKERS_SHIFT | (self.worker.number + 1) << TAKER_SHIFT, bytes(division.weights) or None

    cdef int take_all(self, list others) except -1:
        cdef Session session
        for session in others:
            session.ended = False
        self.worker.inlets.elsewhere = None
        return 0

    def note_connected(self) -> None:
        """Records the connections that the journals know: the sessions were saved into this journal as if their clients were away."""
        cdef Session session
        for session in self.replay.with_connection - self.replay.in_memory:
            self.router.recorder.opened(session, True, 0, session.expiry_ms, None)

    cdef bint is_heir_of(self, int process) except -1:
        """Whether this worker looks after what a former process has left that is meant for no particular session."""
        return process % self.worker.topology.workers == self.worker.number

    def take_forwarded(self, inboxes) -> None:
        """Delivers messages that had not reached the rings of the broker that ended, as if they had: each to those sessions of its
        destination that are here now. inboxes: (identity, process) -> Inbox of those rings."""
        cdef dict to_nodes = {}
        for source, forwarded in self.replay.forwarded.items():
            for (rings, destination), (block, items) in forwarded.items():
                if kind_of(destination) == NODE:
                    if self.is_heir_of(source):
                        to_nodes.setdefault(source, {})[rings, destination] = block, items
                    continue
                if destination == RETAINED_STORE:
                    if self.is_heir_of(source):
                        self.retain_again(rings, items)
                    continue
                come_to = self.replay.consumed.get((rings, source), 0)
                inbox = inboxes.get((rings, destination))
                if inbox is not None:
                    come_to = max(come_to, (<Inbox>inbox).lane(source).committed())
                elif not until_arrived(items[0]):
                    continue               # those rings have been gone for long
                items = [item for item in items if item[3] >= come_to]
                if not items:
                    continue
                others = self.take_part(rings, destination)
                for item in items:
                    self.take_one(item)
                self.take_all(others)
                self.note_taken(rings, source, items[len(items) - 1][3] + 1)
        self.replay.forwarded = to_nodes   # for forward_again()

    def take_deferred(self, purpose) -> None:
        """Delivers messages for the subscribers of one former worker that had waited for room in its ring, or in it for a look-up."""
        cdef Message message
        mark, weights = self.mark()
        for (source, _), item in sorted(self.replay.deferred.items()):
            message = self.replay.message(item[3]) if item[2] == purpose and is_for_members(item) else None
            if message is not None:
                others = self.take_part((message.id_high, message.id_low), source if item[2] == DEFERRED_FOR_LOCAL else item[4])
                self.take_message(message)
                self.take_all(others)
                self.worker.durability.recorder.consumed(message.id_low, ONE_MESSAGE | mark, message.id_high, weights)

    cdef int take_message(self, Message message) except -1:
        cdef Publication publication = Publication.__new__(Publication)
        publication.borrow(message)
        try:
            entry = self.router.resolver.resolve(message.block, message.topic_size, None)
            return self.router.deliver_locally(entry, publication, None)
        except Exception as error:
            self.router.drop_failed("recovery", message.topic, error)
        return 0

    cdef int take_one(self, list item) except -1:
        cdef Message message = self.replay.message(item[4])
        cdef Publication publication
        if message is None:
            return 0
        if item[5] == RECORD_PUBLISH:
            return self.take_message(message)
        publication = Publication.__new__(Publication)
        publication.borrow(message)
        try:
            group, filter = bytes_field(item, 8), bytes_field(item, 9)
            if not self.router.deliver_to_member(group, filter, item[6], publication):
                self.worker.inlets.next_member(group, filter, item[6], message, item[7] + 1)
        except Exception as error:
            self.router.drop_failed("recovery", message.topic, error)
        return 0

    cdef int retain_again(self, rings, list items) except -1:
        cdef Message message
        cdef Publication publication
        arrived = self.router.retaining.store.arrived(rings)
        for item in items:
            message = self.replay.message(item[4])
            if message is not None and item[3] >= arrived:
                publication = Publication.__new__(Publication)
                publication.borrow(message)
                self.router.retaining.retain(publication)
        return 0

    def record_moved(self) -> None:
        """Sessions of this journal that belong to other workers now are in the journals of those, and deferred messages have new numbers."""
        for number, client_id in self.replay.foreign:
            self.worker.durability.recorder.moved(number, client_id)
        if self.replay.homes is not None:
            for source, number in self.replay.deferred:
                if source == self.worker.number:
                    self.router.recorder.deferred_done(number)
