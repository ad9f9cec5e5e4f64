r"""The protocol core of one worker: sessions, subscriptions, routing. No socket: the loop above it moves bytes.

    protocol.feed() -> Router.publish() -> Session.deliver() -> ClientOutput.write_publish()      local subscribers
                                     \-> Outlets.put()                                  other workers, by ring
    Router.commit() at the end of a pass: routes, epochs, retained messages, and only then the SUBACKs
"""
from cython cimport final
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

from shardbroker.pubsub.message cimport Message, Publication
from shardbroker.pubsub.shared_groups cimport GroupPicker
from shardbroker.pubsub.subscriptions cimport Subscription, SubscriptionTable
from shardbroker.pubsub.topic_cache cimport Lookup, TopicCache, TopicEntry
from shardbroker.session.context cimport WorkerContext
from shardbroker.session.session cimport Session, Will
from shardbroker.worker.deferred cimport Deferred
from shardbroker.worker.disk cimport DiskWatch
from shardbroker.worker.features.delayed cimport Delays
from shardbroker.worker.memory cimport MemoryWatch
from shardbroker.worker.outlets cimport Outlets
from shardbroker.worker.reporter cimport Reporter
from shm.counters cimport Counters
from shm.epochs cimport BUCKETS, Buckets, Epochs


