r"""The protocol core of one worker: sessions, wills, routing. No socket: the loop above it moves bytes.

    protocol.feed() -> Router.publish() -> Session.deliver() -> ClientOutput.write_publish()      local subscribers
                                     \-> Outlets.put()                                  other workers, by ring
    Router.commit() at the end of a pass: routes, epochs, retained messages, and only then the SUBACKs

Its parts have one kind of state each and know of the router only what all sessions share, the WorkerContext.
"""
from cython cimport final
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.pubsub.message cimport Message, Publication
from shardbroker.pubsub.shared_groups cimport GroupPicker
from shardbroker.pubsub.topic_cache cimport TopicEntry
from shardbroker.session.context cimport WorkerContext
from shardbroker.session.session cimport Session, Will
from shardbroker.worker.admission cimport Admission
from shardbroker.worker.deferred cimport Deferred
from shardbroker.worker.exclusive cimport ExclusiveSubscriptions
from shardbroker.worker.features.lookups cimport DatabaseLookups
from shardbroker.worker.features.replay cimport JournalReplays
from shardbroker.worker.memory cimport MemoryWatch
from shardbroker.worker.outlets cimport Outlets
from shardbroker.worker.passed_ids cimport PassedIds
from shardbroker.worker.reporter cimport Reporter
from shardbroker.worker.resolver cimport TopicResolver
from shardbroker.worker.retained_changes cimport RetainedChanges
from shardbroker.worker.retained_replays cimport RetainedReplays
from shardbroker.worker.retries cimport Retries
from shardbroker.worker.route_changes cimport RouteChanges
from shardbroker.worker.session_claims cimport SessionClaims
from shardbroker.worker.subacks cimport Subacks
from shardbroker.worker.subscriptions cimport Subscriptions
from shm.counters cimport Counters
from shm.epochs cimport Epochs


