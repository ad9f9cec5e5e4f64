"""Looks at single messages and packets, as long as somebody asked for it; see session/watcher.pxd for where it is called.

    traces               an event for each packet and message that fits, through the manager's ring into files of the manager's
    slow subscriptions   the deliveries that took longest, kept here until they are asked for
    metrics of topics    counts of topics and filters that somebody has registered
    loudest clients      counts by client, in windows, while somebody asks for them

    event   CBOR: [numbers of the traces, Unix µs, what, client id, user name, peer, details]

A trace never holds its worker up: events take at most half of the manager's ring and EVENTS_A_SECOND, and those that find no room
are counted, and told when there is room again. Passwords and the data of AUTH packets are not looked at.
"""

import time
from heapq import nlargest

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from shardbroker.mqtt.codec cimport AckView, FixedHeader, PublishView, parse_ack, read_fixed_header
from shardbroker.mqtt.packets cimport decode_body
from shardbroker.mqtt.spec cimport CONNECT, DISCONNECT, PUBACK, PUBCOMP, SUBSCRIBE, UNSUBSCRIBE
from shardbroker.pubsub.message cimport Message
from shardbroker.session.delivery cimport Delivery
from shardbroker.session.session cimport Session
from shardbroker.session.watcher cimport WATCH_LOUD, WATCH_SLOW, WATCH_TOPICS, WATCH_TRACES
from shm.address cimport PeerAddress, address_text, parse_address
from shm.events cimport EVENT_CONNECTED, EVENT_DISCONNECTED
from shm.ring cimport Ring

import cbor2

from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import decode
from shardbroker.mqtt.spec import PacketType
from shardbroker.mqtt.topics import matches
from shm.events import SIDES
from shm.records import TRACE, encode_record

__all__ = ["TRACES_MAX", "Observers"]

TRACES_MAX = 30
"""Traces at a time; they are bits of a word."""

EVENTS_A_SECOND = 5000
"""Events that one worker tells in a second: each costs it 5 µs, and the manager twice that."""

TOPICS_SEEN = 4096
"""Topics of which it is remembered who looks at them; then it is worked out anew."""

LOUD_WINDOW_MS = 2000
"""A window in which messages are counted by client."""

LOUD_ASKED_MS = 10_000
"""How long after the last question it is counted on."""

LOUD_CLIENTS = 50_000
"""Clients of one window; further ones are not counted, which is told: some 10 MB."""

cdef enum Span:
    SPAN_WHOLE = 0                         # from the publish to the acknowledgement
    SPAN_INTERNAL = 1                      # from the publish until it was sent
    SPAN_RESPONSE = 2                      # from then to the acknowledgement

SPANS = {"whole": int(SPAN_WHOLE), "internal": int(SPAN_INTERNAL), "response": int(SPAN_RESPONSE)}

cdef list NAMES = [PacketType(number).name for number in range(16)]


