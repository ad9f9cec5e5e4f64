"""MQTT clients that do what the standard asks of a client, on one selector and one thread.

    Network.step    select -> receive -> tick (tricks, connecting, traffic) -> flush

What a client sends waits in `out` until the flush; a connection that is cut in between takes it along, as a broken network does.
Each connection has a transport, of which there may be several to choose from.
Publisher and Subscriber have sessions that stay: they keep their own half of it over connections (MQTT 5.0 §4.1, §4.4).
"""

import contextlib
import random
import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.harness import wire
from tests.harness.client import Address
from tests.torture.checker import EXCLUSIVE, INFINITE, History, Kind
from tests.torture.transports import Listening, Plain

CONNACK_TIMEOUT_S = 20.0
"""A worker that dies young again and again comes back after 5 s; before that nobody answers."""
ANSWER_TIMEOUT_S = 20.0
"""For the retained messages behind a SUBACK."""
EXPIRY_S = 86_400
WINDOW = 16
"""Messages that a publisher has unacknowledged at most: below the least receive maximum."""
SIZES = (20, 60, 60, 300, 60, 20, 4000, 60)
"""Of payloads, by message number."""
TAKEN_OVER, SHUTTING_DOWN = 0x8E, 0x8B
WILL_DELAYS_S = (0, 0, 1, 3)
WILL_TIMEOUT_S = 30.0
"""Behind the delay: the broker may have to start again a few times first, and counts from when it knows."""
UNAVAILABLE = (3, 0x88, 0x89)
"""CONNACK: server unavailable, server busy."""
ID_NOT_FOUND, NO_SUBSCRIPTION = 0x92, 0x11
HELD_BY_ANOTHER = {4: 0x80, 5: 0x97}
"""Answer to an exclusive subscription, by version."""
RENOUNCE = 0.1
"""Share of the changes of an exclusive subscription's client that end its session."""


def payload_of(number: int) -> bytes:
    return (b"%d " % number).ljust(SIZES[number % len(SIZES)], b".")


class Network:
    """Where all clients live: address, clock, what they saw."""

    def __init__(self, place: Address | Listening, history: History) -> None:
        self.place = place if isinstance(place, Listening) else Listening.plain(place)
        self.history = history
        self.now = history.clock
        self.selector = selectors.DefaultSelector()
        self.clients: list[Client] = []

    def step(self, timeout_s: float = 0.005) -> None:
        for key, _ in self.selector.select(timeout_s):
            key.data()
        now = self.now()
        for client in self.clients:
            client.tick(now)
        for client in self.clients:
            client.flush()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.selector.close()