cdef class Router(WorkerContext):
    # Parts
    cdef Outlets outlets                   # what leaves this worker
    cdef Reporter reporter                 # what the management plane gets to know
    cdef MemoryWatch memory                # None: memory has no limit
    cdef Admission admission               # what may be published
    cdef TopicResolver resolver            # topic -> where its messages lead
    cdef readonly Subscriptions subscriptions
    cdef ExclusiveSubscriptions exclusive
    cdef RouteChanges route_changes
    cdef readonly Subacks subacks
    cdef RetainedChanges retaining
    cdef RetainedReplays replays
    cdef readonly JournalReplays journal_replays
    cdef readonly DatabaseLookups lookups
    cdef Retries retries                   # accepted messages that wait
    cdef public SessionClaims claims       # None: sessions of this node are its own, and never move
    cdef public PassedIds passed           # ids of messages that were dealt with, once there are claims; else None
    # Sessions
    cdef readonly dict sessions            # client id -> Session
    cdef dict by_key                       # session key -> Session
    cdef uint64_t next_key
    cdef Session granted                   # a new session for the CONNECT that is accepted at this moment; else None
    # Messages
    cdef long own_destination
    cdef GroupPicker picker
    cdef Publication publication           # used for every publish of a client; never across two
    cdef uint64_t id_low_base              # node and process part of message ids
    cdef uint16_t id_sequence
    # Shared with other workers
    cdef Counters counters_segment         # of all processes; None: there is no other worker
    cdef Epochs epochs                     # None when there is one worker only, as in the simulator
    cdef public bytes redirect             # None: clients are accepted; else the node is evacuated: Server Reference for them, or b""
    # Settings
    cdef readonly object access_gate       # shardbroker.access.auth_client.AuthClient; None: everything is allowed
    cdef object login_type                 # shardbroker.worker.login.Login, where there is a gate
    cdef object access_type                # likewise shardbroker.worker.authorization.Authorization
    cdef readonly object auth, acl         # settings sections
    cdef readonly uint32_t access_generation   # of rules, users and bans
    cdef object auto_topics                # worker.features.rewrite.AutoTopics; None without topics
    cdef object announcer                  # worker.features.event_messages.EventMessages

    # Sets the outlets of this worker; without a call, the worker is alone.
    cdef int set_outlets(self, Outlets outlets) except -1
    # Everything a publish leads to. True if there are subscribers. The caller has checked room_for().
    cdef bint publish(self, TopicEntry entry, Publication publication, Session publisher) except -1
    # Records a message for analytics or rules.
    cdef int capture(self, TopicEntry entry, Publication publication, Session publisher) except -1
    cdef int deliver_locally(self, TopicEntry entry, Publication publication, Session publisher) except -1
    # What the broker itself holds: a will, a message of ctl or REST. at_ms: it waits until then; 0: it does not.
    cdef int publish_message(self, Message message, Session publisher, uint64_t at_ms) except -1
    # False: it waits for room, or for the look-up of its topic; `holder` as for TopicResolver.resolve(), `answered` as of a Publication.
    cdef bint try_publish(self, Message message, Session publisher, list holder, uint8_t answered) except -1
    # As publish_message, behind those that wait for room. False: it waits itself.
    cdef bint publish_in_order(self, Message message, Session publisher, uint8_t answered) except -1
    # To a member of the group, other than `failed`. False if a ring is full, or its topic not looked up yet.
    cdef bint hand_on(self, bytes group_name, bytes filter, Message message, int attempts, uint64_t failed, list holder) except -1
    cdef bint pass_on(self, bytes group_name, bytes filter, Message message, int attempts, uint64_t failed, list holder) except -1
    cdef bint publish_held(self, Message message, Session publisher, list holder, uint8_t answered) except -1
    cdef int run_retries(self) except -1
    cdef bint try_again(self, Deferred deferred) except -1
    # A record that finds no room in its ring waits.
    cdef int defer_record(
        self, Publication publication, long destination, int record, uint64_t member, int attempts, bytes group, bytes filter) except -1
    # Messages from other workers whose look-ups are complete go to the subscribers here, each publisher's in order; called once a pass.
    cdef int deliver_unresolved(self) except -1
    # False: its look-up, or the disk, needs more time.
    cdef bint deliver_late(self, Deferred deferred, bint* looked_further) except -1
    # A message that rules, settings or limits do not allow any more: nothing of it is published.
    cdef int count_outdated(self) except -1
    cdef bint publish_delayed(self, Deferred deferred) except -1
    cdef int stamp(self, Publication publication) noexcept
    cdef Message stamped_again(self, Message message)
    cdef int deliver_shared(self, tuple group, Publication publication, Session publisher, uint8_t attempts, tuple failed) except -1
    cdef bint deliver_to_member(self, bytes group, bytes filter, uint64_t member, Publication publication) except -1
    # Whether a message of `size` bytes for these can be taken: by the disk, and by every ring that it has to go into.
    @final
    cdef bint room_for(self, TopicEntry entry, uint64_t size) except -1
    # Whether it would be written into the journal.
    @final
    cdef bint would_record(self, TopicEntry entry) noexcept
    @final
    cdef int forward(self, long destination, Publication publication) except -1
    @final
    cdef int forward_shared(self, long destination, uint64_t member, tuple group, Publication publication, uint8_t attempts) except -1

    cdef Session open_session(self, object channel, bytes client_id, bint clean_start, uint64_t expiry_ms, bint* present)
    # The session of a client id, after its connection, if there is one, has ended and what is due has happened; None.
    cdef Session previous_session(self, bytes client_id)
    # Ends the connection of a session because another connection takes its place [MQTT-3.1.4-3]; that may end the session.
    cdef int disconnect_taken(self, Session session) except -1
    # A new session, in no journal yet.
    cdef Session create_session(self, bytes client_id)
    cdef int end_session(self, Session session, bint redispatch) except -1
    cdef int client_gone(self, Session session, int reason_code, bint keep_will) except -1
    cdef int publish_will(self, Session session) except -1
    # Its rules have been asked again. `denied`: they do not let it be published any more.
    cdef int release_will(self, Will will, Session session, bint denied) except -1
    # End of a pass: what is due becomes visible to every worker, then SUBACKs may go out. `now`: everything.
    cdef int commit(self, bint now) except -1
    # Returns the time until routes, released subscriptions or held SUBACKs are due, but no more than `wait_ms`.
    cdef int due_in_ms(self, int wait_ms) except -1
