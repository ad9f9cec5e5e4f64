"""Topic -> everything a publish to it needs: the local targets, the other workers, the shared groups.

An entry is valid while the epochs it was built under are: `stamp` is the sum of the shared epochs of its buckets and of this
worker's own. Epochs only grow, so equal sums mean that none of them moved.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

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
    cdef bint captured                     # analytics asks for its messages (journal.capture)
    cdef object rewrite                    # the rule (worker/topics.py) that what is published here goes by; None: it stays here
    cdef Target* targets
    cdef uint32_t target_count
    cdef list keep                         # references behind the pointers in `targets`
    cdef readonly tuple destinations       # u32 destinations other than this worker
    cdef readonly tuple groups             # shared groups: (name, filter, ((destination, member), ...))

    cdef bint nobody(self) noexcept        # no subscriber anywhere


cdef struct CacheSlot:
    uint64_t hash
    void* entry                            # TopicEntry that the slot owns, or NULL


cdef struct CacheTable:                    # linear probing, at most half full
    CacheSlot* slots
    size_t mask                            # slots - 1
    size_t count


cdef class TopicCache:
    cdef CacheTable now                    # topics that were published to since the last turn
    cdef CacheTable before                 # those of the turn before it that were not published to since; no slots: none
    cdef CacheTable fading                 # those of the turn before that, which go bit by bit; no slots: none
    cdef size_t faded                      # slots of it that are empty already
    cdef size_t limit                      # of topics in each of the first two
    cdef uint64_t turn_at_ms

    cdef TopicEntry find(self, const uint8_t* topic, uint32_t size)
    cdef TopicEntry find_before(self, uint64_t hash, const uint8_t* topic, uint32_t size)
    cdef int store(self, TopicEntry entry) except -1
    cdef int put(self, uint64_t hash, TopicEntry entry) except -1
    cdef int resize(self, size_t capacity) except -1
    # Forgets what was not published to for two turns; called now and then.
    cdef int grow_old(self, uint64_t now_ms) except -1
    cdef int turn(self) except -1

# Builds the entry of a topic from what the route table matched: `filters` are looked up in the local table.
cdef TopicEntry build_entry(bytes topic, list filters, SubscriptionTable table, tuple destinations, tuple groups)
# A Subscription Identifier property, encoded; b"" for identifier 0.
cdef bytes encode_identifier(uint32_t identifier)
