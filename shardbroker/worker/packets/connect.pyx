"""CONNECT, AUTH and DISCONNECT; see connect.pxd."""

from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t

from shardbroker.hooks.masks cimport (
    HOOK_CLIENT_AUTHENTICATE, HOOK_CLIENT_AUTHORIZE, HOOK_CLIENT_CHECK_AUTHN_COMPLETE, HOOK_CLIENT_CONNACK, HOOK_CLIENT_CONNECT,
    HOOK_CLIENT_CONNECTED,
)
from shardbroker.mqtt.packets cimport Will as WillPacket
from shardbroker.mqtt.spec cimport (
    BAD_AUTHENTICATION_METHOD, BAD_USER_NAME_OR_PASSWORD, CLIENT_IDENTIFIER_NOT_VALID, CONNACK_FIRST, NOT_AUTHORIZED,
    PACKET_TOO_LARGE, QOS_NOT_SUPPORTED, QUOTA_EXCEEDED, RETAIN_NOT_SUPPORTED, SERVER_UNAVAILABLE, SUCCESS,
    USE_ANOTHER_SERVER,
)
from shardbroker.pubsub.message cimport make_message
from shardbroker.session.context cimport NOTIFY_CONNECTED, WorkerContext
from shardbroker.session.session cimport Session, Will
from shardbroker.worker.channel cimport CONNECTED, SIDE_CLIENT, WAIT_CONNECT
from shardbroker.worker.memory cimport REFUSE
from shardbroker.worker.packets.subscribe cimport auto_subscribe
from shm.address cimport address_text
from shm.counters cimport (
    AUTHENTICATION_FAILURE, AUTHENTICATION_SUCCESS_ANONYMOUS, CLIENT_CLOSED_OVERLOAD, CLIENT_CONNECTED, CONNECTIONS_COUNT,
    PACKETS_AUTH_RECEIVED, PACKETS_CONNACK_SENT, PACKETS_CONNECT_RECEIVED, PACKETS_DISCONNECT_RECEIVED,
)
from shm.events cimport EVENT_CONNECTED

from shardbroker.mqtt.errors import MqttError, ProtocolError
from shardbroker.mqtt.packets import Connack, encode_properties
from shardbroker.mqtt.spec import PropertyId
from shardbroker.mqtt.topics import check_topic_name
from shardbroker.worker.channel import EVACUATED, SHORT_OF_MEMORY
from shardbroker.worker.features import event_messages

cdef uint64_t NEVER = <uint64_t>-1
cdef uint32_t EXPIRY_NEVER = 0xFFFFFFFF    # Session Expiry Interval, MQTT 5.0 §3.1.2.11.2
cdef bytes NO_ID = bytes(16)
cdef tuple OWN_PREFIXES = (b"$rule:", b"$source:", b"$bridge:")      # publishers of the broker itself: a rule passes over its own messages

PACKET_MAX = 5 + 0xFFFFFFF
"""Longest packet that MQTT allows, bytes: type, four bytes of length, and the largest length they can encode (MQTT 5.0 §1.5.5). The packet
sent for a message may be longer than the one received: an alias is replaced by its topic, a mount point is added."""


# --- CONNECT: checks that need nothing but the packet and the listener -------------------------------------------------------------


