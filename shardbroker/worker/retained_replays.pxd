"""Retained messages on the way to new subscriptions, a batch for each session and pass.

    SUBACK or ctl  -> start()     the subscriptions of a session whose retained messages are to be sent
    end of a pass  -> go_on()     a batch for each session that has room for one
"""
from cython cimport final

from shardbroker.session.context cimport WorkerContext
from shardbroker.session.session cimport Session


@final
cdef class RetainedReplays:
    cdef WorkerContext context
    cdef object store                      # shardbroker.stores.retained.RetainedStore or its like; None without
    cdef list sessions                     # with retained messages still to be sent, in the order of their turns
    cdef bint moved                        # some were sent in this pass: there is more to do at once

    # Sends the retained messages of these subscriptions in the next passes.
    cdef int start(self, Session session, list subscriptions) except -1
    # Sends a batch to each session; called once a pass.
    cdef int go_on(self) except -1
    # Sends a batch to one session. False: nothing is left for it.
    cdef bint replay(self, Session session) except -1
