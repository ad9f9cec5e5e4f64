"""Devices, sessions of the MQTT-SN gateway and the real protocol core of a worker, on a network of datagrams that loses, copies and
delays them; all without I/O, with a clock of their own.

    python -m tests.gateways.mqttsn_sim --seed 7        replays a run
"""

import argparse
import heapq
import marshal
import random
import struct
from collections.abc import Callable
from math import inf
from typing import Any

from shardbroker.config import load
from shardbroker.config.gateways import MqttSnGateway
from shardbroker.gateways.mqttsn.session import FIGURES, MqttSnSession
from shardbroker.gateways.mqttsn.wills import Wills
from shardbroker.worker.sansio import SansIoChannel, SansIoRouter
from tests.gateways import mqttsn_client as norm
from tests.sim.simulator import MemoryRoutes

START_MS = 1_700_000_000_000
RETRY_S = 1.0
"""T_retry of devices and gateway; N_retry is without limit, so that no device is lost by chance."""


class World:
    """A broker of one worker, a gateway, and the time."""

    is_replaced = False
    """Whether another process takes the place of the gateway after each step."""

    def __init__(self, seed: int = 1, **settings: Any) -> None:
        self.now_s = 0.0
        self.moves = 0
        self.settings = MqttSnGateway(**settings)
        self.figures = dict.fromkeys(FIGURES, 0)
        self.wills = Wills()
        routes = MemoryRoutes()
        broker = load(None, {}, ["mqtt.max_mqueue_len=0", "mqtt.max_awaiting_rel=100"]).settings
        self.router = SansIoRouter(broker, routes, 0, START_MS, seed=seed)
        routes.shards = [self.router]

    def advance(self) -> None:
        self.router.advance(START_MS + int(self.now_s * 1000))


