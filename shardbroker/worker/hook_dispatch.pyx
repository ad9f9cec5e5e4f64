"""Fires hooks: turns what the data plane has into what callbacks get, and takes over what they have changed.

The data plane asks `context.hooks & HOOK_...` and calls a method here only if there are callbacks. Nothing in here raises because of a
callback: see hooks/registry.py.
"""

import gc

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardbroker.hooks.masks cimport HOOK_MESSAGE_DROPPED
from shardbroker.mqtt.codec cimport write_varint
from shardbroker.mqtt.packets cimport Connect, Subscribe, Unsubscribe, decode_body
from shardbroker.mqtt.spec cimport FAILURE, PUBLISH_FIRST, SERVER_UNAVAILABLE
from shardbroker.pubsub.message cimport Message, Publication, make_message
from shardbroker.pubsub.subscriptions cimport OPTION_NO_LOCAL, OPTION_QOS, OPTION_RETAIN_AS_PUBLISHED, OPTION_RETAIN_HANDLING, Subscription
from shardbroker.session.session cimport Session
from shardbroker.worker.admission cimport is_own
from shardbroker.worker.authorization cimport client_of
from shardbroker.worker.channel cimport Channel
from shardbroker.worker.packets.publish cimport publish_decided, publish_refused
from shardbroker.worker.router cimport Router
from shm.counters cimport MESSAGES_DROPPED, MESSAGES_DROPPED_HOOK

from shardbroker.access.contract import Answer, Client, IGNORE, Outcome, deny
from shardbroker.access.wire import Kind, Status
from shardbroker.hooks import contract, properties
from shardbroker.hooks.plugins import Plugins
from shardbroker.hooks.registry import Registry
from shardbroker.logs.phrases import log_line
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import encode_properties
from shardbroker.mqtt.spec import REASON_CODES, PacketType, PropertyId
from shardbroker.mqtt.topics import check_topic_filter, check_topic_name, parse_subscription

__all__ = ["HookDispatcher"]

cdef enum:                                 # what query_publish() returns
    GO_ON = 0
    WAITING = 1
    REFUSED = 2

cdef uint64_t NEVER = <uint64_t>-1
cdef uint64_t EXPIRY_NEVER = 0xFFFFFFFF    # Session Expiry Interval, MQTT 5.0 §3.1.2.11.2

REASON_MAX = 200
"""Bytes of the reason of a Refusal."""
TEXT_MAX = 65535
"""Bytes of a topic, MQTT 5.0 §1.5.4."""
YOUNG = (200, 10, 1 << 30)
"""Thresholds of the garbage collector while there are callbacks: young objects are looked at, for cycles that callbacks leave behind;
never all of them, since a million sessions would stop the loop."""


