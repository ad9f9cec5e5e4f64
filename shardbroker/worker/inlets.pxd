"""Rings from other processes: record -> publication, within the bounds of a pass.

The room of a record is returned to its producer in release_lanes(), once the journal has its effects.
"""
from cython cimport final
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardbroker.pubsub.message cimport Message, Publication
from shardbroker.pubsub.topic_cache cimport TopicEntry
from shardbroker.worker.backpressure cimport Backpressure
from shardbroker.worker.durability cimport Durability
from shardbroker.worker.outlets cimport RingOutlets
from shardbroker.worker.router cimport Router
from shm.counters cimport Histogram
from shm.records cimport RecordHeader
from shm.ring cimport Inbox, Ring


@final
cdef class Inlets:
    cdef Router router
    cdef RingOutlets rings
    cdef Durability durability
    cdef Backpressure backpressure
    cdef Inbox inbox
    cdef Histogram hop_times
    cdef list commands                     # of the manager, not carried out yet
    cdef int draining_lane                 # process whose records are being dealt with
    cdef int first_link, end_links         # lanes from here up to there have records of other nodes, each behind an ArrivalHeader
    cdef bint arriving                     # the record that is being dealt with is one of them
    cdef Publication incoming              # of the ring record that is being delivered
    cdef object spill_source               # pathlib.Path: directory of spilled messages
    cdef list spent                        # spilled messages that were read: files to be unlinked once they are safe
    # While the rings of another number of workers are read, each by all workers: keys of sessions that others have now, and whether
    # this worker is the one that looks after messages for members that no worker has. Else None.
    cdef set elsewhere
    cdef bint heir

    cdef bint lanes_waiting(self) except -1
    cdef int drain_lanes(self) except -1
    cdef int drain_manager(self) except -1
    cdef int drain_lane(self, int producer, Ring ring) except -1
    cdef int take_records(self, int producer, Ring ring, bint of_nodes, int* taken) except -1
    cdef bint on_arrival(self, int producer, const uint8_t* record, uint32_t size) except -1
    cdef int deliver_by_index(self, TopicEntry entry, bytes group, bytes filter, RecordHeader* header) except -1
    cdef int record_failed(self, int producer, object error) except -1
    # False: too many messages wait for look-ups, and it has to be taken again in the next pass.
    cdef bint on_record(self, int producer, const uint8_t* record, uint32_t size) except -1
    cdef bint on_publish_record(self, RecordHeader* header, const uint8_t* body) except -1
    cdef int on_pressed(self, int producer, const RecordHeader* header, const uint8_t* body) except -1
    cdef bytes take_spilled(self, const uint8_t* record, RecordHeader* header)
    cdef int set_aside(self, Message message, uint8_t answered, list lookups) except -1
    cdef int next_member(self, bytes group, bytes filter, uint64_t failed, Message message, int attempts) except -1
    cdef int release_lanes(self) except -1
