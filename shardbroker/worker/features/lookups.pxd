"""Look-ups of new subscriptions in a database: `fetch` and `retain_lookup` of persistence.<db>.

    SUBSCRIBE          -> note()                      in subscribe_one()
    SUBACK             -> start()                     what is published from now on is delivered live
    end of a pass      -> go_on() -> "lookup"         -> process flows, which asks the database
    ring               -> take()                      <- RECORD_REPLAY: a page of messages
    end of a pass      -> go_on() -> session, as it has room, then the next page

A page is requested when the one before is delivered, so a client that does not read holds back its own look-ups alone. Of each session
RUNNING_A_SESSION run, of each worker RUNNING, in turns by session; others wait as an entry of a dict.

Until all messages of a topic are delivered, the subscription has OPTION_FETCHING, in the journal too: the session continues after it
has connected again, and events of acknowledgements are marked, so that no position passes over what is still to be delivered.
"""
from cython cimport final
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardbroker.pubsub.message cimport Message, Publication
from shardbroker.pubsub.subscriptions cimport Subscription
from shardbroker.session.context cimport WorkerContext
from shardbroker.session.session cimport Session
from shardbroker.worker.features.replay cimport JournalReplays
from shm.records cimport RecordHeader


@final
cdef class Lookup:
    """One subscription. before_us, after: times of ids from which on messages are live, and the id behind which to go on."""
    cdef Session session
    cdef Subscription subscription
    cdef bint fetches                      # stored messages
    cdef bint retains                      # the retained message
    cdef uint64_t before_us                # Unix µs; 0: SUBACK is not sent yet
    cdef uint64_t noted_ms
    cdef bytes after                       # 16 bytes, or empty
    cdef set seen                          # ids of messages before `before_us` that the session has got another way
    cdef uint64_t number                   # of the request that runs; 0: none does
    cdef object waiting                    # deque of (what, Message or None): received and not delivered
    cdef uint64_t page_bytes, page_count   # of the page that is being received, and the messages of the next one
    cdef uint32_t limit


@final
cdef class SessionLookups:
    """Those of one session, by filter. noted: whose SUBACK is not sent yet. queued: those that wait for their turn, in order."""
    cdef Session session
    cdef dict all
    cdef dict noted
    cdef dict queued
    cdef uint32_t running


@final
cdef class DatabaseLookups:
    cdef WorkerContext context
    cdef JournalReplays channels           # whose channels to the processes flows are used
    cdef object store                      # retained messages of the broker; None without
    cdef object source                     # config.persistence.LookupSource; None: nothing is looked up
    cdef dict sessions                     # session key -> SessionLookups
    cdef dict turns                        # session key -> SessionLookups with some in `queued`
    cdef dict running                      # number -> Lookup
    cdef dict retaining                    # Lookup -> None: those whose retained message is awaited, oldest first
    cdef uint64_t last
    cdef bint delivering                   # session.deliver() is called by this object
    cdef bint active                       # go_on() has something to do
    cdef bint moved                        # something was delivered in this pass, and more may follow at once

    # Whether the subscription to a topic begins a look-up of stored messages, or of the retained one.
    cdef bint fetches(self, bytes filter) except -1
    cdef bint retains(self, bytes filter) except -1
    cdef int note(self, Session session, Subscription subscription, bint fetches, bint retains) except -1
    # SUBACK is sent.
    cdef int start(self, Session session) except -1
    # The client of a session with unfinished look-ups has connected.
    cdef int resume(self, Session session) except -1
    # The subscription has ended; None: the session.
    cdef int forget(self, Session session, bytes wire_filter) except -1
    # A message is delivered to a session with look-ups.
    cdef int saw(self, Session session, Publication publication) except -1
    # A record of a ring, borrowed. False: it is not of a look-up.
    cdef bint take(self, const RecordHeader* header, const uint8_t* names, Publication publication) except -1
    cdef int go_on(self) except -1

    cdef SessionLookups of_session(self, Session session)
    cdef int queue(self, Lookup lookup) except -1
    cdef int queue_these(self, SessionLookups found, dict lookups) except -1
    cdef int begin_some(self) except -1
    cdef int begin(self, Lookup lookup) except -1
    cdef int request(self, Lookup lookup) except -1
    cdef int halt(self, Lookup lookup) except -1
    cdef int finish(self, Lookup lookup) except -1
    cdef int remove(self, Lookup lookup) except -1
    cdef int deliver_some(self, Lookup lookup, Publication publication) except -1
    cdef int deliver_one(self, Lookup lookup, Message message, bint retained, Publication publication) except -1
    cdef int deliver_retained(self, Lookup lookup, Message stored, Publication publication) except -1
    cdef Message own_retained(self, Lookup lookup)
    cdef int retained_without_database(self) except -1