cdef int on_connect(Channel channel, Connect packet) except -1:
    cdef WorkerContext context = channel.context
    cdef dict facts = channel.listener_facts()
    cdef bytes client_id
    if channel.state != WAIT_CONNECT:
        raise ProtocolError("second CONNECT on one connection", "MQTT-3.1.0-2")
    context.count(PACKETS_CONNECT_RECEIVED)
    channel.version = packet.version
    client_id = packet.client_id if facts is None else facts.get("client_id", packet.client_id)
    if not take_identity(channel, packet, client_id, facts):
        return 0
    if channel.router.redirect is not None:
        return channel.refuse(channel.version, USE_ANOTHER_SERVER, EVACUATED)
    if context.hooks & HOOK_CLIENT_CONNECT:
        refusal = context.hooked.connect(channel, packet)
        if refusal is not None:
            return channel.refuse(channel.version, refusal.reason_code, refusal.reason, "refused by a hook")
    properties = packet.properties or {}
    properties.pop(PropertyId.USER_PROPERTY, None)     # only hooks read them: they need not be kept until authentication is done
    channel.max_packet = min(properties.get(PropertyId.MAXIMUM_PACKET_SIZE, PACKET_MAX), PACKET_MAX)
    if PropertyId.AUTHENTICATION_METHOD in properties and channel.router.access_gate is None:
        return channel.refuse(5, BAD_AUTHENTICATION_METHOD, "no such authentication method")     # [MQTT-4.12.0-1]
    client_id = usable_client_id(channel, packet, client_id)
    # Memory is checked before anything is kept for the client while integrations is queried.
    if client_id is None or is_one_too_many(channel, client_id):
        return 0
    if packet.will is not None and not is_will_supported(channel, packet.will):
        return 0
    if needs_access(channel, properties, facts):
        channel.access = channel.router.access_type(channel, client_id, packet.password)
        channel.access.login = channel.router.login_type(channel.access, packet)
        channel.access.login.start()
        return 0
    context.count(AUTHENTICATION_SUCCESS_ANONYMOUS)
    if context.hooks & HOOK_CLIENT_CHECK_AUTHN_COMPLETE:
        context.hooked.login_decided(channel, SUCCESS, False, True)
    username = channel.username
    return accept(channel, packet, client_id) if channel.mount(None if username is None else username.decode()) else 0


cdef bint take_identity(Channel channel, Connect packet, bytes client_id, dict facts) except -1:
    """Sets client id and user name, which the client certificate may determine. False: its certificate lacks them, and it is refused."""
    cdef bint named = bool(packet.username)
    if facts is not None:
        packet.username = facts.get("username", packet.username)
    channel.wanted_id = client_id or channel.wanted_id
    # With an authentication method the user name is not known before the exchange has ended.
    channel.username = None if PropertyId.AUTHENTICATION_METHOD in (packet.properties or {}) else packet.username
    if facts is None or (facts.get("username") != b"" and facts.get("client_id") != b""):
        return True
    channel.context.count(AUTHENTICATION_FAILURE)
    channel.refuse(
        channel.version, BAD_USER_NAME_OR_PASSWORD if named else NOT_AUTHORIZED, "not authorized",
        "client certificate missing or without the required name")
    return False


cdef bytes usable_client_id(Channel channel, Connect packet, bytes client_id):
    """Returns the given client id, the assigned one for an empty one, or None if the client is refused."""
    if not client_id:
        if channel.version < 5 and not packet.clean_start:
            # [MQTT-3.1.3-8]
            channel.refuse(channel.version, CLIENT_IDENTIFIER_NOT_VALID, "empty client id requires a clean session")
            return None
        return channel.wanted_id
    if client_id.startswith(OWN_PREFIXES):
        channel.refuse(
            channel.version, CLIENT_IDENTIFIER_NOT_VALID, "client ids that begin with $rule:, $source: or $bridge: are those of rules, sources and bridges")
        return None
    if <uint32_t>PyBytes_GET_SIZE(client_id) > channel.context.max_client_id:
        channel.refuse(
            channel.version, CLIENT_IDENTIFIER_NOT_VALID,
            f"client id exceeds mqtt.max_clientid_len ({channel.context.max_client_id})")
        return None
    return client_id


cdef bint is_one_too_many(Channel channel, bytes client_id) except -1:
    """Whether a client is refused while memory is short. A client with a session is accepted: it empties its queue."""
    if channel.context.memory_level < REFUSE or client_id in channel.router.sessions:
        return False
    channel.context.count(CLIENT_CLOSED_OVERLOAD)
    channel.refuse(channel.version, QUOTA_EXCEEDED, SHORT_OF_MEMORY)
    return True


