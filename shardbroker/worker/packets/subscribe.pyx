"""SUBSCRIBE and UNSUBSCRIBE; see subscribe.pxd."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.hooks.masks cimport HOOK_CLIENT_SUBSCRIBE, HOOK_CLIENT_UNSUBSCRIBE, HOOK_SESSION_SUBSCRIBED
from shardbroker.mqtt.codec cimport varint_size, write_codes
from shardbroker.mqtt.spec cimport (
    BRIDGE_BIT, IMPLEMENTATION_SPECIFIC_ERROR, NOT_AUTHORIZED, NO_SUBSCRIPTION_EXISTED, PACKET_TOO_LARGE, QUOTA_EXCEEDED,
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, SUBACK_FIRST,
    SUBSCRIBE, SUCCESS, TOPIC_FILTER_INVALID, UNSPECIFIED_ERROR, UNSUBACK_FIRST, UNSUBSCRIBE, WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
)
from shardbroker.pubsub.subscriptions cimport (
    OPTION_EXCLUSIVE, OPTION_FETCHING, OPTION_FLAGS, OPTION_NO_LOCAL, OPTION_QOS, OPTION_RETAIN_AS_PUBLISHED, OPTION_RETAIN_HANDLING,
    OPTION_RETAIN_IF_NEW, ReplaySubscription, Subscription, new_subscription,
)
from shardbroker.session.context cimport NOTIFY_UNSUBSCRIBED, WorkerContext
from shardbroker.session.session cimport Session
from shardbroker.worker.channel cimport CONNECTED, SIDE_SERVER
from shardbroker.worker.exclusive cimport CLAIM_GRANTED, CLAIM_REFUSED
from shardbroker.worker.memory cimport REFUSE
from shardbroker.worker.router cimport Router
from shm.address cimport address_text
from shm.counters cimport (
    PACKETS_SENT, PACKETS_SUBACK_SENT, PACKETS_SUBSCRIBE_AUTH_ERROR, PACKETS_SUBSCRIBE_ERROR, PACKETS_SUBSCRIBE_RECEIVED,
    PACKETS_UNSUBACK_SENT, PACKETS_UNSUBSCRIBE_RECEIVED,
)

from functools import partial

from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import Suback, Unsuback
from shardbroker.mqtt.spec import REASON_CODES, PropertyId
from shardbroker.mqtt.topics import EXCLUSIVE, OF_JOURNALS, REPLAY, STREAM, check_topic_filter, filter_has_wildcard, parse_subscription
from shardbroker.pubsub.periods import parse_period
from shardbroker.worker.features import event_messages
from shardbroker.worker.features.streams import OFFSET, OFFSETS, offset_of

cdef enum:
    FILTERS_PREPARED = 128                 # filters whose rules are looked up together: as many as one turn handles
    REASONS_MAX = 8                        # filters whose reason is explained: all are in one string
    STREAM_COST = 8                        # for each stream that may cover a filter, about 1 µs
    SUBSCRIBE_COST = 64                    # units of the budget for one filter, its share of the commit included


NO_REASONS = {}
NOT_REPLAYED = (
    "journals are not kept for this filter: it must be covered by one of journal.capture or a stream, with replay.max_replays above 0")


cdef int go_on_with_filters(Channel channel) except -1:
    return go_on_subscribing(channel) if channel.subscribing[0] == SUBSCRIBE else go_on_unsubscribing(channel)


# --- SUBSCRIBE ------------------------------------------------------------------------------------------------------------------


cdef int on_subscribe(Channel channel, Subscribe packet) except -1:
    channel.context.count(PACKETS_SUBSCRIBE_RECEIVED)
    check_room(channel, len(packet.topics))
    properties = packet.properties or {}
    identifier = properties.get(PropertyId.SUBSCRIPTION_IDENTIFIER, 0)
    offset = offset_of(properties[PropertyId.USER_PROPERTY]) if PropertyId.USER_PROPERTY in properties else OFFSET
    topics = packet.topics
    if channel.context.hooks & HOOK_CLIENT_SUBSCRIBE:
        topics = channel.context.hooked.subscribe(channel, packet)
    return begin_subscribing(channel, packet.packet_id, identifier, topics, offset)


cdef int auto_subscribe(Channel channel) except -1:
    host, _, port = address_text(&channel.peer).rpartition(":")
    username = channel.username
    values = {
        "clientid": channel.session.client_id.decode(), "username": None if username is None else username.decode(),
        "host": host.strip("[]"), "port": port,
    }
    topics = [] if channel.router.auto_topics is None else channel.router.auto_topics.of(values)
    if channel.access is not None and channel.access.subscriptions is not None:
        topics += [(filter, qos | OPTION_RETAIN_IF_NEW) for filter, qos in channel.access.subscriptions]
        if channel.router.access_gate.subscriptions.replace:
            end_others(channel, topics)
    return begin_subscribing(channel, 0, 0, topics, OFFSET) if topics else 0


cdef int end_others(Channel channel, list topics) except -1:
    """Ends the subscriptions of a resumed session besides these."""
    cdef Subscription subscription
    cdef set wanted = set()
    for filter, _ in topics:
        try:
            wanted.add((channel.mounted_filter(filter) if channel.mounted else filter).removeprefix(EXCLUSIVE))
        except MqttError:
            pass                           # it is not made either
    for subscription in channel.session.all_subscriptions():
        if subscription.wire_filter not in wanted:
            end_subscription(channel, subscription.wire_filter)
    return 0


cdef int begin_subscribing(Channel channel, uint16_t packet_id, object identifier, object topics, bytes offset) except -1:
    channel.subscribing = (
        SUBSCRIBE, packet_id, identifier, topics, bytearray(), [], [], channel.router.route_changes.full_tables, offset, {})
    return go_on_subscribing(channel)


cdef int go_on_subscribing(Channel channel) except -1:
    cdef bytearray codes
    cdef WorkerContext context = channel.context
    cdef Py_ssize_t at
    _, packet_id, identifier, topics, codes, subscribed, replays, full_tables, offset, reasons = channel.subscribing
    for at in range(len(codes), len(topics)):
        if packet_id and at % FILTERS_PREPARED == 0 and channel.acl_cache is not None and not channel.access.prepare(
                topics[at:at + FILTERS_PREPARED]):
            return 0                       # suspended until integrations has answered
        wire_filter, options = topics[at]
        if packet_id and channel.acl_cache is not None and not channel.access.may_subscribe(wire_filter, options):
            code = deny(channel, wire_filter)
            if channel.closed:
                return 0
        else:
            if packet_id and channel.router.admission.rewriting is not None:
                wire_filter = channel.router.admission.rewriting.filter(wire_filter, channel.session.client_id, channel.username)
            try:
                code = subscribe_mounted(channel, wire_filter, options, identifier, offset, subscribed, replays)
            except MqttError as error:
                code = error.reason_code
                if topics[at][0].startswith(OF_JOURNALS) and len(reasons) < REASONS_MAX:
                    reasons[at] = str(error)
        if code == FILTER_WAITS:
            return 0                       # suspended until the claim of an exclusive subscription is answered
        if code >= UNSPECIFIED_ERROR:
            context.count(PACKETS_SUBSCRIBE_ERROR)
        codes.append(code)
        context.budget -= SUBSCRIBE_COST
        if context.budget <= 0:
            return 0
    channel.subscribing = None
    if packet_id and channel.acl_cache is not None:
        channel.access.packet_done()
    if full_tables != channel.router.route_changes.full_tables:
        # An earlier pass found no room for some of its routes.
        codes[:] = channel.router.subscriptions.undo(channel.session, bytes(codes), subscribed)
        replays = []
    channel.suback_waits = True
    answer = partial(send_suback, reasons=reasons) if reasons else send_suback
    channel.router.subacks.waiting.append((answer, channel, packet_id, bytes(codes), subscribed, replays))
    return 0


cdef int deny(Channel channel, bytes wire_filter) except -1:
    """Returns the SUBACK code of a filter that access rules deny; closes the connection if acl.deny_action demands it."""
    channel.context.count(PACKETS_SUBSCRIBE_AUTH_ERROR)
    if channel.context.watch:
        channel.context.watcher.denied(channel, "subscribe", wire_filter)
    if channel.router.acl.deny_action == "disconnect":
        channel.disconnect(NOT_AUTHORIZED, "not authorized to subscribe to this filter")
        channel.close(NOT_AUTHORIZED, SIDE_SERVER, f"not authorized to subscribe to {wire_filter.decode()}", True)
    return NOT_AUTHORIZED


cdef int subscribe_mounted(
    Channel channel, bytes wire_filter, int options, object identifier, bytes offset, list subscribed, list replays,
) except -1:
    """Subscribes to one filter as the client names it; returns its SUBACK code. Raises MqttError."""
    if channel.mounted:
        wire_filter = channel.mounted_filter(wire_filter)
    return subscribe_one(channel, wire_filter, options, identifier, offset, subscribed, replays)


cdef int subscribe_one(
    Channel channel, bytes wire_filter, int options, object identifier, bytes offset, list subscribed, list replays,
) except -1:
    cdef Subscription subscription, previous
    cdef WorkerContext context = channel.context
    cdef bint exclusive = wire_filter.startswith(EXCLUSIVE), replay = wire_filter.startswith(OF_JOURNALS), present, kept
    cdef bint fetches = False, retains
    cdef int retain_handling = options & OPTION_RETAIN_HANDLING, claimed
    group, filter = parse_subscription(wire_filter)
    check_topic_filter(filter, context.max_topic_levels)
    if channel.announced_version & BRIDGE_BIT and channel.version < 5:
        options |= OPTION_RETAIN_AS_PUBLISHED | (OPTION_NO_LOCAL if group is None else 0)  # as mosquitto does: a bridge must not loop
    subscription = new_subscription(wire_filter, context.now_ms * 1000)
    if replay:
        if not wire_filter.startswith(REPLAY):
            context.budget -= STREAM_COST * <int64_t>len(channel.router.journal_replays.streams.filters)
            filter = channel.router.journal_replays.streams.filter_of(wire_filter)
            kept = channel.router.journal_replays.is_on()
        else:
            kept = channel.router.journal_replays.may_replay(filter)
        if wire_filter.startswith(STREAM):
            (<ReplaySubscription>subscription).start_us, (<ReplaySubscription>subscription).end_us = parse_period(
                offset, context.now_ms * 1000, OFFSETS[0].decode())
        if not kept:
            return IMPLEMENTATION_SPECIFIC_ERROR
    if group is not None and not context.shared_subscription:
        return SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
    if exclusive and not context.exclusive_subscription:
        return TOPIC_FILTER_INVALID
    if not context.wildcard_subscription and filter_has_wildcard(filter):
        return WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED                      # [MQTT-3.8.3-2] of 3.1.1
    previous = channel.session.find_subscription(filter if group is None and not replay else wire_filter)
    present = previous is not None
    if context.max_subscriptions and not present and channel.session.subscription_count() >= context.max_subscriptions:
        return QUOTA_EXCEEDED
    if context.memory_level >= REFUSE and not present:
        return QUOTA_EXCEEDED
    if exclusive:
        claimed = channel.router.exclusive.claim(channel, channel.session, filter)
        if claimed != CLAIM_GRANTED:
            return QUOTA_EXCEEDED if claimed == CLAIM_REFUSED else FILTER_WAITS
    if present and previous.flags & OPTION_EXCLUSIVE and not exclusive:
        channel.router.exclusive.end(channel.session.key, filter)
    subscription.subscriber = channel.session
    subscription.filter = filter
    subscription.group = group
    subscription.wire_filter = filter if group is None and not replay else wire_filter
    subscription.qos = options & OPTION_QOS
    subscription.flags = options & OPTION_FLAGS | (OPTION_EXCLUSIVE if exclusive else 0)
    subscription.identifier = identifier
    if group is None and not replay and channel.router.lookups.fetches(filter) and (not present or previous.flags & OPTION_FETCHING):
        fetches = True
        subscription.flags |= OPTION_FETCHING
    channel.router.subscriptions.subscribe(channel.session, subscription)
    subscribed.append((subscription.wire_filter, subscription))
    if context.hooks & HOOK_SESSION_SUBSCRIBED:
        context.hooked.subscribed(channel.session, subscription)
    # [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]; shared subscriptions get no retained messages.
    retains = group is None and (not retain_handling or (retain_handling == OPTION_RETAIN_IF_NEW and not present))
    if replay:
        replays.append(subscription)       # of the journal, in place of retained messages
    elif retains and channel.router.lookups.retains(filter):
        channel.router.lookups.note(channel.session, subscription, fetches, True)
    else:
        if fetches:
            channel.router.lookups.note(channel.session, subscription, True, False)
        if retains:
            replays.append(subscription)
    return subscription.qos


def send_suback(
    Channel channel not None, int packet_id, bytes codes not None, list replays not None, dict reasons not None = NO_REASONS,
) -> None:
    """Answers a SUBSCRIBE whose routes are committed, then starts the replay of retained messages; called by Router.commit()."""
    channel.suback_waits = False
    if channel.state != CONNECTED:
        return
    if not packet_id:
        pass                               # of auto_subscribe(): the client has sent nothing that could be answered
    elif max(codes) < UNSPECIFIED_ERROR:
        answer_codes(channel, SUBACK_FIRST, <uint16_t>packet_id, codes, PACKETS_SUBACK_SENT)
    else:
        if channel.version < 5:
            codes = bytes(code if code < UNSPECIFIED_ERROR else UNSPECIFIED_ERROR for code in codes)   # [MQTT-3.9.3-2]
        channel.report_failure(Suback, packet_id, codes, PACKETS_SUBACK_SENT, failed_filters(codes, reasons))
    start_replays(channel.router, channel.session, replays)


cdef int start_replays(Router router, Session session, list subscriptions) except -1:
    """Starts what new subscriptions get of the past: from journals, or of retained messages."""
    if session.fetching:
        router.lookups.start(session)
    if session.replaying:
        subscriptions = router.journal_replays.start_new(subscriptions)
    return router.replays.start(session, subscriptions)


# --- UNSUBSCRIBE ----------------------------------------------------------------------------------------------------------------


cdef int on_unsubscribe(Channel channel, Unsubscribe packet) except -1:
    channel.context.count(PACKETS_UNSUBSCRIBE_RECEIVED)
    check_room(channel, len(packet.filters))
    filters = packet.filters
    if channel.context.hooks & HOOK_CLIENT_UNSUBSCRIBE:
        filters = channel.context.hooked.unsubscribe(channel, packet)
    channel.subscribing = (UNSUBSCRIBE, packet.packet_id, filters, bytearray())
    return go_on_unsubscribing(channel)


cdef int go_on_unsubscribing(Channel channel) except -1:
    cdef bytearray codes
    cdef Py_ssize_t at
    _, packet_id, filters, codes = channel.subscribing
    for at in range(len(codes), len(filters)):
        codes.append(unsubscribe_one(channel, filters[at]))
        channel.context.budget -= SUBSCRIBE_COST
        if channel.context.budget <= 0:
            return 0
    channel.subscribing = None
    if max(codes) < UNSPECIFIED_ERROR:
        return answer_codes(
            channel, UNSUBACK_FIRST, packet_id, bytes(codes) if channel.version == 5 else b"", PACKETS_UNSUBACK_SENT)
    return channel.report_failure(Unsuback, packet_id, bytes(codes), PACKETS_UNSUBACK_SENT, failed_filters(codes, NO_REASONS))


cdef int unsubscribe_one(Channel channel, bytes wire_filter) except -1:
    """Ends the subscription to one filter; returns its UNSUBACK code."""
    try:
        check_topic_filter(parse_subscription(wire_filter)[1], channel.context.max_topic_levels)
        if channel.router.admission.rewriting is not None:
            wire_filter = channel.router.admission.rewriting.filter(wire_filter, channel.session.client_id, channel.username)
        if channel.mounted:
            wire_filter = channel.mounted_filter(wire_filter)
    except MqttError as error:
        return error.reason_code
    return SUCCESS if end_subscription(channel, wire_filter.removeprefix(EXCLUSIVE)) else NO_SUBSCRIPTION_EXISTED


cdef bint end_subscription(Channel channel, bytes wire_filter) except -1:
    """Ends a subscription, named in the broker's terms; returns whether there was one."""
    cdef bint found = channel.router.subscriptions.unsubscribe(channel.session, wire_filter, 0)
    if found and channel.context.notifications & NOTIFY_UNSUBSCRIBED:
        channel.publish_event(NOTIFY_UNSUBSCRIBED, event_messages.subscribed(parse_subscription(wire_filter)[1], {}))
    if found and channel.session.logged:
        channel.context.recorder.unsubscribed(channel.session, wire_filter)
    return found


