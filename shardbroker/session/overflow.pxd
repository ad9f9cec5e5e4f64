"""What becomes of a message for a session whose queue is full, other than that the oldest one is dropped: mqtt.mqueue_overflow = push_back.

    OPEN -- a message for the full queue --> FULL -- an eighth has not left in push_back_timeout, reserve used up --> STALLED
      ^                                       |                                                                        |
      +---------------- an eighth of the queue is free ----------------------------------------------------------------+

FULL: messages are queued beyond mqtt.max_mqueue_len, into the reserve, and acknowledgements to their publishers wait. STALLED: the
oldest message is dropped, as with `drop`. docs/design/0017-push-back.md has the reasons.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardbroker.pubsub.message cimport Publication
from shardbroker.session.delivery cimport Delivery
from shardbroker.session.mqueue cimport MQueue

cdef enum OnFull:
    DROP_OLDEST = 0                        # and queue the message
    TAKE = 1                               # queue the message beyond the limit
    LEAVE = 2                              # the message was dealt with: dropped, or delivered to another member of its shared group

cdef enum PressedState:
    OPEN = 0
    FULL = 1
    STALLED = 2


cdef class QueueOverflow:
    """Decides for all sessions of a worker."""
    # A message for a session (shardbroker.session.session.Session) whose queue is full. share: of its shared group, or None. An OnFull.
    cdef int on_full(self, object session, Publication publication, tuple share) except -1
    # A message has left the queue, which is FULL or STALLED.
    cdef void drained(self, PressedQueue queue) noexcept
    # Acknowledgements to this client of this worker wait for the queue of a session of a process.
    cdef int hold_back(self, bytes client_id, int process, uint64_t key) except -1
    cdef int release(self, bytes client_id, int process, uint64_t key) except -1
    # Every acknowledgement that waits is sent.
    cdef int release_all(self) except -1


cdef class PressedQueue(MQueue):
    """The queue of a session that was full. It replaces the MQueue, so that others pay nothing for it, until the queue is empty."""
    cdef QueueOverflow owner
    cdef uint64_t key                      # of the session, which has a reference to this queue
    cdef uint8_t state                     # PressedState
    cdef uint32_t low                      # number of messages at which it is OPEN again
    cdef uint64_t full_ms                  # when it has become FULL, later by what has left it since, Unix ms
    cdef uint64_t reserve                  # upper bound of the bytes beyond the limit
    cdef dict publishers                   # client id -> (process, Unix ms of the last report, shared group or None): whose acknowledgements wait
    cdef set shares                        # shared groups among these, and maybe others that were

    # Bytes of the messages behind the first `limit` ones.
    cdef uint64_t measure(self, uint32_t limit) noexcept


# The contents of a queue, which is empty afterwards, in one with a state.
cdef PressedQueue pressed_queue(MQueue queue, QueueOverflow owner, uint64_t key)
cdef bint is_stalled(MQueue queue) noexcept
cdef uint64_t size_in_queue(Publication publication) noexcept
