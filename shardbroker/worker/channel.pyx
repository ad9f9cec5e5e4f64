"""State and primitives of one connection; see channel.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memset

from shardbroker.hooks.masks cimport HOOK_CLIENT_AUTHORIZE, HOOK_CLIENT_CONNACK, HOOK_CLIENT_DISCONNECTED
from shardbroker.mqtt.codec cimport write_ack
from shardbroker.mqtt.packets cimport Disconnect
from shardbroker.mqtt.spec cimport (
    ADMINISTRATIVE_ACTION, CLIENT_IDENTIFIER_NOT_VALID, CONNACK_FIRST, IMPLEMENTATION_SPECIFIC_ERROR, KEEP_ALIVE_TIMEOUT,
    MALFORMED_PACKET, MAXIMUM_CONNECT_TIME, PACKET_TOO_LARGE, SERVER_SHUTTING_DOWN, SESSION_TAKEN_OVER, UNSPECIFIED_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION, USE_ANOTHER_SERVER,
)
from shardbroker.pubsub.topic_cache cimport Lookup
from shardbroker.session.context cimport NOTIFY_DISCONNECTED
from shm.address cimport address_text
from shm.counters cimport (
    CLIENT_CLOSED_IDLE_TIMEOUT, CLIENT_CLOSED_KEEPALIVE, CLIENT_CLOSED_KICKED, CLIENT_CLOSED_MALFORMED,
    CLIENT_CLOSED_PROTOCOL_ERROR, CLIENT_CLOSED_REFUSED, CLIENT_CLOSED_RESET, CLIENT_CLOSED_TOO_LARGE, CLIENT_DISCONNECTED,
    CONNECTIONS_COUNT, PACKETS_CONNACK_ERROR, PACKETS_CONNACK_SENT, PACKETS_DISCONNECT_SENT, PACKETS_SENT,
)
from shm.events cimport EVENT_DISCONNECTED, EVENT_EXPIRY_NEVER, EVENT_REFUSED, EventHeader

from shardbroker.logs.phrases import log_line
from shardbroker.mqtt.packets import Connack
from shardbroker.mqtt.spec import PropertyId, connack_return_code
from shardbroker.worker.features import event_messages

__all__ = ["EVACUATED", "SHORT_OF_MEMORY", "Channel"]

cdef uint64_t NEVER = <uint64_t>-1

SHORT_OF_MEMORY = "memory limit reached (overload.memory_high_water)"
"""Reason of refusals above overload.memory_high_water."""
EVACUATED = "this node is evacuated"
"""Reason of refusals and disconnections by `ctl node evacuate`."""

REASON_BYTES = 200
"""Longest Reason String sent, bytes."""


cdef class Channel(ClientOutput):
    """A connection without its socket: protocol.feed() handles received bytes, `out` holds what is to be sent."""

    # --- topics below a mount point; see features/mountpoint.pxd --------------------------------------------------------------

    cdef bint mount(self, object username) except -1:
        return True

    cdef bytes topic_prefix(self):
        return b""

    cdef bytes mounted_topic(self, bytes topic):
        return topic

    cdef bytes mounted_filter(self, bytes wire_filter):
        return wire_filter

    cdef bytes unmounted(self, bytes topic):
        return topic

    # --- answers --------------------------------------------------------------------------------------------------------------

    cdef int ack(self, uint8_t first, uint16_t packet_id, uint8_t reason_code, int counter) except -1:
        write_ack(self.out, first, packet_id, reason_code, self.version)
        self.context.count(PACKETS_SENT)
        self.context.count(counter)
        self.touch()
        return 0

    cdef int reply(self, int counter, bytes packet) except -1:
        self.out.append(PyBytes_AS_STRING(packet), PyBytes_GET_SIZE(packet))
        self.context.count(PACKETS_SENT)
        self.context.count(counter)
        self.touch()
        if self.context.watch:
            self.context.watcher.replied(self, packet)
        return 0

    cdef int report_failure(self, object kind, int packet_id, object outcome, int counter, str reason) except -1:
        """Sends kind(packet_id, outcome), an acknowledgement of a failure.

        A 5.0 client gets the Reason String too, if it requests problem information [MQTT-3.1.2-29] and the packet fits its Maximum
        Packet Size [MQTT-3.4.2-2] [MQTT-3.5.2-2] [MQTT-3.6.2-2] [MQTT-3.7.2-2] [MQTT-3.9.2-1] [MQTT-3.11.2-1].
        """
        cdef bytes encoded
        if self.version == 5 and self.problem_information:
            encoded = kind(packet_id, outcome, {PropertyId.REASON_STRING: reason_text(reason)}).encode(5)
            if not self.max_packet or <uint32_t>len(encoded) <= self.max_packet:
                return self.reply(counter, encoded)
        return self.reply(counter, kind(packet_id, outcome, None).encode(self.version))

    # --- refusals and errors --------------------------------------------------------------------------------------------------

    cdef int refuse(self, int version, int reason_code, str reason, str detail=None) except -1:
        """Sends CONNACK with a failure and closes [MQTT-3.2.2-7]. 3.x gets the return code that matches, or no CONNACK without a match."""
        cdef bytes encoded
        cdef dict properties
        self.context.count(PACKETS_CONNACK_ERROR)
        self.context.count(CLIENT_CLOSED_REFUSED)
        if version == 5:
            properties = {PropertyId.REASON_STRING: reason.encode()} if reason else {}
            if reason_code == USE_ANOTHER_SERVER and self.router.redirect:
                properties[PropertyId.SERVER_REFERENCE] = self.router.redirect
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

    cdef int fail(self, int reason_code, str message) except -1:
        """Ends the connection after an error of the client, with the packet that its version has for it (MQTT 5.0 §4.13)."""
        if reason_code == MALFORMED_PACKET:
            self.context.count(CLIENT_CLOSED_MALFORMED)
        elif reason_code == PACKET_TOO_LARGE:
            self.context.count(CLIENT_CLOSED_TOO_LARGE)
        else:
            self.context.count(CLIENT_CLOSED_PROTOCOL_ERROR)
        if self.state == WAIT_CONNECT or self.state == AUTHENTICATING:
            # Before a whole CONNECT the version is only announced; 3.x gets no packet for a malformed one [MQTT-3.1.4-1].
            version = self.version or self.announced_version
            if version == 5 or reason_code == UNSUPPORTED_PROTOCOL_VERSION or reason_code == CLIENT_IDENTIFIER_NOT_VALID:
                return self.refuse(version, reason_code, message)
        self.disconnect(reason_code, message)
        return self.close(reason_code, SIDE_SERVER, message, True)

    cdef int broken(self, object error) except -1:
        if self.closed:
            self.router.log_failure(log_line("internal error while a connection was closing"), error)
        return self.fail(IMPLEMENTATION_SPECIFIC_ERROR, f"internal error: {error!r}")   # which the log line of its end includes

    cdef int disconnect(self, int reason_code, str reason) except -1:
        return self.disconnect_with(reason_code, {PropertyId.REASON_STRING: reason_text(reason)} if reason else None)

    cdef int disconnect_with(self, int reason_code, dict properties) except -1:
        """Sends DISCONNECT, to a 5.0 client after its CONNACK only [MQTT-3.14.0-1]."""
        if self.version < 5 or self.state != CONNECTED:
            return 0
        encoded = Disconnect(reason_code, properties).encode(5)
        if self.max_packet and <uint32_t>len(encoded) > self.max_packet:
            encoded = Disconnect(reason_code, None).encode(5)                  # [MQTT-3.14.2-3]
            if <uint32_t>len(encoded) > self.max_packet:
                return 0
        return self.reply(PACKETS_DISCONNECT_SENT, encoded)

    # --- the end --------------------------------------------------------------------------------------------------------------

    cdef int close(self, int reason_code, int side, str detail, bint keep_will) except -1:
        cdef Session session = self.session
        if self.closed:
            return 0
        self.closed = True
        if self.access is not None:
            self.access.closed(self.state == CONNECTED and reason_code != SERVER_SHUTTING_DOWN)
        self.subscribing = None
        if self.claiming:
            self.claiming = False
            self.router.claims.abandoned(self)
        if self.looking:
            self.end_lookups()
        self.context.timers.disarm(self)
        if self.state == CONNECTED:
            self.context.count(CLIENT_DISCONNECTED)
            self.context.gauge(CONNECTIONS_COUNT, -1)
            if self.context.notifications & NOTIFY_DISCONNECTED:
                self.publish_event(NOTIFY_DISCONNECTED, event_messages.disconnected(
                    reason_code, side == SIDE_NETWORK, self.connected_ms, self.context.now_ms))
            if self.context.hooks & HOOK_CLIENT_DISCONNECTED:
                self.context.hooked.disconnected(self, reason_code)
        self.state = CLOSING
        self.send_event(EVENT_DISCONNECTED, reason_code, side, detail)
        self.touch()
        if session is not None:
            self.router.client_gone(session, reason_code, keep_will)
        return 0

    def taken_over(self) -> None:
        """Ends the connection because another one has the same client id [MQTT-3.1.4-3]."""
        self.disconnect(SESSION_TAKEN_OVER, "")
        self.close(SESSION_TAKEN_OVER, SIDE_SERVER, "session taken over", True)

    def kicked(self, str reason) -> None:
        """Ends the connection on request of an operator. The session expires as after any other end."""
        if not self.closed:
            self.context.count(CLIENT_CLOSED_KICKED)
        self.disconnect(ADMINISTRATIVE_ACTION, reason)
        self.close(ADMINISTRATIVE_ACTION, SIDE_SERVER, reason, True)

    def shut_down(self, bytes reference) -> None:
        """Ends the connection because the broker stops. `reference`: Server Reference to another broker, or empty."""
        if reference:
            self.disconnect_with(USE_ANOTHER_SERVER, {PropertyId.SERVER_REFERENCE: reference})
        else:
            self.disconnect_with(SERVER_SHUTTING_DOWN, None)
        self.close(SERVER_SHUTTING_DOWN, SIDE_SERVER, "server shutting down", True)

    def evacuated(self, bytes reference) -> None:
        """Ends the connection because the node is evacuated. `reference`: Server Reference to another node, or empty."""
        self.disconnect_with(USE_ANOTHER_SERVER, {PropertyId.SERVER_REFERENCE: reference} if reference else None)
        self.close(USE_ANOTHER_SERVER, SIDE_SERVER, EVACUATED, True)

    def lost(self, str detail) -> None:
        """Ends the channel after its network connection ended without DISCONNECT."""
        if not self.closed:
            self.context.count(CLIENT_CLOSED_RESET)
        self.close(UNSPECIFIED_ERROR, SIDE_NETWORK, detail, True)

    # --- reading --------------------------------------------------------------------------------------------------------------

    cdef int suspend_reading(self) except -1:
        self.waiting = True
        return 0

    cdef int resume_reading(self) except -1:
        self.waiting = False
        return 0

    cdef bint is_unread(self) noexcept:
        """Whether the broker, not the client, is the reason that no packets arrive."""
        return self.parked or self.paused or self.waiting or self.looking

    cdef bint over_quota(self, PublishView* view) except -1:
        return False

    cdef list own_lookups(self):
        """Returns the list of look-ups of the current PUBLISH, for TopicResolver.look_up()."""
        self.looking = True
        return self.router.resolver.channel_lookups.setdefault(self, [])

    cdef int end_lookups(self) except -1:
        """Abandons look-ups of the current PUBLISH that are still queued: it is done, or its connection has ended."""
        cdef Lookup lookup
        self.looking = False
        for lookup in self.router.resolver.channel_lookups.pop(self, ()):
            lookup.abandoned = True
        return 0

    # --- the client, and what has changed for it ------------------------------------------------------------------------------

    cdef dict listener_facts(self):
        return None

    cdef str listener_name(self):
        return ""

    cdef int recheck(self, bint rules) except -1:
        if self.access is None:
            if not self.router.access_gate.banned.any and not self.router.access_gate.has_sources \
                    and not self.context.hooks & HOOK_CLIENT_AUTHORIZE:
                return 0
            # There were no bans and no rules at its CONNECT.
            self.access = self.router.access_type(self, self.session.client_id)
        self.access.check_ban()
        if rules:
            self.access.recheck()
        return 0

    # --- timers ---------------------------------------------------------------------------------------------------------------

    cdef uint64_t keepalive_ms(self) noexcept:
        return <uint64_t>(self.keepalive_s * 1000 * self.context.keepalive_multiplier)

    cdef int arm_deadline(self) except -1:
        """Sets the timer to the earlier of two deadlines: keep alive and expiry of the credentials."""
        cdef uint64_t due_ms = NEVER
        if self.keepalive_s:
            # A client that is not read is not silent.
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
        """Handles a deadline: of CONNECT, of the credentials or of keep alive [MQTT-3.1.2-22] (3.1.1: [MQTT-3.1.2-24])."""
        if self.state == WAIT_CONNECT or self.state == AUTHENTICATING:
            if self.waiting:
                self.context.timers.arm(self, now_ms + self.context.idle_timeout_ms)
                return 0                   # authentication has a timeout of its own
            self.context.count(CLIENT_CLOSED_IDLE_TIMEOUT)
            return self.close(KEEP_ALIVE_TIMEOUT, SIDE_SERVER, "no complete CONNECT within mqtt.idle_timeout", True)
        if self.state == CONNECTED:
            if self.access is not None and self.access.ends_at_ms and self.access.ends_at_ms <= now_ms:
                self.disconnect(MAXIMUM_CONNECT_TIME, "credentials expired")
                return self.close(MAXIMUM_CONNECT_TIME, SIDE_SERVER, "credentials expired", True)
            if self.is_unread() or not self.keepalive_s \
                    or self.last_packet_ms + self.keepalive_ms() > now_ms:
                return self.arm_deadline()
            self.context.count(CLIENT_CLOSED_KEEPALIVE)
            self.disconnect(KEEP_ALIVE_TIMEOUT, "")
            return self.close(
                KEEP_ALIVE_TIMEOUT, SIDE_SERVER, f"keep alive timeout: nothing received for {self.keepalive_ms()} ms", True)
        return 0

    # --- events and registry --------------------------------------------------------------------------------------------------

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

    def identity(self) -> dict[str, object]:
        """Returns the fields that identify this client in event messages."""
        return event_messages.identity(self.session.client_id, self.username, address_text(&self.peer))

    def publish_event(self, int event, dict fields) -> None:
        """Queues an event message about this client. The caller has tested its bit in `context.notifications`."""
        topics = [] if self.session is None else self.router.announcer.listeners(event, self.session.client_id)
        if topics:
            self.router.announcer.note(topics, {**self.identity(), **fields}, self.context.now_ms)

    cdef dict registry_fields(self):
        fields = {
            "since_ms": self.connected_ms, "peer": address_text(&self.peer), "listener": self.listener_name(), "version": self.version,
            "keepalive_s": self.keepalive_s, "clean_start": bool(self.clean_start),
        }
        if self.username is not None:
            fields["username"] = self.username
        return fields


cdef bytes reason_text(str reason):
    """Returns a Reason String of at most REASON_BYTES, cut between two characters."""
    return reason.encode()[:REASON_BYTES].decode(errors="ignore").encode()