cdef class HookDispatcher:
    """The hooks of one worker. `log`: gets (level, text) for the log."""
    cdef Router router
    cdef readonly object registry          # shardbroker.hooks.registry.Registry
    cdef readonly object plugins           # shardbroker.hooks.plugins.Plugins
    cdef public object exhook              # shardbroker.hooks.exhook.ExHook: hook programs outside the broker; None: none configured
    cdef public object event_feed          # shardbroker.worker.event_feed.EventFeed: events for rules
    cdef list waiting                      # channels whose message waits for room in a ring
    cdef dict undecided                    # (session, packet id) -> HookRequest about its QoS 2 message

    def __init__(self, Router router not None, int worker, log) -> None:
        self.router = router
        router.hooked = self
        self.waiting = []
        self.undecided = {}
        self.registry = Registry(log, self.on_change)
        self.plugins = Plugins(self.registry, worker, log)

    def on_change(self, uint32_t mask) -> None:
        """Applies a new mask of the points with callbacks."""
        self.router.hooks = mask
        if mask:
            gc.set_threshold(*YOUNG)
            gc.enable()
        else:
            gc.disable()

    def now_ms(self) -> int:
        """Returns Unix ms by the clock of the worker, which message ids and the times of connections have, too."""
        return self.router.now_ms

    def journal_event(self, bytes event not None, bytes client_id not None, uint64_t at_ms, bytes columns not None) -> None:
        """Writes an event for rules. Nothing is written where sessions end with the process."""
        if self.router.recorder is not None:
            (<object>self.router.recorder).event(event, client_id, at_ms, columns)

    # --- clients --------------------------------------------------------------------------------------------------------------

    def connect(self, Channel channel, Connect packet) -> object:
        """Runs client.connect. Returns None, or a Refusal."""
        before = properties.named(packet.properties)
        result = self.registry.fold(
            "client.connect", before, connect_checked, known_client(channel),
            contract.Connection(packet.keepalive_s, bool(packet.clean_start), before.get("session_expiry_interval", 0), 0),
            failed=contract.Refusal(SERVER_UNAVAILABLE))
        if isinstance(result, contract.Refusal):
            return result
        if result != before:
            packet.properties = properties.numbered(result, properties.CONNECT)
        return None

    def authenticate(self, object client) -> object:
        """Runs client.authenticate. Returns an Answer, or PENDING."""
        return self.registry.fold("client.authenticate", IGNORE, answer_checked, client, failed=deny(SERVER_UNAVAILABLE))

    def authorize(self, object client, object request) -> object:
        """Runs client.authorize. Returns True, False, PENDING, or None if no callback decides."""
        return self.registry.fold("client.authorize", None, allowed_checked, client, request, failed=False)

    def connack(self, Channel channel, int reason_code, dict given) -> dict:
        """Runs client.connack. Returns the properties to be sent."""
        before = properties.named(given)
        result = self.registry.fold("client.connack", before, connack_checked, known_client(channel), reason_code)
        if result == before:
            return given
        changed = properties.numbered(result, properties.CONNACK)
        if channel.max_packet and <uint32_t>len(properties.CONNACK(changed).encode(5)) > channel.max_packet:
            return given                   # the client takes no packet of that size
        return changed

    def connected(self, Channel channel) -> None:
        self.registry.fire("client.connected", known_client(channel), connection_of(channel))

    def disconnected(self, Channel channel, int reason_code) -> None:
        self.registry.fire("client.disconnected", known_client(channel), reason_code, connection_of(channel))

    def subscribe(self, Channel channel, Subscribe packet) -> list:
        """Runs client.subscribe. Returns the topics to be subscribed, with options."""
        cdef tuple before = tuple([subscription_from(topic, options) for topic, options in packet.topics])
        result = self.registry.fold(
            "client.subscribe", before, lambda given: subscriptions_checked(given, len(before)), known_client(channel),
            properties.named(packet.properties))
        if result == before:
            return packet.topics
        return [
            (one.topic.encode(), one.qos | one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4) for one in result
        ]

    def unsubscribe(self, Channel channel, Unsubscribe packet) -> list:
        """Runs client.unsubscribe. Returns the filters to be unsubscribed."""
        cdef tuple before = tuple([filter.decode(errors="replace") for filter in packet.filters])
        result = self.registry.fold(
            "client.unsubscribe", before, lambda given: filters_checked(given, len(before)), known_client(channel),
            properties.named(packet.properties))
        return packet.filters if result == before else [filter.encode() for filter in result]

    def ping(self, Channel channel) -> None:
        self.registry.fire("client.ping", known_client(channel), connection_of(channel))

    def login_decided(self, Channel channel, int reason_code, bint is_superuser, bint is_anonymous) -> None:
        self.registry.fire("client.check_authn_complete", known_client(channel), reason_code, bool(is_superuser), bool(is_anonymous))

    def action_decided(self, object client, object request, bint allowed, str source) -> None:
        self.registry.fire("client.check_authz_complete", client, request, bool(allowed), source)

    # --- sessions -------------------------------------------------------------------------------------------------------------

    def session(self, str point, Session session, Channel channel) -> None:
        """Runs session.created, session.resumed, session.discarded or session.takenover."""
        self.registry.fire(point, client_of(channel, session.client_id, None), session_of(session))

    def terminated(self, Session session, str reason) -> None:
        self.registry.fire("session.terminated", owner_of(session), reason, session_of(session))

    def subscribed(self, Session session, Subscription subscription) -> None:
        self.registry.fire(
            "session.subscribed", owner_of(session), subscription_from(subscription.wire_filter, subscription.qos | subscription.flags))

    def unsubscribed(self, Session session, bytes wire_filter) -> None:
        self.registry.fire("session.unsubscribed", owner_of(session), wire_filter.decode())

    # --- messages -------------------------------------------------------------------------------------------------------------

    def publish(self, Publication publication) -> Message:
        """Runs message.publish. Returns the message to be published; None: dropped."""
        if self.exhook is not None:
            self.exhook.reached = False
        before = self.shown(publication)
        if is_own(publication.topic, publication.topic_size):
            return publication.keep()
        result = self.registry.fold("message.publish", before, self.message_checked)
        if result.dropped:
            self.drop(publication)
            return None
        return publication.keep() if result == before else self.remade(publication, before, result)

    def drop(self, Publication publication) -> None:
        """Drops a message by decision of a hook."""
        self.router.count(MESSAGES_DROPPED)
        self.router.count(MESSAGES_DROPPED_HOOK)
        self.message_dropped(publication, "hook")

    cdef object shown(self, Publication publication):
        """Returns a message for callbacks, with its remaining Message Expiry Interval."""
        shown = message_of(publication)
        if publication.expires_ms:
            left_ms = publication.expires_ms - self.router.now_ms if publication.expires_ms > self.router.now_ms else 0
            left_s = (left_ms + 999) // 1000
            shown = shown.replace(properties=contract.Properties(shown.properties | {"message_expiry_interval": left_s}))
        return shown

    cdef Message remade(self, Publication publication, object before, object result):
        """Returns `before` with the changes of a callback."""
        cdef bytes topic, payload, encoded
        left_s = before.properties.get("message_expiry_interval")
        topic, payload = result.topic.encode(), result.payload
        known = properties.numbered(result.properties, properties.PUBLISH)
        expiry_s = known.pop(PropertyId.MESSAGE_EXPIRY_INTERVAL, None)
        expires_ms = publication.expires_ms if expiry_s == left_s else 0 if expiry_s is None else self.router.now_ms + expiry_s * 1000
        encoded = encode_properties(known)
        identifier = publication.id_high.to_bytes(8, "big") + publication.id_low.to_bytes(8, "big")
        return make_message(
            topic, payload, encoded, publication.client_id, identifier, expires_ms, result.qos, result.retain,
            known.get(PropertyId.PAYLOAD_FORMAT_INDICATOR, 0), 0)

    def publish_message(self, Message message, uint64_t at_ms) -> Message:
        """Runs message.publish for a message of the broker itself. Returns None also if it is published later, after hook programs decide."""
        message = self.publish(borrowed(message))
        return None if message is None or self.query_publish(None, message, message.qos, 0, at_ms) != GO_ON else message

    def query_publish(self, Channel channel, Message message, int qos, int packet_id, uint64_t at_ms) -> int:
        """WAITING: hook programs decide about a message, which then continues by itself. REFUSED: they are not available,
        so it is dropped. `channel`: of the publisher; None: the broker itself."""
        cdef HookRequest request
        cdef Publication publication
        if self.exhook is None or not self.exhook.reached:
            return GO_ON
        publication = borrowed(message)
        shown = self.shown(publication)
        if not self.exhook.wants("message.publish", shown.topic):
            return GO_ON
        request = HookRequest.__new__(HookRequest)
        request.hooked, request.channel, request.message = self, channel, message
        request.session = None if channel is None else channel.session
        request.qos, request.packet_id, request.at_ms = qos, packet_id, at_ms
        client = Client(shown.client_id) if channel is None else known_client(channel)
        if self.exhook.query(Kind.HOOK_PUBLISH, request, client, shown):
            if channel is not None and qos == 2:
                self.undecided[channel.session, packet_id] = request
            return WAITING
        if not self.exhook.refuses("message.publish", shown.topic):
            return GO_ON
        self.drop(publication)
        return REFUSED

    def is_undecided(self, Channel channel, int packet_id) -> bool:
        """Returns whether a request to hook programs is pending for this QoS 2 message, sent on an earlier connection of the client. Its
        result then goes to this connection: until then the message is in memory only."""
        cdef HookRequest request = self.undecided.get((channel.session, packet_id))
        if request is None:
            return False
        request.channel = channel
        return True

    def outcome_of(self, Message message, result) -> tuple:
        """Returns (whether the message is refused, the message to be published) for a result of hook programs."""
        cdef Publication publication = borrowed(message)
        before = self.shown(publication)
        if result.status == Status.DENY:
            self.drop(publication)
            return False, None
        if result.status == Status.OK and not result.details:
            return False, message
        if result.status == Status.OK:
            try:
                topic, payload, qos = result.details
                changed = self.message_checked(before.replace(topic=topic, payload=payload, qos=qos))
                return False, self.remade(publication, before, changed)
            except (MqttError, TypeError, ValueError) as error:
                self.exhook.complain(log_line("exhook result rejected", point="message.publish", topic=before.topic, reason=error))
        if not self.exhook.refuses("message.publish", before.topic):
            return False, message
        self.drop(publication)
        return True, None

    cdef int publish_later(self, Message message, uint64_t at_ms) except -1:
        """Defers a message while a ring is full, or until its due time."""
        if at_ms:
            return self.router.retries.delay(borrowed(message), at_ms)
        self.router.publish_in_order(message, self.router.sessions.get(message.client_id), 0)
        return 0

    def wait(self, Channel channel) -> None:
        """What it has published waits for room in a ring: it is not read before that has gone."""
        self.waiting.append(channel)
        channel.suspend_reading()

    def go_on(self) -> None:
        """Nothing waits for room any more."""
        cdef Channel channel
        waiting, self.waiting = self.waiting, []
        for channel in waiting:
            channel.resume_reading()

    def message_checked(self, result) -> object:
        """A Message that may be published. Raises what says why it may not."""
        if not isinstance(result, contract.Message):
            raise TypeError(f"result: must be a Message, got {type(result).__name__}")
        cdef bytes topic = result.topic.encode()
        if is_own(<const uint8_t*>PyBytes_AS_STRING(topic), <uint32_t>PyBytes_GET_SIZE(topic)):
            raise ValueError(f"topic: must not be below $SYS/ or $event/, got {result.topic!r}")
        if len(topic) > TEXT_MAX:
            raise ValueError(f"topic: must be at most {TEXT_MAX} bytes, got {len(topic)}")
        check_topic_name(topic, self.router.max_topic_levels)
        if not isinstance(result.payload, bytes):
            raise TypeError(f"payload: must be bytes, got {type(result.payload).__name__}")
        if len(topic) + len(result.payload) > self.router.max_packet_size:
            raise ValueError(f"topic and payload: must be at most {self.router.max_packet_size} bytes (mqtt.max_packet_size), got {len(topic) + len(result.payload)}")
        if type(result.qos) is not int or not 0 <= result.qos <= self.router.max_qos:
            raise ValueError(f"qos: must be at most {self.router.max_qos} (mqtt.max_qos_allowed), got {result.qos!r}")
        if type(result.retain) is not bool or (result.retain and not self.router.retain_available):
            raise ValueError(f"retain: not allowed (mqtt.retain_available), got {result.retain!r}")
        properties.numbered(result.properties, properties.PUBLISH)
        return result

    def delivered(self, Channel channel, Publication publication, int qos, bint retain) -> None:
        message = message_of(publication).replace(qos=qos, retain=bool(retain))
        self.registry.fire("message.delivered", known_client(channel), message)

    def acked(self, Session session, Message message) -> None:
        self.registry.fire("message.acked", owner_of(session), message_of(borrowed(message)))

    def message_dropped(self, Publication publication, str reason) -> None:
        if self.router.hooks & HOOK_MESSAGE_DROPPED:
            self.registry.fire("message.dropped", message_of(publication), reason)

    def delivery_dropped(self, object whom, object what, str reason) -> None:
        """`whom`: a Session or a Channel; `what`: a Publication or a Message."""
        cdef Publication publication = borrowed(<Message>what) if isinstance(what, Message) else what
        client = owner_of(<Session>whom) if isinstance(whom, Session) else known_client(<Channel>whom)
        self.registry.fire("delivery.dropped", client, message_of(publication), reason)


