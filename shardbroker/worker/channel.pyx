"""The protocol state machine of one connection; see channel.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memset

from shardbroker.access.acl_cache cimport DENIED, UNKNOWN
from shardbroker.hooks.masks cimport (
    HOOK_CLIENT_AUTHENTICATE, HOOK_CLIENT_AUTHORIZE, HOOK_CLIENT_CONNACK, HOOK_CLIENT_CONNECT, HOOK_CLIENT_CONNECTED,
    HOOK_CLIENT_DISCONNECTED, HOOK_CLIENT_SUBSCRIBE, HOOK_CLIENT_UNSUBSCRIBE, HOOK_MESSAGE_PUBLISH, HOOK_SESSION_SUBSCRIBED,
)
from shardbroker.mqtt.codec cimport AckView, FixedHeader, parse_ack, parse_publish, read_fixed_header, varint_size, write_ack, write_codes
from shardbroker.mqtt.packets cimport LOGIN_PACKET_MAX, Connect, Disconnect, Subscribe, Unsubscribe, decode_body
from shardbroker.mqtt.spec cimport (
    ADMINISTRATIVE_ACTION, AUTH, BAD_AUTHENTICATION_METHOD, BAD_USER_NAME_OR_PASSWORD, CLIENT_IDENTIFIER_NOT_VALID, CONNACK_FIRST,
    CONNECT, DISCONNECT, IMPLEMENTATION_SPECIFIC_ERROR, KEEP_ALIVE_TIMEOUT, MALFORMED_PACKET, MAXIMUM_CONNECT_TIME,
    NOT_AUTHORIZED, NO_MATCHING_SUBSCRIBERS, NO_SUBSCRIPTION_EXISTED, PACKET_IDENTIFIER_IN_USE, PACKET_IDENTIFIER_NOT_FOUND,
    PACKET_TOO_LARGE, PAYLOAD_FORMAT_INVALID, PINGREQ, PINGREQ_FIRST, PROTOCOL_ERROR, PUBACK, PUBACK_FIRST, PUBCOMP,
    PUBCOMP_FIRST, PUBLISH, PUBREC, PUBREC_FIRST, PUBREL, QOS_NOT_SUPPORTED, QUOTA_EXCEEDED, RECEIVE_MAXIMUM_EXCEEDED,
    RETAIN_NOT_SUPPORTED, SERVER_SHUTTING_DOWN, SERVER_UNAVAILABLE, SESSION_TAKEN_OVER, SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
    SUBACK_FIRST, SUBSCRIBE, SUCCESS, TOPIC_ALIAS_INVALID, TOPIC_FILTER_INVALID, UNSPECIFIED_ERROR, UNSUBACK_FIRST, UNSUBSCRIBE,
    UNSUPPORTED_PROTOCOL_VERSION, USE_ANOTHER_SERVER, WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
)
from shardbroker.pubsub.message cimport Message, Publication
from shardbroker.pubsub.subscriptions cimport (
    OPTION_EXCLUSIVE, OPTION_FLAGS, OPTION_QOS, OPTION_RETAIN_HANDLING, OPTION_RETAIN_IF_NEW, Subscription,
)
from shardbroker.pubsub.topic_cache cimport Lookup, TopicEntry
from shardbroker.session.context cimport TELL_CONNECTED, TELL_DISCONNECTED, TELL_UNSUBSCRIBED, WorkerContext
from shardbroker.session.session cimport QOS2_FULL, QOS2_IN_USE, QOS2_NEW, QOS2_REPEAT, Will
from shardbroker.session.watcher cimport Watcher, unlikely
from shm.counters cimport (
    AUTHENTICATION_FAILURE, AUTHENTICATION_SUCCESS_ANONYMOUS, CLIENT_CLOSED_IDLE_TIMEOUT, CLIENT_CLOSED_KEEPALIVE, CLIENT_CLOSED_KICKED, CLIENT_CLOSED_MALFORMED, CLIENT_CLOSED_NOT_CONNECT,
    CLIENT_CLOSED_OVERLOAD, CLIENT_CLOSED_PROTOCOL_ERROR, CLIENT_CLOSED_REFUSED, CLIENT_CLOSED_RESET, CLIENT_CLOSED_TOO_LARGE, CLIENT_CONNECTED,
    CLIENT_DISCONNECTED, CONNECTIONS_COUNT, MESSAGES_DROPPED_RECEIVE_MAXIMUM, MESSAGES_QOS0_RECEIVED, MESSAGES_RECEIVED,
    PACKETS_AUTH_RECEIVED, PACKETS_CONNACK_ERROR, PACKETS_CONNACK_SENT, PACKETS_CONNECT_RECEIVED,
    PACKETS_DISCONNECT_RECEIVED, PACKETS_DISCONNECT_SENT, PACKETS_PINGREQ_RECEIVED, PACKETS_PINGRESP_SENT,
    PACKETS_PUBACK_MISSED, PACKETS_PUBACK_RECEIVED, PACKETS_PUBACK_SENT, PACKETS_PUBCOMP_MISSED, PACKETS_PUBCOMP_RECEIVED,
    PACKETS_PUBCOMP_SENT, PACKETS_PUBLISH_AUTH_ERROR, PACKETS_PUBLISH_ERROR, PACKETS_PUBLISH_RECEIVED, PACKETS_PUBREC_MISSED, PACKETS_PUBREC_RECEIVED,
    PACKETS_PUBREC_SENT, PACKETS_PUBREL_MISSED, PACKETS_PUBREL_RECEIVED, PACKETS_PUBREL_SENT, PACKETS_RECEIVED,
    PACKETS_SENT, PACKETS_SUBACK_SENT, PACKETS_SUBSCRIBE_AUTH_ERROR, PACKETS_SUBSCRIBE_ERROR, PACKETS_SUBSCRIBE_RECEIVED, PACKETS_UNSUBACK_SENT,
    PACKETS_UNSUBSCRIBE_RECEIVED,
)
from shm.address cimport address_text
from shardbroker.worker.memory cimport REFUSE
from shardbroker.worker.router cimport is_own, is_text
from shm.events cimport EVENT_CONNECTED, EVENT_DISCONNECTED, EVENT_EXPIRY_NEVER, EVENT_REFUSED, EventHeader

from shardbroker.mqtt.errors import MqttError, ProtocolError
from shardbroker.mqtt.packets import Connack, Puback, Pubcomp, Pubrec, Pubrel, Suback, Unsuback, encode_properties
from shardbroker.mqtt.spec import REASON_CODES, PacketType, PropertyId, connack_return_code
from shardbroker.mqtt.topics import EXCLUSIVE, check_topic_filter, check_topic_name, filter_has_wildcard, parse_subscription
from shardbroker.worker.features import event_messages
from shardbroker.worker.features.delayed import DELAYED
from shardbroker.worker.router import OWN_TOPICS

__all__ = ["Channel"]

cdef enum:
    LEVEL_AT = 6                           # of the protocol level in a CONNECT that is called "MQTT"
    ALIAS_BYTES = 100                      # what an alias takes beside its topic
    ALIASES_BYTES_MAX = 8388608            # of one connection: all 65,535 with topics of 28 bytes
    ALIASES_BYTES_SHORT = 65536            # while memory is short
    PARTIAL_MAX = 4096                     # bytes of a CONNECT whose end may still be on the way while memory is short
    FILTERS_PREPARED = 128                 # filters whose rules are looked up at once: as many as a turn deals with
    SUBSCRIBE_COST = 64                    # units of the budget for one filter, its share of the commit included

cdef enum:                                 # what HookDispatcher.ask_publish() returns
    GO_ON = 0
    ASKED = 1
    REFUSED = 2

cdef uint64_t NEVER = <uint64_t>-1
cdef uint32_t EXPIRY_NEVER = 0xFFFFFFFF    # Session Expiry Interval, MQTT 5.0 §3.1.2.11.2
cdef str SHORT_OF_MEMORY = "the broker's memory is short"


cdef class Channel(ClientOutput):
    """A connection whose socket somebody else holds: feed() takes what was received, `out` holds what is to be sent."""

    # --- input --------------------------------------------------------------------------------------------------------------

    cdef size_t feed(self, const uint8_t* data, size_t size) except? 0:
        cdef FixedHeader header
        cdef size_t used = 0
        cdef uint64_t whole
        try:
            if self.subscribing is not None:
                self.go_on_with_filters()
            while used < size and self.state != CLOSING and self.context.budget > 0:
                if not read_fixed_header(data + used, size - used, &header):
                    break
                whole = <uint64_t>header.size + header.remaining
                if (self.state == WAIT_CONNECT and min(size - used, whole) > header.size + LEVEL_AT
                        and data[used + header.size + 1] == 4):
                    self.announced_version = data[used + header.size + LEVEL_AT]
                if self.state != CONNECTED and not self.may_begin(header.first, whole, size - used):
                    break
                if whole > self.context.max_packet_size:
                    # Refused at the header: nothing is reserved for what was only announced. [MQTT-3.2.2-15]
                    raise MqttError(PACKET_TOO_LARGE, f"packet of {whole} bytes, allowed are {self.context.max_packet_size}")
                if whole > size - used:
                    break
                if not self.handle(header.first, data + used + header.size, header.remaining):
                    # One whose look-up goes on has used up its budget: it is busy, not parked.
                    self.parked = not self.waiting and self.context.budget > 0
                    break
                used += whole
                self.context.budget -= 1
                self.context.count(PACKETS_RECEIVED)
                if self.waiting:
                    break
        except MqttError as error:
            self.fail(error.reason_code, str(error))
        except Exception as error:
            self.broken(error)
        return used

    cdef int broken(self, object error) except -1:
        if self.closed:
            self.router.log_failure("internal error while a connection was closing", error)
        return self.fail(IMPLEMENTATION_SPECIFIC_ERROR, f"internal error: {error!r}")      # the log line of its end carries it

    cdef bint may_begin(self, uint8_t first, uint64_t whole, uint64_t here) except -1:
        if self.state == WAIT_CONNECT and first >> 4 != CONNECT:
            # [MQTT-3.1.0-1]: no reply, since nothing says that this is MQTT.
            self.context.count(CLIENT_CLOSED_NOT_CONNECT)
            self.close(PROTOCOL_ERROR, SIDE_SERVER, "first packet is not CONNECT", True)
        elif whole > LOGIN_PACKET_MAX:
            raise MqttError(PACKET_TOO_LARGE, f"packet of {whole} bytes before the login, allowed are {LOGIN_PACKET_MAX}")
        elif whole > here and whole > PARTIAL_MAX and self.context.memory_level >= REFUSE:
            self.context.count(CLIENT_CLOSED_OVERLOAD)
            if self.announced_version == 5:
                self.version = 5
                self.refuse(5, QUOTA_EXCEEDED, SHORT_OF_MEMORY)
            else:
                self.close(QUOTA_EXCEEDED, SIDE_SERVER, SHORT_OF_MEMORY, True)
        return self.state != CLOSING

    cdef bint handle(self, uint8_t first, const uint8_t* body, uint32_t size) except -1:
        """One whole packet. False: it must wait for room in a ring or for a verdict, and was not touched."""
        cdef int kind = first >> 4
        if kind == PUBLISH and self.state == CONNECTED:
            if not self.on_publish(first, body, size):
                return False
            if self.looking:
                self.end_lookups()
            self.last_packet_ms = self.context.now_ms
            return True
        self.last_packet_ms = self.context.now_ms
        if PUBACK <= kind <= PUBCOMP and self.state == CONNECTED and not self.context.watch:
            self.on_ack(first, body, size)
        else:
            self.handle_rarer(first, body, size)
        return True

    cdef int handle_rarer(self, uint8_t first, const uint8_t* body, uint32_t size) except -1:
        """What is not there for each message, or is looked at."""
        cdef int kind = first >> 4
        if self.state == AUTHENTICATING and kind != AUTH and kind != DISCONNECT:
            raise ProtocolError("only AUTH and DISCONNECT are allowed before CONNACK", "MQTT-3.1.2-30")
        if self.context.watch:
            self.context.watcher.received(self, first, body, size)
        if size == 0 and (first == PINGREQ_FIRST or (self.version == 3 and kind == PINGREQ)):
            self.context.count(PACKETS_PINGREQ_RECEIVED)
            self.reply(PACKETS_PINGRESP_SENT, b"\xd0\x00")
        elif PUBACK <= kind <= PUBCOMP:
            self.on_ack(first, body, size)
        else:
            packet = decode_body(first, body, size, self.version)
            if kind == CONNECT:
                self.on_connect(packet)
            elif kind == SUBSCRIBE:
                self.on_subscribe(packet)
            elif kind == UNSUBSCRIBE:
                self.on_unsubscribe(packet)
            elif kind == DISCONNECT:
                self.on_disconnect(packet)
            elif kind == AUTH:
                self.context.count(PACKETS_AUTH_RECEIVED)
                if self.access is None:
                    raise ProtocolError("AUTH without an authentication method in CONNECT", "MQTT-4.12.0-7")
                self.access.on_auth(packet)
            else:
                raise ProtocolError(f"packet type {kind} is not for a server", "MQTT-4.13.1-1")
        return 0

    # --- CONNECT --------------------------------------------------------------------------------------------------------------

    cdef int on_connect(self, Connect packet) except -1:
        cdef bytes client_id = packet.client_id
        cdef dict properties = packet.properties or {}
        cdef dict known = self.listener_facts()
        cdef bint named = bool(packet.username)
        cdef uint64_t at_ms
        if known is not None:
            client_id = known.get("client_id", client_id)
            packet.username = known.get("username", packet.username)
        if self.state != WAIT_CONNECT:
            raise ProtocolError("a second CONNECT", "MQTT-3.1.0-2")
        self.context.count(PACKETS_CONNECT_RECEIVED)
        self.version = packet.version
        self.wanted_id = client_id or self.wanted_id
        # The one place where others find it. With an authentication method it is not known before that has ended.
        self.username = None if PropertyId.AUTHENTICATION_METHOD in properties else packet.username
        if known is not None and (known.get("username") == b"" or known.get("client_id") == b""):
            # Its certificate was to say who this is. What CONNECT says instead is worth nothing.
            self.context.count(AUTHENTICATION_FAILURE)
            return self.refuse(
                self.version, BAD_USER_NAME_OR_PASSWORD if named else NOT_AUTHORIZED, "not authorized",
                "the client has no certificate, or none with such a name")
        if self.context.hooks & HOOK_CLIENT_CONNECT:
            refusal = self.context.hooked.connect(self, packet)
            if refusal is not None:
                return self.refuse(self.version, refusal.reason_code, refusal.reason, "refused by a hook")
            properties = packet.properties or {}
        properties.pop(PropertyId.USER_PROPERTY, None)     # only hooks look at them: they need not wait for a verdict
        self.max_packet = min(properties.get(PropertyId.MAXIMUM_PACKET_SIZE, PACKET_MAX), PACKET_MAX)
        if PropertyId.AUTHENTICATION_METHOD in properties and self.router.access_gate is None:
            return self.refuse(5, BAD_AUTHENTICATION_METHOD, "no such authentication method")   # [MQTT-4.12.0-1]
        if not client_id:
            if self.version < 5 and not packet.clean_start:
                # [MQTT-3.1.3-8]
                return self.refuse(self.version, CLIENT_IDENTIFIER_NOT_VALID, "an empty client id needs a clean session")
            client_id = self.wanted_id
        elif <uint32_t>PyBytes_GET_SIZE(client_id) > self.context.max_client_id:
            return self.refuse(
                self.version, CLIENT_IDENTIFIER_NOT_VALID, f"client id longer than {self.context.max_client_id} bytes")
        if self.is_one_too_many(client_id):
            return 0                       # before anything is kept for it while back ends are asked
        will = packet.will
        if will is not None:
            if will.qos > self.context.max_qos:
                return self.refuse(self.version, QOS_NOT_SUPPORTED, "will QoS not supported")     # [MQTT-3.2.2-12]
            if will.retain and not self.context.retain_available:
                return self.refuse(self.version, RETAIN_NOT_SUPPORTED, "retain not supported")    # [MQTT-3.2.2-13]
            check_topic_name(will.topic, self.context.max_topic_levels)
            self.router.take_delay(will.topic, &at_ms)
        if self.router.access_gate is None or (
                self.router.access_gate.idle and PropertyId.AUTHENTICATION_METHOD not in properties
                and not self.context.hooks & (HOOK_CLIENT_AUTHENTICATE | HOOK_CLIENT_AUTHORIZE)
                and (known is None or "authn" not in known)):
            username = self.username
            self.context.count(AUTHENTICATION_SUCCESS_ANONYMOUS)
            return self.accept(packet, client_id) if self.mount(None if username is None else username.decode()) else 0
        self.access = self.router.access_type(self, packet, client_id)
        self.access.start()
        return 0

    cdef bint is_one_too_many(self, bytes client_id) except -1:
        """Whether it is refused because memory is short. Who has a session is let in: it comes to empty its queue."""
        if self.context.memory_level < REFUSE or client_id in self.router.sessions:
            return False
        self.context.count(CLIENT_CLOSED_OVERLOAD)
        self.refuse(self.version, QUOTA_EXCEEDED, SHORT_OF_MEMORY)
        return True

    cdef bint mount(self, object username) except -1:
        return True

    cdef bint over_quota(self, PublishView* view) except -1:
        return False

    cdef bytes unmounted(self, bytes topic):
        return topic

    cdef bytes topic_prefix(self):
        return b""

    cdef bytes below(self, bytes wire_filter):
        return wire_filter

    cdef int refuse(self, int version, int reason_code, str reason, str detail=None) except -1:
        """CONNACK with a failure, then close [MQTT-3.2.2-7]; 3.x gets the return code that fits, or none if none does."""
        cdef bytes encoded
        cdef dict properties
        self.context.count(PACKETS_CONNACK_ERROR)
        self.context.count(CLIENT_CLOSED_REFUSED)
        if version == 5:
            properties = {PropertyId.REASON_STRING: reason.encode()} if reason else {}
            if self.context.hooks & HOOK_CLIENT_CONNACK:
                properties = self.context.hooked.connack(self, reason_code, properties)
            encoded = Connack(False, reason_code, properties).encode(5)
            if self.max_packet and <uint32_t>len(encoded) > self.max_packet:
                encoded = Connack(False, reason_code, None).encode(5)      # [MQTT-3.2.2-19]
            if not self.max_packet or <uint32_t>len(encoded) <= self.max_packet:
                self.reply(PACKETS_CONNACK_SENT, encoded)
        else:
            return_code = connack_return_code(reason_code)
            if return_code is not None:
                if self.context.hooks & HOOK_CLIENT_CONNACK:
                    self.context.hooked.connack(self, reason_code, {})
                self.reply(PACKETS_CONNACK_SENT, bytes((CONNACK_FIRST, 2, 0, return_code)))
        return self.close(reason_code, SIDE_SERVER, detail or reason, True)

    cdef int accept(self, Connect packet, bytes client_id) except -1:
        cdef WorkerContext context = self.context
        cdef dict properties = packet.properties or {}
        cdef bint present = False
        cdef uint64_t expiry_ms
        cdef uint32_t keepalive_s = packet.keepalive_s
        cdef Will will = None
        cdef uint64_t at_ms
        if self.version == 5:
            expiry_ms = self.granted_expiry(properties.get(PropertyId.SESSION_EXPIRY_INTERVAL, 0))
        else:
            expiry_ms = 0 if packet.clean_start else context.session_expiry_ms
            if context.max_session_expiry_ms and expiry_ms > context.max_session_expiry_ms:
                expiry_ms = context.max_session_expiry_ms
        if context.server_keepalive_s:
            keepalive_s = context.server_keepalive_s
        if self.is_one_too_many(client_id):
            return 0
        if packet.will is not None:
            will = will_of(packet.will, client_id)
            try:
                self.router.admit(will.message, self.username, &at_ms)
            except MqttError as error:
                return self.refuse(self.version, error.reason_code, f"its will: {error}")
        if context.disk_full and (expiry_ms or packet.will is not None or client_id in self.router.sessions):
            return self.refuse(self.version, SERVER_UNAVAILABLE, "the disk takes no writes, and too much waits for it")
        if self.version == 5:
            answer = self.connack_properties(packet, properties, client_id, expiry_ms)
            if <uint32_t>len(Connack(False, SUCCESS, answer).encode(5)) > self.max_packet:
                return self.refuse(5, PACKET_TOO_LARGE, "the client takes no packet that is large enough for CONNACK")    # [MQTT-3.1.2-24]
        self.receive_maximum = properties.get(PropertyId.RECEIVE_MAXIMUM, 65535)
        self.alias_maximum = properties.get(PropertyId.TOPIC_ALIAS_MAXIMUM, 0)
        self.problem_information = properties.get(PropertyId.REQUEST_PROBLEM_INFORMATION, 1) != 0
        self.keepalive_s = keepalive_s
        self.clean_start = packet.clean_start
        self.session = self.router.open_session(self, client_id, packet.clean_start, expiry_ms, &present)
        self.state = CONNECTED
        self.connected_ms = context.now_ms
        if will is not None:
            will.origin = self.origin_of_will()
            self.session.will = will
        if context.recorder is not None:
            self.record_opened(present, expiry_ms)
        if self.version == 5:
            if context.hooks & HOOK_CLIENT_CONNACK:
                answer = context.hooked.connack(self, SUCCESS, answer)
            encoded = Connack(present, SUCCESS, answer).encode(5)
        else:
            if context.hooks & HOOK_CLIENT_CONNACK:
                context.hooked.connack(self, SUCCESS, {})
            encoded = bytes((CONNACK_FIRST, 2, present and self.version > 3, 0))
        self.reply(PACKETS_CONNACK_SENT, encoded)
        context.count(CLIENT_CONNECTED)
        context.gauge(CONNECTIONS_COUNT, 1)
        self.last_packet_ms = context.now_ms
        self.arm_deadline()
        self.send_event(EVENT_CONNECTED, SUCCESS, SIDE_CLIENT, "")
        if context.telling & TELL_CONNECTED:
            self.publish_event(TELL_CONNECTED, event_messages.connected(
                self.version, keepalive_s, self.clean_start, min(expiry_ms // 1000, <uint64_t>EXPIRY_NEVER), self.connected_ms))
        if context.hooks & HOOK_CLIENT_CONNECTED:
            context.hooked.connected(self)
        self.session.attach(self)
        return self.subscribe_by_itself() if self.router.auto_topics is not None and self.state == CONNECTED else 0

    cdef uint64_t granted_expiry(self, uint32_t seconds) noexcept:
        """Of a Session Expiry Interval of CONNECT or DISCONNECT, ms: never more than mqtt.max_session_expiry_interval."""
        cdef uint64_t expiry_ms = NEVER if seconds == EXPIRY_NEVER else <uint64_t>seconds * 1000
        cdef uint64_t longest_ms = self.context.max_session_expiry_ms
        return longest_ms if longest_ms and expiry_ms > longest_ms else expiry_ms

    def identity(self) -> dict[str, object]:
        """As event messages tell of a client."""
        return event_messages.identity(self.session.client_id, self.username, address_text(&self.peer))

    def publish_event(self, int event, dict fields) -> None:
        """Something has happened to this client; the caller has looked at `telling`."""
        topics = [] if self.session is None else self.router.announcer.listeners(event, self.session.client_id)
        if topics:
            self.router.announcer.note(topics, {**self.identity(), **fields}, self.context.now_ms)

    cdef int subscribe_by_itself(self) except -1:
        """auto_subscribe.topics, as a SUBSCRIBE that the client has not sent: without packet id, and without a SUBACK."""
        host, _, port = address_text(&self.peer).rpartition(":")
        username = self.username
        values = {
            "clientid": self.session.client_id.decode(), "username": None if username is None else username.decode(),
            "host": host.strip("[]"), "port": port,
        }
        topics = self.router.auto_topics.of(values)
        if not topics:
            return 0
        self.subscribing = (SUBSCRIBE, 0, 0, topics, bytearray(), [], [], self.router.full_tables)
        return self.go_on_subscribing()

    def origin_of_will(self) -> dict[str, object]:
        """Who sends the will of this connection, for the journal, and for the rules once the connection is gone (Access.of_will)."""
        cdef dict known = self.listener_facts() or {}
        origin = {
            "username": None if self.username is None else self.username.decode(), "peer": address_text(&self.peer),
            "listener": self.listener_name(), "version": self.version, "cn": known.get("cn"), "dn": known.get("dn"),
            "prefix": self.topic_prefix().decode(),
        }
        if self.access is not None:
            origin |= self.access.rights()
        return {key: value for key, value in origin.items() if value}

    cdef int record_opened(self, bint present, uint64_t expiry_ms) except -1:
        """A session that may outlive this process goes into the journal; one that ends with its connection only for its will."""
        cdef Session session = self.session
        cdef Will will = session.will
        session.logged = session.logged or expiry_ms > 0
        if not session.logged and not session.known and will is None:
            return 0
        self.promised = True               # by the CONNACK
        details = {1: address_text(&self.peer).encode(), 3: self.keepalive_s, 5: self.receive_maximum}
        if self.username is not None:
            details[2] = self.username
        self.context.recorder.opened(session, present and session.known, self.version, expiry_ms, details)
        session.known = True
        if will is not None:
            self.context.recorder.will_set(
                session, will.message, will.delay_s, will.expiry_s if will.has_expiry else None, will.origin)
        return 0

    def connack_properties(self, packet, dict properties, bytes client_id, uint64_t expiry_ms) -> dict:
        """What a 5.0 client must know of this server (MQTT 5.0 §3.2.2.3): all that differs from the protocol's default."""
        cdef WorkerContext context = self.context
        answer = {PropertyId.MAXIMUM_PACKET_SIZE: context.max_packet_size}
        requested = properties.get(PropertyId.SESSION_EXPIRY_INTERVAL, 0)
        granted = EXPIRY_NEVER if expiry_ms == NEVER else expiry_ms // 1000
        if granted != requested or context.hooks & HOOK_CLIENT_CONNECT:       # a hook may have changed what was requested
            answer[PropertyId.SESSION_EXPIRY_INTERVAL] = granted
        if context.max_awaiting_rel:
            answer[PropertyId.RECEIVE_MAXIMUM] = min(context.max_awaiting_rel, 65535)
        if context.max_qos < 2:
            answer[PropertyId.MAXIMUM_QOS] = context.max_qos                       # [MQTT-3.2.2-9]
        if not context.retain_available:
            answer[PropertyId.RETAIN_AVAILABLE] = 0
        if not packet.client_id:
            answer[PropertyId.ASSIGNED_CLIENT_IDENTIFIER] = client_id           # [MQTT-3.2.2-16]
        if context.max_topic_alias:
            answer[PropertyId.TOPIC_ALIAS_MAXIMUM] = context.max_topic_alias
        if not context.wildcard_subscription:
            answer[PropertyId.WILDCARD_SUBSCRIPTION_AVAILABLE] = 0
        if not context.shared_subscription:
            answer[PropertyId.SHARED_SUBSCRIPTION_AVAILABLE] = 0
        if context.server_keepalive_s:
            answer[PropertyId.SERVER_KEEP_ALIVE] = context.server_keepalive_s
        if context.response_information and properties.get(PropertyId.REQUEST_RESPONSE_INFORMATION, 0):
            answer[PropertyId.RESPONSE_INFORMATION] = context.response_information  # [MQTT-3.1.2-28]
        if self.access is not None:
            answer |= self.access.connack_properties()
        return answer

    # --- PUBLISH --------------------------------------------------------------------------------------------------------------

    cdef bint on_publish(self, uint8_t first, const uint8_t* body, uint32_t size) except -1:
        cdef PublishView view
        cdef WorkerContext context = self.context
        cdef Publication publication = self.router.publication
        cdef TopicEntry entry
        cdef bytes topic = None, name      # `topic`: what the view points into, if that is not the packet
        cdef bint has_subscribers
        cdef int arrival, permission
        cdef uint64_t at_ms = 0
        parse_publish(first, body, size, self.version, &view)
        if view.qos > context.max_qos:
            raise MqttError(QOS_NOT_SUPPORTED, f"QoS {view.qos}, allowed is up to {context.max_qos}", "MQTT-3.2.2-11")
        if view.retain and not context.retain_available:
            raise MqttError(RETAIN_NOT_SUPPORTED, "RETAIN is not supported here", "MQTT-3.2.2-14")
        if view.topic_alias or view.topic_size == 0 or self.mounted:
            topic = self.incoming_topic(&view)
            view.topic = <const uint8_t*>PyBytes_AS_STRING(topic)
            view.topic_size = <uint32_t>PyBytes_GET_SIZE(topic)
        if view.topic[0] == c"$" and not self.take_delay(&view, &at_ms):
            return True
        if self.suback_waits:
            self.router.commit(True)        # it publishes right behind its SUBSCRIBE
        entry = self.router.cached(view.topic, view.topic_size)
        if entry is None:
            # Rules come first: what is denied is not looked up, and leaves nothing in the cache.
            self.router.check_name(view.topic, view.topic_size)
            name = PyBytes_FromStringAndSize(<const char*>view.topic, view.topic_size)
            if self.acl_cache is not None and not self.looking:
                permission = self.may_publish(name, 0, &view)
                if permission <= DENIED:
                    return permission == DENIED
            entry = self.router.look_up(name, self.own_lookups())
            if entry is None:
                return False
        elif self.acl_cache is not None and not self.acl_cache.passes(
                entry.serial, view.qos | view.retain << 2, context.now_ms, self.router.access_generation) and not self.looking:
            permission = self.may_publish(entry.topic, entry.serial, &view)
            if permission <= DENIED:
                return permission == DENIED
        if entry.rewrite is not None:
            entry = self.rewritten(entry, &view)
            if entry is None:
                return False
        if (entry.leaves or context.disk_full) and not at_ms and not self.router.room_for(
                entry, <uint64_t>view.topic_size + view.properties_size + view.payload_size):
            return False
        if (view.retain or at_ms) and context.disk_full:
            return False
        if self.limited and self.over_quota(&view):
            context.count(PACKETS_PUBLISH_RECEIVED)
            return self.reject_publish(&view, QUOTA_EXCEEDED, "more is published than clients may together")
        context.count(PACKETS_PUBLISH_RECEIVED)
        context.count(MESSAGES_RECEIVED)
        context.count(MESSAGES_QOS0_RECEIVED + view.qos)
        if view.payload_format and not is_text(view.payload, view.payload_size):
            return self.reject_publish(
                &view, PAYLOAD_FORMAT_INVALID, "the payload is not UTF-8, as its Payload Format Indicator says")
        if view.topic[0] == c"$" and is_own(view.topic, view.topic_size):
            return self.reject_publish(&view, NOT_AUTHORIZED, OWN_TOPICS)
        if entry.unroutable:
            return self.refuse_unroutable(&view)
        if at_ms and not self.may_delay(&view):
            return True
        if view.qos == 2:
            arrival = self.session.receive_qos2(view.packet_id, view.dup)
            if arrival != QOS2_NEW and context.watch:
                context.watcher.published(self, &view)
            if arrival == QOS2_FULL:
                context.count(MESSAGES_DROPPED_RECEIVE_MAXIMUM)
                raise MqttError(RECEIVE_MAXIMUM_EXCEEDED, f"more than {context.max_awaiting_rel} QoS 2 messages await PUBREL")
            if arrival == QOS2_IN_USE:
                self.report_failure(Pubrec, view.packet_id, PACKET_IDENTIFIER_IN_USE, PACKETS_PUBREC_SENT,
                                    f"packet id {view.packet_id} is in use")
                return True
            if arrival == QOS2_REPEAT and context.hooks & HOOK_MESSAGE_PUBLISH and context.hooked.asked_again(self, view.packet_id):
                self.suspend_reading()                # until the verdict
                return True
            if arrival != QOS2_NEW:
                self.ack(PUBREC_FIRST, view.packet_id, SUCCESS, PACKETS_PUBREC_SENT)
                if context.watch:
                    context.watcher.acked(self, PUBREC_FIRST, view.packet_id, SUCCESS, None)
                return True
        publication.topic = view.topic
        publication.topic_size = view.topic_size
        publication.properties = view.properties
        publication.properties_size = view.properties_size
        publication.payload = view.payload
        publication.payload_size = view.payload_size
        publication.qos = view.qos
        publication.retain = view.retain
        publication.payload_format = view.payload_format
        publication.client_id = self.session.client_id
        publication.message = None
        publication.expires_ms = self.router.expires_ms(view.has_expiry, view.expiry_s) if view.has_expiry or context.message_expiry_ms else 0
        self.router.stamp(publication)
        publication.logged = 0
        if context.hooks & HOOK_MESSAGE_PUBLISH:
            return self.publish_hooked(publication, &view, at_ms)
        # A client does not send it again once its packet id is taken.
        publication.unrepeatable = view.qos == 2 and self.session.logged
        if publication.unrepeatable:
            context.recorder.received(self.session, view.packet_id, publication.id_high, publication.id_low)
        if unlikely(context.watch):
            return publish_watched(self, entry, &view, publication, at_ms)
        if at_ms:
            self.router.delay(publication, at_ms)
            has_subscribers = True
        else:
            has_subscribers = self.router.publish(entry, publication, self.session)
        publication.message = None
        if view.qos == 1:
            self.ack(PUBACK_FIRST, view.packet_id, SUCCESS if has_subscribers else NO_MATCHING_SUBSCRIBERS, PACKETS_PUBACK_SENT)
        elif view.qos == 2:
            self.ack(PUBREC_FIRST, view.packet_id, SUCCESS if has_subscribers else NO_MATCHING_SUBSCRIBERS, PACKETS_PUBREC_SENT)
        return True

    cdef bint take_delay(self, PublishView* view, uint64_t* at_ms) except -1:
        """Of `$delayed/<seconds>/<topic>` the time, and in the view the topic alone. False: refused."""
        cdef bytes topic = PyBytes_FromStringAndSize(<const char*>view.topic, view.topic_size), real
        if not topic.startswith(DELAYED):
            return True
        try:
            real = self.router.take_delay(topic, at_ms)
        except MqttError as error:
            self.context.count(PACKETS_PUBLISH_RECEIVED)
            self.reject_publish(view, error.reason_code, str(error))
            return False
        view.topic += view.topic_size - <uint32_t>PyBytes_GET_SIZE(real)
        view.topic_size = <uint32_t>PyBytes_GET_SIZE(real)
        return True

    cdef bint may_delay(self, PublishView* view) except -1:
        """Whether one more message may wait for its time. What has been taken before, and is only said again, may."""
        cdef str reason
        if view.qos == 2 and self.session.awaiting_rel is not None and view.packet_id in self.session.awaiting_rel:
            return True
        reason = self.router.no_delay()
        if reason is not None:
            self.reject_publish(view, QUOTA_EXCEEDED, reason)
        return reason is None

    cdef bint publish_hooked(self, Publication publication, PublishView* view, uint64_t at_ms) except -1:
        """As the end of on_publish, for what callbacks of message.publish make of it. `at_ms`: it waits until then; 0: it does not."""
        cdef Message message = self.context.hooked.publish(publication)
        cdef int asked = GO_ON
        publication.message = None
        if self.context.watch:
            self.context.watcher.published(self, view)
        if message is not None:
            asked = self.context.hooked.ask_publish(self, message, view.qos, view.packet_id, at_ms)
        if asked == ASKED:
            self.suspend_reading()                    # until the verdict
        elif asked == REFUSED:
            self.publish_refused(self.session, view.qos, view.packet_id)
        elif not self.publish_decided(self.session, message, view.qos, view.packet_id, at_ms):
            self.context.hooked.wait(self)
        return True

    def publish_decided(self, Session session, Message message, int qos, int packet_id, uint64_t at_ms) -> bool:
        """Publishes what hooks have made of a PUBLISH, None: nothing, and acknowledges it. False: it waits for room in a ring.
        The connection may be closed by now, and its session gone; the message came all the same."""
        cdef uint8_t first = PUBACK_FIRST if qos == 1 else PUBREC_FIRST
        cdef uint8_t code
        cdef Publication publication
        cdef bint has_subscribers = False, done = True
        if qos == 2 and self.is_kept(session):
            if message is None:
                self.context.recorder.received(session, packet_id, 0, 0)
            else:
                self.context.recorder.received(session, packet_id, message.id_high, message.id_low)
        if message is not None and at_ms:
            publication = Publication.__new__(Publication)
            publication.borrow(message)
            self.router.delay(publication, at_ms)
            has_subscribers = True
        elif message is not None:
            has_subscribers = self.router.has_subscribers(message.topic)
            done = self.router.publish_in_order(message, session)
        if qos and not self.closed:
            code = SUCCESS if has_subscribers else NO_MATCHING_SUBSCRIBERS
            self.ack(first, packet_id, code, PACKETS_PUBACK_SENT if qos == 1 else PACKETS_PUBREC_SENT)
            if self.context.watch:
                self.context.watcher.acked(self, first, packet_id, code, None)
        return done

    def publish_refused(self, Session session, int qos, int packet_id) -> None:
        """Who was to decide about a PUBLISH has not, and it must not go on without. It is as if it had not come."""
        self.context.count(PACKETS_PUBLISH_ERROR)
        if qos == 2 and self.version == 5:
            if session.awaiting_rel is not None:
                session.awaiting_rel.pop(packet_id, None)
        elif qos == 2 and self.is_kept(session):
            self.context.recorder.received(session, packet_id, 0, 0)
        if qos and not self.closed:
            self.report_failure(
                Puback if qos == 1 else Pubrec, packet_id, IMPLEMENTATION_SPECIFIC_ERROR,
                PACKETS_PUBACK_SENT if qos == 1 else PACKETS_PUBREC_SENT, "who decides about messages does not answer")

    def is_kept(self, Session session not None) -> bool:
        """Whether a session is there, and stands in the journal."""
        return session.logged and self.router.sessions.get(session.client_id) is session

    cdef TopicEntry rewritten(self, TopicEntry entry, PublishView* view):
        """Where a PUBLISH goes by its topic's rule; where it was going, if that makes no topic name. None: that is still looked up."""
        cdef bytes topic = self.router.rewritten(entry.rewrite, entry.topic, self.session.client_id, self.username)
        cdef TopicEntry target
        if topic is None:
            return entry
        target = self.router.cached(<const uint8_t*>PyBytes_AS_STRING(topic), <uint32_t>PyBytes_GET_SIZE(topic))
        if target is None:
            target = self.router.look_up(topic, self.own_lookups())
            if target is None:
                return None
        view.topic = <const uint8_t*>PyBytes_AS_STRING(target.topic)
        view.topic_size = <uint32_t>PyBytes_GET_SIZE(target.topic)
        return target

    cdef int may_publish(self, bytes topic, uint64_t serial, PublishView* view) except -2:
        """ALLOWED; DENIED, and answered; UNKNOWN: held until a back end has told. `serial`: of the topic's entry, 0 without."""
        cdef int known
        topic = self.unmounted(topic)
        known = self.access.may_publish(topic, view.qos, view.retain, serial)
        if known != DENIED:
            return known
        self.context.count(PACKETS_PUBLISH_RECEIVED)
        self.context.count(PACKETS_PUBLISH_AUTH_ERROR)
        if self.router.acl.deny_action == "disconnect":
            if self.context.watch:
                self.context.watcher.denied(self, "publish", topic)
            self.disconnect(NOT_AUTHORIZED, "not allowed to publish this")
            self.close(NOT_AUTHORIZED, SIDE_SERVER, f"not allowed to publish {topic.decode()}", True)
        else:
            self.reject_publish(view, NOT_AUTHORIZED, "not allowed to publish this")
            if self.context.watch:
                self.context.watcher.denied(self, "publish", topic)
        return DENIED

    cdef bint refuse_unroutable(self, PublishView* view) except -1:
        """A destination of the topic is not known here: nothing is delivered to any, and the publisher has to know."""
        cdef str reason = "a destination of this topic is not known to this broker"
        self.context.count_unroutable()
        if self.version == 5 or not view.qos:
            return self.reject_publish(view, IMPLEMENTATION_SPECIFIC_ERROR, reason)
        self.context.count(PACKETS_PUBLISH_ERROR)
        if self.context.watch:
            self.context.watcher.published(self, view)
        self.close(IMPLEMENTATION_SPECIFIC_ERROR, SIDE_SERVER, reason, True)   # no acknowledgement of MQTT 3 can say it
        return True

    cdef bint reject_publish(self, PublishView* view, uint8_t reason_code, str reason) except -1:
        """Acknowledged as failed in 5.0, as done in 3.x [MQTT-3.3.5-2]; delivered to nobody."""
        self.context.count(PACKETS_PUBLISH_ERROR)
        if self.context.watch:
            self.context.watcher.published(self, view)
        if view.qos == 1:
            self.report_failure(Puback, view.packet_id, reason_code, PACKETS_PUBACK_SENT, reason)
        elif view.qos == 2:
            if self.version < 5 and self.session.receive_qos2(view.packet_id, view.dup) == QOS2_NEW and self.session.logged:
                self.context.recorder.received(self.session, view.packet_id, 0, 0)
            self.report_failure(Pubrec, view.packet_id, reason_code, PACKETS_PUBREC_SENT, reason)
        return True

    cdef bytes incoming_topic(self, PublishView* view):
        """The topic of a PUBLISH with an alias (MQTT 5.0 §3.3.2.3.4)."""
        cdef bytes topic
        if view.topic_alias > self.context.max_topic_alias:
            raise MqttError(TOPIC_ALIAS_INVALID, f"topic alias {view.topic_alias}, allowed is up to "
                            f"{self.context.max_topic_alias}", "MQTT-3.3.2-9")
        if view.topic_size == 0:
            topic = None if self.aliases_in is None or not view.topic_alias else self.aliases_in.topics.get(view.topic_alias)
            if topic is None:
                if view.topic_alias:
                    raise ProtocolError(f"topic alias {view.topic_alias} was not set on this connection", "MQTT-3.3.2-7")
                raise ProtocolError("PUBLISH without a topic", "MQTT-4.7.3-1")
            return topic
        topic = PyBytes_FromStringAndSize(<const char*>view.topic, view.topic_size)
        check_topic_name(topic, self.context.max_topic_levels)
        self.keep_alias(view.topic_alias, topic)
        return topic

    cdef int keep_alias(self, uint16_t alias, bytes topic) except -1:
        """What aliases take is bounded, and less of it while memory is short: their number alone would allow 4 GB for each client."""
        cdef TopicAliases aliases = self.aliases_in
        cdef bytes before
        cdef uint32_t whole
        cdef uint32_t most = ALIASES_BYTES_SHORT if self.context.memory_level >= REFUSE else ALIASES_BYTES_MAX
        if aliases is None:
            aliases = self.aliases_in = TopicAliases.__new__(TopicAliases)
            aliases.topics = {}
        whole = aliases.size + <uint32_t>PyBytes_GET_SIZE(topic) + ALIAS_BYTES
        before = aliases.topics.get(alias)
        if before is not None:
            whole -= <uint32_t>PyBytes_GET_SIZE(before) + ALIAS_BYTES
        if whole > most and whole > aliases.size:
            raise MqttError(QUOTA_EXCEEDED, f"topic aliases of {whole} bytes, allowed are {most}")
        if self.context.memory_level:
            self.context.queued_by(self.session.client_id, <uint64_t>PyBytes_GET_SIZE(topic) + ALIAS_BYTES)
        aliases.topics[alias] = topic
        aliases.size = whole
        return 0

    # --- acknowledgements -----------------------------------------------------------------------------------------------------

    cdef int on_ack(self, uint8_t first, const uint8_t* body, uint32_t size) except -1:
        cdef AckView view
        cdef int kind = first >> 4
        parse_ack(first, body, size, self.version, &view)
        if kind == PUBACK:
            self.context.count(PACKETS_PUBACK_RECEIVED)
            if not self.session.puback(view.packet_id):
                self.missed(kind, view.packet_id, PACKETS_PUBACK_MISSED)
        elif kind == PUBREC:
            self.context.count(PACKETS_PUBREC_RECEIVED)
            if not self.session.pubrec(view.packet_id, view.reason_code):
                self.missed(kind, view.packet_id, PACKETS_PUBREC_MISSED)
                if view.reason_code < UNSPECIFIED_ERROR:
                    self.report_failure(Pubrel, view.packet_id, PACKET_IDENTIFIER_NOT_FOUND, PACKETS_PUBREL_SENT,
                                        f"no message with packet id {view.packet_id} is in flight")
        elif kind == PUBREL:
            self.context.count(PACKETS_PUBREL_RECEIVED)
            if self.session.pubrel(view.packet_id):
                self.ack(PUBCOMP_FIRST, view.packet_id, SUCCESS, PACKETS_PUBCOMP_SENT)
                if unlikely(self.context.watch):
                    self.context.watcher.acked(self, PUBCOMP_FIRST, view.packet_id, SUCCESS, None)
            else:
                self.context.count(PACKETS_PUBREL_MISSED)
                self.report_failure(Pubcomp, view.packet_id, PACKET_IDENTIFIER_NOT_FOUND, PACKETS_PUBCOMP_SENT,
                                    f"no message with packet id {view.packet_id} is in flight")
        else:
            self.context.count(PACKETS_PUBCOMP_RECEIVED)
            if not self.session.pubcomp(view.packet_id):
                self.missed(kind, view.packet_id, PACKETS_PUBCOMP_MISSED)
        return 0

    cdef int missed(self, int kind, uint16_t packet_id, int counter) except -1:
        """An acknowledgement that ends nothing. If its message waits for another one, that will never come: the connection ends, and the
        session sends the message again when the client is back."""
        cdef int awaited = self.session.awaited(packet_id)
        self.context.count(counter)
        if awaited:
            raise ProtocolError(
                f"{PacketType(kind).name} for packet id {packet_id}, which waits for {PacketType(awaited).name}", "MQTT-4.13.1-1")
        return 0

    cdef int ack(self, uint8_t first, uint16_t packet_id, uint8_t reason_code, int counter) except -1:
        write_ack(self.out, first, packet_id, reason_code, self.version)
        self.context.count(PACKETS_SENT)
        self.context.count(counter)
        self.touch()
        return 0

    cdef int report_failure(self, object kind, int packet_id, object outcome, int counter, str reason) except -1:
        """kind(packet_id, outcome): an acknowledgement that says what failed; to a 5.0 client also in words, if it wants them
        [MQTT-3.1.2-29] and takes a packet of that size [MQTT-3.4.2-2] [MQTT-3.5.2-2] [MQTT-3.6.2-2] [MQTT-3.7.2-2]
        [MQTT-3.9.2-1] [MQTT-3.11.2-1]."""
        cdef bytes encoded
        if self.version == 5 and self.problem_information:
            encoded = kind(packet_id, outcome, {PropertyId.REASON_STRING: reason_text(reason)}).encode(5)
            if not self.max_packet or <uint32_t>len(encoded) <= self.max_packet:
                return self.reply(counter, encoded)
        return self.reply(counter, kind(packet_id, outcome, None).encode(self.version))

    cdef int reply(self, int counter, bytes packet) except -1:
        self.out.append(PyBytes_AS_STRING(packet), PyBytes_GET_SIZE(packet))
        self.context.count(PACKETS_SENT)
        self.context.count(counter)
        self.touch()
        if self.context.watch:
            self.context.watcher.replied(self, packet)
        return 0

    # --- SUBSCRIBE and UNSUBSCRIBE ----------------------------------------------------------------------------------------------

    cdef int on_subscribe(self, Subscribe packet) except -1:
        self.context.count(PACKETS_SUBSCRIBE_RECEIVED)
        self.check_room(len(packet.topics))
        identifier = (packet.properties or {}).get(PropertyId.SUBSCRIPTION_IDENTIFIER, 0)
        topics = packet.topics
        if self.context.hooks & HOOK_CLIENT_SUBSCRIBE:
            topics = self.context.hooked.subscribe(self, packet)
        self.subscribing = (SUBSCRIBE, packet.packet_id, identifier, topics, bytearray(), [], [], self.router.full_tables)
        return self.go_on_subscribing()

    cdef int go_on_with_filters(self) except -1:
        return self.go_on_subscribing() if self.subscribing[0] == SUBSCRIBE else self.go_on_unsubscribing()

    cdef int go_on_subscribing(self) except -1:
        cdef bytearray codes
        cdef WorkerContext context = self.context
        cdef Py_ssize_t at
        _, packet_id, identifier, topics, codes, subscribed, replays, full_tables = self.subscribing
        for at in range(len(codes), len(topics)):
            if packet_id and at % FILTERS_PREPARED == 0 and self.acl_cache is not None and not self.access.prepare(
                    topics[at:at + FILTERS_PREPARED]):
                return 0                   # suspended until back ends have answered
            wire_filter, options = topics[at]
            if not packet_id or self.acl_cache is None or self.access.may_subscribe(wire_filter, options):
                if packet_id and self.router.rewriting is not None:
                    wire_filter = self.router.rewriting.filter(wire_filter, self.session.client_id, self.username)
                code = self.subscribe_one(wire_filter, options, identifier, subscribed, replays)
            else:
                context.count(PACKETS_SUBSCRIBE_AUTH_ERROR)
                if context.watch:
                    context.watcher.denied(self, "subscribe", wire_filter)
                code = NOT_AUTHORIZED
                if self.router.acl.deny_action == "disconnect":
                    self.disconnect(NOT_AUTHORIZED, "not allowed to subscribe this")
                    return self.close(
                        NOT_AUTHORIZED, SIDE_SERVER, f"not allowed to subscribe {wire_filter.decode()}", True)
            if code >= UNSPECIFIED_ERROR:
                context.count(PACKETS_SUBSCRIBE_ERROR)
            codes.append(code)
            context.budget -= SUBSCRIBE_COST
            if context.budget <= 0:
                return 0
        self.subscribing = None
        if packet_id and self.acl_cache is not None:
            self.access.packet_done()
        if full_tables != self.router.full_tables:
            # Some of its routes found no room in a pass before this one.
            codes[:] = self.router.undo_subscribe(self, bytes(codes), subscribed)
            replays = []
        # Answered after the commit: who has its SUBACK gets everything that is published from then on.
        self.suback_waits = True
        self.router.subacks.append((self, packet_id, bytes(codes), subscribed, replays))
        return 0

    def subscribe_one(self, bytes wire_filter, int options, identifier, list subscribed, list replays) -> int:
        """Subscribes to one filter; returns its SUBACK code."""
        cdef Subscription subscription = Subscription.__new__(Subscription), previous
        cdef WorkerContext context = self.context
        cdef bint exclusive = wire_filter.startswith(EXCLUSIVE), present
        cdef int retain_handling = options & OPTION_RETAIN_HANDLING
        try:
            group, filter = parse_subscription(wire_filter)
            check_topic_filter(filter, context.max_topic_levels)
        except MqttError as error:
            return error.reason_code
        if group is not None and not context.shared_subscription:
            return SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        if exclusive and not context.exclusive_subscription:
            return TOPIC_FILTER_INVALID
        if not context.wildcard_subscription and filter_has_wildcard(filter):
            return WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED                  # [MQTT-3.8.3-2] of 3.1.1
        previous = self.session.find_subscription(filter if group is None else wire_filter)
        present = previous is not None
        if context.max_subscriptions and not present and self.session.subscription_count() >= context.max_subscriptions:
            return QUOTA_EXCEEDED
        if context.memory_level >= REFUSE and not present:
            return QUOTA_EXCEEDED
        if exclusive and not self.router.claim(self.session, filter):
            return QUOTA_EXCEEDED
        if present and previous.flags & OPTION_EXCLUSIVE and not exclusive:
            self.router.release(self.session.key, filter)
        subscription.subscriber = self.session
        subscription.filter = filter
        subscription.group = group
        subscription.wire_filter = filter if group is None else wire_filter
        subscription.qos = options & OPTION_QOS
        subscription.flags = options & OPTION_FLAGS | (OPTION_EXCLUSIVE if exclusive else 0)
        subscription.identifier = identifier
        self.router.subscribe(self.session, subscription)
        subscribed.append((subscription.wire_filter, subscription))
        if context.hooks & HOOK_SESSION_SUBSCRIBED:
            context.hooked.subscribed(self.session, subscription)
        # [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]; shared subscriptions get no retained messages.
        if group is None and (not retain_handling or (retain_handling == OPTION_RETAIN_IF_NEW and not present)):
            replays.append(subscription)
        return subscription.qos

    def subscribed(self, int packet_id, bytes codes, list replays) -> None:
        """The routes of a SUBSCRIBE are committed: SUBACK, then what is retained."""
        self.suback_waits = False
        if self.state != CONNECTED:
            return
        if not packet_id:
            pass                           # the client does not know of it
        elif max(codes) < UNSPECIFIED_ERROR:
            self.answer_codes(SUBACK_FIRST, <uint16_t>packet_id, codes, PACKETS_SUBACK_SENT)
        else:
            if self.version < 5:
                codes = bytes(code if code < UNSPECIFIED_ERROR else UNSPECIFIED_ERROR for code in codes)   # [MQTT-3.9.3-2]
            self.report_failure(Suback, packet_id, codes, PACKETS_SUBACK_SENT, failed_filters(codes))
        self.router.start_replay(self.session, replays)

    cdef int on_unsubscribe(self, Unsubscribe packet) except -1:
        self.context.count(PACKETS_UNSUBSCRIBE_RECEIVED)
        self.check_room(len(packet.filters))
        filters = packet.filters
        if self.context.hooks & HOOK_CLIENT_UNSUBSCRIBE:
            filters = self.context.hooked.unsubscribe(self, packet)
        self.subscribing = (UNSUBSCRIBE, packet.packet_id, filters, bytearray())
        return self.go_on_unsubscribing()

    cdef int go_on_unsubscribing(self) except -1:
        cdef bytearray codes
        cdef Py_ssize_t at
        _, packet_id, filters, codes = self.subscribing
        for at in range(len(codes), len(filters)):
            codes.append(self.unsubscribe_one(filters[at]))
            self.context.budget -= SUBSCRIBE_COST
            if self.context.budget <= 0:
                return 0
        self.subscribing = None
        if max(codes) < UNSPECIFIED_ERROR:
            return self.answer_codes(UNSUBACK_FIRST, packet_id, bytes(codes) if self.version == 5 else b"", PACKETS_UNSUBACK_SENT)
        return self.report_failure(Unsuback, packet_id, bytes(codes), PACKETS_UNSUBACK_SENT, failed_filters(codes))

    cdef int unsubscribe_one(self, bytes wire_filter) except -1:
        """Ends the subscription to one filter; returns its UNSUBACK code."""
        cdef bint found
        try:
            check_topic_filter(parse_subscription(wire_filter)[1], self.context.max_topic_levels)
            if self.router.rewriting is not None:
                wire_filter = self.router.rewriting.filter(wire_filter, self.session.client_id, self.username)
            wire_filter = self.below(wire_filter)
        except MqttError as error:
            return error.reason_code
        wire_filter = wire_filter.removeprefix(EXCLUSIVE)
        found = self.router.unsubscribe(self.session, wire_filter, 0)
        if found and self.context.telling & TELL_UNSUBSCRIBED:
            self.publish_event(TELL_UNSUBSCRIBED, event_messages.subscribed(parse_subscription(wire_filter)[1], {}))
        if found and self.session.logged:
            self.context.recorder.unsubscribed(self.session, wire_filter)
        return SUCCESS if found else NO_SUBSCRIPTION_EXISTED

    cdef int check_room(self, size_t codes) except -1:
        """Before a SUBSCRIBE or UNSUBSCRIBE: its answer has a code for each filter, and must not be longer than the client takes."""
        cdef uint64_t size = 2 + 1 + codes
        size += 1 + varint_size(<uint32_t>size)
        if self.version == 5 and size > self.max_packet:
            raise MqttError(
                PACKET_TOO_LARGE, f"an answer of {size} bytes, the client takes packets of up to {self.max_packet}", "MQTT-3.1.2-24")
        return 0

    cdef int answer_codes(self, uint8_t first, uint16_t packet_id, bytes codes, int counter) except -1:
        write_codes(self.out, first, packet_id, codes, self.version)
        self.context.count(PACKETS_SENT)
        self.context.count(counter)
        self.touch()
        if self.context.watch:
            self.context.watcher.acked(self, first, packet_id, 0, codes)
        return 0

    # --- the end ----------------------------------------------------------------------------------------------------------------

    cdef int on_disconnect(self, Disconnect packet) except -1:
        cdef dict properties = packet.properties or {}
        self.context.count(PACKETS_DISCONNECT_RECEIVED)
        if PropertyId.SESSION_EXPIRY_INTERVAL in properties and self.session is not None:
            seconds = properties[PropertyId.SESSION_EXPIRY_INTERVAL]
            if self.session.expiry_ms == 0 and seconds:
                raise ProtocolError("a session without expiry cannot get one in DISCONNECT", "MQTT-3.14.2-2")
            self.session.expiry_ms = self.granted_expiry(seconds)
        return self.close(packet.reason_code, SIDE_CLIENT, "", packet.reason_code != SUCCESS)

    cdef int fail(self, int reason_code, str message) except -1:
        """The client broke a rule: it is told so as its version allows, and the connection ends (MQTT 5.0 §4.13)."""
        if reason_code == MALFORMED_PACKET:
            self.context.count(CLIENT_CLOSED_MALFORMED)
        elif reason_code == PACKET_TOO_LARGE:
            self.context.count(CLIENT_CLOSED_TOO_LARGE)
        else:
            self.context.count(CLIENT_CLOSED_PROTOCOL_ERROR)
        if self.state == WAIT_CONNECT or self.state == AUTHENTICATING:
            # Without a whole CONNECT its version is not known; 3.x gets a bare close for a malformed one [MQTT-3.1.4-1].
            version = self.version or self.announced_version
            if version == 5 or reason_code == UNSUPPORTED_PROTOCOL_VERSION or reason_code == CLIENT_IDENTIFIER_NOT_VALID:
                return self.refuse(version, reason_code, message)
        self.disconnect(reason_code, message)
        return self.close(reason_code, SIDE_SERVER, message, True)

    cdef int disconnect(self, int reason_code, str reason) except -1:
        return self.disconnect_with(reason_code, {PropertyId.REASON_STRING: reason_text(reason)} if reason else None)

    cdef int disconnect_with(self, int reason_code, dict properties) except -1:
        """DISCONNECT to a 5.0 client that has its CONNACK [MQTT-3.14.0-1]."""
        if self.version < 5 or self.state != CONNECTED:
            return 0
        encoded = Disconnect(reason_code, properties).encode(5)
        if self.max_packet and <uint32_t>len(encoded) > self.max_packet:
            encoded = Disconnect(reason_code, None).encode(5)                  # [MQTT-3.14.2-3]
            if <uint32_t>len(encoded) > self.max_packet:
                return 0
        return self.reply(PACKETS_DISCONNECT_SENT, encoded)

    cdef int close(self, int reason_code, int side, str detail, bint keep_will) except -1:
        cdef Session session = self.session
        if self.closed:
            return 0
        self.closed = True
        if self.access is not None:
            self.access.closed(self.state == CONNECTED and reason_code != SERVER_SHUTTING_DOWN)
        self.subscribing = None
        if self.looking:
            self.end_lookups()
        self.context.timers.disarm(self)
        if self.state == CONNECTED:
            self.context.count(CLIENT_DISCONNECTED)
            self.context.gauge(CONNECTIONS_COUNT, -1)
            if self.context.telling & TELL_DISCONNECTED:
                self.publish_event(TELL_DISCONNECTED, event_messages.disconnected(
                    reason_code, side == SIDE_NETWORK, self.connected_ms, self.context.now_ms))
            if self.context.hooks & HOOK_CLIENT_DISCONNECTED:
                self.context.hooked.disconnected(self, reason_code)
        self.state = CLOSING
        self.send_event(EVENT_DISCONNECTED, reason_code, side, detail)
        self.touch()
        if session is not None:
            self.router.client_gone(session, reason_code, keep_will)
        return 0

    cdef list own_lookups(self):
        """Those of the PUBLISH in hand, for Router.look_up()."""
        self.looking = True
        return self.router.channel_lookups.setdefault(self, [])

    cdef int end_lookups(self) except -1:
        """The PUBLISH in hand is dealt with, or given up: what is still under way leaves the queue."""
        cdef Lookup lookup
        self.looking = False
        for lookup in self.router.channel_lookups.pop(self, ()):
            lookup.abandoned = True
        return 0

    cdef int send_event(self, int kind, int reason_code, int side, str detail) except -1:
        cdef EventHeader event
        cdef bytes client_id = self.session.client_id if self.session is not None else self.wanted_id or b""
        if self.context.watch:
            self.context.watcher.status_changed(kind, self, client_id, reason_code, side, detail)
        memset(&event, 0, sizeof(event))
        if self.session is not None:
            self.router.reporter.note_session(self.session)
            event.expiry_s = <uint32_t>min(self.session.expiry_ms // 1000, <uint64_t>EVENT_EXPIRY_NEVER)
        elif kind == EVENT_DISCONNECTED:
            kind = EVENT_REFUSED
        event.kind = <uint8_t>kind
        event.reason_code = <uint8_t>reason_code
        event.side = <uint8_t>side
        event.version = self.version
        event.keepalive_s = self.keepalive_s
        event.peer = self.peer
        event.clean_start = self.clean_start
        event.listener = self.listener_number
        return self.router.reporter.send(&event, client_id, self.username, detail)

    cdef dict registry_fields(self):
        fields = {
            "since_ms": self.connected_ms, "peer": address_text(&self.peer), "listener": self.listener_name(), "version": self.version,
            "keepalive_s": self.keepalive_s, "clean_start": bool(self.clean_start),
        }
        if self.username is not None:
            fields["username"] = self.username
        return fields

    def taken_over(self) -> None:
        """Another connection has come with this client id [MQTT-3.1.4-3]."""
        self.disconnect(SESSION_TAKEN_OVER, "")
        self.close(SESSION_TAKEN_OVER, SIDE_SERVER, "session taken over", True)

    def kicked(self, str reason) -> None:
        """Somebody who runs the broker ends the connection; the session stays, and ends as its expiry says."""
        if not self.closed:
            self.context.count(CLIENT_CLOSED_KICKED)
        self.disconnect(ADMINISTRATIVE_ACTION, reason)
        self.close(ADMINISTRATIVE_ACTION, SIDE_SERVER, reason, True)

    def shut_down(self, bytes reference) -> None:
        """The broker stops; `reference` names another one to go to, or is empty."""
        if reference:
            self.disconnect_with(USE_ANOTHER_SERVER, {PropertyId.SERVER_REFERENCE: reference})
        else:
            self.disconnect_with(SERVER_SHUTTING_DOWN, None)
        self.close(SERVER_SHUTTING_DOWN, SIDE_SERVER, "server shutting down", True)

    def lost(self, str detail) -> None:
        """The network connection ended without DISCONNECT."""
        if not self.closed:
            self.context.count(CLIENT_CLOSED_RESET)
        self.close(UNSPECIFIED_ERROR, SIDE_NETWORK, detail, True)

    cdef int suspend_reading(self) except -1:
        self.waiting = True
        return 0

    cdef int resume_reading(self) except -1:
        self.waiting = False
        return 0

    cdef int recheck(self, bint rules) except -1:
        if self.access is None:
            if not self.router.access_gate.banned.any and not self.router.access_gate.has_sources \
                    and not self.context.hooks & HOOK_CLIENT_AUTHORIZE:
                return 0
            # It came while nobody was banned, and everybody might do everything.
            self.access = self.router.access_type(self, None, self.session.client_id)
        self.access.check_ban()
        if rules:
            self.access.recheck()
        return 0

    cdef dict listener_facts(self):
        return None

    cdef str listener_name(self):
        return ""

    cdef uint64_t keepalive_ms(self) noexcept:
        return <uint64_t>(self.keepalive_s * 1000 * self.context.keepalive_multiplier)

    cdef bint is_unread(self) noexcept:
        """Whether what it has sent waits here."""
        return self.parked or self.paused or self.waiting or self.looking

    cdef int arm_deadline(self) except -1:
        """The next of two: the client is silent for too long, or its credentials end."""
        cdef uint64_t due_ms = NEVER
        if self.keepalive_s:
            # Who is not read is not silent.
            due_ms = self.context.now_ms if self.is_unread() else self.last_packet_ms
            due_ms += self.keepalive_ms()
        if self.access is not None and self.access.ends_at_ms:
            due_ms = min(due_ms, <uint64_t>self.access.ends_at_ms)
        if due_ms == NEVER:
            self.context.timers.disarm(self)
        else:
            self.context.timers.arm(self, due_ms)
        return 0

    cdef int expire(self, uint64_t now_ms) except -1:
        """The deadline of CONNECT, or of the keepalive [MQTT-3.1.2-22] (3.1.1: [MQTT-3.1.2-24])."""
        if self.state == WAIT_CONNECT or self.state == AUTHENTICATING:
            if self.waiting:
                self.context.timers.arm(self, now_ms + self.context.idle_timeout_ms)
                return 0                   # for a verdict, whose time is bounded elsewhere
            self.context.count(CLIENT_CLOSED_IDLE_TIMEOUT)
            return self.close(KEEP_ALIVE_TIMEOUT, SIDE_SERVER, "no complete CONNECT within mqtt.idle_timeout", True)
        if self.state == CONNECTED:
            if self.access is not None and self.access.ends_at_ms and self.access.ends_at_ms <= now_ms:
                self.disconnect(MAXIMUM_CONNECT_TIME, "the credentials have expired")
                return self.close(MAXIMUM_CONNECT_TIME, SIDE_SERVER, "the credentials have expired", True)
            if self.is_unread() or not self.keepalive_s \
                    or self.last_packet_ms + self.keepalive_ms() > now_ms:
                return self.arm_deadline()
            self.context.count(CLIENT_CLOSED_KEEPALIVE)
            self.disconnect(KEEP_ALIVE_TIMEOUT, "")
            return self.close(KEEP_ALIVE_TIMEOUT, SIDE_SERVER, f"nothing received for {self.keepalive_ms()} ms", True)
        return 0


cdef bint publish_watched(
    Channel channel, TopicEntry entry, PublishView* view, Publication publication, uint64_t at_ms,
) except -1:
    """The end of on_publish() while somebody looks; apart from it, so that it costs the others one test."""
    cdef Watcher watcher = channel.context.watcher
    cdef bint has_subscribers = not entry.is_empty()
    cdef uint8_t first = PUBACK_FIRST if view.qos == 1 else PUBREC_FIRST
    if at_ms:
        watcher.published(channel, view)   # routed when its time has come
        channel.router.delay(publication, at_ms)
        has_subscribers = True
    else:
        watcher.publishes(channel, view, publication, has_subscribers)
        has_subscribers = channel.router.publish(entry, publication, channel.session)
    publication.message = None
    if view.qos:
        channel.ack(
            first, view.packet_id, SUCCESS if has_subscribers else NO_MATCHING_SUBSCRIBERS,
            PACKETS_PUBACK_SENT if view.qos == 1 else PACKETS_PUBREC_SENT)
        watcher.acked(channel, first, view.packet_id, SUCCESS if has_subscribers else NO_MATCHING_SUBSCRIBERS, None)
    return True


PACKET_MAX = 5 + 0xFFFFFFF
"""Longest packet that MQTT has room for, bytes: type, four bytes of length, and what they can say (MQTT 5.0 §1.5.5). Of a message that came
with a topic alias, or below a mount point, the packet that goes out is longer than the one that came."""

REASON_BYTES = 200
"""Longest Reason String sent, bytes."""


cdef bytes reason_text(str reason):
    """A Reason String, cut between two characters."""
    return reason.encode()[:REASON_BYTES].decode(errors="ignore").encode()


cdef str failed_filters(codes):
    """Which filters of a SUBSCRIBE or UNSUBSCRIBE failed, and how."""
    return "; ".join([
        f"filter {number}: {REASON_CODES[code][0].replace('_', ' ')}"
        for number, code in enumerate(codes, 1) if code >= UNSPECIFIED_ERROR
    ])


cdef Will will_of(packet_will, bytes client_id):
    """The will of a CONNECT as a message that is ready to be published."""
    cdef dict properties = dict(packet_will.properties or {})
    cdef Will will = Will.__new__(Will)
    cdef Publication publication = Publication.__new__(Publication)
    cdef bytes topic = packet_will.topic, payload = packet_will.payload, forwarded
    will.delay_s = properties.pop(PropertyId.WILL_DELAY_INTERVAL, 0)
    will.has_expiry = PropertyId.MESSAGE_EXPIRY_INTERVAL in properties
    will.expiry_s = properties.pop(PropertyId.MESSAGE_EXPIRY_INTERVAL, 0)
    forwarded = encode_properties(properties)
    publication.topic = <const uint8_t*>PyBytes_AS_STRING(topic)
    publication.topic_size = <uint32_t>PyBytes_GET_SIZE(topic)
    publication.properties = <const uint8_t*>PyBytes_AS_STRING(forwarded)
    publication.properties_size = <uint32_t>PyBytes_GET_SIZE(forwarded)
    publication.payload = <const uint8_t*>PyBytes_AS_STRING(payload)
    publication.payload_size = <uint32_t>PyBytes_GET_SIZE(payload)
    publication.qos = packet_will.qos
    publication.retain = packet_will.retain
    publication.payload_format = properties.get(PropertyId.PAYLOAD_FORMAT_INDICATOR, 0)
    publication.client_id = client_id
    will.message = publication.keep()
    return will
