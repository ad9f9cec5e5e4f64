"""Publishers wait for full queues: mqtt.mqueue_overflow = push_back (docs/design/0017-push-back.md).

    worker of the subscriber                            worker of the publisher, often the same
    Session.enqueue() -> on_full(): into the reserve
        once, then each RENEW_MS ---- RECORD_PRESSED --> hold_back(): PUBACK and PUBREC go into Connection.held
    PressedQueue.pop(): an eighth is free
        drained() ------------------- RECORD_RELEASED -> release(): they are sent, once no other queue is waited for
    fewer than an eighth has left in push_back_timeout
        stall() --------------------- RECORD_RELEASED -> the same; from now on the queue drops

No acknowledgement waits longer than push_back_timeout, whatever becomes of the records. The timer runs only while something waits.
"""
from cython cimport final
from libc.stdint cimport uint32_t, uint64_t

from shardbroker.pubsub.message cimport Publication
from shardbroker.session.overflow cimport PressedQueue, QueueOverflow
from shardbroker.session.session cimport Session
from shardbroker.session.timers cimport Timed
from shardbroker.worker.held_acks cimport HeldAcks
from shardbroker.worker.inlets cimport Inlets
from shardbroker.worker.outlets cimport RingOutlets
from shardbroker.worker.router cimport Router


@final
cdef class PushBackTimer(Timed):
    cdef PushBack owner


@final
cdef class PushBack(QueueOverflow):
    cdef Router router
    cdef RingOutlets rings
    cdef int number                        # of this worker
    cdef bytes topic                       # the last one that was compared with mqtt.push_back_topics; None: none since these changed
    cdef bint topic_applies                # whether one of them matches
    cdef dict by_listener                  # name -> whether its clients push back; those without an entry inherit
    cdef dict full                         # key of each session whose queue is FULL -> its PressedQueue
    cdef dict holding                      # client id -> HeldAcks of its connection
    cdef PushBackTimer timer
    cdef Inlets inlets                     # whose ring record is being delivered
    cdef uint64_t logged_ms                # of the newest log line about a queue

    # Applies changed settings. Nothing waits any more if they do not push back.
    cdef int configure(self, object settings) except -1
    cdef bint applies(self, Session session, Publication publication) except -1
    # Worker of the client that is owed an acknowledgement for this publication; -1: no client is.
    cdef int source_of(self, Publication publication) noexcept
    cdef bint redirect(self, Session full, Publication publication, tuple share) except -1
    cdef bint has_reserve(self, PressedQueue queue, Publication publication) noexcept
    cdef uint32_t low(self) noexcept
    cdef uint32_t share(self) noexcept     # of mqtt.max_mqueue_len, in messages
    # share: of the group for which the queue takes the message, or None.
    cdef int press(self, PressedQueue queue, bytes client_id, int source, tuple share) except -1
    cdef int stall(self, PressedQueue queue) except -1
    cdef int end_full(self, PressedQueue queue) except -1
    cdef int free(self, PressedQueue queue, bytes client_id, int process) except -1
    cdef int free_of_groups(self, PressedQueue queue) except -1
    cdef bint has_room_beside(self, uint64_t key, tuple share) except -1
    cdef int send(self, int kind, int process, uint64_t key, bytes client_id) except -1
    cdef int look(self, uint64_t now_ms) except -1
    cdef int arm(self) except -1