cdef class HookRequest:
    """A message that hook programs decide about. Its publisher is not read until then."""
    cdef HookDispatcher hooked
    cdef Channel channel                   # None: the broker itself publishes it
    cdef Session session                   # of the channel, which loses it when it is closed
    cdef Message message
    cdef int qos
    cdef int packet_id
    cdef uint64_t at_ms                    # when it is to be published; 0: at once

    def on_result(self, result) -> None:
        """Continues with the result from integrations; after a timeout, its status is FAILED. The message is published even if its
        publisher has disconnected."""
        cdef Channel channel = self.channel
        cdef HookDispatcher hooked = self.hooked
        if self.qos == 2:
            hooked.undecided.pop((self.session, self.packet_id), None)
        try:
            refused, message = hooked.outcome_of(self.message, result)
            if channel is None:
                if message is not None:
                    hooked.publish_later(message, self.at_ms)
                return
            if refused:
                publish_refused(channel, self.session, self.qos, self.packet_id)
            elif not publish_decided(channel, self.session, message, self.qos, self.packet_id, self.at_ms):
                hooked.waiting.append(channel)
                return
            if not channel.closed:
                channel.resume_reading()
        except Exception as error:
            if channel is None or channel.closed:
                hooked.exhook.complain(log_line("exhook internal error", point="message.publish", reason=repr(error)))
            else:
                channel.broken(error)


