"""From a topic to its cache entry: to which sessions, workers and groups its messages lead.

    cached()        the entry, if no subscription near the topic has changed since it was built
    resolve()       the same, with a look-up if needed
    look_up()       a search of the route table and the local subscriptions. One too long for its turn waits, and go_on() continues it

An entry is valid while the sum of its epochs is: those of all workers in shared memory, and this worker's own for subscriptions that are
not committed yet.
"""
from cython cimport final
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from shardbroker.pubsub.subscriptions cimport SubscriptionTable
from shardbroker.pubsub.topic_cache cimport Lookup, TopicCache, TopicEntry
from shardbroker.session.context cimport WorkerContext
from shardbroker.worker.admission cimport Admission
from shardbroker.worker.outlets cimport Outlets
from shm.epochs cimport BUCKETS, Buckets, Epochs


@final
cdef class TopicResolver:
    cdef WorkerContext context
    cdef SubscriptionTable table           # of this worker's sessions
    cdef object routes                     # shm.routes.RouteTable or its like: search()
    cdef Admission admission               # rewrite rules
    cdef Outlets outlets
    cdef long own_destination
    cdef TopicCache cache
    cdef Epochs epochs                     # shared; None when there is one worker only, as in the simulator
    cdef uint64_t local_epochs[BUCKETS + 1]    # changes of this worker's own subscriptions that are not committed yet
    cdef object waiting                    # deque of Lookup: those that one turn was too short for, in the order of their turns
    cdef dict channel_lookups              # Channel -> list of those that its PUBLISH waits for
    cdef int64_t first_visits              # of the route table, for a topic that is not in the cache; the rest of its look-up has to queue
    cdef list capture                      # topic filters of journal.capture, bytes

    # The entry of a topic from the cache; None if it is not there, or the epochs have moved since.
    cdef TopicEntry cached(self, const uint8_t* topic, uint32_t size)
    # The same, with a look-up if needed. None: it takes longer than this turn. It continues pass by pass, and its holder, whose list
    # `holder` is, resolves the topic again until the entry is there, and then drops the list; for `holder` None the look-up is given up.
    # Raises MqttError 0x90 for what is no topic name.
    cdef TopicEntry resolve(self, const uint8_t* topic, uint32_t size, list holder)
    # The same for a topic that is valid and not in the cache. Raises what a step of the look-up has raised.
    cdef TopicEntry look_up(self, bytes topic, list holder)
    cdef int check_name(self, const uint8_t* topic, uint32_t size) except -1
    # Continues the look-ups that wait, one at a time; called once a pass.
    cdef int go_on(self) except -1
    # Continues the look-up of this holder out of its turn, for `units` of the budget.
    cdef int look_further(self, list holder, int64_t units) except -1
    # This worker's subscriptions to the filter have changed, or all of them.
    cdef void invalidate(self, bytes filter) noexcept
    cdef void invalidate_all(self) noexcept
    # The routes of the filter have changed for all workers.
    cdef int publish_change(self, bytes filter) except -1

    cdef uint64_t stamp_of(self, const Buckets* buckets) noexcept
    cdef TopicEntry finish(self, Lookup lookup)