class Place:
    """What the gateway has of one address: a session, and its channel to the broker."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.session: MqttSnSession | None = None
        self.channel: SansIoChannel | None = None
        self.reason = ""
        self.is_secure = False
        """Whether the transport is DTLS."""

    def receive(self, data: bytes) -> None:
        """A datagram of the device."""
        if self.session is None:
            if data[1] != norm.TYPES["CONNECT"]:
                return
            self.session = self.fresh()
            if self.is_secure:
                self.session.address_proven()
        self.session.from_device(data, self.world.now_s)

    def move(self) -> None:
        """Another process takes the place of the gateway: its session is made of what this one has written."""
        if self.session is not None:
            image = self.session.image()
            self.session = self.fresh()
            self.session.adopt(marshal.loads(marshal.dumps(image, 4)))
            assert self.session.image() == image
            self.world.moves += 1

    def fresh(self) -> MqttSnSession:
        """A session of the gateway."""
        world = self.world
        return MqttSnSession(world.wills, world.settings, 128, "", "", world.figures, world.now_s)

    def tick(self) -> None:
        if self.session is not None and self.session.deadline_s <= self.world.now_s:
            self.session.tick(self.world.now_s)

    def work(self) -> list[bytes]:
        """Carries what is there between session and broker; returns what is for the device."""
        out: list[bytes] = []
        while self.session is not None and self._step(self.session):
            out += self.session.to_device
            self.session.to_device.clear()
            if self.session.is_over:
                self.reason = self.session.reason
                self.session = None
                self._cut()
        if self.world.is_replaced:
            self.move()
        return out

    def _step(self, session: MqttSnSession) -> bool:
        """Returns whether anything has moved."""
        moved = bool(session.to_device) or session.is_over
        if session.wants_broker and self.channel is None:
            self.channel = self.world.router.connect(session.client_id)
        channel = self.channel
        if channel is None:
            return moved
        if session.to_broker:
            data = b"".join(session.to_broker)
            session.to_broker.clear()
            channel.receive(data)
            moved = True
        if session.changes_broker:
            session.changes_broker = False
            assert channel.is_closing
            self.channel = self.world.router.connect(session.client_id)
            session.broker_changed()
            return True
        if session.reads_broker:
            data = channel.take_output()
            if data:
                session.from_broker(data, self.world.now_s)
                moved = True
            elif channel.is_closing and not session.is_over:
                session.broker_lost("closed")
                moved = True
        return moved

    def _cut(self) -> None:
        if self.channel is not None and not self.channel.is_closing:
            self.world.router.cut(self.channel)
        self.channel = None


class Network:
    """Datagrams on their way; each copy is delayed by itself, so that they overtake each other."""

    def __init__(self, rng: random.Random, loss: float, copies: float, most_s: float) -> None:
        self.rng, self.loss, self.copies, self.most_s = rng, loss, copies, most_s
        self._under_way: list[tuple[float, int, Callable[[bytes], None], bytes]] = []
        self._count = 0
        self.lost = self.copied = 0

    def send(self, now_s: float, to: Callable[[bytes], None], data: bytes) -> None:
        for copy in range(2 if self.rng.random() < self.copies else 1):
            self.copied += copy
            if self.rng.random() < self.loss:
                self.lost += 1
                continue
            self._count += 1
            heapq.heappush(self._under_way, (now_s + self.rng.uniform(0.01, self.most_s), self._count, to, data))

    @property
    def next_s(self) -> float:
        return self._under_way[0][0] if self._under_way else inf

    def arrive(self, now_s: float) -> None:
        while self._under_way and self._under_way[0][0] <= now_s:
            _, _, to, data = heapq.heappop(self._under_way)
            to(data)


class SimDevice:
    """A device as the norm has it: one message at a time is unacknowledged, and is sent again until it is acknowledged."""

    def __init__(self, world: World, network: Network, name: str) -> None:
        self.world, self.network, self.name = world, network, name
        self.place = Place(world)
        self.question = b""
        self.answer: tuple[str, int] = ("", 0)
        self.retry_s = inf
        self.message_id = 0
        self.topics: dict[int, bytes] = {}
        self.seen: list[tuple[int, int, bytes]] = []
        """QoS, topic id, payload."""
        self.open: set[int] = set()
        """Message ids with QoS 2 that are received and not released."""
        self.closed: list[int] = []
        """Those released, of which late copies may come."""
        self.is_connected = self.is_asleep = False
        self.wake_s = inf
        self.sequence = 0
        self.acked: set[bytes] = set()
        self.sending = b""
        self.topic_id = 0
        self.is_subscribed = False
        self.pings = 0
        self.pause_until_s = 0.0

    def send(self, data: bytes) -> None:
        self.network.send(self.world.now_s, self.place.receive, data)

    def ask(self, data: bytes, answer: str, message_id: int = 0) -> None:
        self.question, self.answer = data, (answer, message_id)
        self.retry_s = self.world.now_s + RETRY_S
        self.send(data)

    def next_id(self) -> int:
        self.message_id = self.message_id % 65535 + 1
        return self.message_id

    def connect(self) -> None:
        self.ask(norm.connect(self.name, 10_000, 0), "CONNACK")

    def tick(self) -> None:
        if self.retry_s <= self.world.now_s:
            self.retry_s = self.world.now_s + RETRY_S
            data = self.question
            if data[1] in (norm.TYPES["PUBLISH"], norm.TYPES["SUBSCRIBE"]):
                data = data[:2] + bytes((data[2] | norm.DUP,)) + data[3:]
            self.send(data)

    def receive(self, data: bytes) -> None:
        got = norm.parsed(data)
        name, answer = got.name, self.answer
        if name == "PUBLISH":
            self._take(got)
        elif name == "REGISTER":
            self.topics[got.fields[0]] = got.rest
            self.send(norm.framed("REGACK", struct.pack("!HHB", *got.fields, 0)))
        elif name == "PUBREL":
            (message_id,) = got.fields
            if message_id in self.open:
                self.open.discard(message_id)
                self.closed = [*self.closed[-7:], message_id]
            self.send(norm.framed("PUBCOMP", data[2:]))
        elif name == answer[0] and (not answer[1] or answer[1] in got.fields):
            self._answered(got)

    def _answered(self, got: norm.Got) -> None:
        self.retry_s, self.answer = inf, ("", 0)
        if got.name == "CONNACK":
            assert got.fields == (0,), got
            self.is_connected = True
        elif got.name == "REGACK":
            self.topic_id = got.fields[0]
        elif got.name == "SUBACK":
            assert got.fields[3] == 0, got
            self.topic_id, self.is_subscribed = got.fields[1], True
        elif got.name == "PUBACK":
            if got.fields[2] == 0:
                self.acked.add(self.sending)
            else:
                assert got.fields[2] == 1, got
                self.retry_s, self.answer = self.world.now_s + RETRY_S, ("PUBACK", got.fields[1])
        elif got.name == "PUBREC":
            self.ask(norm.framed("PUBREL", struct.pack("!H", *got.fields)), "PUBCOMP", got.fields[0])
        elif got.name == "PUBCOMP":
            self.acked.add(self.sending)
        elif got.name == "DISCONNECT":
            self.is_asleep = True
            self.wake_s = self.world.now_s + self.network.rng.uniform(1, 20)
        elif got.name == "PINGRESP":
            self.pings += 1
            self.wake_s = self.world.now_s + self.network.rng.uniform(1, 20)

    def _take(self, got: norm.Got) -> None:
        flags, topic_id, message_id = got.fields
        if flags & 0x60 == norm.QOS[2]:
            if message_id not in self.open and message_id not in self.closed:
                self.open.add(message_id)
                self.seen.append((2, topic_id, got.rest))
            self.send(norm.framed("PUBREC", struct.pack("!H", message_id)))
        else:
            self.seen.append((flags >> 5 & 3, topic_id, got.rest))
            if flags & 0x60:
                self.send(norm.framed("PUBACK", struct.pack("!HHB", topic_id, message_id, 0)))

    @property
    def is_idle(self) -> bool:
        return not self.answer[0]

    def publish(self, qos: int) -> None:
        self.sequence += 1
        self.sending = f"{self.name}:{qos}:{self.sequence}".encode()
        message_id, answer = self.next_id(), "PUBACK" if qos == 1 else "PUBREC"
        self.ask(norm.publish(norm.NAME, self.topic_id, self.sending, qos, message_id), answer, message_id)

    def sleep(self) -> None:
        self.ask(norm.framed("DISCONNECT", struct.pack("!H", 1000)), "DISCONNECT")

    def wake(self) -> None:
        self.wake_s = inf
        self.ask(norm.framed("PINGREQ", self.name.encode()), "PINGRESP")


class Simulation:
    """Publishers and subscribers; a subscriber may sleep. moves: how often another process takes the place of the gateway."""

    def __init__(self, seed: int, loss: float = 0.3, copies: float = 0.2, most_s: float = 2.5, moves: float = 0.0) -> None:
        self.moves = moves
        self.rng = random.Random(seed)
        self.world = World(seed, retry_interval=RETRY_S)
        self.world.settings = self.world.settings.model_copy(update={"max_retries": 10_000})
        self.network = Network(self.rng, loss, copies, most_s)
        self.publishers = [SimDevice(self.world, self.network, f"pub{i}") for i in range(2)]
        self.subscribers = [SimDevice(self.world, self.network, f"sub{i}") for i in range(3)]
        self.devices = [*self.publishers, *self.subscribers]

    def run(self, messages: int) -> None:
        """Publishes, then waits until everything has arrived."""
        for one in self.devices:
            one.connect()
        while not self._is_done(messages):
            self._act(messages)
            times = [self.network.next_s, *(one.retry_s for one in self.devices), *(one.wake_s for one in self.devices)]
            times += [one.pause_until_s for one in self.publishers if one.pause_until_s > self.world.now_s]
            times += [one.place.session.deadline_s for one in self.devices if one.place.session is not None]
            self.world.now_s = max(self.world.now_s + 0.001, min(times))
            assert self.world.now_s < 100_000, "it does not come to an end"
            self.network.arrive(self.world.now_s)
            self.world.advance()
            for one in self.devices:
                one.place.tick()
                one.tick()
            for one in self.devices:  # what one of them brings may be for another
                for data in one.place.work():
                    self.network.send(self.world.now_s, one.receive, data)
            if self.moves and self.rng.random() < self.moves:
                for one in self.devices:
                    one.place.move()

    def _act(self, messages: int) -> None:
        for one in self.devices:
            assert not one.is_connected or one.place.session is not None, one.place.reason
            if not one.is_connected or not one.is_idle:
                continue
            if one in self.subscribers:
                self._subscriber(one)
            elif not one.topic_id:
                one.ask(norm.framed("REGISTER", struct.pack("!HH", 0, one.next_id()) + f"sim/{one.name}".encode()), "REGACK")
            elif all(other.is_subscribed for other in self.subscribers) and one.sequence < messages:
                self._publisher(one)

    def _publisher(self, one: SimDevice) -> None:
        """Publishes, and now and then pauses for so long that a device can fall asleep."""
        if one.pause_until_s <= self.world.now_s:
            one.publish(self.rng.choice((1, 2)))
            one.pause_until_s = self.world.now_s + (self.rng.uniform(10, 100) if self.rng.random() < 0.3 else 0.0)

    def _subscriber(self, one: SimDevice) -> None:
        if not one.is_subscribed:
            message_id = one.next_id()
            one.ask(norm.subscribe(b"sim/+", 2, message_id), "SUBACK", message_id)
        elif one is self.subscribers[0]:  # which sleeps most of the time
            if not one.is_asleep:
                one.sleep()
            elif one.wake_s <= self.world.now_s:
                one.wake()

    def _is_done(self, messages: int) -> bool:
        if any(one.sequence < messages or not one.is_idle for one in self.publishers):
            return False
        want = {payload for one in self.publishers for payload in one.acked}
        return all(want <= {payload for _, _, payload in one.seen} for one in self.subscribers)

    def check(self) -> None:
        """QoS 1 at least once, QoS 2 exactly once, under the right topic, first copies in the order of each publisher and QoS."""
        for one in self.subscribers:
            for qos in (1, 2):
                for publisher in self.publishers:
                    head = f"{publisher.name}:{qos}:".encode()
                    got = [payload for _, _, payload in one.seen if payload.startswith(head)]
                    first = list(dict.fromkeys(got))
                    assert first == sorted(first, key=lambda payload: int(payload.rsplit(b":", 1)[1])), (one.name, first)
                    assert qos == 1 or got == first, (one.name, [payload for payload in first if got.count(payload) > 1])
            for _, topic_id, payload in one.seen:
                assert one.topics[topic_id] == b"sim/" + payload.split(b":")[0]
        assert self.network.lost and self.network.copied


def main() -> None:
    """Replays a run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--messages", type=int, default=100)
    args = parser.parse_args()
    sim = Simulation(args.seed)
    sim.run(args.messages)
    sim.check()
    print(f"{sim.network.lost} lost, {sim.network.copied} copied, {sim.world.figures}, {sim.subscribers[0].pings} times awake")


if __name__ == "__main__":
    main()