# --- what callbacks get -------------------------------------------------------------------------------------------------------------


cdef object known_client(Channel channel):
    """Of a connection, once its CONNECT was read."""
    return client_of(channel, (channel.wanted_id or b"") if channel.session is None else channel.session.client_id, None)


cdef object owner_of(Session session):
    """Of a session; with its client id alone, if it is not connected."""
    if isinstance(session.link, Channel):
        return client_of(<Channel>session.link, session.client_id, None)
    return Client(session.client_id.decode())


cdef uint64_t seconds(uint64_t expiry_ms) noexcept:
    return EXPIRY_NEVER if expiry_ms == NEVER else expiry_ms // 1000


cdef object connection_of(Channel channel):
    return contract.Connection(
        channel.keepalive_s, bool(channel.clean_start), 0 if channel.session is None else seconds(channel.session.expiry_ms),
        channel.connected_ms)


cdef object session_of(Session session):
    return contract.SessionInfo(
        session.client_id.decode(), session.created_ms, seconds(session.expiry_ms), session.subscription_count(), session.inflight,
        0 if session.queue is None else session.queue.count)


cdef Publication borrowed(Message message):
    cdef Publication publication = Publication.__new__(Publication)
    publication.borrow(message)
    return publication


cdef object message_of(Publication publication):
    identifier = publication.id_high.to_bytes(8, "big") + publication.id_low.to_bytes(8, "big") if publication.id_high else b""
    return contract.Message(
        PyBytes_FromStringAndSize(<const char*>publication.topic, publication.topic_size).decode(),
        PyBytes_FromStringAndSize(<const char*>publication.payload, publication.payload_size), publication.qos, bool(publication.retain),
        properties_of(publication), (publication.client_id or b"").decode(), identifier.hex().upper())


