r"""State of one connection, without a socket, and what packets and other parts do with it (MQTT 3.1.1 §3, 5.0 §3 and §4).

    WAIT_CONNECT -- CONNECT accepted --> CONNECTED -- DISCONNECT, error, takeover, timeout --> CLOSING
         |  \-- challenge --> AUTHENTICATING -- AUTH --^                                        ^
         \-- anything else ------------------------------------------------------------------>/

In CLOSING nothing is read; Connection flushes `out` and closes the socket.

Layers, each built on the one before:

    channel        state; answers, refusals, the end, timers, events
    packets/       what a client sends, one module for each family
    protocol       feed(): bytes to packets, packets to their module
    connection     socket; features.mountpoint: topics with a prefix
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.access.acl_cache cimport AclCache
from shardbroker.mqtt.codec cimport PublishView
from shardbroker.session.client_output cimport ClientOutput
from shardbroker.session.session cimport Session
from shardbroker.worker.router cimport Router
from shm.address cimport PeerAddress

cdef enum ChannelState:
    WAIT_CONNECT = 0
    CONNECTED = 1
    CLOSING = 2
    AUTHENTICATING = 3                     # an AUTH of the client is expected (MQTT 5.0 §4.12)

cdef enum Side:                            # that ended the connection
    SIDE_CLIENT = 0
    SIDE_SERVER = 1
    SIDE_NETWORK = 2


cdef class TopicAliases:                   # set by the client (MQTT 5.0 §3.3.2.3.4)
    cdef dict topics                       # alias -> topic
    cdef uint32_t size                     # bytes of all, see keep_alias() in packets/publish.pyx


cdef class Channel(ClientOutput):
    cdef Router router
    cdef readonly Session session
    cdef readonly uint8_t state
    cdef uint8_t announced_version         # level byte of a CONNECT that may turn out to be malformed
    # Flags of a byte each: there may be a million connections.
    cdef uint8_t clean_start
    cdef uint8_t waiting                   # for an answer of integrations: nothing is read meanwhile
    cdef uint8_t closed                    # close() was called: counted, logged, session notified
    cdef uint8_t suback_waits              # a SUBSCRIBE is not committed yet
    cdef uint8_t problem_information       # Request Problem Information, 1 unless the client sent 0
    cdef uint8_t parked                    # a PUBLISH waits for room in a ring: nothing is read meanwhile
    cdef uint8_t paused                    # memory is short, or the disk refuses writes: nothing is read meanwhile
    cdef uint8_t claiming                  # CONNECT waits for the right to its session; `waiting` is set, too
    cdef uint8_t looking                   # the current PUBLISH waits for look-ups of its topics, held in Router.channel_lookups
    cdef uint8_t mounted                   # topics get a prefix, see features/mountpoint.pxd
    cdef uint8_t limited                   # its PUBLISH packets count for limits shared with other clients
    cdef uint16_t listener_number          # its place in the counters
    cdef uint16_t keepalive_s              # in force, 0: none
    cdef PeerAddress peer
    cdef readonly bytes username           # of authentication, certificate or CONNECT, in this order; None without
    cdef readonly object access            # shardbroker.worker.authorization.Authorization; None: no bans, rules or authenticators apply
    cdef AclCache acl_cache                # None: it may publish and subscribe everything
    cdef bytes wanted_id                   # client id assigned by the acceptor; from CONNECT on the one in CONNECT, if that has one
    cdef tuple subscribing                 # a SUBSCRIBE or UNSUBSCRIBE too long for one turn, see packets/subscribe.pyx; mostly None
    cdef uint64_t last_packet_ms
    cdef uint64_t connected_ms             # Unix ms of the accepted CONNECT
    cdef TopicAliases aliases_in           # mostly None

    # --- topics below a mount point. The base class has none, and `mounted` is 0: packets test that first.
    # Determines the prefix once client id and user name are known. False: their values do not fit, and the client is refused.
    cdef bint mount(self, object username) except -1
    cdef bytes topic_prefix(self)              # empty without a mount point
    # A topic or filter of the client in the broker's terms. Both raise MqttError for what is invalid or too long there.
    cdef bytes mounted_topic(self, bytes topic)
    cdef bytes mounted_filter(self, bytes wire_filter)
    cdef bytes unmounted(self, bytes topic)    # a topic or filter as the client names it

    # --- answers
    cdef int ack(self, uint8_t first, uint16_t packet_id, uint8_t reason_code, int counter) except -1
    cdef int reply(self, int counter, bytes packet) except -1
    cdef int report_failure(self, object kind, int packet_id, object outcome, int counter, str reason) except -1

    # --- refusals and errors
    # CONNACK with a failure. detail: for the log, if it has more than the client is sent.
    cdef int refuse(self, int version, int reason_code, str reason, str detail=*) except -1
    cdef int fail(self, int reason_code, str message) except -1
    cdef int broken(self, object error) except -1      # an internal error costs this connection, not the worker [MQTT-4.8.0-2]
    cdef int disconnect(self, int reason_code, str reason) except -1
    cdef int disconnect_with(self, int reason_code, dict properties) except -1

    # --- the end
    # Ends the connection once, for this reason code: notifies the session and writes one log line.
    cdef int close(self, int reason_code, int side, str detail, bint keep_will) except -1

    # --- reading
    # Nothing is read until resume_reading(). Connection overrides both.
    cdef int suspend_reading(self) except -1
    cdef int resume_reading(self) except -1
    cdef bint is_unread(self) noexcept
    cdef bint over_quota(self, PublishView* view) except -1    # whether a shared limit refuses this PUBLISH; it is counted if not
    cdef list own_lookups(self)
    cdef int end_lookups(self) except -1

    # --- the client
    # Facts about the client beyond its address (acceptor/opening.py), mostly None. Its certificate may replace client id and user
    # name of CONNECT.
    cdef dict listener_facts(self)
    cdef str listener_name(self)
    cdef int recheck(self, bint rules) except -1       # bans have changed; with `rules` rules have, too

    # --- timers
    cdef uint64_t keepalive_ms(self) noexcept
    cdef int arm_deadline(self) except -1

    # --- events
    # Sends an event of a kind of shm/events.pxd to the manager, with a note for the registry.
    cdef int send_event(self, int kind, int reason_code, int side, str detail) except -1
