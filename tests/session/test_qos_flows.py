"""QoS 1 and 2 as a state machine (MQTT 5.0 §4.3, §4.4): right and wrong packets in any order, and connections that come and go.

The broker's core is driven by hand beside a model of what it must do: exact answers, exact deliveries, exact leftovers. At the
end everybody is connected and acknowledges, and then every message has come, QoS 2 once, and no packet id is in use.
"""

from collections import deque
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shardbroker.config import load
from shardbroker.mqtt import packets as mqtt
from shardbroker.mqtt.spec import PropertyId
from shardbroker.worker.sansio import SansIoRouter
from tests.sim.simulator import MemoryRoutes

TOPICS = (b"flow/a", b"flow/b")
MAX_AWAITING_REL = 4
RETRY_INTERVAL_MS = 5000
NOT_FOUND, IN_USE, TOO_MANY, PROTOCOL_ERROR = 0x92, 0x91, 0x93, 0x82
IDS = st.integers(1, 6)
VERSIONS = st.sampled_from([3, 4, 5])
RECEIVE_MAXIMA = st.sampled_from([1, 2, 5, 65535])
WIDE = 65535


def failure(kind: Any, packet_id: int, code: int, reason: str) -> Any:
    return kind(packet_id, code, {PropertyId.REASON_STRING: reason.encode()})


def unknown(kind: Any, packet_id: int) -> Any:
    return failure(kind, packet_id, NOT_FOUND, f"no message with packet id {packet_id} is in flight")


class Connection:
    """A client's connection to the core; what the core sends is decoded at once."""

    def __init__(
        self, router: SansIoRouter, client_id: bytes, version: int, clean: bool, receive_maximum: int, whole: bool
    ) -> None:
        self.router, self.version, self.whole = router, version, whole
        self.receive_maximum = receive_maximum if version == 5 else WIDE
        self.channel = router.connect("peer")
        # A clean start with an expiry keeps a session from now on; 3.x cannot say that, so there it is done without a clean start.
        properties = {0x11: 1_000_000, 0x21: receive_maximum} if version == 5 else None
        self.send(mqtt.Connect(version, client_id, clean and version == 5, 0, properties=properties))

    def send(self, packet: Any) -> None:
        data = packet.encode(self.version)
        for piece in (data,) if self.whole else (data[i : i + 1] for i in range(len(data))):
            self.channel.receive(piece)

    def received(self) -> list[Any]:
        data = b""
        while more := self.channel.take_output():
            data += more
        found, offset = [], 0
        while (one := mqtt.decode(data, offset, self.version)) is not None:
            packet, offset = one
            found.append(packet)
        assert offset == len(data), "half a packet"
        return found


