"""Traces; see traces.pxd."""

import time

from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython cimport final

from shardbroker.mqtt.codec cimport AckView, parse_ack
from shardbroker.mqtt.packets cimport decode_body
from shardbroker.mqtt.spec cimport CONNECT, DISCONNECT, PUBACK, PUBCOMP, SUBSCRIBE, UNSUBSCRIBE
from shardbroker.session.context cimport WorkerContext
from shardbroker.session.watcher cimport WATCH_TRACES
from shardbroker.worker.observers.observer cimport TOPICS_KNOWN
from shm.address cimport PeerAddress, address_text, parse_address
from shm.destinations cimport NODE, kind_of, number_of
from shm.events cimport EVENT_CONNECTED, EVENT_DISCONNECTED
from shm.ring cimport Ring

import cbor2

from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import decode
from shardbroker.mqtt.spec import PacketType
from shardbroker.mqtt.topics import matches
from shm.events import SIDES
from shm.records import TRACE, encode_record

__all__ = ["TRACES_MAX", "Traces"]

TRACES_MAX = 30
"""Traces at a time: each has a bit of a word."""

EVENTS_A_SECOND = 5000
"""Events that one worker sends in a second: each costs the worker 5 µs, and the manager twice that."""

cdef list NAMES = [PacketType(number).name for number in range(16)]


