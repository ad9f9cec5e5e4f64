"""PUBLISH of a client; see publish.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint16_t

from shardbroker.access.acl_cache cimport DENIED, UNKNOWN
from shardbroker.hooks.masks cimport HOOK_MESSAGE_PUBLISH
from shardbroker.mqtt.codec cimport PublishView, parse_publish
from shardbroker.mqtt.spec cimport (
    IMPLEMENTATION_SPECIFIC_ERROR, NOT_AUTHORIZED, NO_MATCHING_SUBSCRIBERS, PACKET_IDENTIFIER_IN_USE, PAYLOAD_FORMAT_INVALID,
    PUBACK_FIRST, PUBREC_FIRST, QOS_NOT_SUPPORTED, QUOTA_EXCEEDED, RECEIVE_MAXIMUM_EXCEEDED, RETAIN_NOT_SUPPORTED, SUCCESS,
    TOPIC_ALIAS_INVALID,
)
from shardbroker.pubsub.message cimport Publication, fill
from shardbroker.pubsub.topic_cache cimport TopicEntry
from shardbroker.session.context cimport WorkerContext
from shardbroker.session.session cimport QOS2_FULL, QOS2_IN_USE, QOS2_NEW, QOS2_REPEAT
from shardbroker.session.watcher cimport unlikely
from shardbroker.worker.admission cimport is_own, is_text
from shardbroker.worker.channel cimport SIDE_SERVER, TopicAliases
from shardbroker.worker.memory cimport REFUSE
from shardbroker.worker.router cimport Router
from shm.counters cimport (
    MESSAGES_DROPPED_RECEIVE_MAXIMUM, MESSAGES_QOS0_RECEIVED, MESSAGES_RECEIVED, PACKETS_PUBACK_SENT, PACKETS_PUBLISH_AUTH_ERROR,
    PACKETS_PUBLISH_ERROR, PACKETS_PUBLISH_RECEIVED, PACKETS_PUBREC_SENT,
)
from shm.records cimport FLAG_ANSWERED

from shardbroker.mqtt.errors import MqttError, ProtocolError
from shardbroker.mqtt.packets import Puback, Pubrec
from shardbroker.mqtt.topics import check_topic_name
from shardbroker.worker.admission import OWN_TOPICS
from shardbroker.worker.features.delayed import DELAYED

cdef enum:
    ALIAS_BYTES = 100                      # what an alias takes beside its topic
    ALIASES_BYTES_MAX = 8388608            # of one connection: all 65,535 with topics of 28 bytes
    ALIASES_BYTES_SHORT = 65536            # while memory is short

cdef enum:                                 # what HookDispatcher.query_publish() returns
    GO_ON = 0
    WAITING = 1
    REFUSED = 2


cdef bint on_publish(Channel channel, uint8_t first, const uint8_t* body, uint32_t size) except -1:
    cdef PublishView view
    cdef WorkerContext context = channel.context
    cdef Publication publication = channel.router.publication
    cdef TopicEntry entry
    cdef bytes topic                       # owns what the view points to, unless that is the packet
    cdef bint refused = False
    cdef uint64_t at_ms = 0                # when it is published; 0: at once
    parse_publish(first, body, size, channel.version, &view)
    if view.qos > context.max_qos or (view.retain and not context.retain_available):
        raise unsupported(context, &view)
    if view.topic_alias or view.topic_size == 0 or channel.mounted:
        topic = incoming_topic(channel, &view)
        view.topic = <const uint8_t*>PyBytes_AS_STRING(topic)
        view.topic_size = <uint32_t>PyBytes_GET_SIZE(topic)
    if view.topic[0] == c"$" and not take_delay(channel, &view, &at_ms):
        return True
    if channel.suback_waits and channel.router.subacks.waiting:
        channel.router.commit(True)        # its SUBSCRIBE arrived in this pass
    entry = permitted_topic(channel, &view, &refused)
    if entry is not None and entry.rewrite is not None:
        entry = rewritten(channel, entry, &view)
    if entry is None:
        return refused
    if not has_room(channel, entry, &view, at_ms):
        return False
    if channel.limited and is_over_quota(channel, &view):
        return True
    context.count(PACKETS_PUBLISH_RECEIVED)
    context.count(MESSAGES_RECEIVED)
    context.count(MESSAGES_QOS0_RECEIVED + view.qos)
    if is_refused(channel, entry, &view, at_ms):
        return True
    if view.qos == 2 and not is_new(channel, &view):
        return True
    fill(
        publication, view.topic, view.topic_size, view.properties, view.properties_size, view.payload, view.payload_size,
        channel.session.client_id, expires_ms(channel.router, &view), view.qos, view.retain, view.payload_format)
    publication.message = None
    publication.logged = 0
    channel.router.stamp(publication)
    if context.hooks & HOOK_MESSAGE_PUBLISH:
        return publish_hooked(channel, publication, &view, at_ms)
    # A client does not repeat it once its packet id is in the journal.
    publication.unrepeatable = view.qos == 2 and channel.session.logged
    if publication.unrepeatable:
        context.recorder.received(channel.session, view.packet_id, publication.id_high, publication.id_low)
    return publish(channel, entry, publication, &view, at_ms)


cdef bint publish(Channel channel, TopicEntry entry, Publication publication, PublishView* view, uint64_t at_ms) except -1:
    if unlikely(channel.context.watch):
        return publish_watched(channel, entry, publication, view, at_ms)
    return route(channel, entry, publication, view, at_ms)


cdef inline bint route(Channel channel, TopicEntry entry, Publication publication, PublishView* view, uint64_t at_ms) except -1:
    cdef bint has_subscribers = True
    if at_ms:
        channel.router.retries.delay(publication, at_ms)
    else:
        has_subscribers = channel.router.publish(entry, publication, channel.session)
    publication.message = None
    if view.qos:
        acknowledge(channel, view.qos, view.packet_id, has_subscribers)
    return True


cdef inline int acknowledge(Channel channel, int qos, uint16_t packet_id, bint has_subscribers) except -1:
    cdef uint8_t first = PUBACK_FIRST if qos == 1 else PUBREC_FIRST
    cdef uint8_t code = SUCCESS if has_subscribers else NO_MATCHING_SUBSCRIBERS
    channel.ack(first, packet_id, code, PACKETS_PUBACK_SENT if qos == 1 else PACKETS_PUBREC_SENT)
    if unlikely(channel.context.watch):
        channel.context.watcher.acked(channel, first, packet_id, code, None)
    return 0


cdef bint publish_watched(Channel channel, TopicEntry entry, Publication publication, PublishView* view, uint64_t at_ms) except -1:
    cdef bint has_span = channel.context.watcher.begins(channel, publication)
    if at_ms:
        channel.context.watcher.published(channel, view)       # it is routed when it is due
    else:
        channel.context.watcher.publishes(channel, view, publication, not entry.is_empty())
    route(channel, entry, publication, view, at_ms)
    if has_span:
        channel.context.watcher.ended()
    return True


# --- topic ----------------------------------------------------------------------------------------------------------------------


cdef object unsupported(WorkerContext context, PublishView* view):
    """Returns the error for a QoS or a RETAIN flag that CONNACK has ruled out."""
    if view.qos > context.max_qos:
        return MqttError(QOS_NOT_SUPPORTED, f"QoS {view.qos} exceeds mqtt.max_qos_allowed ({context.max_qos})", "MQTT-3.2.2-11")
    return MqttError(RETAIN_NOT_SUPPORTED, "RETAIN not allowed: mqtt.retain_available is false", "MQTT-3.2.2-14")


cdef bytes incoming_topic(Channel channel, PublishView* view):
    """Returns the topic of a PUBLISH with an alias, or of a client below a mount point, as the broker has it."""
    cdef bytes topic
    if view.topic_alias or view.topic_size == 0:
        topic = aliased_topic(channel, view)
    else:
        topic = PyBytes_FromStringAndSize(<const char*>view.topic, view.topic_size)
    return channel.mounted_topic(topic) if channel.mounted else topic


cdef bytes aliased_topic(Channel channel, PublishView* view):
    """Returns the topic behind an alias, or sets the alias (MQTT 5.0 §3.3.2.3.4)."""
    cdef bytes topic
    if view.topic_alias > channel.context.max_topic_alias:
        raise MqttError(TOPIC_ALIAS_INVALID, f"topic alias {view.topic_alias} exceeds mqtt.max_topic_alias "
                        f"({channel.context.max_topic_alias})", "MQTT-3.3.2-9")
    if view.topic_size == 0:
        topic = None if channel.aliases_in is None or not view.topic_alias else channel.aliases_in.topics.get(view.topic_alias)
        if topic is None:
            if view.topic_alias:
                raise ProtocolError(f"topic alias {view.topic_alias} was not set on this connection", "MQTT-3.3.2-7")
            raise ProtocolError("PUBLISH without a topic", "MQTT-4.7.3-1")
        return topic
    topic = PyBytes_FromStringAndSize(<const char*>view.topic, view.topic_size)
    check_topic_name(topic, channel.context.max_topic_levels)
    keep_alias(channel, view.topic_alias, topic)
    return topic


cdef int keep_alias(Channel channel, uint16_t alias, bytes topic) except -1:
    """Sets an alias. Their bytes are bounded, more tightly while memory is short: by number alone a client could fill 4 GB."""
    cdef TopicAliases aliases = channel.aliases_in
    cdef bytes before
    cdef uint32_t whole
    cdef uint32_t most = ALIASES_BYTES_SHORT if channel.context.memory_level >= REFUSE else ALIASES_BYTES_MAX
    if aliases is None:
        aliases = channel.aliases_in = TopicAliases.__new__(TopicAliases)
        aliases.topics = {}
    whole = aliases.size + <uint32_t>PyBytes_GET_SIZE(topic) + ALIAS_BYTES
    before = aliases.topics.get(alias)
    if before is not None:
        whole -= <uint32_t>PyBytes_GET_SIZE(before) + ALIAS_BYTES
    if whole > most and whole > aliases.size:
        raise MqttError(QUOTA_EXCEEDED, f"topic aliases of {whole} bytes exceed the limit of a connection ({most})")
    if channel.context.memory_level:
        channel.context.queued_by(channel.session.client_id, <uint64_t>PyBytes_GET_SIZE(topic) + ALIAS_BYTES)
    aliases.topics[alias] = topic
    aliases.size = whole
    return 0


cdef bint take_delay(Channel channel, PublishView* view, uint64_t* at_ms) except -1:
    """Splits `$delayed/<seconds>/<topic>` into its time and, in the view, the topic alone. False: it was refused."""
    cdef bytes topic = PyBytes_FromStringAndSize(<const char*>view.topic, view.topic_size), real
    if not topic.startswith(DELAYED):
        return True
    try:
        real = channel.router.admission.take_delay(topic, at_ms)
    except MqttError as error:
        channel.context.count(PACKETS_PUBLISH_RECEIVED)
        reject(channel, view, error.reason_code, str(error))
        return False
    view.topic += view.topic_size - <uint32_t>PyBytes_GET_SIZE(real)
    view.topic_size = <uint32_t>PyBytes_GET_SIZE(real)
    return True


cdef TopicEntry permitted_topic(Channel channel, PublishView* view, bint* refused):
    """Returns the cache entry of a topic that the client may publish to. None: denied and answered (`refused`), or not known yet."""
    cdef Router router = channel.router
    cdef TopicEntry entry = router.resolver.cached(view.topic, view.topic_size)
    if entry is None:
        return looked_up(channel, view, refused)
    if channel.acl_cache is not None and not channel.acl_cache.passes(
            entry.serial, view.qos | view.retain << 2, channel.context.now_ms, router.access_generation) \
            and not channel.looking and not is_permitted(channel, entry.topic, entry.serial, view, refused):
        return None
    return entry


cdef TopicEntry looked_up(Channel channel, PublishView* view, bint* refused):
    """The same for a topic that is not in the cache. Rights are checked first: a denied topic must leave nothing in the cache."""
    cdef bytes topic
    channel.router.resolver.check_name(view.topic, view.topic_size)
    topic = PyBytes_FromStringAndSize(<const char*>view.topic, view.topic_size)
    if channel.acl_cache is not None and not channel.looking and not is_permitted(channel, topic, 0, view, refused):
        return None
    return channel.router.resolver.look_up(topic, channel.own_lookups())


cdef bint is_permitted(Channel channel, bytes topic, uint64_t serial, PublishView* view, bint* refused) except -1:
    """Whether access rules allow this PUBLISH. If not, it is answered, or reading is suspended until integrations has answered.

    `serial`: of the topic's cache entry, 0 without one.
    """
    cdef int permission
    topic = channel.unmounted(topic)
    permission = channel.access.may_publish(topic, view.qos, view.retain, serial)
    if permission == DENIED:
        deny(channel, topic, view)
        refused[0] = True
    return permission != DENIED and permission != UNKNOWN


cdef int deny(Channel channel, bytes topic, PublishView* view) except -1:
    channel.context.count(PACKETS_PUBLISH_RECEIVED)
    channel.context.count(PACKETS_PUBLISH_AUTH_ERROR)
    if channel.router.acl.deny_action == "disconnect":
        if channel.context.watch:
            channel.context.watcher.denied(channel, "publish", topic)
        channel.disconnect(NOT_AUTHORIZED, "not authorized to publish to this topic")
        return channel.close(NOT_AUTHORIZED, SIDE_SERVER, f"not authorized to publish to {topic.decode()}", True)
    reject(channel, view, NOT_AUTHORIZED, "not authorized to publish to this topic")
    if channel.context.watch:
        channel.context.watcher.denied(channel, "publish", topic)
    return 0


cdef TopicEntry rewritten(Channel channel, TopicEntry entry, PublishView* view):
    """Returns the entry of the topic that a rewrite rule leads to; the given one if the result is no topic name. None: being looked up."""
    cdef bytes topic = channel.router.admission.rewritten(entry.rewrite, entry.topic, channel.session.client_id, channel.username)
    cdef TopicEntry target
    if topic is None:
        return entry
    target = channel.router.resolver.cached(<const uint8_t*>PyBytes_AS_STRING(topic), <uint32_t>PyBytes_GET_SIZE(topic))
    if target is None:
        target = channel.router.resolver.look_up(topic, channel.own_lookups())
        if target is None:
            return None
    view.topic = <const uint8_t*>PyBytes_AS_STRING(target.topic)
    view.topic_size = <uint32_t>PyBytes_GET_SIZE(target.topic)
    return target


# --- room and limits ------------------------------------------------------------------------------------------------------------


cdef bint has_room(Channel channel, TopicEntry entry, PublishView* view, uint64_t at_ms) except -1:
    """Whether rings and disk can take it now. A delayed message needs no ring yet."""
    cdef bint disk_full = channel.context.disk_full
    if (entry.leaves or disk_full) and not at_ms and not channel.router.room_for(
            entry, <uint64_t>view.topic_size + view.properties_size + view.payload_size):
        # Nor may a node that cannot be reached stop publishers of QoS 0.
        if view.qos or disk_full or not channel.router.outlets.room_for_qos0(
                entry, <uint64_t>view.topic_size + view.properties_size + view.payload_size):
            return False
    return not (disk_full and (view.retain or at_ms))


cdef bint is_over_quota(Channel channel, PublishView* view) except -1:
    if not channel.over_quota(view):
        return False
    channel.context.count(PACKETS_PUBLISH_RECEIVED)
    return reject(channel, view, QUOTA_EXCEEDED, "shared publish quota exceeded")


cdef bint is_refused(Channel channel, TopicEntry entry, PublishView* view, uint64_t at_ms) except -1:
    """Whether payload, topic, destinations or the limit of delayed messages rule it out; it is answered then."""
    if view.payload_format and not is_text(view.payload, view.payload_size):
        return reject(
            channel, view, PAYLOAD_FORMAT_INVALID, "payload is not valid UTF-8 although Payload Format Indicator is 1")
    if view.topic[0] == c"$" and is_own(view.topic, view.topic_size):
        return reject(channel, view, NOT_AUTHORIZED, OWN_TOPICS)
    if entry.unroutable:
        return refuse_unroutable(channel, view)
    return at_ms != 0 and not may_delay(channel, view)


cdef bint refuse_unroutable(Channel channel, PublishView* view) except -1:
    """Refuses a topic with a destination unknown to this broker: nothing is delivered to any destination, and the publisher is notified."""
    cdef str reason = "topic has a destination that is unknown to this broker"
    channel.context.count_unroutable()
    if channel.version == 5 or not view.qos:
        return reject(channel, view, IMPLEMENTATION_SPECIFIC_ERROR, reason)
    channel.context.count(PACKETS_PUBLISH_ERROR)
    if channel.context.watch:
        channel.context.watcher.published(channel, view)
    channel.close(IMPLEMENTATION_SPECIFIC_ERROR, SIDE_SERVER, reason, True)   # MQTT 3 has no acknowledgement of a failure
    return True


cdef bint may_delay(Channel channel, PublishView* view) except -1:
    """Whether one more message may be delayed. A repetition of one that has been accepted may."""
    cdef str reason
    if view.qos == 2 and channel.session.awaiting_rel is not None and view.packet_id in channel.session.awaiting_rel:
        return True
    reason = channel.router.retries.refusal()
    if reason is not None:
        reject(channel, view, QUOTA_EXCEEDED, reason)
    return reason is None


cdef bint reject(Channel channel, PublishView* view, uint8_t reason_code, str reason) except -1:
    """Acknowledges a PUBLISH as failed in 5.0, as done in 3.x [MQTT-3.3.5-2]; it is not delivered. Always True."""
    channel.context.count(PACKETS_PUBLISH_ERROR)
    if channel.context.watch:
        channel.context.watcher.published(channel, view)
    if view.qos == 1:
        channel.report_failure(Puback, view.packet_id, reason_code, PACKETS_PUBACK_SENT, reason)
    elif view.qos == 2:
        if channel.version < 5 and channel.session.receive_qos2(view.packet_id, view.dup) == QOS2_NEW and channel.session.logged:
            channel.context.recorder.received(channel.session, view.packet_id, 0, 0)
        channel.report_failure(Pubrec, view.packet_id, reason_code, PACKETS_PUBREC_SENT, reason)
    return True


# --- QoS 2 ----------------------------------------------------------------------------------------------------------------------


cdef bint is_new(Channel channel, PublishView* view) except -1:
    """Whether this message of QoS 2 arrives for the first time; it is answered otherwise."""
    cdef int arrival = channel.session.receive_qos2(view.packet_id, view.dup)
    if arrival == QOS2_NEW:
        return True
    repeated(channel, view, arrival)
    return False


cdef int repeated(Channel channel, PublishView* view, int arrival) except -1:
    cdef WorkerContext context = channel.context
    if context.watch:
        context.watcher.published(channel, view)
    if arrival == QOS2_FULL:
        context.count(MESSAGES_DROPPED_RECEIVE_MAXIMUM)
        raise MqttError(
            RECEIVE_MAXIMUM_EXCEEDED, f"messages awaiting PUBREL exceed mqtt.max_awaiting_rel ({context.max_awaiting_rel})")
    if arrival == QOS2_IN_USE:
        return channel.report_failure(
            Pubrec, view.packet_id, PACKET_IDENTIFIER_IN_USE, PACKETS_PUBREC_SENT, f"packet id {view.packet_id} is in use")
    if arrival == QOS2_REPEAT and context.hooks & HOOK_MESSAGE_PUBLISH and context.hooked.is_undecided(channel, view.packet_id):
        return channel.suspend_reading()   # until hook servers have answered
    return acknowledge(channel, 2, view.packet_id, True)


cdef inline uint64_t expires_ms(Router router, PublishView* view) noexcept:
    if view.has_expiry or router.message_expiry_ms:
        return router.admission.expires_ms(view.has_expiry, view.expiry_s)
    return 0


# --- hooks ----------------------------------------------------------------------------------------------------------------------


cdef bint publish_hooked(Channel channel, Publication publication, PublishView* view, uint64_t at_ms) except -1:
    """The end of on_publish() for what callbacks of message.publish make of a message."""
    cdef bint has_span = unlikely(channel.context.watch) and channel.context.watcher.begins(channel, publication)
    cdef Message message = channel.context.hooked.publish(publication)
    cdef int decision = GO_ON
    publication.message = None
    if channel.context.watch:
        channel.context.watcher.published(channel, view)
    if message is not None:
        decision = channel.context.hooked.query_publish(channel, message, view.qos, view.packet_id, at_ms)
    if decision == WAITING:
        channel.suspend_reading()          # until hook servers have answered
    elif decision == REFUSED:
        publish_refused(channel, channel.session, view.qos, view.packet_id)
    elif not publish_decided(channel, channel.session, message, view.qos, view.packet_id, at_ms):
        channel.context.hooked.wait(channel)
    if has_span:
        channel.context.watcher.ended()    # also if hook servers have not answered yet
    return True


cdef bint publish_decided(Channel channel, Session session, Message message, int qos, int packet_id, uint64_t at_ms) except -1:
    cdef Publication publication
    cdef bint has_subscribers = False, done = True
    if qos == 2 and is_kept(channel, session):
        if message is None:
            channel.context.recorder.received(session, packet_id, 0, 0)
        else:
            channel.context.recorder.received(session, packet_id, message.id_high, message.id_low)
    if message is not None and at_ms:
        publication = Publication.__new__(Publication)
        publication.borrow(message)
        channel.router.retries.delay(publication, at_ms)
        has_subscribers = True
    elif message is not None:
        has_subscribers = channel.router.has_subscribers(message.topic)
        done = channel.router.publish_in_order(message, session, FLAG_ANSWERED if qos else 0)
    if qos and not channel.closed:
        acknowledge(channel, qos, packet_id, has_subscribers)
    return done


cdef int publish_refused(Channel channel, Session session, int qos, int packet_id) except -1:
    channel.context.count(PACKETS_PUBLISH_ERROR)
    if qos == 2 and channel.version == 5:
        if session.awaiting_rel is not None:
            session.awaiting_rel.pop(packet_id, None)
    elif qos == 2 and is_kept(channel, session):
        channel.context.recorder.received(session, packet_id, 0, 0)
    if qos and not channel.closed:
        channel.report_failure(
            Puback if qos == 1 else Pubrec, packet_id, IMPLEMENTATION_SPECIFIC_ERROR,
            PACKETS_PUBACK_SENT if qos == 1 else PACKETS_PUBREC_SENT, "message hook did not respond")
    return 0


cdef bint is_kept(Channel channel, Session session) except -1:
    """Whether a session still exists and is recorded in the journal."""
    return session.logged and channel.router.sessions.get(session.client_id) is session
