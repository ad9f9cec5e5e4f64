"""The subscriptions of a worker's sessions: a change is in the session, in the table, in the journal and on its way to the routes.

    SUBSCRIBE, ctl, recovery   -> subscribe()
    UNSUBSCRIBE, changed rules -> unsubscribe()
    end of a session           -> end_all()     those of a session with very many leave in the next passes, see go_on()
    no room in the route table -> undo()
"""
from cython cimport final
from libc.stdint cimport uint64_t

from shardbroker.pubsub.subscriptions cimport ReplaySubscription, Subscription, SubscriptionTable
from shardbroker.session.context cimport WorkerContext
from shardbroker.session.session cimport Session
from shardbroker.worker.exclusive cimport ExclusiveSubscriptions
from shardbroker.worker.resolver cimport TopicResolver
from shardbroker.worker.route_changes cimport RouteChanges


@final
cdef class Subscriptions:
    cdef WorkerContext context
    cdef SubscriptionTable table
    cdef TopicResolver resolver
    cdef RouteChanges route_changes
    cdef ExclusiveSubscriptions exclusive
    cdef list leaving                      # (session that has ended, its subscriptions), for which one pass was too short

    cdef int subscribe(self, Session session, Subscription subscription) except -1
    cdef int subscribe_replay(self, Session session, ReplaySubscription replay) except -1
    # Whether there was a subscription. The route may remain for `delay_ms`, see RouteChanges.note().
    cdef bint unsubscribe(self, Session session, bytes wire_filter, uint64_t delay_ms) except -1
    # Ends those of a session that ends.
    cdef int end_all(self, Session session) except -1
    # Ends some of those that sessions with very many have left; called once a pass.
    cdef int go_on(self) except -1
    # The route table has no room: ends these subscriptions (wire filter, subscription). Returns the codes of their SUBACK, with 0x97.
    cdef bytes undo(self, Session session, bytes codes, list subscribed)
    cdef int drop(self, Subscription subscription, uint64_t delay_ms) except -1
