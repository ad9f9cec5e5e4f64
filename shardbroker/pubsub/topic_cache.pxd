"""Topic -> everything a publish to it needs: the local targets, the other workers, the shared groups.

An entry is valid while the epochs it was built under are: `stamp` is the sum of the shared epochs of its buckets and of this
worker's own. Epochs only grow, so equal sums mean that none of them moved.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from shardbroker.pubsub.message cimport Publication
from shardbroker.pubsub.subscriptions cimport Subscriber, SubscriptionTable
from shm.epochs cimport Buckets

cdef enum OwnMessages:                     # what a publisher gets of its own messages
    OWN_SAME = 0
    OWN_NONE = 1                           # every matching subscription says No Local
    OWN_OTHER = 2                          # some do: `own_qos`, `own_ids` leave those out

cdef struct Target:
    void* subscriber                       # Subscriber, kept alive by TopicEntry.keep
    void* ids                              # bytes, or NULL
    void* own_ids                          # bytes, or NULL
    uint8_t qos
    uint8_t own_qos
    uint8_t own
    bint retain_as_published


cdef class TopicEntry:
    cdef readonly bytes topic
    cdef uint64_t stamp
    cdef uint64_t serial                   # unlike that of any other entry of this process: by it others remember what they know of it
    cdef Buckets buckets
    cdef bint unroutable                   # a destination has no outlet in this worker: messages are refused
    cdef bint captured                     # analytics asks for its messages (journal.capture)
    cdef object rewrite                    # the rule (worker/features/rewrite.py) that what is published here goes by; None: it stays here
    cdef Target* targets
    cdef uint32_t target_count
    cdef uint64_t weight                   # bytes that it takes, about
    cdef list keep                         # references behind the pointers in `targets`
    cdef bint leaves                       # other workers, or members of groups, are to have its messages: the next two are not empty
    cdef readonly tuple destinations       # u32 destinations other than this worker
    cdef readonly tuple groups             # shared groups: (name, filter, ((destination, member), ...))

    cdef bint is_empty(self) noexcept        # no subscriber anywhere


cdef struct CacheSlot:
    uint64_t hash
    void* entry                            # TopicEntry that the slot owns, or NULL


cdef struct CacheTable:                    # linear probing, at most half full
    CacheSlot* slots
    size_t mask                            # slots - 1
    size_t count
    uint64_t weight                        # of its entries, bytes


cdef class TopicCache:
    cdef CacheTable now                    # topics that were published to since the last turn
    cdef CacheTable before                 # those of the turn before it that were not published to since; no slots: none
    cdef CacheTable fading                 # those of the turn before that, which go bit by bit; no slots: none
    cdef size_t faded                      # slots of it that are empty already
    cdef size_t limit                      # of topics in each of the first two
    cdef uint64_t weight_limit             # likewise, bytes
    cdef uint64_t turned_at_ms             # by the time
    cdef bint heavy                        # the weight has led to a turn since the last one that came with time

    cdef TopicEntry find(self, const uint8_t* topic, uint32_t size)
    cdef TopicEntry find_before(self, uint64_t hash, const uint8_t* topic, uint32_t size)
    cdef int store(self, TopicEntry entry) except -1
    cdef int put(self, uint64_t hash, TopicEntry entry) except -1
    cdef int resize(self, size_t capacity) except -1
    # Forgets what was not published to for two turns, which are short while memory is; called now and then.
    cdef int grow_old(self, uint64_t now_ms, bint short_of_memory) except -1
    cdef int turn(self) except -1


cdef class Lookup:
    """The way to a topic's entry: a search in the route table, then the local subscriptions of the filters that it has found. In steps,
    as one client can make it long; for one holder, which asks again until `entry` is there."""
    cdef bytes topic
    cdef uint64_t stamp                    # as it was before the search began
    cdef Buckets buckets
    cdef object search                     # shm.routes.Search, or its like
    cdef object match                      # shm.routes.Match, once the search has ended
    cdef Py_ssize_t at                     # filters of it that were looked up here
    cdef dict by_subscriber                # session key -> its subscriptions
    cdef list matching                     # values of it that are not in the entry yet; None before all filters were looked up
    cdef TopicEntry growing
    cdef TopicEntry entry                  # None until it is whole
    cdef bint abandoned                    # its holder has gone
    cdef object error                      # the exception that ended it; None without

    # Goes on for so many visits of 2 µs; how many are left, none if it has not come to the end.
    cdef int64_t go_on(self, SubscriptionTable table, long own, int64_t visits) except? -1
    cdef int64_t gather(self, object filter, SubscriptionTable table) except? -1

cdef Lookup new_lookup(bytes topic, const Buckets* buckets, uint64_t stamp, object search)
# A Subscription Identifier property, encoded; b"" for identifier 0.
cdef bytes encode_identifier(uint32_t identifier)