@final
cdef class Traces(Observer):
    def __init__(self, WorkerContext context not None, Reporter reporter not None, int worker) -> None:
        self.context = context
        self.bit = WATCH_TRACES
        self.reporter = reporter
        self.worker = worker
        self.lost = []                     # set() iterates over it, and enumerate() of a typed list does not look for None
        self.set([])

    def set(self, list traces) -> None:
        """Replaces all traces: number, type, value and payload_limit of each."""
        cdef uint32_t bit
        self.send_lost()
        self.clients, self.users, self.peers, self.filters = {}, {}, {}, []
        self.matching = {}
        self.events_left, self.refilled_ms = EVENTS_A_SECOND, self.context.now_ms
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
        self.observe(bool(self.numbers))

    cdef uint32_t of_client(self, Channel channel, bytes client_id) except? 0xFFFFFFFF:
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
        known = self.matching.get(topic)
        if known is not None:
            return <uint32_t>known
        for filter, bit in self.filters:
            if matches(filter, topic):
                bits |= <uint32_t>bit
        if len(self.matching) >= TOPICS_KNOWN:
            self.matching.clear()
        self.matching[topic] = bits
        return bits

    cdef int send_event(self, uint32_t bits, str event, bytes client_id, Channel channel, dict details) except -1:
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
        cdef Ring lane = self.reporter.outlet().lane
        cdef bytes record = encode_record(TRACE, cbor2.dumps(event))
        # Half of the ring is left to others: has_room() doubles the size that it is given.
        if PyBytes_GET_SIZE(record) > lane.max_record() or not lane.has_room(
                <uint32_t>(lane.capacity // 4 + <uint64_t>PyBytes_GET_SIZE(record))):
            return False
        lane.put(record)
        self.reporter.note_event()
        return True

    def send_lost(self) -> None:
        """Sends the number of lost events of each trace, as far as the manager's ring has room."""
        for place, count in enumerate(self.lost):
            if count and self.put([[self.numbers[place]], time.time_ns() // 1000, "lost", b"", None, "", {"count": count}]):
                self.lost[place] = 0

    cdef bytes cut_payload(self, uint32_t bits, const uint8_t* payload, uint32_t size):
        cdef int place
        limit = max([limit for place, limit in enumerate(self.payload_limits) if bits >> place & 1])
        return PyBytes_FromStringAndSize(<const char*>payload, min(size, <uint32_t>limit)) if limit else None

    # --- packets ----------------------------------------------------------------------------------------------------------------

    cdef void received(self, Channel channel, uint8_t first, const uint8_t* body, uint32_t size) noexcept:
        cdef AckView view
        cdef int kind = first >> 4
        cdef bytes client_id = client_id_of(channel)
        cdef uint32_t bits = self.of_client(channel, client_id)
        cdef dict details = {"packet": NAMES[kind]}
        try:
            if kind == CONNECT:
                packet = decode_body(first, body, size, 0)
                client_id = packet.client_id or client_id
                bits |= self.of_client(None, client_id) | <uint32_t>(self.users.get(packet.username, 0))
                details |= {"version": packet.version, "clean_start": packet.clean_start, "keepalive": packet.keepalive_s}
                if packet.username is not None:
                    details["username"] = packet.username
                if packet.will is not None:
                    bits |= self.of_topic(packet.will.topic)
                    details |= {"will_topic": packet.will.topic, "will_qos": packet.will.qos, "will_retain": packet.will.retain}
            elif kind == SUBSCRIBE or kind == UNSUBSCRIBE:
                if not bits and not self.filters:
                    return
                packet = decode_body(first, body, size, channel.version)
                filters = packet.filters if kind == UNSUBSCRIBE else [filter for filter, _ in packet.topics]
                for filter in filters:
                    bits |= self.of_topic(filter)
                details |= {"packet_id": packet.packet_id, "filters": filters}
                if kind == SUBSCRIBE:
                    details["qos"] = [options & 3 for _, options in packet.topics]
            elif bits and PUBACK <= kind <= PUBCOMP:
                parse_ack(first, body, size, channel.version, &view)
                details |= {"packet_id": view.packet_id, "reason_code": view.reason_code}
            elif bits and kind == DISCONNECT:
                details["reason_code"] = decode_body(first, body, size, channel.version).reason_code
        except MqttError:
            details["malformed"] = True    # the log line about the end of the connection has the reason
        if bits:
            self.send_event(bits, "received", client_id, channel, details)

    cdef void published(self, Channel channel, const PublishView* view) noexcept:
        cdef bytes topic = PyBytes_FromStringAndSize(<const char*>view.topic, view.topic_size)
        cdef bytes client_id = client_id_of(channel)
        cdef uint32_t bits = self.of_client(channel, client_id) | self.of_topic(topic)
        if bits:
            self.send_event(bits, "received", client_id, channel, {
                "packet": "PUBLISH", "packet_id": view.packet_id, "topic": topic, "qos": view.qos, "retain": view.retain,
                "dup": view.dup, "size": view.payload_size, "payload": self.cut_payload(bits, view.payload, view.payload_size)})

    cdef void sent(
        self, Channel channel, Publication publication, bytes topic, uint8_t qos, bint retain, bint dup, uint16_t packet_id,
    ) noexcept:
        cdef bytes client_id = client_id_of(channel)
        cdef uint32_t bits = self.of_client(channel, client_id) | self.of_topic(topic)
        if bits:
            self.send_event(bits, "sent", client_id, channel, {
                "packet": "PUBLISH", "packet_id": packet_id, "topic": topic, "qos": qos, "retain": retain, "dup": dup,
                "size": publication.payload_size, "from": publication.client_id,
                "payload": self.cut_payload(bits, publication.payload, publication.payload_size)})

    cdef void acked(self, Channel channel, uint8_t first, uint16_t packet_id, uint8_t reason_code, bytes codes) noexcept:
        cdef bytes client_id = client_id_of(channel)
        cdef uint32_t bits = self.of_client(channel, client_id)
        if bits:
            self.send_event(bits, "sent", client_id, channel, {
                "packet": NAMES[first >> 4], "packet_id": packet_id,
                **({"reason_code": reason_code} if codes is None else {"reason_codes": list(codes)})})

    cdef void replied(self, Channel channel, bytes packet) noexcept:
        cdef bytes client_id = client_id_of(channel)
        cdef uint32_t bits = self.of_client(channel, client_id)
        cdef dict details
        if not bits:
            return
        known = decode(packet, 0, channel.version or 4)[0]
        details = {"packet": NAMES[packet[0] >> 4]}
        for name in ("packet_id", "session_present", "reason_code", "codes"):
            if hasattr(known, name):
                value = getattr(known, name)
                details["reason_codes" if name == "codes" else name] = list(value) if isinstance(value, bytes) else value
        self.send_event(bits, "sent", client_id, channel, details)

    cdef void status_changed(self, int kind, Channel channel, bytes client_id, int reason_code, int side, str detail) noexcept:
        cdef uint32_t bits
        if kind != EVENT_CONNECTED and kind != EVENT_DISCONNECTED:
            return
        bits = self.of_client(channel, client_id)
        if not bits:
            return
        if kind == EVENT_CONNECTED:
            self.send_event(bits, "connected", client_id, channel, {"version": channel.version, "keepalive": channel.keepalive_s})
        else:
            self.send_event(
                bits, "disconnected", client_id, channel, {"reason_code": reason_code, "side": SIDES[side], "detail": detail})

    cdef void denied(self, Channel channel, str action, bytes topic) noexcept:
        cdef bytes client_id = client_id_of(channel)
        cdef uint32_t bits = self.of_client(channel, client_id) | self.of_topic(topic)
        if bits:
            self.send_event(bits, "not_authorized", client_id, channel, {"action": action, "topic": topic})

    # --- messages ---------------------------------------------------------------------------------------------------------------

    cdef void message(self, str event, object whom, bytes topic, bytes publisher, dict details) noexcept:
        cdef Session session
        cdef Channel channel = None
        cdef bytes client_id = publisher or b""
        cdef uint32_t bits
        if isinstance(whom, Channel):
            channel = <Channel>whom
            client_id = client_id_of(channel)
        elif whom is not None:
            session = <Session>whom
            client_id = session.client_id
            channel = <Channel>session.link if session.link is not None else None
        bits = self.of_client(channel, client_id) | self.of_topic(topic)
        if bits:
            details["topic"] = topic
            if publisher and client_id != publisher:
                details["from"] = publisher
            self.send_event(bits, event, client_id, channel, details)

    cdef void queued(self, Session session, Publication publication, uint8_t qos) noexcept:
        self.message("queued", session, publication.topic[:publication.topic_size], publication.client_id, {
            "qos": qos, "size": publication.payload_size, "queue": session.queue.count})

    cdef void forwarded(self, long worker, Publication publication) noexcept:
        self.message("forwarded", None, publication.topic[:publication.topic_size], publication.client_id, {
            "to_node" if kind_of(worker) == NODE else "to_worker": number_of(worker), "qos": publication.qos, "size": publication.payload_size})

    cdef void arrived(self, int worker, Publication publication) noexcept:
        self.message("arrived", None, publication.topic[:publication.topic_size], publication.client_id, {
            "from_node" if kind_of(worker) == NODE else "from_worker": number_of(worker), "worker": self.worker, "qos": publication.qos, "size": publication.payload_size})

    # --- time -------------------------------------------------------------------------------------------------------------------

    cdef void tick(self) noexcept:
        cdef uint64_t now_ms = self.context.now_ms
        self.events_left = min(
            self.events_left + <int64_t>((now_ms - self.refilled_ms) * EVENTS_A_SECOND // 1000), <int64_t>EVENTS_A_SECOND)
        self.refilled_ms = now_ms
        self.send_lost()


cdef bytes client_id_of(Channel channel):
    return channel.session.client_id if channel.session is not None else channel.wanted_id or b""


cdef bytes host_key(const PeerAddress* peer):
    return (<const char*>&peer.family)[:1] + (<const char*>peer.host)[:16]


def host_of(str address not None) -> bytes:
    """Returns the key of an address without a port."""
    cdef PeerAddress peer = parse_address(f"[{address}]:1" if ":" in address else f"{address}:1")
    return host_key(&peer)