cdef object properties_of(Publication publication):
    """Of a message: those that are passed on."""
    cdef uint32_t size = publication.properties_size
    cdef bytearray body
    cdef uint8_t length[4]
    cdef uint8_t* end
    if not size:
        return contract.Properties()
    end = write_varint(length, size)
    body = bytearray(b"\x00\x01t")                             # a PUBLISH to some topic: the codec knows how to read it
    body += PyBytes_FromStringAndSize(<const char*>length, end - length)
    body += PyBytes_FromStringAndSize(<const char*>publication.properties, size)
    packet = decode_body(<uint8_t>PUBLISH_FIRST, <const uint8_t*>PyBytes_AS_STRING(bytes(body)), <uint32_t>len(body), 5)
    return properties.named(packet.properties)


cdef object subscription_from(bytes topic, int options):
    return contract.Subscription(
        topic.decode(errors="replace"), options & OPTION_QOS, options & OPTION_NO_LOCAL != 0, options & OPTION_RETAIN_AS_PUBLISHED != 0,
        (options & OPTION_RETAIN_HANDLING) >> 4)


# --- what callbacks return ----------------------------------------------------------------------------------------------------------


def connect_checked(result) -> object:
    if not isinstance(result, contract.Refusal):
        properties.numbered(result, properties.CONNECT)
    else:
        code_checked(result.reason_code)
        if not isinstance(result.reason, str) or len(result.reason.encode()) > REASON_MAX:
            raise ValueError(f"Refusal: reason must be text of up to {REASON_MAX} bytes")
    return result