cdef bint is_will_supported(Channel channel, WillPacket will) except -1:
    """Whether QoS, RETAIN and topic of a will are valid here. False: the client is refused. Raises MqttError for an invalid topic."""
    cdef uint64_t at_ms
    if will.qos > channel.context.max_qos:
        channel.refuse(                    # [MQTT-3.2.2-12]
            channel.version, QOS_NOT_SUPPORTED, f"will QoS {will.qos} exceeds mqtt.max_qos_allowed ({channel.context.max_qos})")
        return False
    if will.retain and not channel.context.retain_available:
        channel.refuse(                    # [MQTT-3.2.2-13]
            channel.version, RETAIN_NOT_SUPPORTED, "retained will not allowed: mqtt.retain_available is false")
        return False
    check_topic_name(will.topic, channel.context.max_topic_levels)
    channel.router.admission.take_delay(will.topic, &at_ms)
    return True


cdef bint needs_access(Channel channel, dict properties, dict facts) except -1:
    """Whether bans, authenticators, rules or hooks decide about this client."""
    return channel.router.access_gate is not None and not (
        channel.router.access_gate.idle and PropertyId.AUTHENTICATION_METHOD not in properties
        and not channel.context.hooks & (HOOK_CLIENT_AUTHENTICATE | HOOK_CLIENT_AUTHORIZE)
        and (facts is None or "authn" not in facts))


# --- from the decision to CONNACK ----------------------------------------------------------------------------------------------------


cdef int accept(Channel channel, Connect packet, bytes client_id) except -1:
    if channel.router.claims is None:
        return admit(channel, packet, client_id)
    # Before anything is kept for the client, and once more when its session is there.
    return 0 if is_one_too_many(channel, client_id) else channel.router.claims.connect(channel, packet, client_id)


