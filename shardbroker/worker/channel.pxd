"""One connection's protocol state machine: bytes in, packets out, no socket (MQTT 3.1.1 §3, 5.0 §3 and §4).

    WAIT_CONNECT -- CONNECT accepted --> CONNECTED -- DISCONNECT, error, takeover, timeout --> CLOSING
         |  \-- challenge --> AUTHENTICATING -- AUTH --^                                        ^
         \-- anything else ------------------------------------------------------------------>/

In CLOSING nothing more is read; the loop flushes `out` and closes the socket.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.access.acl_cache cimport AclCache
from shardbroker.mqtt.codec cimport PublishView
from shardbroker.mqtt.packets cimport Connect, Disconnect, Subscribe, Unsubscribe
from shardbroker.pubsub.message cimport Publication
from shardbroker.session.client_output cimport ClientOutput
from shardbroker.pubsub.topic_cache cimport TopicEntry
from shardbroker.session.session cimport Session
from shardbroker.worker.router cimport Router
from shm.address cimport PeerAddress

cdef enum ChannelState:
    WAIT_CONNECT = 0
    CONNECTED = 1
    CLOSING = 2
    AUTHENTICATING = 3                     # an AUTH of the client is expected (MQTT 5.0 §4.12)

cdef enum Side:                            # who ended the connection
    SIDE_CLIENT = 0
    SIDE_SERVER = 1
    SIDE_NETWORK = 2


cdef class TopicAliases:                   # those that a client has set (MQTT 5.0 §3.3.2.3.4)
    cdef dict topics                       # alias -> topic
    cdef uint32_t size                     # what they take, bytes


cdef class Channel(ClientOutput):
    cdef Router router
    cdef readonly Session session
    cdef readonly uint8_t state
    cdef uint8_t announced_version         # level byte of a CONNECT that may turn out to be malformed
    # Flags of a byte each: there may be a million connections.
    cdef uint8_t clean_start
    cdef uint8_t waiting                   # for a verdict: nothing is read meanwhile
    cdef uint8_t closed                    # close() was called: counted, logged, session informed
    cdef uint8_t suback_waits              # a SUBSCRIBE is not committed yet
    cdef uint8_t problem_information       # Request Problem Information, 1 unless the client said 0
    cdef uint8_t parked                    # a PUBLISH waits for room in a ring: nothing is read meanwhile
    cdef uint8_t paused                    # memory is short, or the disk refuses: nothing is read meanwhile
    cdef uint8_t looking                   # the PUBLISH in hand waits for look-ups of its topics: Router.channel_lookups has them
    cdef uint8_t mounted                   # topics get a prefix, see shardbroker.worker.features.mountpoint
    cdef uint8_t limited                   # what it publishes counts for limits that it shares with others
    cdef uint16_t listener_number          # its place in the counters
    cdef uint16_t keepalive_s              # in force, 0: none
    cdef PeerAddress peer
    cdef readonly bytes username           # as the authentication, the certificate or CONNECT says, in this order; None without
    cdef readonly object access            # shardbroker.worker.authorization.Access; None: nobody checks anything about this client
    cdef AclCache acl_cache                 # None: it may publish and subscribe everything
    cdef bytes wanted_id                   # client id that the acceptor has made for a CONNECT without; from CONNECT on the one in it
    cdef tuple subscribing                 # a SUBSCRIBE or UNSUBSCRIBE too long for one turn, see go_on_with_filters(); None mostly
    cdef uint64_t last_packet_ms
    cdef uint64_t connected_ms             # Unix ms of the CONNECT that was accepted
    cdef TopicAliases aliases_in           # None mostly

    # Handles whole packets; returns the bytes used. Less than `size`: the rest is incomplete, or the channel is parked or closing,
    # or context.budget is used up.
    cdef size_t feed(self, const uint8_t* data, size_t size) except? 0
    # The connection is over, for this reason code; once only. The session gets to know, and one line is logged.
    cdef int close(self, int reason_code, int side, str detail, bint keep_will) except -1
    # Whether the next packet of a client that is not logged in yet may be taken, `here` bytes of its `whole` having arrived.
    cdef bint may_begin(self, uint8_t first, uint64_t whole, uint64_t here) except -1
    cdef bint handle(self, uint8_t first, const uint8_t* body, uint32_t size) except -1
    cdef int handle_rarer(self, uint8_t first, const uint8_t* body, uint32_t size) except -1
    cdef bint on_publish(self, uint8_t first, const uint8_t* body, uint32_t size) except -1
    cdef int reply(self, int counter, bytes packet) except -1
    # An event for the manager, of a kind of shm/events.pxd, and a note for the registry.
    cdef int send_event(self, int kind, int reason_code, int side, str detail) except -1
    cdef int ack(self, uint8_t first, uint16_t packet_id, uint8_t reason_code, int counter) except -1
    cdef int fail(self, int reason_code, str message) except -1
    cdef int broken(self, object error) except -1      # an error of ours costs this connection, not the worker [MQTT-4.8.0-2]
    cdef int on_connect(self, Connect packet) except -1
    cdef bint is_one_too_many(self, bytes client_id) except -1
    cdef int refuse(self, int version, int reason_code, str reason, str detail=*) except -1    # detail: for the log, if it says more
    cdef int accept(self, Connect packet, bytes client_id) except -1
    cdef int record_opened(self, bint present, uint64_t expiry_ms) except -1
    cdef int missed(self, int kind, uint16_t packet_id, int counter) except -1
    cdef int check_room(self, size_t codes) except -1
    cdef uint64_t granted_expiry(self, uint32_t seconds) noexcept
    cdef int on_ack(self, uint8_t first, const uint8_t* body, uint32_t size) except -1
    cdef int subscribe_by_itself(self) except -1
    cdef bint take_delay(self, PublishView* view, uint64_t* at_ms) except -1
    cdef bint may_delay(self, PublishView* view) except -1
    cdef bint publish_hooked(self, Publication publication, PublishView* view, uint64_t at_ms) except -1
    cdef TopicEntry rewritten(self, TopicEntry entry, PublishView* view)
    cdef int on_subscribe(self, Subscribe packet) except -1
    # Filters of a SUBSCRIBE or UNSUBSCRIBE as far as the budget goes. What follows it on the connection waits until it is done.
    cdef int go_on_with_filters(self) except -1
    cdef int go_on_subscribing(self) except -1
    cdef int go_on_unsubscribing(self) except -1
    cdef int on_unsubscribe(self, Unsubscribe packet) except -1
    cdef int unsubscribe_one(self, bytes wire_filter) except -1
    cdef int on_disconnect(self, Disconnect packet) except -1
    cdef int answer_codes(self, uint8_t first, uint16_t packet_id, bytes codes, int counter) except -1
    cdef bytes incoming_topic(self, PublishView* view)
    cdef bint refuse_unroutable(self, PublishView* view) except -1
    cdef bint reject_publish(self, PublishView* view, uint8_t reason_code, str reason) except -1
    cdef int report_failure(self, object kind, int packet_id, object outcome, int counter, str reason) except -1
    cdef int disconnect(self, int reason_code, str reason) except -1
    cdef int disconnect_with(self, int reason_code, dict properties) except -1
    cdef uint64_t keepalive_ms(self) noexcept
    cdef int arm_deadline(self) except -1
    cdef int recheck(self, bint rules) except -1       # bans have changed, or rules too
    # Who this is is known: works out the mount point. False: it has none for this client, who is refused.
    cdef bint mount(self, object username) except -1
    cdef bint over_quota(self, PublishView* view) except -1    # whether this PUBLISH is refused; else it is counted
    cdef bytes unmounted(self, bytes topic)    # a topic or filter as the client names it
    cdef bytes topic_prefix(self)              # the mount point, empty without one
    cdef bytes below(self, bytes wire_filter)  # a filter of the client as the broker has it; MqttError for what is none
    # Nothing is read until resume(): a verdict is waited for. The loop overrides both.
    cdef int suspend_reading(self) except -1
    cdef int resume_reading(self) except -1
    # What the listener knows of the client beyond its address (acceptor/opening.py); None mostly. Its certificate may set what
    # CONNECT says of client id and user name.
    cdef dict listener_facts(self)
    cdef str listener_name(self)
    cdef int may_publish(self, bytes topic, uint64_t serial, PublishView* view) except -2
    cdef list own_lookups(self)
    cdef int end_lookups(self) except -1
    cdef int keep_alias(self, uint16_t alias, bytes topic) except -1
    cdef bint is_unread(self) noexcept