cdef class Router(WorkerContext):
    cdef Outlets outlets                   # what leaves this worker
    cdef Reporter reporter                 # what the management plane gets to know
    cdef DiskWatch disk                    # of the journal; None: there is no journal
    cdef MemoryWatch memory                # None: memory has no limit
    cdef Counters counters_segment         # of all processes; None: there is no other worker
    cdef readonly dict sessions            # client id -> Session
    cdef dict by_key                       # session key -> Session
    cdef SubscriptionTable table
    cdef TopicCache cache
    cdef object lookups                    # deque of Lookup: those that one turn was too short for, in the order of their turns
    cdef dict channel_lookups              # Channel -> list of those that its PUBLISH waits for
    cdef int64_t first_visits              # of the route table, for a topic that is not in the cache; the rest of its look-up has to queue
    cdef Epochs epochs                     # shared; None when there is one worker only, as in the simulator
    cdef uint64_t local_epochs[BUCKETS + 1]    # changes of this worker's own subscriptions that are not committed yet
    cdef object routes                     # shm.routes.RouteTable or its like: search(), update()
    cdef object retained                   # shardbroker.stores.retained.RetainedStore or its like; None without
    cdef object retainer                   # settings section
    cdef long own_destination
    cdef GroupPicker picker
    cdef Publication publication           # used for every publish of a client; never across two
    cdef dict route_changes                # (filter, group, member) -> added?: what differs from the route table
    cdef uint64_t removals_since_ms
    cdef uint32_t removals                 # since then
    cdef uint64_t routes_due_ms            # when they are to be committed; 0: nothing waits
    cdef list retained_changes
    cdef uint64_t retained_retry_ms        # the disk took none of them; when they are tried again. 0: all is well
    cdef uint64_t retained_waiting         # bytes of those that came since
    # SUBSCRIBE packets to be answered after the commit: (answer, channel, packet id, codes, subscriptions, replays), with
    # answer(channel, packet id, codes, replays).
    cdef list subacks
    cdef list replaying                    # sessions with retained messages still to be sent
    cdef bint replays_moved                # some were sent in this pass: there is more to do at once
    cdef list leaving                      # subscriptions of sessions that ended, for which one pass was too short
    cdef uint64_t full_tables              # commits that the route table had no room for
    cdef list retry                        # Deferred: what a full ring keeps here
    cdef uint64_t last_deferred                # number of the newest of them in the journal
    cdef readonly Delays delays            # messages that wait for their time
    cdef uint64_t next_key
    cdef uint64_t id_low_base              # node and process part of message ids
    cdef uint16_t id_sequence
    cdef object node_process
    cdef readonly object access_gate       # shardbroker.access.auth_client.AuthClient; None: everything is allowed
    cdef object access_type                # shardbroker.worker.authorization.Authorization, where there is a gate
    cdef readonly object auth, acl         # settings sections
    cdef readonly uint32_t access_generation   # of rules, users and bans
    cdef list capture                      # topic filters of journal.capture, bytes
    cdef object rewriting                  # worker.features.rewrite.Rewriting; None without rules
    cdef object auto_topics                # worker.features.rewrite.AutoTopics; None without topics
    cdef object announcer                  # worker.features.event_messages.EventMessages
    cdef readonly object owners            # shardbroker.stores.exclusive.ExclusiveTable or its like; None until sessions are there again
    # Exclusive subscriptions that have ended: filter -> (session key, position of the end in the journal), by position. The position of
    # those that have ended since the last release_some() is None.
    cdef dict releasing
    cdef uint64_t releases_due_ms          # when the next of them are released; 0: once the journal has their end
    cdef bint releases_refused             # their table is full, which is logged

    # The entry of a topic from the cache; None if it is not there, or the epochs have moved since.
    cdef TopicEntry cached(self, const uint8_t* topic, uint32_t size)
    # The same, with a look-up if needed. None: it takes longer than this turn. It continues pass by pass, and its holder, whose list
    # `holder` is, asks again until the entry is there, and then drops the list; for `holder` None the look-up is given up.
    # Raises MqttError 0x90 for what is no topic name.
    cdef TopicEntry resolve(self, const uint8_t* topic, uint32_t size, list holder)
    # The same for a topic that is valid and not in the cache. Raises what a step of the look-up has raised.
    cdef TopicEntry look_up(self, bytes topic, list holder)
    cdef uint64_t stamp_of(self, const Buckets* buckets) noexcept
    cdef int check_name(self, const uint8_t* topic, uint32_t size) except -1
    cdef TopicEntry finish(self, Lookup lookup)
    # A part of the look-ups that wait; called once a pass.
    cdef int look_up_some(self) except -1
    # Continues the look-up of this holder out of its turn, for `units` of the budget.
    cdef int look_further(self, list holder, int64_t units) except -1
    # Everything a publish leads to. True if there are subscribers. The caller has checked room_for().
    cdef bint publish(self, TopicEntry entry, Publication publication, Session publisher) except -1
    cdef int deliver_locally(self, TopicEntry entry, Publication publication, Session publisher) except -1
    # What the broker itself holds: a will, a message of ctl or REST. at_ms: it waits until then; 0: it does not.
    cdef int publish_message(self, Message message, Session publisher, uint64_t at_ms) except -1
    # What a PUBLISH, a will and a message of ctl or REST have in common. They raise MqttError for what may not be published.
    # The topic behind `$delayed/<seconds>/`, and its time; another topic is as it was, and the time 0.
    cdef bytes take_delay(self, bytes topic, uint64_t* at_ms)
    # Returns the rewritten topic of a message; None: unchanged.
    cdef bytes rewritten(self, object rule, bytes topic, bytes client_id, bytes username)
    cdef uint64_t expires_ms(self, bint has_expiry, uint32_t expiry_s) noexcept
    # All of them, but access rules and no_delay(), for what is no PUBLISH of a connection: the topic that it is published to.
    cdef bytes admit(self, Message message, bytes username, uint64_t* at_ms)
    # False: it waits for room, or for the look-up of its topic; `holder` as for resolve().
    cdef bint try_publish(self, Message message, Session publisher, list holder) except -1
    # As publish_message, behind those that wait for room. False: it waits itself.
    cdef bint publish_in_order(self, Message message, Session publisher) except -1
    # To a member of the group, other than `failed`. False if a ring is full, or its topic not looked up yet.
    cdef bint hand_on(self, bytes group_name, bytes filter, Message message, int attempts, uint64_t failed, list holder) except -1
    cdef bint pass_on(self, bytes group_name, bytes filter, Message message, int attempts, uint64_t failed, list holder) except -1
    cdef bint publish_held(self, Message message, Session publisher, list holder) except -1
    # Defers a message until there is room; the journal has it until then.
    cdef int defer(self, Deferred deferred) except -1
    cdef int number_deferred(self, Deferred deferred) except -1
    cdef int record_deferred(self, Deferred deferred) except -1
    cdef int run_retries(self) except -1
    cdef bint try_again(self, Deferred deferred) except -1
    # It is published at this time, whatever happens to its publisher. The caller has asked no_delay().
    cdef int delay(self, Publication publication, uint64_t at_ms) except -1
    # A message that rules, settings or limits do not allow any more: nothing of it is published.
    cdef int count_outdated(self) except -1
    # Why no further message may wait; None if it may.
    cdef str no_delay(self)
    # Of all workers, if there are others.
    cdef int64_t delayed_count(self) except? -1
    cdef bint publish_delayed(self, Deferred deferred) except -1
    cdef int stamp(self, Publication publication) noexcept
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
    cdef int end_session(self, Session session, bint redispatch) except -1
    cdef int client_gone(self, Session session, int reason_code, bint keep_will) except -1
    cdef int publish_will(self, Session session) except -1
    # Its rules have been asked again. `denied`: they do not let it be published any more.
    cdef int release_will(self, Will will, Session session, bint denied) except -1
    # Whether this exclusive subscription is the session's now.
    cdef bint claim(self, Session session, bytes filter) except -1
    cdef int release_some(self, uint64_t next_sequence, uint64_t durable) except -1
    cdef int release(self, list due) except -1
    cdef int end_exclusive(self, uint64_t session, bytes filter) except -1
    cdef int subscribe(self, Session session, Subscription subscription) except -1
    cdef bint unsubscribe(self, Session session, bytes wire_filter, uint64_t delay_ms) except -1
    cdef bint drop_subscription(self, Subscription subscription, uint64_t delay_ms) except -1
    cdef int route_changed(self, Subscription subscription, bint add, uint64_t delay_ms) except -1
    cdef void invalidate(self, bytes filter) noexcept
    cdef bint few_removals(self) noexcept
    cdef int retain(self, Publication publication) except -1
    # End of a pass: what is due becomes visible to every worker, then SUBACKs may go out. `now`: everything.
    cdef int commit(self, bint now) except -1
    # Returns the time until routes or released subscriptions are due to be committed, but no more than `wait_ms`.
    cdef int due_in_ms(self, int wait_ms) except -1
    cdef bint commit_routes(self) except -1
    cdef int commit_retained(self) except -1
    cdef int answer_subscribe(self, tuple suback, bint full) except -1
    # The disk takes no retained messages. Whether they are kept until it does; else they are dropped.
    cdef bint keeps_refused(self, int error) except -1
    # Sets `disk_full` by the stage of the disk, and by retained messages that wait for it.
    cdef int check_disk(self) except -1
    cdef int replay_some(self) except -1
    cdef int leave_some(self) except -1
    cdef bint replay_session(self, Session session) except -1


# $SYS/... and $event/..., and the topics that their `#` matches too: the broker alone publishes to them.
cdef inline bint is_own(const uint8_t* topic, uint32_t size) noexcept:
    return size > 3 and topic[0] == c"$" and (
        (memcmp(topic, b"$SYS", 4) == 0 and (size == 4 or topic[4] == c"/"))
        or (size > 5 and memcmp(topic, b"$event", 6) == 0 and (size == 6 or topic[6] == c"/")))


# Whether a payload that says so is UTF-8 (MQTT 5.0 §3.3.2.3.2).
cdef bint is_text(const uint8_t* payload, uint32_t size)
