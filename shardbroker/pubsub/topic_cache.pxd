"""The topic cache: for each topic all that a publish needs, which are the local targets, the other workers and the shared groups.

An entry is valid until one of the epochs under which it was built changes: `stamp` is the sum of the shared epochs of its buckets and of this
worker's own epoch. Epochs only grow, so equal sums mean that none of them has changed.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from shardbroker.pubsub.message cimport Publication
from shardbroker.pubsub.subscriptions cimport Subscriber, SubscriptionTable
from shm.epochs cimport Buckets

cdef enum OwnMessages:                     # copies of its own messages that a publisher gets
    OWN_SAME = 0
    OWN_NONE = 1                           # every matching subscription has No Local
    OWN_OTHER = 2                          # some of them do: `own_qos` and `own_ids` leave those out

cdef enum Capture:                         # bits of `captured`: schema.MessageFlag
    CAPTURED = 0x10                        # analytics needs the messages (journal.capture), or a stream
    FED = 0x40                             # rules do

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
    cdef uint64_t serial                   # unique in this process: other caches refer to the entry by it
    cdef Buckets buckets
    cdef bint unroutable                   # a destination has no outlet in this worker: messages are refused
    cdef uint8_t captured                  # Capture bits; 0: no message is written into the journal for others than sessions
    cdef object rewrite                    # the rule (worker/features/rewrite.py) that rewrites this topic; None: the topic is kept
    cdef Target* targets
    cdef uint32_t target_count
    cdef uint64_t weight                   # approximate size in bytes
    cdef list keep                         # references behind the pointers in `targets`
    cdef bint leaves                       # the messages leave this worker: `destinations` or `groups` has entries
    cdef readonly tuple destinations       # u32 destinations other than this worker, FEED and KEPT
    cdef readonly tuple groups             # shared groups: (name, filter, ((destination, member), ...))

    cdef bint is_empty(self) noexcept        # no subscriber on any worker


cdef struct CacheSlot:
    uint64_t hash
    void* entry                            # the TopicEntry that the slot owns, or NULL


cdef struct CacheTable:                    # linear probing, at most half full
    CacheSlot* slots
    size_t mask                            # slots - 1
    size_t count
    uint64_t weight                        # of the entries, bytes


cdef class TopicCache:
    cdef CacheTable now                    # topics published to since the last turn
    cdef CacheTable before                 # topics of the turn before, not published to since; no slots: empty
    cdef CacheTable fading                 # topics of the turn before that, which are dropped bit by bit; no slots: empty
    cdef size_t faded                      # slots of `fading` that are empty already
    cdef size_t limit                      # topics in `now` and in `before`, each
    cdef uint64_t weight_limit             # the same in bytes
    cdef uint64_t turned_at_ms             # time of the last turn by the clock
    cdef bint heavy                        # the weight has caused a turn since the last turn by the clock

    cdef TopicEntry find(self, const uint8_t* topic, uint32_t size)
    cdef TopicEntry find_before(self, uint64_t hash, const uint8_t* topic, uint32_t size)
    cdef int store(self, TopicEntry entry) except -1
    cdef int put(self, uint64_t hash, TopicEntry entry) except -1
    cdef int resize(self, size_t capacity) except -1
    # Drops the topics that were not published to for two turns; turns are shorter while memory is short. Called periodically.
    cdef int grow_old(self, uint64_t now_ms, bint short_of_memory) except -1
    cdef int turn(self) except -1


cdef class Lookup:
    """Builds a topic's entry: a search in the route table, then the local subscriptions of each filter found.

    It runs in steps, because a single client can make it long; its one holder continues it until `entry` is set.
    """
    cdef bytes topic
    cdef uint64_t stamp                    # as of the start of the search
    cdef Buckets buckets
    cdef object search                     # shm.routes.Search, or its like
    cdef object match                      # shm.routes.Match, once the search has ended
    cdef Py_ssize_t at                     # filters of `match` that were looked up here
    cdef dict by_subscriber                # session key -> its subscriptions
    cdef list matching                     # values of `by_subscriber` that are not in the entry yet; None before the last filter
    cdef TopicEntry growing
    cdef TopicEntry entry                  # None until it is complete
    cdef bint abandoned                    # the holder no longer needs it
    cdef object error                      # the exception that ended the lookup, or None

    # Continues for a number of visits of 2 µs each. Returns the visits that are left, 0 if the lookup is not complete.
    cdef int64_t go_on(self, SubscriptionTable table, long own, int64_t visits) except? -1
    cdef int64_t gather(self, object filter, SubscriptionTable table) except? -1

cdef Lookup new_lookup(bytes topic, const Buckets* buckets, uint64_t stamp, object search)
# Encodes a Subscription Identifier property; b"" for identifier 0.
cdef bytes encode_identifier(uint32_t identifier)
