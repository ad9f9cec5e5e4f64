"""Replays: `$replay/<period>/<filter>` gets what journals have, in order and once, and then what is published. So do streams.

    SUBSCRIBE, CONNECT -> start()    -> "begin", with the positions   -> process flows
    ring               -> take()     <- RECORD_REPLAY, at most a window <- reads the journals from there
    end of a pass      -> go_on()    -> session, as it has room        -> "credit"

Nothing of a replay is queued. Messages wait in `ReplaySubscription.waiting` until the client takes them; a position moves with the
delivery, in the same block of the journal. So a kill of either process, or a client that disconnects, loses and repeats nothing: the
replay begins again at its positions, under a new number, and records of the old number are dropped.
"""
from cython cimport final
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardbroker.pubsub.message cimport Publication
from shardbroker.pubsub.subscriptions cimport ReplaySubscription
from shardbroker.session.context cimport WorkerContext
from shardbroker.session.session cimport Session
from shm.records cimport RecordHeader


@final
cdef class JournalReplays:
    cdef WorkerContext context
    cdef list channels                     # descriptors to the processes flows, by number
    cdef dict running                      # number -> ReplaySubscription
    cdef object starting                   # deque of ReplaySubscription
    cdef list unsent                       # (process, message), in order
    cdef uint64_t last                     # number of the last one that was started
    cdef tuple kept                        # filters of journal.capture
    cdef object lookups                    # worker.features.lookups.DatabaseLookups, which use the same channels
    cdef readonly object streams           # worker.features.streams.Streams
    cdef dict of_streams                   # number -> the stream, of those that run
    cdef dict without_stream               # (session key, wire filter) -> ReplaySubscription that waits until there is its stream
    cdef uint32_t replays_max
    cdef uint32_t rate                     # messages a second; 0: no limit
    cdef bint active                       # go_on() has something to do
    cdef bint moved                        # something was delivered in this pass, and more may follow at once
    cdef bint stuck                        # a process flows does not take messages

    # Whether there are replays at all.
    cdef bint is_on(self) noexcept
    # Whether journals have the messages of a filter.
    cdef bint may_replay(self, bytes filter) except -1
    # Starts those of a session that do not run.
    cdef int start(self, Session session) except -1
    # A message of a ring, borrowed; its names begin at `names`.
    cdef int take(self, const RecordHeader* header, const uint8_t* names, Publication publication) except -1
    # Delivers what clients have room for; called once a pass.
    cdef int go_on(self) except -1
    # Starts those among new subscriptions; returns the others.
    cdef list start_new(self, list subscriptions)
    cdef ReplaySubscription current(self, ReplaySubscription replay, object number)
    cdef int start_one(self, ReplaySubscription replay) except -1
    cdef int begin_some(self) except -1
    cdef int deliver_some(self, ReplaySubscription replay, Session session, Publication publication) except -1
    cdef int halt(self, ReplaySubscription replay, bint announced) except -1
    cdef int post(self, object process, bytes message) except -1
    cdef bint send(self, object process, bytes message) except -1
    cdef int send_unsent(self) except -1
