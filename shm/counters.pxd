"""Counters and gauges: one slot array per process, written by that process alone, summed by readers."""
from libc.stdint cimport int64_t, uint8_t, uint64_t

# The one table of counters: a row here, and the place that counts. The rest is derived: the dotted name from the row's name
# (counters.pyx, GROUPS), the kind (a gauge ends in _COUNT), the meaning in docs/counters.md from the comment. Names and groups
# follow EMQX's metrics. Rows may be added anywhere; only the three of QOS0, QOS1 and QOS2 stay together, as they are counted by
# QoS.
cpdef enum Counter:
    BYTES_RECEIVED                         # from sockets of clients
    BYTES_SENT                             # to them
    PACKETS_RECEIVED                       # of all kinds
    PACKETS_SENT                           # of all kinds
    PACKETS_CONNECT_RECEIVED
    PACKETS_CONNACK_SENT
    PACKETS_CONNACK_ERROR
    PACKETS_CONNACK_AUTH_ERROR
    PACKETS_PUBLISH_RECEIVED
    PACKETS_PUBLISH_SENT
    PACKETS_PUBLISH_ERROR
    PACKETS_PUBLISH_AUTH_ERROR
    PACKETS_PUBACK_RECEIVED
    PACKETS_PUBACK_SENT
    PACKETS_PUBACK_MISSED
    PACKETS_PUBREC_RECEIVED
    PACKETS_PUBREC_SENT
    PACKETS_PUBREC_MISSED
    PACKETS_PUBREL_RECEIVED
    PACKETS_PUBREL_SENT
    PACKETS_PUBREL_MISSED
    PACKETS_PUBCOMP_RECEIVED
    PACKETS_PUBCOMP_SENT
    PACKETS_PUBCOMP_MISSED
    PACKETS_SUBSCRIBE_RECEIVED
    PACKETS_SUBSCRIBE_ERROR
    PACKETS_SUBSCRIBE_AUTH_ERROR
    PACKETS_SUBACK_SENT
    PACKETS_UNSUBSCRIBE_RECEIVED
    PACKETS_UNSUBACK_SENT
    PACKETS_PINGREQ_RECEIVED
    PACKETS_PINGRESP_SENT
    PACKETS_DISCONNECT_RECEIVED
    PACKETS_DISCONNECT_SENT
    PACKETS_AUTH_RECEIVED
    PACKETS_AUTH_SENT
    MESSAGES_RECEIVED                      # PUBLISH packets that their clients may send
    MESSAGES_SENT                          # PUBLISH packets, including those sent again
    MESSAGES_QOS0_RECEIVED
    MESSAGES_QOS1_RECEIVED
    MESSAGES_QOS2_RECEIVED
    MESSAGES_QOS0_SENT
    MESSAGES_QOS1_SENT
    MESSAGES_QOS2_SENT
    MESSAGES_ACKED                         # deliveries acknowledged by clients, by PUBACK or PUBCOMP
    MESSAGES_FORWARD                       # records written to another worker's ring
    MESSAGES_DROPPED                       # messages with no recipient
    MESSAGES_DROPPED_NO_SUBSCRIBERS        # those without a subscriber
    MESSAGES_DROPPED_HOOK                  # dropped by a callback of message.publish
    MESSAGES_DROPPED_OUTDATED              # a delayed message or a will that is no longer allowed when it is due
    MESSAGES_DROPPED_AWAIT_PUBREL_TIMEOUT  # QoS 2 without a PUBREL in time: the packet id is free again
    MESSAGES_DROPPED_RECEIVE_MAXIMUM       # above mqtt.max_awaiting_rel
    MESSAGES_DROPPED_FAILED                # processing failed; the log line `message dropped` has the reason
    MESSAGES_DROPPED_UNROUTABLE            # the worker does not know a destination of the topic; publishers are refused with 0x83
    MESSAGES_DROPPED_UNREACHABLE           # QoS 0 for a node of the cluster that cannot be reached, and whose ring is full
    DELIVERY_DROPPED                       # deliveries to one client; the reasons follow
    DELIVERY_DROPPED_NO_LOCAL              # its own message, with No Local or mqtt.ignore_loop_deliver
    DELIVERY_DROPPED_TOO_LARGE             # for its Maximum Packet Size
    DELIVERY_DROPPED_QOS0_MSG              # QoS 0 for an offline client, with mqtt.mqueue_store_qos0 off
    DELIVERY_DROPPED_QUEUE_FULL            # the oldest is dropped, above mqtt.max_mqueue_len
    DELIVERY_DROPPED_QUEUE_STALLED         # likewise, of a session whose client took too little of it, see mqtt.mqueue_overflow
    DELIVERY_DROPPED_OUTPUT_FULL           # QoS 0 for a connection that does not read
    DELIVERY_DROPPED_OVERLOAD              # QoS 0 for offline clients, while memory is short
    DELIVERY_DROPPED_EXPIRED               # its Message Expiry Interval had passed
    CLIENT_CONNECTED                       # accepted by CONNACK
    CLIENT_DISCONNECTED                    # closed after that, by either side
    CLIENT_CLOSED_MALFORMED                # a malformed packet
    CLIENT_CLOSED_PROTOCOL_ERROR           # well-formed, but against the rules of MQTT
    CLIENT_CLOSED_TOO_LARGE                # above mqtt.max_packet_size, or more than an acceptor keeps
    CLIENT_CLOSED_IDLE_TIMEOUT             # no CONNECT within mqtt.idle_timeout
    CLIENT_CLOSED_KEEPALIVE                # silent for longer than its keepalive allows
    CLIENT_CLOSED_NOT_CONNECT              # the first packet is no CONNECT
    CLIENT_CLOSED_REFUSED                  # CONNACK with an error, or no room to wait for a worker
    CLIENT_CLOSED_MAX_CONNECTIONS          # above listeners.<name>.max_connections
    CLIENT_CLOSED_ACCESS_RULES             # listeners.<name>.access_rules
    CLIENT_CLOSED_PROXY                    # no valid PROXY header
    CLIENT_CLOSED_TLS                      # the TLS handshake failed
    CLIENT_CLOSED_UPGRADE                  # no valid WebSocket upgrade
    CLIENT_CLOSED_WEBSOCKET                # frames against the rules of WebSocket
    CLIENT_CLOSED_OVERLOAD                 # refused while memory is short
    CLIENT_CLOSED_KICKED                   # disconnected by an operator
    CLIENT_CLOSED_RESET                    # the peer closed without DISCONNECT
    SESSION_CREATED
    SESSION_RESUMED                        # a client resumed its session
    SESSION_TAKENOVER                      # another connection used its client id
    SESSION_DISCARDED                      # replaced by a client with a clean start
    SESSION_TERMINATED                     # ended or expired
    EVENTS_DROPPED                         # log events for which the manager's ring had no room
    RETAINED_DROPPED                       # not retained: too large, too many, or no room for it
    OVERLOAD_OUTPUT_STOPPED                # times that reading from a client stopped because it did not read its output
    OVERLOAD_PUBLISHERS_PAUSED             # times that reading from a publisher stopped while memory was short
    OVERLOAD_ACKS_HELD                     # acknowledgements that waited for the queue of a subscriber, see mqtt.mqueue_overflow
    OVERLOAD_SUBSCRIBERS_STALLED           # times that such a queue was full for too long, and dropped messages from then on
    JOURNAL_REFUSED                        # times that the disk began to refuse writes
    JOURNAL_GIVEN_UP                       # records never written, with durability.on_disk_error = continue
    JOURNAL_NOT_CAPTURED                   # messages for analytics among them
    JOURNAL_HOLD_EXCEEDED                  # segments removed that a hold needed, beyond its max_bytes
    JOURNAL_WRITE_MS                       # milliseconds spent on writing
    AUTHENTICATION_SUCCESS                 # logins with a user name that were accepted
    AUTHENTICATION_SUCCESS_ANONYMOUS       # logins accepted without a user name, or without authentication
    AUTHENTICATION_FAILURE                 # logins that were rejected
    AUTHENTICATION_UNAVAILABLE             # logins without a result: back ends or integrations failed, or too many were queued
    AUTHORIZATION_ALLOW                    # decisions; those cached by a connection are not counted again, but denials are
    AUTHORIZATION_DENY
    AUTHORIZATION_NOMATCH                  # decisions that no rule and no source has made, so that acl.no_match applied
    AUTHORIZATION_SUPERUSER                # logins of clients that may do everything
    CLIENT_BANNED                          # refused or disconnected by a ban
    CLIENT_FLAPPING                        # banned for too frequent reconnects
    PACKETS_PUBLISH_QUOTA_EXCEEDED         # refused, as the clients of its listener, or all clients, exceed their publish quota
    OVERLOAD_RATE_PAUSED                   # times that reading from a client stopped because it exceeds the rate of its listener
    MESSAGES_DELAYED                       # accepted for later publication
    LINK_ESTABLISHED                       # signal connections of other nodes that have proved the cookie
    LINK_CLOSED                            # those of them that have ended
    LINK_REFUSED                           # connections with other nodes that were refused, by either side
    SUBACK_LATE                            # sent before all reachable nodes had the route, with cluster.suback = cluster
    CONNECTIONS_COUNT                      # open connections
    SESSIONS_COUNT
    SUBSCRIPTIONS_COUNT                    # except for shared ones
    SUBSCRIPTIONS_SHARED_COUNT
    RETAINED_COUNT
    INFLIGHT_COUNT                         # unacknowledged deliveries
    MQUEUE_COUNT                           # deliveries in queues
    DELAYED_COUNT                          # messages that are not due yet
    MEMORY_BYTES_COUNT                     # private memory of workers
    OVERLOAD_LEVEL_COUNT                   # level of worker/memory.pxd, the same for all workers
    JOURNAL_PENDING_COUNT                  # bytes not written while the disk refuses
    JOURNAL_STAGE_COUNT                    # stage of worker/disk.pxd
    JOURNAL_ERRNO_COUNT                    # error of the disk; 0: none
    RETAINED_ERRNO_COUNT                   # the same for retained messages
    COUNTER_MAX


