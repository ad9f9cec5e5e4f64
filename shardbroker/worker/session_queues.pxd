"""Queues of sessions that move: their messages by id, and their form in TAIL and STATE (plain functions, no state)."""
from shardbroker.session.delivery cimport Delivery
from shardbroker.session.mqueue cimport MQueue
from shardbroker.session.session cimport Session

# Ids of the messages of QoS 1 and 2 that a session has not finished: of its queue, with `in_flight` also of its window.
cdef set ids_of(Session session, bint in_flight)
# The same of one queue.
cdef set queue_ids(MQueue queue)
# A queue without the entries with these ids; the old one is empty then. `recorded`: with a record of each.
cdef MQueue without(Session session, MQueue old, set ids, bint recorded, bint keeps_qos0)
# Removes entries of the queue, and of Place.behind: those with these ids, and of QoS 0. `recorded`: with a record of each.
cdef int remove_from_queue(Session session, set ids, bint recorded) except -1
# Removes messages of `first_queued` from the queue, with a record of each: they are the first of their lanes.
cdef int hand_over(Session session, set ids) except -1
# Moves what was sent and not acknowledged in front of the queue; packet ids are free afterwards.
cdef int empty_window(Session session, bint keep) except -1
# The first messages of the queue of QoS 1 and 2, in its order: a list of cluster.messages.Queued.
cdef list first_queued(Session session, int most)
