"""Counters and gauges: one slot array per process, written by that process alone, summed by readers."""
from libc.stdint cimport int64_t, uint8_t, uint64_t

# The one table of counters: a row here, and the place that counts it. What is shown of it is derived: its dotted name from the name
# (counters.pyx, GROUPS), its kind (a gauge ends in _COUNT), its meaning in docs/counters.md from the comment. Names and groups follow
# EMQX's metrics. Rows may be put anywhere; only the three of QOS0, QOS1 and QOS2 stay together, as they are counted by QoS.
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
    MESSAGES_SENT                          # PUBLISH packets, those sent again among them
    MESSAGES_QOS0_RECEIVED
    MESSAGES_QOS1_RECEIVED
    MESSAGES_QOS2_RECEIVED
    MESSAGES_QOS0_SENT
    MESSAGES_QOS1_SENT
    MESSAGES_QOS2_SENT
    MESSAGES_ACKED                         # deliveries that clients have acknowledged, by PUBACK or PUBCOMP
    MESSAGES_FORWARD                       # records written to another worker's ring
    MESSAGES_DROPPED                       # that nobody gets
    MESSAGES_DROPPED_NO_SUBSCRIBERS        # among them
    MESSAGES_DROPPED_HOOK                  # a callback of message.publish wants it
    MESSAGES_DROPPED_OUTDATED              # a delayed message or a will that is not allowed any more when it is due
    MESSAGES_DROPPED_AWAIT_PUBREL_TIMEOUT  # QoS 2 whose PUBREL did not come in time: the packet id is free again
    MESSAGES_DROPPED_RECEIVE_MAXIMUM       # above mqtt.max_awaiting_rel
    MESSAGES_DROPPED_FAILED                # processing failed; the log line `message dropped` has the reason
    MESSAGES_DROPPED_UNROUTABLE            # a destination of the topic is not known to this worker; publishers are refused with 0x83
    DELIVERY_DROPPED                       # to one client; the reasons follow
    DELIVERY_DROPPED_NO_LOCAL              # its own message, with No Local or mqtt.ignore_loop_deliver
    DELIVERY_DROPPED_TOO_LARGE             # for its Maximum Packet Size
    DELIVERY_DROPPED_QOS0_MSG              # QoS 0 for a client that is away, with mqtt.mqueue_store_qos0 off
    DELIVERY_DROPPED_QUEUE_FULL            # the oldest goes, above mqtt.max_mqueue_len
    DELIVERY_DROPPED_OUTPUT_FULL           # QoS 0 for a connection that takes nothing
    DELIVERY_DROPPED_OVERLOAD              # QoS 0 for clients that are away, while memory is short
    DELIVERY_DROPPED_EXPIRED               # its Message Expiry Interval was over
    CLIENT_CONNECTED                       # let in
    CLIENT_DISCONNECTED                    # of these, gone again, whoever ended it
    CLIENT_CLOSED_MALFORMED                # a malformed packet
    CLIENT_CLOSED_PROTOCOL_ERROR           # well-formed, and against the rules of MQTT
    CLIENT_CLOSED_TOO_LARGE                # above mqtt.max_packet_size, or more than an acceptor keeps
    CLIENT_CLOSED_IDLE_TIMEOUT             # no CONNECT in time
    CLIENT_CLOSED_KEEPALIVE                # silent for longer than its keepalive allows
    CLIENT_CLOSED_NOT_CONNECT              # the first packet is no CONNECT
    CLIENT_CLOSED_REFUSED                  # CONNACK with a reason, or no room to wait for a worker
    CLIENT_CLOSED_MAX_CONNECTIONS          # one too many for listeners.<name>.max_connections
    CLIENT_CLOSED_ACCESS_RULES             # listeners.<name>.access_rules
    CLIENT_CLOSED_PROXY                    # no right PROXY header
    CLIENT_CLOSED_TLS                      # the TLS handshake failed
    CLIENT_CLOSED_UPGRADE                  # no right WebSocket upgrade
    CLIENT_CLOSED_WEBSOCKET                # frames against the rules of WebSocket
    CLIENT_CLOSED_OVERLOAD                 # refused, as memory is short
    CLIENT_CLOSED_KICKED                   # by somebody who runs the broker
    CLIENT_CLOSED_RESET                    # the peer went without DISCONNECT
    SESSION_CREATED
    SESSION_RESUMED                        # a client came back to it
    SESSION_TAKENOVER                      # another connection came with its client id
    SESSION_DISCARDED                      # its client came back with a clean start
    SESSION_TERMINATED                     # ended or expired
    EVENTS_DROPPED                         # log events that the manager's ring had no room for
    RETAINED_DROPPED                       # not retained: too large, too many, or no room for it
    OVERLOAD_OUTPUT_STOPPED                # times that a client was not read any more because it took none of its answers
    OVERLOAD_PUBLISHERS_PAUSED             # times that a publisher was not read any more, as memory is short
    JOURNAL_REFUSED                        # times that the disk began to refuse writes
    JOURNAL_GIVEN_UP                       # records that were never written, as durability.on_disk_error = continue
    JOURNAL_NOT_CAPTURED                   # messages for analytics among them
    JOURNAL_WRITE_MS                       # spent on writing
    AUTHENTICATION_SUCCESS                 # logins with a user name that somebody has found to be right
    AUTHENTICATION_SUCCESS_ANONYMOUS       # without one, or nobody is asked
    AUTHENTICATION_FAILURE                 # logins that somebody has found to be wrong
    AUTHENTICATION_UNAVAILABLE             # logins without a verdict: back ends or integrations failed, or too many waited
    AUTHORIZATION_ALLOW                    # decisions; what a connection remembers of them is not counted again, but denials are
    AUTHORIZATION_DENY
    AUTHORIZATION_NOMATCH                  # decisions that no rule and no source has made, so acl.no_match did
    AUTHORIZATION_SUPERUSER                # logins of clients that may do everything
    CLIENT_BANNED                          # refused or sent away for a ban
    CLIENT_FLAPPING                        # banned since they came and went too often
    PACKETS_PUBLISH_QUOTA_EXCEEDED         # refused, as its listener's clients, or all, publish more than they may together
    OVERLOAD_RATE_PAUSED                   # times that a client was not read any more, as it sends faster than its listener allows
    MESSAGES_DELAYED                       # taken to be published later
    CONNECTIONS_COUNT                      # open connections
    SESSIONS_COUNT
    SUBSCRIPTIONS_COUNT                    # those that are not shared
    SUBSCRIPTIONS_SHARED_COUNT
    RETAINED_COUNT
    INFLIGHT_COUNT                         # deliveries under way, not acknowledged
    MQUEUE_COUNT                           # deliveries that wait in queues
    DELAYED_COUNT                          # messages that wait for their time
    MEMORY_BYTES_COUNT                     # private memory of a worker
    OVERLOAD_LEVEL_COUNT                   # as worker/memory.pxd has it: all workers come to the same
    JOURNAL_PENDING_COUNT                  # bytes that wait for a disk that refuses
    JOURNAL_STAGE_COUNT                    # as worker/disk.pxd has it
    JOURNAL_ERRNO_COUNT                    # what the disk says; 0: all is well
    RETAINED_ERRNO_COUNT                   # the same about retained messages
    COUNTER_MAX


# The sockets of one listener, as one process sees them. A hand-over changes no balance: the acceptor counted the socket, and the
# worker that closes it takes it off its own, so the sum over all processes is exact even for sockets on their way. `here` says
# what goes off the balance when the process dies.
ctypedef struct ListenerSockets:
    int64_t balance                        # accepted here - closed here
    int64_t here                           # open in this process


cdef class CounterSlot:
    """The slot of one process. Its owner writes `values[NAME]` and `sockets[listener]`; everybody may read."""
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
    # One counter or gauge, summed over all processes.
    cdef int64_t total_of(self, int counter) except? -1
    cdef uint64_t access_generation_c(self) noexcept
    cdef bint connected_wanted(self, uint64_t epoch) noexcept
    cdef ListenerSockets* sockets_of(self, int number) except NULL
    # Open sockets of a listener in the whole broker, those between two processes included.
    cpdef int64_t sockets(self, int listener) except? -1
    cpdef int state(self, int number) except -1
    cpdef void set_state(self, int number, int state) except *
    # The process says when it was last alive (Unix ms, or any clock that its reader shares).
    cpdef void beat(self, int number, uint64_t now_ms) except *
    cpdef uint64_t heartbeat(self, int number) except? 0