# --- answers --------------------------------------------------------------------------------------------------------------------


cdef int check_room(Channel channel, size_t codes) except -1:
    """Raises MqttError if SUBACK or UNSUBACK, with one code for each filter, would exceed the client's Maximum Packet Size."""
    cdef uint64_t size = 2 + 1 + codes
    size += 1 + varint_size(<uint32_t>size)
    if channel.version == 5 and size > channel.max_packet:
        raise MqttError(
            PACKET_TOO_LARGE, f"answer of {size} bytes exceeds the client's Maximum Packet Size ({channel.max_packet})",
            "MQTT-3.1.2-24")
    return 0


cdef int answer_codes(Channel channel, uint8_t first, uint16_t packet_id, bytes codes, int counter) except -1:
    write_codes(channel.out, first, packet_id, codes, channel.version)
    channel.context.count(PACKETS_SENT)
    channel.context.count(counter)
    channel.touch()
    if channel.context.watch:
        channel.context.watcher.acked(channel, first, packet_id, 0, codes)
    return 0


cdef str failed_filters(codes, dict reasons):
    """Returns a Reason String with the number and the reason of each filter that failed. reasons: index -> text, as far as known."""
    return "; ".join([
        f"filter {at + 1}: {reasons.get(at) or reason_of(code)}" for at, code in enumerate(codes) if code >= UNSPECIFIED_ERROR
    ])


cdef str reason_of(code):
    return NOT_REPLAYED if code == IMPLEMENTATION_SPECIFIC_ERROR else REASON_CODES[code][0].replace("_", " ")