class Client:
    """Connections of one client id, one after the other."""

    clean = False
    trick_interval_s = 3.0
    """Mean time between two goings."""

    def __init__(self, network: Network, name: str, version: int, seed: int) -> None:
        self.network, self.history, self.name, self.version = network, network.history, name, version
        self.rng = random.Random(f"{seed}/{name}")
        self.connected = False
        self.had_session = False
        self.restless = False
        self.fresh = False
        """The next connection is to end the session that there is, and to begin another that stays."""
        self.out = bytearray()
        self._socket: socket.socket | None = None
        self._layer = Plain()
        self._opened_s = 0.0
        self._old: socket.socket | None = None  # of the connection that is being taken over
        self._in = b""
        self._connect_at = 0.0
        self._deadline = INFINITE
        self._trick_at = INFINITE
        self._next_id = 0
        self._handlers: dict[type[wire.Packet], Callable[[Any], None]] = {
            wire.Connack: self._on_connack,
            wire.Disconnect: self._on_disconnect,
        }
        network.clients.append(self)

    def fault(self, kind: Kind, text: str) -> None:
        self.history.fault(kind, self.name, text)

    # --- connections ----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Called every step."""
        if self._socket is None:
            if now >= self._connect_at:
                self._open()
        elif not self.connected:
            if now > self._deadline:
                self.fault(Kind.STUCK, f"no CONNACK for {CONNACK_TIMEOUT_S:g} s")
                self._lost()
        elif self.restless and now > self._trick_at:
            self.rng.choice((self.cut, self.cut, self.leave, self.take_over))()

    def _open(self) -> None:
        self._in = b""
        self.out.clear()
        place = self.network.place
        transport = self.rng.choice(tuple(place.addresses))
        self._layer = place.layers[transport]()
        self._opened_s = self.network.now()
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.connect_ex(place.addresses[transport])
        self.network.selector.register(self._socket, selectors.EVENT_READ, self._receive)
        self._deadline = self.network.now() + CONNACK_TIMEOUT_S
        properties = {} if self.clean else {"session_expiry_interval": EXPIRY_S, "receive_maximum": self.rng.choice((5, 30))}
        self.out += wire.connect(
            self.name, self.version, clean=self.clean or self.fresh, keepalive=0, properties=properties, will=self.next_will()
        )

    def _receive(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionResetError("end of the stream")
            data = self._layer.take(data)
        except BlockingIOError:
            return
        except OSError as error:
            self._gone(str(error))
            return
        buffer = memoryview(self._in + data)
        connection, at = self._socket, 0
        try:
            while found := wire.parse(buffer[at:], self.version):
                at += found[1]
                self._handle(found[0])
                if self._socket is not connection:
                    return  # the packet made us hang up
        except wire.WireError as error:
            self.fault(Kind.PROTOCOL, f"bytes that no server may send: {error}")
            self._lost()
            return
        self._in = bytes(buffer[at:])

    def _handle(self, packet: wire.Packet) -> None:
        handler = self._handlers.get(type(packet))
        if handler is None or self.connected == isinstance(packet, wire.Connack):
            self.fault(Kind.PROTOCOL, f"unexpected {packet}")
        else:
            handler(packet)

    def flush(self) -> None:
        """Sends what there is to send, as far as the socket takes it."""
        if self._socket is None:
            return
        self._layer.put(self.out)
        if self._layer.pending:
            try:
                del self._layer.pending[: self._socket.send(self._layer.pending)]
            except BlockingIOError:
                pass
            except OSError as error:
                self._gone(str(error))

    def _gone(self, how: str) -> None:
        """The broker has ended the connection."""
        if self.connected:
            self.history.dropped(self.name, self._opened_s, how)
        self._lost()

    def _hang_up(self, away_s: float) -> None:
        """Forgets the connection, for so long."""
        for one in (self._old, self._socket):
            if one is not None:
                with contextlib.suppress(KeyError):
                    self.network.selector.unregister(one)
                one.close()
        self._socket = self._old = None
        if self.connected:
            self.history.disconnected(self.name)
        self.connected = False
        self._connect_at = self.network.now() + away_s

    def _lost(self) -> None:
        self._hang_up(self.rng.uniform(0.005, 0.1))

    def cut(self) -> None:
        """The network is gone: a reset, and nothing that waited is sent."""
        assert self._socket is not None
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._hang_up(self.rng.choice((0.0, 0.02, 0.5, 2.0)))

    def leave(self) -> None:
        """DISCONNECT, and away for a while; the session stays."""
        self.out += wire.disconnect(version=self.version)
        self.flush()
        self._hang_up(self.rng.choice((0.0, 0.1, 0.5, 2.0)))

    def take_over(self) -> None:
        """A second connection while the first is still open."""
        assert self._socket is not None
        self.flush()
        if self._socket is not None:
            self.network.selector.unregister(self._socket)
            old, self._socket = self._socket, None
            self._hang_up(0.0)
            self._old = old

    def close(self) -> None:
        self._hang_up(INFINITE)

    # --- what comes -----------------------------------------------------------------------------------------------------

    def _on_connack(self, packet: wire.Connack) -> None:
        if packet.code:
            if packet.code not in UNAVAILABLE:
                self.fault(Kind.PROTOCOL, f"refused: {packet}")
            self._lost()
            return
        if self._old is not None:
            self._old.close()
            self._old = None
        self.connected = True
        self.history.connected(self.name)
        self._trick_at = self.network.now() + self.rng.expovariate(1 / self.trick_interval_s)
        if self.fresh and packet.session_present:
            self.fault(Kind.PROTOCOL, f"a session after a clean start: {packet}")
        lost = self.had_session and not packet.session_present
        if lost and not self.clean and not self.fresh:
            self.history.session_lost(self.name)
        self.had_session = True
        self.on_connected(lost)

    def _on_disconnect(self, packet: wire.Disconnect) -> None:
        if packet.code not in (TAKEN_OVER, SHUTTING_DOWN):
            self.fault(Kind.PROTOCOL, f"sent away: {packet}")

    def next_will(self) -> wire.Will | None:
        """What the CONNECT that is sent now leaves with the broker."""
        return None

    def on_connected(self, lost: bool) -> None:
        """The session goes on; or, if `lost`, begins anew though it should not."""
        raise NotImplementedError

    def idle(self) -> bool:
        """Whether there is nothing left that it waits for."""
        raise NotImplementedError

    def number_of(self, packet: wire.Publish) -> int | None:
        """The number of the message; None, and a fault, if it is not as it was sent."""
        number = int(packet.payload.partition(b" ")[0] or b"-1")
        if not 0 <= number < len(self.history.qos):
            self.fault(Kind.PROTOCOL, f"a message that nobody sent: {packet}")
        elif packet.payload != payload_of(number) or packet.topic != self.history.topics[self.history.topic[number]]:
            self.fault(Kind.PROTOCOL, f"not as it was sent: {self.history.describe(number)}, got {packet}")
        else:
            return number
        return None

    def next_id(self, used: Any) -> int:
        """A packet id that is not in use."""
        while True:
            self._next_id = self._next_id % 65535 + 1
            if self._next_id not in used:
                return self._next_id


# --- publishers -------------------------------------------------------------------------------------------------------------


@dataclass
class Outgoing:
    """A message that is not acknowledged."""

    number: int
    topic: str
    qos: int
    retain: bool
    released: bool = False
    """PUBREC seen: from now on PUBREL is sent, not PUBLISH."""
    place: int = 0
    """Of its PUBLISH among those of the connection."""


class Publisher(Client):
    """Keeps each message until PUBACK or PUBCOMP, and sends it again on each connection until then. QoS 0 is sent once; the broker
    has it when something sent behind it is acknowledged."""

    def __init__(self, network: Network, name: str, version: int, seed: int) -> None:
        super().__init__(network, name, version, seed)
        self.outbox: dict[int, Outgoing] = {}
        self._published = 0
        """On this connection."""
        self._unconfirmed: deque[tuple[int, int]] = deque()
        """QoS 0 of this connection: place and message number."""
        self._handlers |= {wire.Puback: self._on_puback, wire.Pubrec: self._on_pubrec, wire.Pubcomp: self._on_pubcomp}

    def publish(self, topic: str, qos: int, retain: bool = False, delay_s: int = 0) -> bool:
        """False if it cannot send now. topic: the real one, also of a delayed message."""
        if not self.connected or len(self.outbox) >= WINDOW or len(self._unconfirmed) >= WINDOW:
            return False
        message = Outgoing(self.history.sent(self.name, topic, qos, delay_s), topic, qos, retain)
        if delay_s:
            message.topic = f"$delayed/{delay_s}/{topic}"
        packet_id = self.next_id(self.outbox) if qos else None
        if packet_id is not None:
            self.outbox[packet_id] = message
        self._send(packet_id, message, False)
        if packet_id is None:
            self._unconfirmed.append((message.place, message.number))
        return True

    def _send(self, packet_id: int | None, message: Outgoing, dup: bool) -> None:
        if message.released and packet_id is not None:
            self.out += wire.pubrel(packet_id)
            return
        self._published += 1
        message.place = self._published
        self.out += wire.publish(
            message.topic,
            payload_of(message.number),
            version=self.version,
            qos=message.qos,
            retain=message.retain,
            dup=dup,
            packet_id=packet_id,
        )

    def _hang_up(self, away_s: float) -> None:
        super()._hang_up(away_s)
        self.history.taken_back.update(number for _, number in self._unconfirmed)
        self._unconfirmed.clear()
        self._published = 0

    def _confirm(self, message: Outgoing) -> None:
        """The broker has read this message's PUBLISH, and what was sent before it on this connection."""
        while self._unconfirmed and self._unconfirmed[0][0] < message.place:
            self.history.acknowledged(self._unconfirmed.popleft()[1])

    def on_connected(self, lost: bool) -> None:
        for packet_id, message in self.outbox.items():  # in the order in which they were first sent [MQTT-4.6.0-1]
            message.released = message.released and not lost
            if not message.released:
                self.history.attempted(message.number)
            self._send(packet_id, message, not lost)

    def idle(self) -> bool:
        return not self.outbox

    def _message(self, packet: wire.Ack, qos: int) -> Outgoing | None:
        """The message that this acknowledges."""
        message = self.outbox.get(packet.packet_id)
        if message is None or message.qos != qos:
            self.fault(Kind.PROTOCOL, f"{packet} for a packet id that is not in use")
            return None
        if packet.code >= 0x80 and not (packet.code == ID_NOT_FOUND and isinstance(packet, wire.Pubcomp)):
            self.fault(Kind.PROTOCOL, f"{packet} for {self.history.describe(message.number)}")
        return message

    def _on_puback(self, packet: wire.Puback) -> None:
        if message := self._message(packet, 1):
            del self.outbox[packet.packet_id]
            self._confirm(message)
            self.history.acknowledged(message.number, message.retain)

    def _on_pubrec(self, packet: wire.Pubrec) -> None:
        if message := self._message(packet, 2):
            self._confirm(message)
            message.released = True
            self.out += wire.pubrel(packet.packet_id)

    def _on_pubcomp(self, packet: wire.Pubcomp) -> None:
        if message := self._message(packet, 2):
            if not message.released:
                self.fault(Kind.PROTOCOL, f"{packet} before PUBREC")
            del self.outbox[packet.packet_id]
            self.history.acknowledged(message.number, message.retain)


# --- subscribers ------------------------------------------------------------------------------------------------------------


@dataclass
class Subscription:
    """What a subscriber wants, and what it knows that the broker knows."""

    qos: int
    wanted: bool = False
    granted: bool = False
    asked: int = 0
    """How often, for the change under way: an UNSUBSCRIBE whose answer was lost may find nothing any more."""


class Subscriber(Client):
    """A QoS 2 receiver with its state, and subscriptions; filters of one subscriber never overlap, so each message comes once."""

    trick_interval_s = 2.0

    def __init__(self, network: Network, name: str, version: int, seed: int) -> None:
        super().__init__(network, name, version, seed)
        self.subscriptions: dict[str, Subscription] = {}
        self.received: dict[int, int] = {}
        """QoS 2: packet id to message number, from PUBLISH to PUBREL."""
        self.lazy = self.rng.random() < 0.3
        """Answers only now and then while it is restless, so that the broker always has something in flight."""
        self._pubacked: list[int] = []
        """Messages, on this connection and not known to be read."""
        self._behind: dict[int, int] = {}
        """Packet ids of PUBRECs, and how many of those PUBACKs were sent before."""
        self._asking: dict[int, str] = {}
        self._handlers |= {
            wire.Publish: self._on_publish,
            wire.Pubrel: self._on_pubrel,
            wire.Suback: self._on_suback,
            wire.Unsuback: self._on_unsuback,
        }

    def flush(self) -> None:
        if not (self.lazy and self.restless and self.connected) or self.rng.random() < 0.1:
            super().flush()

    def want(self, topic_filter: str, qos: int) -> None:
        """Subscribes; granted before long."""
        self.subscriptions[topic_filter] = subscription = Subscription(qos, True)
        self.history.asked(self.name, topic_filter, qos)
        self._call(topic_filter, subscription)

    def change(self, topic_filter: str, qos: int) -> bool:
        """Subscribes if it is not, unsubscribes if it is. False while an earlier change is under way."""
        subscription = self.subscriptions.get(topic_filter)
        if subscription is None:
            self.want(topic_filter, qos)
        elif subscription.granted and subscription.wanted:
            subscription.wanted = False
            subscription.asked = 0
            self.history.leaving(self.name, topic_filter)
            self._call(topic_filter, subscription)
        else:
            return False
        return True

    def _call(self, topic_filter: str, subscription: Subscription) -> None:
        if not self.connected:
            return
        subscription.asked += 1
        packet_id = self.next_id(self._asking)
        self._asking[packet_id] = topic_filter
        if subscription.wanted:
            self.out += wire.subscribe(packet_id, [(topic_filter, subscription.qos)], version=self.version)
        else:
            self.out += wire.unsubscribe(packet_id, [topic_filter], version=self.version)

    def on_connected(self, lost: bool) -> None:
        self._asking.clear()
        self._pubacked.clear()
        self._behind.clear()
        if lost:
            self.received.clear()
        for topic_filter, subscription in list(self.subscriptions.items()):
            subscription.granted = subscription.granted and not lost
            if subscription.wanted != subscription.granted:
                self._call(topic_filter, subscription)
            elif lost:
                self._end(topic_filter)

    def idle(self) -> bool:
        return not self._asking and not self.received

    def _on_suback(self, packet: wire.Suback) -> None:
        topic_filter = self._asking.pop(packet.packet_id, "")
        subscription = self.subscriptions.get(topic_filter)
        if subscription is None or packet.codes != (subscription.qos,):
            self.fault(Kind.PROTOCOL, f"{topic_filter}: {packet}")
            return
        subscription.granted = True
        self.history.granted(self.name, topic_filter)

    def _on_unsuback(self, packet: wire.Unsuback) -> None:
        topic_filter = self._asking.pop(packet.packet_id, "")
        subscription = self.subscriptions.get(topic_filter)
        if subscription is None or any(code not in (0, NO_SUBSCRIPTION) for code in packet.codes):
            self.fault(Kind.PROTOCOL, f"{topic_filter}: {packet}")
            return
        if NO_SUBSCRIPTION in packet.codes and subscription.asked == 1:
            self.fault(Kind.SUBSCRIPTION, f"{topic_filter}: {packet}")
        self._end(topic_filter)

    def _end(self, topic_filter: str) -> None:
        del self.subscriptions[topic_filter]
        self.history.left(self.name, topic_filter)

    def _on_publish(self, packet: wire.Publish) -> None:
        number = self.number_of(packet)
        if number is None:
            return
        if packet.retain:
            self.fault(Kind.PROTOCOL, f"no retained messages were asked for: {packet}")
        elif packet.packet_id is None:
            self.history.arrived(self.name, number, 0)
        elif packet.qos == 1:
            self.history.arrived(self.name, number, 1)
            self._pubacked.append(number)
            self.out += wire.puback(packet.packet_id)
        else:
            self._take_qos2(packet.packet_id, number)

    def _take_qos2(self, packet_id: int, number: int) -> None:
        """From PUBLISH to PUBREL one packet id is one message, however often it is sent [MQTT-4.3.3-10]."""
        before = self.received.get(packet_id)
        if before is None:
            self.received[packet_id] = number
            self.history.arrived(self.name, number, 2)
        elif before != number:
            self.fault(Kind.PROTOCOL, f"packet id {packet_id} of message {before} used for {number} before PUBREL")
        self._behind[packet_id] = len(self._pubacked)
        self.out += wire.pubrec(packet_id)

    def _on_pubrel(self, packet: wire.Pubrel) -> None:
        self._settle(self._behind.pop(packet.packet_id, 0))
        self.received.pop(packet.packet_id, None)
        self.out += wire.pubcomp(packet.packet_id)

    def _settle(self, count: int) -> None:
        """The broker has answered what was sent behind so many PUBACKs."""
        for number in self._pubacked[:count]:
            self.history.settled(self.name, number)
        del self._pubacked[:count]
        self._behind = {packet_id: max(0, before - count) for packet_id, before in self._behind.items()}


class Contender(Subscriber):
    """Wants exclusive subscriptions that others want too, and gives them up after a while: by UNSUBSCRIBE, or with its session."""

    change_interval_s = 0.3

    def __init__(self, network: Network, name: str, version: int, seed: int, filters: tuple[str, ...]) -> None:
        super().__init__(network, name, version, seed)
        self._filters = tuple(EXCLUSIVE + one for one in filters)
        self._change_at = 0.0

    def has(self, topic_filter: str) -> bool:
        subscription = self.subscriptions.get(EXCLUSIVE + topic_filter)
        return subscription is not None and subscription.granted and subscription.wanted

    def tick(self, now: float) -> None:
        super().tick(now)
        if self.restless and self.connected and now > self._change_at:
            self._change_at = now + self.rng.expovariate(1 / self.change_interval_s)
            if self.version == 5 and self.rng.random() < RENOUNCE:
                self._renounce()
            else:
                self.change(self.rng.choice(self._filters), self.rng.choice((1, 2)))

    def _renounce(self) -> None:
        """From now on its session may end at any moment; it has ended when the next connection is made."""
        for topic_filter in self.subscriptions:
            self.history.leaving(self.name, topic_filter, discarded=True)
        self.fresh = True
        self.cut()

    def on_connected(self, lost: bool) -> None:
        if self.fresh:
            self.fresh = False
            for topic_filter in list(self.subscriptions):
                self._end(topic_filter)
        super().on_connected(lost)

    def _on_suback(self, packet: wire.Suback) -> None:
        topic_filter = self._asking.get(packet.packet_id, "")
        if packet.codes == (HELD_BY_ANOTHER[self.version],) and topic_filter in self.subscriptions:
            del self._asking[packet.packet_id], self.subscriptions[topic_filter]
            self.history.declined(self.name, topic_filter)
        else:
            super()._on_suback(packet)


class Reader(Client):
    """Comes now and then with a clean session and asks for all retained messages: none may be missing or old."""

    clean = True

    def __init__(self, network: Network, name: str, version: int, seed: int, topic_filter: str) -> None:
        super().__init__(network, name, version, seed)
        self.rounds = 0
        """How often it got all of them."""
        self._topic_filter = topic_filter
        self._floor: dict[str, int] = {}
        self._found: dict[str, int] = {}
        self._give_up_at = INFINITE
        self._handlers |= {wire.Suback: self._on_suback, wire.Publish: self._on_publish}

    def idle(self) -> bool:
        return True

    def on_connected(self, lost: bool) -> None:
        self._floor, self._found = dict(self.history.retained_floor), {}
        self._give_up_at = self.network.now() + ANSWER_TIMEOUT_S
        self.out += wire.subscribe(1, [(self._topic_filter, 0)], version=self.version)

    def tick(self, now: float) -> None:
        super().tick(now)
        if self.connected and (now > self._give_up_at or self._floor.keys() <= self._found.keys()):
            self.history.retained(self.name, self._floor, self._found)
            self.rounds += 1
            self.leave()

    def _on_suback(self, packet: wire.Suback) -> None:
        if packet.codes != (0,):
            self.fault(Kind.PROTOCOL, f"{packet}")

    def _on_publish(self, packet: wire.Publish) -> None:
        number = self.number_of(packet)
        if number is not None and packet.retain:
            self._found[packet.topic] = number


class Testator(Client):
    """Leaves a will with each connection, and is cut off again and again. Half of the times it stays away until somebody has the
    will; else it comes back at once, and then a will with a delay may come or not."""

    trick_interval_s = 1.0

    def __init__(self, network: Network, name: str, version: int, seed: int, topic: str, qos: int) -> None:
        super().__init__(network, name, version, seed)
        self._topic, self._qos = topic, qos
        self._will = -1
        """Its message number."""
        self._delay_s = 0
        self._promised = False
        self._give_up_at = INFINITE

    def next_will(self) -> wire.Will:
        self._take_back()
        self._will = self.history.sent(self.name, self._topic, self._qos)
        self._delay_s = self.rng.choice(WILL_DELAYS_S) if self.version == 5 else 0
        self._promised = False
        properties = {"will_delay_interval": self._delay_s}
        return wire.Will(self._topic, payload_of(self._will), self._qos, properties=properties if self.version == 5 else None)

    def _take_back(self) -> None:
        """The next connection is made: a will whose delay is not over is void, and so is one that the broker may never have got."""
        if self._will >= 0 and self._will not in self.history.awaited and (self._delay_s or not self._promised):
            self.history.taken_back.add(self._will)
        self.history.awaited.discard(self._will)

    def on_connected(self, lost: bool) -> None:
        self._promised = True
        self.history.acknowledged(self._will)

    def tick(self, now: float) -> None:
        if self.restless and self.connected and now > self._trick_at:
            self.cut()
            if self.rng.random() < 0.5:
                self.history.awaited.add(self._will)
                self._connect_at, self._give_up_at = INFINITE, now + self._delay_s + WILL_TIMEOUT_S
        elif self._connect_at == INFINITE and (self._will not in self.history.awaited or now > self._give_up_at):
            self._connect_at = now
        super().tick(now)

    def idle(self) -> bool:
        return True

    def stay(self) -> None:
        """What has not come now need not come: the connection lasts."""
        self.history.taken_back.add(self._will)