class QosFlows(RuleBasedStateMachine):
    """A publisher and a subscriber, both with a session that stays."""

    @initialize(inflight=st.sampled_from([1, 3, 32]), version=VERSIONS, whole=st.booleans())
    def start(self, inflight: int, version: int, whole: bool) -> None:
        chosen = [
            "mqtt.max_mqueue_len=0",
            f"mqtt.max_inflight={inflight}",
            f"mqtt.max_awaiting_rel={MAX_AWAITING_REL}",
            f"mqtt.retry_interval={RETRY_INTERVAL_MS}ms",
        ]
        self.now_ms = 1_700_000_000_000
        routes = MemoryRoutes()
        self.router = SansIoRouter(load(None, {}, chosen).settings, routes, 0, self.now_ms, seed=1)
        routes.shards = [self.router]
        self.max_inflight, self.whole = inflight, whole
        self.publisher: Connection | None = None
        self.subscriber: Connection | None = None
        self.number = 0
        # Of the publisher: ids between PUBREC and PUBREL, with their messages.
        self.awaiting: dict[int, mqtt.Publish] = {}
        # Of the subscriber: what must come next, and what is in flight: id -> [payload, qos, PUBREC was sent].
        self.pending: deque[tuple[bytes, int]] = deque()
        self.inflight: dict[int, list[Any]] = {}
        # In flight from an earlier connection, but held back because of Receive Maximum.
        self.held: deque[int] = deque()
        # What the subscribing client itself knows: ids it has had a QoS 2 message of, and all that it took.
        self.open_ids: set[int] = set()
        self.taken: list[tuple[bytes, int]] = []
        self.owed: list[tuple[bytes, int]] = []
        self.subscriber_comes(version, WIDE, False)
        self.publisher_comes(version)

    # --- the publisher --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.publisher is None)
    @rule(version=VERSIONS)
    def publisher_comes(self, version: int) -> None:
        known = self.router.leftovers().get(b"publisher") is not None
        self.publisher = Connection(self.router, b"publisher", version, False, WIDE, self.whole)
        (answer,) = self.publisher.received()
        assert answer == mqtt.Connack(known and version > 3, 0, answer.properties)

    @precondition(lambda self: self.publisher is not None)
    @rule()
    def publisher_goes(self) -> None:
        self.router.cut(self.publisher.channel)
        self.publisher = None

    @precondition(lambda self: self.publisher is not None)
    @rule(packet_id=IDS, topic=st.sampled_from(TOPICS), dup=st.booleans())
    def publish_qos_1(self, packet_id: int, topic: bytes, dup: bool) -> None:
        """DUP or not, each PUBLISH is a message [MQTT-4.3.2-5]."""
        self.publisher.send(self._message(topic, 1, packet_id, dup))
        assert self.publisher.received() == [mqtt.Puback(packet_id)]

    @precondition(lambda self: self.publisher is not None)
    @rule(packet_id=IDS, topic=st.sampled_from(TOPICS), dup=st.booleans())
    def publish_qos_2(self, packet_id: int, topic: bytes, dup: bool) -> None:
        """A new one, or one whose id is in use: a repeat, or an error of this client that must cost nobody else anything."""
        if packet_id in self.awaiting:
            again = self.awaiting[packet_id]
            self.publisher.send(mqtt.Publish(again.topic, again.payload, 2, False, dup, packet_id))
            done = dup or self.publisher.version < 5
            answer = mqtt.Pubrec(packet_id) if done else failure(mqtt.Pubrec, packet_id, IN_USE, f"packet id {packet_id} is in use")
            assert self.publisher.received() == [answer]
        elif len(self.awaiting) == MAX_AWAITING_REL:
            self.publisher.send(mqtt.Publish(topic, b"too many", 2, False, dup, packet_id))
            answers = self.publisher.received()
            assert [one.reason_code for one in answers] == [TOO_MANY] * (self.publisher.version == 5)
            assert self.publisher.channel.is_closing
            self.publisher = None
        else:
            self.awaiting[packet_id] = self._message(topic, 2, packet_id, dup)
            self.publisher.send(self.awaiting[packet_id])
            assert self.publisher.received() == [mqtt.Pubrec(packet_id)]

    @precondition(lambda self: self.publisher is not None)
    @rule(packet_id=IDS)
    def release(self, packet_id: int) -> None:
        self.publisher.send(mqtt.Pubrel(packet_id))
        known = self.awaiting.pop(packet_id, None) is not None or self.publisher.version < 5
        assert self.publisher.received() == [mqtt.Pubcomp(packet_id) if known else unknown(mqtt.Pubcomp, packet_id)]

    def _message(self, topic: bytes, qos: int, packet_id: int, dup: bool) -> mqtt.Publish:
        self.number += 1
        payload = b"%d" % self.number
        self.pending.append((payload, qos))
        self.owed.append((payload, qos))
        return mqtt.Publish(topic, payload, qos, False, dup, packet_id)

    # --- the subscriber -------------------------------------------------------------------------------------------------------

    @rule(version=VERSIONS, receive_maximum=RECEIVE_MAXIMA, clean=st.booleans())
    def subscriber_comes(self, version: int, receive_maximum: int, clean: bool) -> None:
        """For the first time, again, or while its last connection is still there."""
        known = b"subscriber" in self.router.leftovers()
        clean = clean and version == 5
        old, self.subscriber = self.subscriber, Connection(self.router, b"subscriber", version, clean, receive_maximum, self.whole)
        if old is not None:
            assert old.channel.is_closing
        answer, *rest = self.subscriber.received()
        assert answer == mqtt.Connack(known and not clean and version > 3, 0, answer.properties)
        if clean:
            # The old session has ended, and what was on its way with it.
            gone = {payload for payload, _ in self.pending} | {payload for payload, _, _ in self.inflight.values()}
            self.owed = [one for one in self.owed if one[0] not in gone]
            self.pending.clear()
            self.inflight.clear()
            self.open_ids.clear()
        self._resumed(rest)
        if clean or not known:
            self.subscriber.send(mqtt.Subscribe(1, [(b"flow/+", 2)]))
            self.router.advance(self.now_ms)
            assert [type(one) for one in self.subscriber.received()] == [mqtt.Suback]

    def _resumed(self, packets: list[Any]) -> None:
        """All that was in flight comes again, in the order in which it came first [MQTT-4.4.0-1], then what is new.

        As much as the Receive Maximum of this connection allows: PUBRELs, and as many PUBLISHes as fit beside them.
        """
        self.held.clear()
        room = self._window() - sum(released for _, _, released in self.inflight.values())
        for packet_id, (payload, qos, released) in self.inflight.items():
            if released:
                assert packets.pop(0) == mqtt.Pubrel(packet_id)
                self.open_ids.discard(packet_id)
            elif room > 0:
                room -= 1
                packet = packets.pop(0)
                assert (packet.packet_id, packet.payload, packet.qos, packet.dup) == (packet_id, payload, qos, True)
                self._take_publish(packet)
            else:
                self.held.append(packet_id)
        self._take_new(packets)

    @precondition(lambda self: self.subscriber is not None)
    @rule(orderly=st.booleans())
    def subscriber_goes(self, orderly: bool) -> None:
        if orderly:
            self.subscriber.send(mqtt.Disconnect())
        else:
            self.router.cut(self.subscriber.channel)
        assert self.subscriber.received() == []
        self.subscriber = None

    @precondition(lambda self: self.subscriber is not None)
    @rule(packet_id=IDS, code=st.sampled_from([0, 0x80]))
    def puback(self, packet_id: int, code: int) -> None:
        found = self.inflight.get(packet_id)
        self._answer(mqtt.Puback(packet_id, code))
        if found is not None and found[1] == 2:
            return self._closed_as_wrong()
        if found is not None:
            del self.inflight[packet_id]
        self._take_new(self.subscriber.received())

    @precondition(lambda self: self.subscriber is not None)
    @rule(packet_id=IDS, code=st.sampled_from([0, 0x10, 0x87]))
    def pubrec(self, packet_id: int, code: int) -> None:
        code = code if self.subscriber.version == 5 else 0
        found = self.inflight.get(packet_id)
        self._answer(mqtt.Pubrec(packet_id, code))
        if found is not None and found[1] == 1:
            return self._closed_as_wrong()
        packets = self.subscriber.received()
        if found is None:
            if code < 0x80:
                knows_reasons = self.subscriber.version == 5
                assert packets.pop(0) == (unknown(mqtt.Pubrel, packet_id) if knows_reasons else mqtt.Pubrel(packet_id))
        elif code < 0x80:
            found[2] = True
            assert packets.pop(0) == mqtt.Pubrel(packet_id)
            self.open_ids.discard(packet_id)
        else:
            del self.inflight[packet_id]
            self.open_ids.discard(packet_id)
        self._take_new(packets)

    @precondition(lambda self: self.subscriber is not None)
    @rule(packet_id=IDS)
    def pubcomp(self, packet_id: int) -> None:
        found = self.inflight.get(packet_id)
        self._answer(mqtt.Pubcomp(packet_id))
        if found is not None and not found[2]:
            return self._closed_as_wrong()
        if found is not None:
            del self.inflight[packet_id]
        self._take_new(self.subscriber.received())

    def _closed_as_wrong(self) -> None:
        """The acknowledgement that the message waits for would never come: the connection ends, the message stays in flight."""
        answers = self.subscriber.received()
        assert [one.reason_code for one in answers] == [PROTOCOL_ERROR] * (self.subscriber.version == 5)
        assert self.subscriber.channel.is_closing
        self.subscriber = None

    def _answer(self, packet: Any) -> None:
        if self.subscriber.version < 5:
            packet.reason_code = 0
        self.subscriber.send(packet)

    def _take_publish(self, packet: Any) -> None:
        """What a client does: a QoS 2 message whose id it holds already is the same one [MQTT-4.3.3-10]."""
        if packet.qos == 1 or packet.packet_id not in self.open_ids:
            self.taken.append((packet.payload, packet.qos))
        if packet.qos == 2:
            self.open_ids.add(packet.packet_id)

    def _take_new(self, packets: list[Any]) -> None:
        """What was held back on resuming, then first deliveries: in the order of publication, with ids that are free."""
        self.held = deque(one for one in self.held if one in self.inflight and not self.inflight[one][2])
        for packet in packets:
            if self.held:
                payload, qos, _ = self.inflight[self.held.popleft()]
                assert (packet.payload, packet.qos, packet.dup) == (payload, qos, True)
                self._take_publish(packet)
                continue
            payload, qos = self.pending.popleft()
            assert (packet.payload, packet.qos, packet.dup) == (payload, qos, False)
            assert packet.packet_id not in self.inflight
            self.inflight[packet.packet_id] = [payload, qos, False]
            self._take_publish(packet)

    # --- time and invariants --------------------------------------------------------------------------------------------------

    @rule(elapsed_ms=st.sampled_from([1, 1000, RETRY_INTERVAL_MS + 1000]))
    def time_passes(self, elapsed_ms: int) -> None:
        """3.x clients get again what they have not acknowledged; 5.0 clients do not [MQTT-4.4.0-1]."""
        self.now_ms += elapsed_ms
        self.router.advance(self.now_ms)
        if self.subscriber is None:
            return
        for packet in self.subscriber.received():
            assert self.subscriber.version < 5
            payload, qos, released = self.inflight[packet.packet_id]
            if released:
                assert packet == mqtt.Pubrel(packet.packet_id)
            else:
                assert (packet.payload, packet.qos, packet.dup) == (payload, qos, True)
                self._take_publish(packet)

    def _window(self) -> int:
        return min(self.max_inflight, self.subscriber.receive_maximum)

    @invariant()
    def nothing_is_late(self) -> None:
        """The window is used, and not more than it."""
        if not hasattr(self, "router") or self.subscriber is None:
            return
        self._take_new(self.subscriber.received())
        sent = len(self.inflight) - len(self.held)
        assert sent >= self._window() or not (self.held or self.pending)
        assert sent - sum(released for _, _, released in self.inflight.values()) <= self._window()

    @invariant()
    def nothing_is_left_over(self) -> None:
        if hasattr(self, "router"):
            left = self.router.leftovers()
            assert left.get(b"subscriber", (0, 0, 0)) == (len(self.inflight), len(self.pending), 0)
            assert left.get(b"publisher", (0, 0, 0)) == (0, 0, len(self.awaiting))

    def teardown(self) -> None:
        if not hasattr(self, "router"):
            return
        if self.publisher is None:
            self.publisher_comes(4)
        if self.subscriber is None:
            self.subscriber_comes(4, WIDE, False)
        for packet_id in list(self.awaiting):
            self.release(packet_id)
        while self.inflight:
            packet_id, (_, qos, released) = next(iter(self.inflight.items()))
            if qos == 1:
                self.puback(packet_id, 0)
            elif released:
                self.pubcomp(packet_id)
            else:
                self.pubrec(packet_id, 0)
            self.nothing_is_late()
        self.nothing_is_left_over()
        assert set(self.owed) <= set(self.taken), "QoS 1 at least once"
        twice = [one for one in self.taken if one[1] == 2]
        assert len(twice) == len(set(twice)), "QoS 2 exactly once"
        for qos in (1, 2):
            first_seen = list(dict.fromkeys(int(payload) for payload, one in self.taken if one == qos))
            assert first_seen == sorted(first_seen), "in order"


TestQosFlows = QosFlows.TestCase
TestQosFlows.settings = settings(max_examples=200, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))
