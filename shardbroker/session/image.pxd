"""A whole session as records, and records as a session: the one place that knows both.

    save(session, recorder)      a session -> records: SESSION_SAVED, will, subscriptions, window, queue, QoS 2 ids, DISCONNECTED
    SessionReader.on_...(record) records -> a session, as it was when they were written; one method for each kind of record

Journal cycles and recovery use both ends (journal/recorder.pyx, worker/recovery/). `journal/images.pyx` adds the form in bytes, for a
session that leaves its process. A record is a list, [kind, field, ...], with fields as in `journal.schema.FIELDS`. Records after those
of `save` are changes, and are applied by the same methods.

What an image does not hold: the turn of shared groups of a publisher, retained messages that are still to be sent, the packet id
that an empty window would give next, and the time at which a QoS 2 id arrived (it is the time of the image).
"""
from libc.stdint cimport uint32_t, uint64_t

from shardbroker.pubsub.message cimport Message
from shardbroker.pubsub.subscriptions cimport Subscription
from shardbroker.session.context cimport WorkerContext
from shardbroker.session.delivery cimport Delivery
from shardbroker.session.journaling cimport Recorder
from shardbroker.session.session cimport Session

# Records all of a session, or only its identity, will and deadlines if it ends with its connection.
cdef int save(Session session, Recorder recorder, bint whole) except -1


cdef class SessionReader:
    """Applies records to sessions. A record of a session that is not read here (`session_of` is None) has no effect.

    Of the worker it needs settings, counters and clock alone; a subclass enters subscriptions into tables.
    """
    cdef WorkerContext context
    cdef dict messages                     # id -> Message, or its record until a delivery refers to it
    cdef uint64_t time_ms                  # at which the records were written
    cdef uint32_t logged                   # `logged` of the messages: cycle of this worker's journal that has them, 0: none

    cdef Session session_of(self, list item)
    cdef int add_subscription(self, Session session, Subscription subscription) except -1
    cdef int remove_subscription(self, Session session, bytes wire_filter) except -1

    # A record of a connection: deadlines of a session without one do not apply any more.
    cdef int connected(self, Session session, list item) except -1
    cdef Message message(self, bytes id)                  # None if its record is lost
    cdef bint take_from_queue(self, Session session, bytes id, Delivery* taken) except -1
    # Ends deliveries whose message is lost: there is nothing to send again. Returns how many.
    cdef int end_lost(self, Session session) except -1


# Fields of a record that may be left off: b"" or None stands for null.
cdef bytes bytes_field(list item, Py_ssize_t at)
cdef object field_or_none(list item, Py_ssize_t at)