cdef class Observers(Watcher):
    """Of one worker."""

    def __init__(self, Worker worker not None) -> None:
        self.worker = worker
        self.counted, self.loud_before = {}, None
        self.slow = None
        self.lost = []                     # set_traces looks at it, and enumerate() of a typed list does not look for None
        self.set_traces([])
        worker.watcher = self

    def configure(self, settings) -> None:
        """The sections `slow_subs` and `topic_metrics` hold from now on."""
        slow, topics = settings.slow_subs, settings.topic_metrics.topics
        if not slow.enable:
            self.slow = None
        elif slow != self.slow_settings:
            self.slow_kind = SPANS[slow.stats_type]
            self.slow_least_ms = <uint64_t>(slow.threshold * 1000)
            self.slow_expiry_ms = <uint64_t>(slow.expire_interval * 1000)
            self.slow_most = slow.top_k_num
            self.slow, self.slow_floor_ms = {}, 0
        self.slow_settings = slow
        names = [topic.encode() for topic in topics]
        self.counted = {name: self.counted.get(name) or TopicCount.__new__(TopicCount) for name in names}
        self.counted_seen = {}
        self.look()

    cdef int look(self) except -1:
        self.worker.watch = (
            (WATCH_TRACES if self.numbers else 0) | (WATCH_SLOW if self.slow is not None else 0)
            | (WATCH_TOPICS if self.counted else 0) | (WATCH_LOUD if self.loud is not None else 0))
        return 0

    # --- traces -----------------------------------------------------------------------------------------------------------------

    def set_traces(self, list traces) -> None:
        """These and no others: number, type, value and payload_limit of each."""
        cdef uint32_t bit
        self.tell_lost()
        self.clients, self.users, self.peers, self.filters = {}, {}, {}, []
        self.topics_seen = {}
        self.events_left, self.refilled_ms = EVENTS_A_SECOND, self.worker.now_ms
        self.numbers = [one["number"] for one in traces[:TRACES_MAX]]
        self.payload_limits = [one["payload_limit"] for one in traces[:TRACES_MAX]]
        self.lost = [0] * len(self.numbers)
        for place, one in enumerate(traces[:TRACES_MAX]):
            bit = <uint32_t>1 << <int>place
            value = one["value"].encode()
            if one["type"] == "topic":
                self.filters.append((value, bit))
                continue
            if one["type"] == "ip_address":
                value = host_of(one["value"])
            of = {"clientid": self.clients, "username": self.users, "ip_address": self.peers}[one["type"]]
            of[value] = of.get(value, 0) | bit
        self.look()

    cdef uint32_t of_channel(self, Channel channel, bytes client_id) except? 0xFFFFFFFF:
        """The traces that look at this client."""
        cdef uint32_t bits = 0
        if self.clients and client_id:
            bits = <uint32_t>(self.clients.get(client_id, 0))
        if channel is not None:
            if self.users and channel.username is not None:
                bits |= <uint32_t>(self.users.get(channel.username, 0))
            if self.peers:
                bits |= <uint32_t>(self.peers.get(host_key(&channel.peer), 0))
        return bits

    cdef uint32_t of_topic(self, bytes topic) except? 0xFFFFFFFF:
        cdef uint32_t bits = 0
        if not self.filters:
            return 0
        known = self.topics_seen.get(topic)
        if known is not None:
            return <uint32_t>known
        for filter, bit in self.filters:
            if matches(filter, topic):
                bits |= <uint32_t>bit
        if len(self.topics_seen) >= TOPICS_SEEN:
            self.topics_seen.clear()
        self.topics_seen[topic] = bits
        return bits

    cdef int tell(self, uint32_t bits, str event, bytes client_id, Channel channel, dict details) except -1:
        """One event, for each trace among `bits`."""
        cdef int place
        cdef list numbers = [number for place, number in enumerate(self.numbers) if bits >> place & 1]
        cdef bytes username = None
        cdef str peer = ""
        if channel is not None:
            username, peer = channel.username, address_text(&channel.peer)
        if self.events_left <= 0 or not self.put([numbers, time.time_ns() // 1000, event, client_id, username, peer, details]):
            for place in range(len(self.numbers)):
                if bits >> place & 1:
                    self.lost[place] += 1
            return 0
        self.events_left -= 1
        return 0

    cdef bint put(self, object event) except -1:
        """Whether the manager's ring had room for it. Half of the ring is for others: has_room() counts what it is asked twice."""
        cdef Worker worker = self.worker
        cdef Ring lane = worker.reporter.outlet().lane
        cdef bytes record = encode_record(TRACE, cbor2.dumps(event))
        if PyBytes_GET_SIZE(record) > lane.max_record() or not lane.has_room(
                <uint32_t>(lane.capacity // 4 + <uint64_t>PyBytes_GET_SIZE(record))):
            return False
        lane.put(record)
        worker.reporter.note_event()
        return True

    cpdef int tell_lost(self) except -1:
        """Of each trace what was left out, as far as the manager's ring has room."""
        for place, count in enumerate(self.lost):
            if count and self.put([[self.numbers[place]], time.time_ns() // 1000, "lost", b"", None, "", {"count": count}]):
                self.lost[place] = 0
        return 0

    cdef bytes cut_payload(self, uint32_t bits, const uint8_t* payload, uint32_t size):
        """As much as the one of these traces shows that shows most; None: they hide it."""
        cdef int place
        limit = max([limit for place, limit in enumerate(self.payload_limits) if bits >> place & 1])
        return PyBytes_FromStringAndSize(<const char*>payload, min(size, <uint32_t>limit)) if limit else None

    # --- packets ----------------------------------------------------------------------------------------------------------------

    cdef void received(self, object channel, uint8_t first, const uint8_t* body, uint32_t size) noexcept:
        cdef Channel one = <Channel>channel
        cdef AckView view
        cdef int kind = first >> 4
        cdef bytes client_id = id_of(one)
        cdef uint32_t bits
        cdef dict details
        if not self.numbers:
            return
        bits = self.of_channel(one, client_id)
        details = {"packet": NAMES[kind]}
        try:
            if kind == CONNECT:
                packet = decode_body(first, body, size, 0)
                client_id = packet.client_id or client_id
                bits |= self.of_channel(None, client_id) | <uint32_t>(self.users.get(packet.username, 0))
                details |= {"version": packet.version, "clean_start": packet.clean_start, "keepalive": packet.keepalive_s}
                if packet.username is not None:
                    details["username"] = packet.username
                if packet.will is not None:
                    bits |= self.of_topic(packet.will.topic)
                    details |= {"will_topic": packet.will.topic, "will_qos": packet.will.qos, "will_retain": packet.will.retain}
            elif kind == SUBSCRIBE or kind == UNSUBSCRIBE:
                if not bits and not self.filters:
                    return
                packet = decode_body(first, body, size, one.version)
                filters = packet.filters if kind == UNSUBSCRIBE else [filter for filter, _ in packet.topics]
                for filter in filters:
                    bits |= self.of_topic(filter)
                details |= {"packet_id": packet.packet_id, "filters": filters}
                if kind == SUBSCRIBE:
                    details["qos"] = [options & 3 for _, options in packet.topics]
            elif bits and PUBACK <= kind <= PUBCOMP:
                parse_ack(first, body, size, one.version, &view)
                details |= {"packet_id": view.packet_id, "reason_code": view.reason_code}
            elif bits and kind == DISCONNECT:
                details["reason_code"] = decode_body(first, body, size, one.version).reason_code
        except MqttError:
            details["malformed"] = True    # the line about the end of the connection says why
        if bits:
            self.tell(bits, "received", client_id, one, details)

    cdef void published(self, object channel, const PublishView* view) noexcept:
        cdef Channel one = <Channel>channel
        cdef uint32_t bits
        cdef bytes topic, client_id
        if not self.numbers:
            return
        topic = PyBytes_FromStringAndSize(<const char*>view.topic, view.topic_size)
        client_id = id_of(one)
        bits = self.of_channel(one, client_id) | self.of_topic(topic)
        if bits:
            self.tell(bits, "received", client_id, one, {
                "packet": "PUBLISH", "packet_id": view.packet_id, "topic": topic, "qos": view.qos, "retain": view.retain,
                "dup": view.dup, "size": view.payload_size, "payload": self.cut_payload(bits, view.payload, view.payload_size)})

    cdef void publishes(self, object channel, const PublishView* view, Publication publication, bint wanted) noexcept:
        self.published(channel, view)
        self.routed(publication, wanted)

    cdef void sent(self, object link, Publication publication, uint8_t qos, bint retain, bint dup, uint16_t packet_id) noexcept:
        cdef Channel one = <Channel>link
        cdef TopicCount count
        cdef ClientCount client
        cdef uint32_t bits
        cdef bytes topic, client_id = id_of(one)
        if self.loud is not None:
            client = self.count_of(client_id)
            if client is not None:
                client.messages_out += 1
                client.bytes_out += <uint64_t>publication.topic_size + publication.properties_size + publication.payload_size
        if not (self.numbers or self.counted or (self.slow is not None and qos == 0 and self.slow_kind != SPAN_RESPONSE)):
            return
        topic = PyBytes_FromStringAndSize(<const char*>publication.topic, publication.topic_size)
        if one.mounted:
            topic = one.below(topic)
        for count in self.counts_of(topic):
            count.left[qos] += 1
        if self.slow is not None and qos == 0 and self.slow_kind != SPAN_RESPONSE and not retain and one.session is not None:
            if publication.id_high // 1000 >= one.session.created_ms:
                self.note_slow(client_id, topic, <int64_t>(self.worker.now_ms - publication.id_high // 1000))
        if self.numbers:
            bits = self.of_channel(one, client_id) | self.of_topic(topic)
            if bits:
                self.tell(bits, "sent", client_id, one, {
                    "packet": "PUBLISH", "packet_id": packet_id, "topic": topic, "qos": qos, "retain": retain, "dup": dup,
                    "size": publication.payload_size, "from": publication.client_id,
                    "payload": self.cut_payload(bits, publication.payload, publication.payload_size)})

    cdef void acked(self, object link, uint8_t first, uint16_t packet_id, uint8_t reason_code, bytes codes) noexcept:
        cdef Channel one = <Channel>link
        cdef uint32_t bits
        if not self.numbers:
            return
        bits = self.of_channel(one, id_of(one))
        if bits:
            self.tell(bits, "sent", id_of(one), one, {
                "packet": NAMES[first >> 4], "packet_id": packet_id,
                **({"reason_code": reason_code} if codes is None else {"reason_codes": list(codes)})})

    cdef void replied(self, object channel, bytes packet) noexcept:
        cdef Channel one = <Channel>channel
        cdef uint32_t bits
        cdef dict details
        if not self.numbers:
            return
        bits = self.of_channel(one, id_of(one))
        if not bits:
            return
        known = decode(packet, 0, one.version or 4)[0]
        details = {"packet": NAMES[packet[0] >> 4]}
        for name in ("packet_id", "session_present", "reason_code", "codes"):
            if hasattr(known, name):
                value = getattr(known, name)
                details["reason_codes" if name == "codes" else name] = list(value) if isinstance(value, bytes) else value
        self.tell(bits, "sent", id_of(one), one, details)

    cdef void status_changed(self, int kind, object channel, bytes client_id, int reason_code, int side, str detail) noexcept:
        cdef Channel one = <Channel>channel
        cdef uint32_t bits
        if not self.numbers or (kind != EVENT_CONNECTED and kind != EVENT_DISCONNECTED):
            return
        bits = self.of_channel(one, client_id)
        if not bits:
            return
        if kind == EVENT_CONNECTED:
            self.tell(bits, "connected", client_id, one, {"version": one.version, "keepalive": one.keepalive_s})
        else:
            self.tell(bits, "disconnected", client_id, one, {"reason_code": reason_code, "side": SIDES[side], "detail": detail})

    cdef void denied(self, object channel, str action, bytes topic) noexcept:
        cdef Channel one = <Channel>channel
        cdef uint32_t bits
        if not self.numbers:
            return
        bits = self.of_channel(one, id_of(one)) | self.of_topic(topic)
        if bits:
            self.tell(bits, "not_authorized", id_of(one), one, {"action": action, "topic": topic})

    # --- messages ---------------------------------------------------------------------------------------------------------------

    cdef void routed(self, Publication publication, bint wanted) noexcept:
        cdef TopicCount count
        cdef ClientCount client
        cdef bytes topic
        if self.loud is not None and publication.client_id:
            client = self.count_of(publication.client_id)
            if client is not None:
                client.messages_in += 1
                client.bytes_in += <uint64_t>publication.topic_size + publication.properties_size + publication.payload_size
        if self.counted:
            topic = PyBytes_FromStringAndSize(<const char*>publication.topic, publication.topic_size)
            for count in self.counts_of(topic):
                count.arrived[publication.qos] += 1
                count.dropped += not wanted
        if not wanted and self.numbers:
            self.tell_message("dropped", None, publication.topic[:publication.topic_size], publication.client_id, {"reason": "no_subscribers"})

    def tell_message(self, str event, whom, bytes topic, bytes publisher, dict details) -> None:
        """What happens to a message on its way to `whom`, or before it is known to whom: for those who look at its topic, its
        subscriber or, where there is none yet, its publisher."""
        cdef Session session
        cdef Channel channel = None
        cdef bytes client_id = publisher or b""
        cdef uint32_t bits
        if isinstance(whom, Channel):
            channel = <Channel>whom
            client_id = id_of(channel)
        elif whom is not None:
            session = <Session>whom
            client_id = session.client_id
            channel = <Channel>session.link if session.link is not None else None
        bits = self.of_channel(channel, client_id) | self.of_topic(topic)
        if bits:
            details["topic"] = topic
            if publisher and client_id != publisher:
                details["from"] = publisher
            self.tell(bits, event, client_id, channel, details)

    cdef void queued(self, object whom, Publication publication, uint8_t qos) noexcept:
        cdef Session session = <Session>whom
        if self.numbers:
            self.tell_message("queued", whom, publication.topic[:publication.topic_size], publication.client_id, {
                "qos": qos, "size": publication.payload_size, "queue": session.queue.count})

    cdef void dropped(self, object whom, const uint8_t* topic, uint32_t topic_size, str why) noexcept:
        cdef TopicCount count
        if whom is None and self.counted:
            for count in self.counts_of(topic[:topic_size]):
                count.dropped += 1
        if self.numbers:
            self.tell_message("dropped", whom, topic[:topic_size], None, {"reason": why})

    cdef void forwarded(self, long worker, Publication publication) noexcept:
        if self.numbers:
            self.tell_message("forwarded", None, publication.topic[:publication.topic_size], publication.client_id, {
                "to_worker": worker, "qos": publication.qos, "size": publication.payload_size})

    cdef void arrived(self, int worker, Publication publication) noexcept:
        if self.numbers:
            self.tell_message("arrived", None, publication.topic[:publication.topic_size], publication.client_id, {
                "from_worker": worker, "worker": self.worker.number, "qos": publication.qos, "size": publication.payload_size})

    # --- slow subscriptions -----------------------------------------------------------------------------------------------------

    cdef void acknowledged(self, object session, const Delivery* delivery) noexcept:
        cdef Session one = <Session>session
        cdef Message message
        cdef uint64_t published_ms, from_ms, to_ms
        if self.slow is None or delivery.message == NULL or delivery.retain:
            return
        message = <Message>delivery.message
        published_ms = message.id_high // 1000
        if published_ms < one.created_ms:
            return                         # it did not wait for this subscriber
        from_ms = delivery.sent_ms if self.slow_kind == SPAN_RESPONSE else published_ms
        to_ms = delivery.sent_ms if self.slow_kind == SPAN_INTERNAL else self.worker.now_ms
        if <int64_t>(to_ms - from_ms) >= <int64_t>max(self.slow_least_ms, self.slow_floor_ms):
            self.note_slow(one.client_id, message.block[:message.topic_size], <int64_t>(to_ms - from_ms))

    cdef int note_slow(self, bytes client_id, bytes topic, int64_t lasted_ms) except -1:
        """Keeps the slowest: of each client and topic the slowest delivery within the interval."""
        cdef tuple key = (client_id, topic)
        cdef uint64_t now_ms = self.worker.now_ms
        if lasted_ms < <int64_t>self.slow_least_ms:
            return 0
        before = self.slow.get(key)
        if before is not None:
            self.slow[key] = (max(before[0], lasted_ms), now_ms)
            return 0
        if lasted_ms < <int64_t>self.slow_floor_ms:
            return 0
        if <uint32_t>len(self.slow) >= self.slow_most:
            self.forget_slow()
        if <uint32_t>len(self.slow) >= self.slow_most:
            self.drop_fastest()
        self.slow[key] = (lasted_ms, now_ms)
        if <uint32_t>len(self.slow) >= self.slow_most:
            self.slow_floor_ms = min([lasted for lasted, _ in self.slow.values()])
        return 0

    def drop_fastest(self) -> None:
        """Makes room for one."""
        del self.slow[min(self.slow, key=lambda one: self.slow[one][0])]

    def forget_slow(self) -> None:
        """Those that were not slow for a while."""
        cdef uint64_t now_ms = self.worker.now_ms
        self.slow = {key: (lasted, at) for key, (lasted, at) in self.slow.items() if at + self.slow_expiry_ms > now_ms}
        self.slow_floor_ms = 0

    def slowest(self) -> list:
        """[client id, topic, ms, at] of each."""
        if self.slow is None:
            return []
        self.forget_slow()
        return [[client_id, topic, lasted, at] for (client_id, topic), (lasted, at) in self.slow.items()]

    def clear_slow(self) -> None:
        """Begins anew."""
        if self.slow is not None:
            self.slow, self.slow_floor_ms = {}, 0

    # --- metrics of topics --------------------------------------------------------------------------------------------------------

    cdef tuple counts_of(self, bytes topic):
        """The TopicCounts of a topic: its own, and those of filters that match it."""
        if not self.counted:
            return ()
        known = self.counted_seen.get(topic)
        if known is None:
            if len(self.counted_seen) >= TOPICS_SEEN:
                self.counted_seen.clear()
            known = tuple([count for filter, count in self.counted.items() if matches(filter, topic)])
            self.counted_seen[topic] = known
        return <tuple>known

    def topic_counts(self) -> dict:
        """Topic or filter -> messages in by QoS, out by QoS, dropped; since this process has looked at it."""
        cdef TopicCount count
        return {
            name: [count.arrived[0], count.arrived[1], count.arrived[2], count.left[0], count.left[1], count.left[2], count.dropped]
            for name, count in self.counted.items()
        }

    # --- the loudest clients ------------------------------------------------------------------------------------------------------

    cdef ClientCount count_of(self, bytes client_id):
        cdef ClientCount count = self.loud.get(client_id)
        if count is None:
            if len(self.loud) >= LOUD_CLIENTS:
                self.loud_left_out += 1
                return None
            count = ClientCount.__new__(ClientCount)
            self.loud[client_id] = count
        return count

    def loudest(self, int most) -> dict | None:
        """Clients with most messages, in and out together, in the last window that is over, and how long that was. It is counted
        from the first question on; None until a window is over."""
        self.loud_asked_ms = self.worker.now_ms
        if self.loud is None:
            self.loud, self.loud_before, self.loud_left_out = {}, None, 0
            self.loud_began_ms = self.worker.now_ms
            self.look()
        self.rotate_loud()
        if self.loud_before is None:
            return None
        cdef ClientCount count
        rows = [[client_id, count.messages_in, count.bytes_in, count.messages_out, count.bytes_out]
                for client_id, count in self.loud_before.items()]
        return {"lasted_ms": self.loud_lasted_ms, "left_out": self.loud_left_out,
                "rows": nlargest(most, rows, key=lambda row: (row[1] + row[3], row[2] + row[4]))}

    cdef int rotate_loud(self) except -1:
        cdef uint64_t now_ms = self.worker.now_ms
        if now_ms - self.loud_began_ms < <uint64_t>LOUD_WINDOW_MS:
            return 0
        self.loud_before, self.loud = self.loud, {}
        self.loud_lasted_ms, self.loud_began_ms = now_ms - self.loud_began_ms, now_ms
        return 0

    # --- time goes on -------------------------------------------------------------------------------------------------------------

    cdef void tick(self) noexcept:
        cdef uint64_t now_ms = self.worker.now_ms
        if self.numbers:
            self.events_left = min(
                self.events_left + <int64_t>((now_ms - self.refilled_ms) * EVENTS_A_SECOND // 1000), <int64_t>EVENTS_A_SECOND)
            self.refilled_ms = now_ms
            self.tell_lost()
        if self.loud is not None:
            if now_ms - self.loud_asked_ms > <uint64_t>LOUD_ASKED_MS:
                self.loud = self.loud_before = None
                self.look()
            else:
                self.rotate_loud()


cdef bytes id_of(Channel channel):
    """The client id of a connection, as far as it has said."""
    return channel.session.client_id if channel.session is not None else channel.wanted_id or b""


cdef bytes host_key(const PeerAddress* peer):
    return (<const char*>&peer.family)[:1] + (<const char*>peer.host)[:16]


def host_of(str address not None) -> bytes:
    """The key of an address without a port."""
    cdef PeerAddress peer = parse_address(f"[{address}]:1" if ":" in address else f"{address}:1")
    return host_key(&peer)