def code_checked(code) -> None:
    if type(code) is not int or code < FAILURE or PacketType.CONNACK not in REASON_CODES.get(code, ("", ()))[1]:
        raise ValueError(f"reason_code: must be a failure code of CONNACK, got {code!r}")


def connack_checked(result) -> object:
    properties.numbered(result, properties.CONNACK)
    return result


def answer_checked(result) -> object:
    if result is contract.PENDING:
        return result
    if not isinstance(result, Answer):
        raise TypeError(f"result: must be allow(...), deny(...) or IGNORE, got {type(result).__name__}")
    if result.outcome is Outcome.DENY:
        code_checked(result.reason_code)
    if result.expires_at is not None and not isinstance(result.expires_at, (int, float)):
        raise TypeError(f"expires_at: must be Unix seconds, got {type(result.expires_at).__name__}")
    return result


def allowed_checked(result) -> object:
    if result is not None and result is not contract.PENDING and not isinstance(result, bool):
        raise TypeError(f"result: must be True, False or None, got {type(result).__name__}")
    return result


def subscriptions_checked(result, int many) -> tuple:
    if not isinstance(result, (list, tuple)) or len(result) != many or not all([isinstance(one, contract.Subscription) for one in result]):
        raise ValueError(f"result: must be {many} Subscription")
    for one in result:
        filter_checked(one.topic)
        if one.qos not in (0, 1, 2) or one.retain_handling not in (0, 1, 2):
            raise ValueError(f"subscription {one.topic!r}: qos and retain_handling must be 0, 1 or 2, got {one.qos!r} and {one.retain_handling!r}")
        if type(one.no_local) is not bool or type(one.retain_as_published) is not bool:
            raise ValueError(f"subscription {one.topic!r}: no_local and retain_as_published must be True or False")
    return tuple(result)


def filters_checked(result, int many) -> tuple:
    if not isinstance(result, (list, tuple)) or len(result) != many:
        raise ValueError(f"result: must be {many} filters")
    for one in result:
        filter_checked(one)
    return tuple(result)


def filter_checked(str filter not None) -> None:
    encoded = filter.encode()
    if len(encoded) > TEXT_MAX:
        raise ValueError(f"filter: must be at most {TEXT_MAX} bytes, got {len(encoded)}")
    try:
        check_topic_filter(parse_subscription(encoded)[1], TEXT_MAX)
    except MqttError as error:
        raise ValueError(f"filter {filter!r}: {error}") from None
