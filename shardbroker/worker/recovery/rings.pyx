"""Rings and forwarded messages at a start; see rings.pxd."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardbroker.pubsub.message cimport Message, Publication
from shardbroker.session.image cimport bytes_field, field_or_none
from shardbroker.worker.arrivals cimport StreamPositions
from shardbroker.worker.deferred cimport Deferred, defer_for_ring
from shardbroker.worker.recovery.replay cimport until_arrived
from shm.destinations cimport NODE, RETAINED_STORE, kind_of, number_of
from shm.records cimport check_record
from shm.ring cimport Inbox, Ring

from shardbroker.journal import Block, read, recovery_start, trusted
from shardbroker.journal.schema import Kind
from shm.records import DAMAGE

__all__ = ["RingRecovery"]

cdef enum:
    RINGS_REMEMBERED = 16                  # starts of the broker whose rings stay known: producers look up those of their last few

cdef uint64_t NEVER = <uint64_t>-1

CONSUMED = int(Kind.CONSUMED)


cdef class RingRecovery:
    def __init__(self, Replay replay not None, Repartition repartition not None):
        self.replay = replay
        self.repartition = repartition
        self.worker = replay.worker
        self.router = replay.router
        self.arrivals = {}

    def query_others(self, inboxes, journal_of) -> None:
        """Looks up how far other workers had taken the rings, in their journals: after a power cut the rings are gone.

        inboxes: (identity, process) -> Inbox of the rings that are left. journal_of: worker -> directory of its journal.
        """
        cdef dict found = {}
        for (rings, destination), (_, items) in self.replay.forwarded.get(self.worker.number, {}).items():
            if destination == RETAINED_STORE:
                self.arrivals[rings, destination] = self.router.retaining.store.arrived(rings)
            elif (rings, destination) in inboxes or not until_arrived(items[0]):
                continue
            elif kind_of(destination) == NODE:
                self.arrivals[rings, destination] = 0      # only the node knows
            else:
                if destination not in found:
                    found[destination] = consumed_from(journal_of(destination), self.worker.number)
                self.arrivals[rings, destination] = found[destination].get(rings, 0)

    def latest_arrivals(self, Inbox inbox not None) -> dict:
        """Returns how far the rings of earlier starts were taken: they may be found again, or their producers may look the positions up."""
        cdef dict last = {}
        for (rings, producer), note in self.replay.notes.items():
            if rings != inbox.identity:
                last.setdefault(rings, {})[rings, producer] = note
        return {key: value for rings in list(last)[-RINGS_REMEMBERED:] for key, value in last[rings].items()}

    def take_own_ring(self, Inbox inbox not None) -> None:
        """Skips the records that the predecessor had dealt with, though it had not given their room back."""
        for producer, ring in enumerate(inbox.lanes):
            (<Ring>ring).skip_to(max((<Ring>ring).released(), <uint64_t>self.replay.consumed.get((inbox.identity, producer), 0)))

    def take_old_rings(self, Inbox inbox not None, int worker, spill_dir, int first_link, int end_links) -> int:
        """Delivers what was under way to `worker` when the whole broker ended, to those of its sessions that are here now. Returns the
        number of records. Lanes from `first_link` up to `end_links` have messages of other nodes. Those behind are of processes flows, which
        publish again what was not taken.

        The records stay where they are: each is known by its position, so that taking them twice does no harm. If the number of workers
        has changed, all workers take the same ring, each for its own sessions, and each journal records that beside the sessions as they
        are then.
        """
        cdef Ring ring
        cdef const uint8_t* record
        cdef uint32_t size
        cdef int taken = 0
        cdef list others
        cdef StreamPositions streams = self.worker.durability.streams
        self.take_own_ring(inbox)
        if self.replay.homes is not None:
            # Each former worker has its own positions: what one of them has dealt with, another one may not have had.
            self.worker.durability.streams = StreamPositions()
            self.worker.durability.streams.restore(self.replay.streams.get(worker, {}))
        self.worker.inlets.spill_source = spill_dir
        others = self.repartition.take_part(inbox.identity, worker)
        for producer, ring in enumerate(inbox.lanes[:end_links]):
            before = taken
            damage = (<Ring>ring).damage()
            if damage:
                self.router.log(DAMAGE, f"{inbox.name}: lane {producer}: {damage}; its messages are lost")
                continue
            while True:
                record = ring.next(&size)
                if record == NULL:
                    break
                taken += 1
                try:
                    if producer >= first_link:
                        self.worker.inlets.on_arrival(producer, record, size)
                    else:
                        check_record(record, size)
                        self.worker.inlets.on_record(producer, record, size)
                except Exception as error:
                    self.worker.inlets.record_failed(producer, error)
            if taken > before:
                self.repartition.note_taken(inbox.identity, producer, ring.taken())
        self.repartition.take_all(others)
        self.worker.inlets.spill_source = self.worker.topology.spill_dir
        if self.replay.homes is not None:
            self.replay.streams[worker] = self.worker.durability.streams.snapshot()
            self.worker.durability.streams = streams
            streams.restore(self.replay.stream_positions())
        return taken

    def forward_again(self, dict inboxes) -> None:
        """Sends messages for other workers and nodes that never left; all workers serve. inboxes: as for query_others()."""
        if self.worker.durability.gate is not None or self.replay.forwarded:
            self.worker.durability.recorder.arrived()   # or is forwarded again, behind this
        for source, forwarded in self.replay.forwarded.items():
            for _, items in forwarded.values():
                for item in items:
                    try:
                        self.forward_one(source, item, inboxes)
                    except Exception as error:
                        self.router.drop_failed("recovery", topic_of(self.replay.message(item[4])), error)

    cdef str ring_name(self, long destination):
        """Returns the path of the inbox that this worker's messages for a destination are in."""
        if kind_of(destination) == NODE and self.worker.topology.links:
            return self.worker.topology.peer_inbox_name(number_of(destination), self.worker.topology.link_of(self.worker.number))
        return self.worker.topology.inbox_name(destination)

    cdef int forward_one(self, int source, list item, dict inboxes) except -1:
        cdef Inbox inbox = inboxes.get((item[1], item[2]))
        cdef Deferred deferred
        cdef Ring lane
        if item[1] in self.replay.takers and kind_of(item[2]) != NODE:
            return 0                       # every worker has taken it when the number of workers changed, see take_forwarded()
        cdef Publication publication
        cdef Message message
        if inbox is not None:
            lane = inbox.lane(source)
            if lane.committed() > <uint64_t>item[3]:
                # It had left. As long as it is in a ring and not on that worker's disk, it stays on record.
                if not until_arrived(item) or inbox.name != self.ring_name(item[2]) or lane.is_secure(item[3] + 1):
                    return 0
                self.worker.rings.outlet_of(item[2])     # the gate sees how far an open lane has arrived
                message = self.replay.message(item[4])
                return 0 if message is None else self.router.recorder.forwarded(
                    item[1], item[2], item[3], message, item[5], item[6], item[7], field_or_none(item, 8), field_or_none(item, 9), True)
        elif self.arrivals.get((item[1], item[2]), NEVER) > <uint64_t>item[3]:
            return 0                       # it had arrived, or the broker had ended by a drain
        message = self.replay.message(item[4])
        if message is None:
            return 0
        if item[2] == RETAINED_STORE:
            publication = Publication.__new__(Publication)
            publication.borrow(message)
            publication.unrepeatable = True
            return self.router.retaining.retain(publication)
        deferred = defer_for_ring(message, item[2], item[5], item[6], item[7], bytes_field(item, 8), bytes_field(item, 9))
        if not self.router.outlets.put_deferred(deferred):
            self.router.retries.defer(deferred)
        return 0


cdef bytes topic_of(Message message):
    return b"" if message is None else message.topic


cdef dict consumed_from(directory, int producer):
    """Returns by ring the position up to which a journal has what this producer wrote."""
    cdef dict found = {}
    if directory.is_dir():
        for part in trusted(read(directory, recovery_start(directory))):
            if isinstance(part, Block):
                for item in part.items():
                    if item[0] == CONSUMED and item[2] == producer:
                        found[item[1]] = max(found.get(item[1], 0), item[3])
    return found