# The sockets of one listener, as one process sees them. A hand-over changes no balance: the acceptor counts a socket up, and the
# worker that closes it counts down, so the sum over all processes is exact even for sockets in transit. `here` is what leaves the
# balance when the process dies.
ctypedef struct ListenerSockets:
    int64_t balance                        # accepted here - closed here
    int64_t here                           # open in this process


cdef class CounterSlot:
    """The slot of one process. Only its owner writes `values[NAME]` and `sockets[listener]`; every process may read."""
    cdef uint64_t* values                  # COUNTER_MAX of them
    cdef ListenerSockets* sockets          # one for each listener, in the order of the topology
    cdef object owner


cdef class Histogram:
    """Log-linear counts of one measure of one process: eight buckets to a power of two, so within 12.5 %."""
    cdef uint64_t* words                   # HISTOGRAM_WORDS of them; layout in counters.pyx
    cdef object owner

    # Owner only. Counts one value.
    cdef void record(self, uint64_t value) noexcept


cdef class Counters:
    """The whole segment; a process number out of range raises IndexError."""
    cdef uint8_t* base
    cdef object mapping
    cdef readonly str name
    cdef readonly int slots, listeners
    cdef uint64_t slot_bytes

    cdef int map(self, str name, object mapping) except -1
    cdef void measure(self) noexcept
    cdef uint64_t* at(self, int slot) except NULL
    cdef uint64_t* histogram_words(self, int number, int which) except NULL
    cdef list bucket_sums(self, str name)
    cdef uint64_t memory_of(self, int number) except? 0
    # Returns one counter or gauge, summed over all processes.
    cdef int64_t total_of(self, int counter) except? -1
    cdef uint64_t access_generation_c(self) noexcept
    # The word that settings_wanted() reads, for loops that look at it in each pass.
    cdef const uint64_t* settings_word(self, int number) except NULL
    cdef bint connected_wanted(self, uint64_t epoch) noexcept
    cdef ListenerSockets* sockets_of(self, int number) except NULL
    # Returns the open sockets of a listener in the whole broker, those in transit included.
    cpdef int64_t sockets(self, int listener) except? -1
    cpdef int state(self, int number) except -1
    cpdef void set_state(self, int number, int state) except *
    # Records the process's sign of life (Unix ms, or any clock that its reader shares).
    cpdef void beat(self, int number, uint64_t now_ms) except *
    cpdef uint64_t heartbeat(self, int number) except? 0