cdef int admit(Channel channel, Connect packet, bytes client_id) except -1:
    cdef WorkerContext context = channel.context
    cdef dict properties = packet.properties or {}
    cdef dict answer = None
    cdef bint present = False
    cdef uint64_t expiry_ms = session_expiry_ms(channel, packet, properties)
    cdef Will will = None
    if packet.will is not None and channel.mounted and not mount_will(channel, packet.will):
        return 0
    if is_one_too_many(channel, client_id):
        return 0
    if packet.will is not None:
        will = admitted_will(channel, packet.will, client_id)
        if will is None:
            return 0
    if context.disk_full and (expiry_ms or packet.will is not None or client_id in channel.router.sessions):
        return channel.refuse(
            channel.version, SERVER_UNAVAILABLE, "disk refuses writes and durability.max_pending_bytes is reached")
    if channel.version == 5:
        answer = connack_properties(channel, packet, properties, client_id, expiry_ms)
        if <uint32_t>len(Connack(False, SUCCESS, answer).encode(5)) > channel.max_packet:
            return channel.refuse(5, PACKET_TOO_LARGE, "CONNACK exceeds the client's Maximum Packet Size")   # [MQTT-3.1.2-24]
    take_limits(channel, packet, properties)
    channel.session = channel.router.open_session(channel, client_id, packet.clean_start, expiry_ms, &present)
    channel.state = CONNECTED
    channel.connected_ms = context.now_ms
    if will is not None:
        will.origin = origin_of_will(channel)
        channel.session.will = will
    if context.recorder is not None:
        record_opened(channel, present, expiry_ms)
    send_connack(channel, present, answer)
    context.count(CLIENT_CONNECTED)
    context.gauge(CONNECTIONS_COUNT, 1)
    channel.last_packet_ms = context.now_ms
    channel.arm_deadline()
    channel.send_event(EVENT_CONNECTED, SUCCESS, SIDE_CLIENT, "")
    if context.notifications & NOTIFY_CONNECTED:
        channel.publish_event(NOTIFY_CONNECTED, event_messages.connected(
            channel.version, channel.keepalive_s, channel.clean_start, min(expiry_ms // 1000, <uint64_t>EXPIRY_NEVER),
            channel.connected_ms))
    if context.hooks & HOOK_CLIENT_CONNECTED:
        context.hooked.connected(channel)
    channel.session.attach(channel)
    if channel.session.replaying:
        channel.router.journal_replays.start(channel.session)
    if channel.session.fetching:
        channel.router.lookups.resume(channel.session)
    return auto_subscribe(channel) if channel.state == CONNECTED and has_own_subscriptions(channel) else 0


cdef bint has_own_subscriptions(Channel channel) except -1:
    """Whether the broker makes subscriptions for this client."""
    return channel.router.auto_topics is not None or (channel.access is not None and channel.access.subscriptions is not None)


cdef uint64_t session_expiry_ms(Channel channel, Connect packet, dict properties) except? 1:
    """Returns the expiry granted to a session; 3.x has none of its own, so the setting applies to sessions that are not clean."""
    cdef WorkerContext context = channel.context
    if channel.version == 5:
        return granted_expiry_ms(context, properties.get(PropertyId.SESSION_EXPIRY_INTERVAL, 0))
    if packet.clean_start:
        return 0
    if context.max_session_expiry_ms and context.session_expiry_ms > context.max_session_expiry_ms:
        return context.max_session_expiry_ms
    return context.session_expiry_ms


cdef uint64_t granted_expiry_ms(WorkerContext context, uint32_t seconds) noexcept:
    """Returns a Session Expiry Interval of CONNECT or DISCONNECT in ms, at most mqtt.max_session_expiry_interval."""
    cdef uint64_t expiry_ms = NEVER if seconds == EXPIRY_NEVER else <uint64_t>seconds * 1000
    cdef uint64_t longest_ms = context.max_session_expiry_ms
    return longest_ms if longest_ms and expiry_ms > longest_ms else expiry_ms


cdef int take_limits(Channel channel, Connect packet, dict properties) except -1:
    channel.receive_maximum = properties.get(PropertyId.RECEIVE_MAXIMUM, 65535)
    channel.alias_maximum = properties.get(PropertyId.TOPIC_ALIAS_MAXIMUM, 0)
    channel.problem_information = properties.get(PropertyId.REQUEST_PROBLEM_INFORMATION, 1) != 0
    channel.keepalive_s = channel.context.server_keepalive_s or packet.keepalive_s
    channel.clean_start = packet.clean_start
    return 0


cdef int send_connack(Channel channel, bint present, dict answer) except -1:
    cdef bytes encoded
    if channel.context.hooks & HOOK_CLIENT_CONNACK:
        changed = channel.context.hooked.connack(channel, SUCCESS, {} if answer is None else answer)
        answer = None if answer is None else changed
    if channel.version == 5:
        encoded = Connack(present, SUCCESS, answer).encode(5)
    else:
        encoded = bytes((CONNACK_FIRST, 2, present and channel.version > 3, 0))
    return channel.reply(PACKETS_CONNACK_SENT, encoded)


cdef int record_opened(Channel channel, bint present, uint64_t expiry_ms) except -1:
    """Records a session that may outlive this process in the journal; one that ends with its connection only if it has a will."""
    cdef Session session = channel.session
    cdef Will will = session.will
    session.logged = session.logged or expiry_ms > 0
    if not session.logged and not session.known and will is None:
        return 0
    channel.promised = True                # by CONNACK
    details = {1: address_text(&channel.peer).encode(), 3: channel.keepalive_s, 5: channel.receive_maximum}
    if channel.username is not None:
        details[2] = channel.username
    channel.context.recorder.opened(session, present and session.known, channel.version, expiry_ms, details)
    session.known = True
    if will is not None:
        channel.context.recorder.will_set(
            session, will.message, will.delay_s, will.expiry_s if will.has_expiry else None, will.origin)
    return 0


cdef dict connack_properties(Channel channel, Connect packet, dict properties, bytes client_id, uint64_t expiry_ms):
    """Returns the properties of CONNACK (MQTT 5.0 §3.2.2.3): all values that differ from the protocol's defaults."""
    cdef WorkerContext context = channel.context
    cdef dict answer = {PropertyId.MAXIMUM_PACKET_SIZE: context.max_packet_size}
    requested = properties.get(PropertyId.SESSION_EXPIRY_INTERVAL, 0)
    granted = EXPIRY_NEVER if expiry_ms == NEVER else expiry_ms // 1000
    if granted != requested or context.hooks & HOOK_CLIENT_CONNECT:       # a hook may have changed the requested value
        answer[PropertyId.SESSION_EXPIRY_INTERVAL] = granted
    if context.max_awaiting_rel:
        answer[PropertyId.RECEIVE_MAXIMUM] = min(context.max_awaiting_rel, 65535)
    if context.max_qos < 2:
        answer[PropertyId.MAXIMUM_QOS] = context.max_qos                       # [MQTT-3.2.2-9]
    if not context.retain_available:
        answer[PropertyId.RETAIN_AVAILABLE] = 0
    if not packet.client_id:
        answer[PropertyId.ASSIGNED_CLIENT_IDENTIFIER] = client_id              # [MQTT-3.2.2-16]
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
    if channel.access is not None:
        answer |= channel.access.login.connack_properties()
    return answer


# --- will ---------------------------------------------------------------------------------------------------------------------------


cdef bint mount_will(Channel channel, WillPacket will) except -1:
    """Moves the topic of a will below the mount point. False: it is too long there, and the client is refused."""
    try:
        will.topic = channel.mounted_topic(will.topic)
    except MqttError as error:
        channel.refuse(channel.version, error.reason_code, f"will: {error}")
        return False
    return True


cdef Will admitted_will(Channel channel, WillPacket packet, bytes client_id):
    """Returns the will of a CONNECT as a message ready to be published. None: it may not be published, and the client is refused."""
    cdef Will will = will_of(packet, client_id)
    cdef uint64_t at_ms
    try:
        channel.router.admission.admit(will.message, channel.username, &at_ms)
    except MqttError as error:
        channel.refuse(channel.version, error.reason_code, f"will: {error}")
        return None
    return will


cdef Will will_of(WillPacket packet, bytes client_id):
    cdef dict properties = dict(packet.properties or {})
    cdef Will will = Will.__new__(Will)
    will.delay_s = properties.pop(PropertyId.WILL_DELAY_INTERVAL, 0)
    will.has_expiry = PropertyId.MESSAGE_EXPIRY_INTERVAL in properties
    will.expiry_s = properties.pop(PropertyId.MESSAGE_EXPIRY_INTERVAL, 0)
    will.message = make_message(
        packet.topic, packet.payload, encode_properties(properties), client_id, NO_ID, 0, packet.qos, packet.retain,
        properties.get(PropertyId.PAYLOAD_FORMAT_INDICATOR, 0), 0)
    return will


cdef dict origin_of_will(Channel channel):
    """Returns the sender of a will, for the journal, and for the rules once the connection is closed (Authorization.of_will)."""
    cdef dict facts = channel.listener_facts() or {}
    cdef dict origin = {
        "username": None if channel.username is None else channel.username.decode(), "peer": address_text(&channel.peer),
        "listener": channel.listener_name(), "version": channel.version, "cn": facts.get("cn"), "dn": facts.get("dn"),
        "prefix": channel.topic_prefix().decode(),
    }
    if channel.access is not None:
        origin |= channel.access.rights()
    return {key: value for key, value in origin.items() if value}


# --- AUTH and DISCONNECT --------------------------------------------------------------------------------------------------------------


cdef int on_auth(Channel channel, object packet) except -1:
    channel.context.count(PACKETS_AUTH_RECEIVED)
    if channel.access is None or channel.access.login is None:
        raise ProtocolError("AUTH without an authentication method in CONNECT", "MQTT-4.12.0-7")
    channel.access.login.on_auth(packet)
    return 0


cdef int on_disconnect(Channel channel, Disconnect packet) except -1:
    cdef dict properties = packet.properties or {}
    channel.context.count(PACKETS_DISCONNECT_RECEIVED)
    if PropertyId.SESSION_EXPIRY_INTERVAL in properties and channel.session is not None:
        seconds = properties[PropertyId.SESSION_EXPIRY_INTERVAL]
        if channel.session.expiry_ms == 0 and seconds:
            raise ProtocolError("Session Expiry Interval was 0 and cannot be set in DISCONNECT", "MQTT-3.14.2-2")
        channel.session.expiry_ms = granted_expiry_ms(channel.context, seconds)
    return channel.close(packet.reason_code, SIDE_CLIENT, "", packet.reason_code != SUCCESS)
