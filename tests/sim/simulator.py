"""Two shards, publishers and persistent subscribers on a network that splits, delays and cuts.

    python -m tests.sim.simulator --seed 7 --steps 20000        replays a run

Each step is one random act. In the end the network heals, and then: every QoS 1 message that was acknowledged has arrived at
every subscriber, every QoS 2 message exactly once, in order per publisher and QoS, and no packet id is left in use anywhere.

Beside them: a shared group, which together gets every message as one subscriber would, though one of its members has a session
that ends; clients with wills, see lives.py, whose wills come when they must and at no other time; messages that expire.
"""

import argparse
import random
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from shardbroker.config import load
from shardbroker.mqtt import packets as mqtt
from shardbroker.mqtt.topics import matches
from shardbroker.worker.sansio import SansIoChannel, SansIoRouter
from shm.routes import Group, Match, RouteChange
from tests.sim.lives import GRAIN_MS, LONG_S, Mortal, Sleeper

SHARDS = 2
PUBLISHERS = 3
SUBSCRIBERS = 4
WINDOW = 8
"""Messages that a publisher has unacknowledged at most."""
FILTER = b"sim/+"
MEMBERS = 3
"""Of the shared group, with sessions that stay; beside one whose session ends."""
SHARED = b"$share/group/sim/+"
MORTALS = 3
STRATEGIES = ("random", "round_robin", "round_robin_per_group", "sticky", "local", "hash_topic", "hash_clientid")


class MemoryRoutes:
    """A route table by brute force: the oracle of the real one."""

    def __init__(self) -> None:
        self._plain: dict[bytes, set[int]] = {}
        self._members: dict[tuple[bytes, bytes], set[tuple[int, int]]] = {}
        self.shards: list[SansIoRouter] = []

    def update(self, changes: Iterable[tuple[bool, bytes, int, bytes, int]]) -> None:
        for change in map(RouteChange._make, changes):
            if change.group:
                members = self._members.setdefault((change.group, change.filter), set())
                member = (change.destination, change.member)
                members.add(member) if change.add else members.discard(member)
            else:
                destinations = self._plain.setdefault(change.filter, set())
                destinations.add(change.destination) if change.add else destinations.discard(change.destination)
        for router in self.shards:
            router.forget_topics()

    def match(self, topic: bytes) -> Match:
        filters = [filter for filter, found in self._plain.items() if found and matches(filter, topic)]
        destinations = {destination for filter in filters for destination in self._plain[filter]}
        groups = [
            Group(name, filter, tuple(sorted(found)))
            for (name, filter), found in sorted(self._members.items())
            if found and matches(filter, topic)
        ]
        return Match(filters, tuple(sorted(destinations)), groups)

    def search(self, topic: bytes) -> "MemorySearch":
        return MemorySearch(self, topic)


class MemorySearch:
    """A search of one step."""

    visits = 1

    def __init__(self, routes: MemoryRoutes, topic: bytes) -> None:
        self._routes, self._topic = routes, topic

    def step(self, most: int) -> Match:
        return self._routes.match(self._topic)


class Wire:
    """A connection: bytes on their way in both directions."""

    def __init__(self, channel: SansIoChannel) -> None:
        self.channel = channel
        self.up = b""
        self.down = b""
        self.at_risk: int | None = None
        """What was in flight at QoS 2 to a session of before when CONNECT arrived; None until then."""


class SimClient:
    """A client that keeps its session: QoS 1 and 2 in both directions, as the standard asks of it."""

    def __init__(self, sim: "Simulation", name: str, version: int, filter: bytes | None, expiry_s: int = LONG_S) -> None:
        self.sim, self.name, self.version, self.filter, self.expiry_s = sim, name, version, filter, expiry_s
        self.router = sim.shard_of(name)
        self.wire: Wire | None = None
        self.received_bytes = b""
        self.connected = False
        self.ready = filter is None
        self.next_id = 1
        self.outbox: dict[int, tuple[str, mqtt.Publish]] = {}
        self.open_qos2: set[int] = set()
        self.sequence = Counter[int]()
        self.acked: set[tuple[int, int]] = set()
        self.seen: list[tuple[bytes, int, int]] = []

    # --- network ---------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        self.wire = Wire(self.router.connect(self.name))
        self.received_bytes = b""
        properties = {0x11: self.expiry_s} if self.version == 5 else None
        self.send(mqtt.Connect(self.version, self.name.encode(), False, 0, properties=properties))

    def cut(self) -> None:
        assert self.wire is not None
        # If its session ends before it is back, what is in flight to it at QoS 2 goes to nobody else [MQTT-4.8.2-5].
        self.sim.losses += self.at_risk()
        self.router.cut(self.wire.channel)
        self.wire = None
        self.connected = False

    def awaits_bad_news(self) -> bool:
        """A CONNACK is under way that may say that the session is gone. A client that misses it keeps packet ids that mean nothing
        any more: the standard has no remedy for that, so it does not happen here."""
        return self.expiry_s < LONG_S and not self.connected and self.wire is not None and self.wire.at_risk is not None

    def at_risk(self) -> int:
        """How many messages at QoS 2 would be lost if its session ended now."""
        inflight, _, _ = self.router.leftovers().get(self.name.encode(), (0, 0, 0))
        return inflight if self.expiry_s < LONG_S else 0

    def send(self, packet: Any) -> None:
        if self.wire is not None:
            self.wire.up += packet.encode(self.version)

    def carry(self, rng: random.Random, everything: bool = False) -> None:
        """Some of what is on the wire arrives, split anywhere."""
        if self.wire is None:
            return
        wire = self.wire
        wire.down += wire.channel.take_output()
        if wire.up:
            size = len(wire.up) if everything else rng.randint(1, len(wire.up))
            data, wire.up = wire.up[:size], wire.up[size:]
            at_risk = self.at_risk()
            wire.channel.receive(data)
            wire.down += wire.channel.take_output()
            if wire.down and wire.at_risk is None:
                wire.at_risk = at_risk
        if wire.down:
            size = len(wire.down) if everything else rng.randint(1, len(wire.down))
            self.received_bytes += wire.down[:size]
            wire.down = wire.down[size:]
            self._parse()
        if self.wire is wire and wire.channel.is_closing and not wire.down:
            self.wire, self.connected = None, False

    def _parse(self) -> None:
        offset = 0
        while (found := mqtt.decode(self.received_bytes, offset, self.version)) is not None:
            packet, offset = found
            self._handle(packet)
        self.received_bytes = self.received_bytes[offset:]

    # --- protocol --------------------------------------------------------------------------------------------------

    def _handle(self, packet: Any) -> None:
        kind = type(packet).__name__
        if kind == "Connack":
            assert packet.reason_code == 0, packet
            self.connected = True
            if not packet.session_present:
                assert self.wire is not None
                self.sim.losses += self.wire.at_risk or 0
                assert self.expiry_s < LONG_S or not (self.acked or self.seen), f"{self.name} has lost its session"
                self.open_qos2.clear()
                self.ready = self.filter is None
            if not self.ready:
                self.send(mqtt.Subscribe(1, [(self.filter, 2)]))
            for packet_id, (state, message) in self.outbox.items():
                if state == "rel":
                    self.send(mqtt.Pubrel(packet_id))
                else:
                    self.send(mqtt.Publish(message.topic, message.payload, message.qos, False, True, packet_id, message.properties))
        elif kind == "Suback":
            assert packet.codes == b"\x02", packet
            self.ready = True
        elif kind == "Publish":
            self._receive(packet)
        elif kind == "Pubrel":
            self.open_qos2.discard(packet.packet_id)
            self.send(mqtt.Pubcomp(packet.packet_id))
        elif kind in ("Puback", "Pubrec", "Pubcomp"):
            self._acknowledged(kind, packet)
        else:
            raise AssertionError(f"{self.name} was sent {packet}")

    def _receive(self, packet: Any) -> None:
        publisher, number = packet.payload.split(b":")
        if packet.topic.startswith(b"wills/"):
            self.sim.mortals[publisher.decode()].will_came(int(number), self.sim.now_ms)
        if packet.qos == 2:
            if packet.packet_id not in self.open_qos2:
                self.open_qos2.add(packet.packet_id)
                self.seen.append((publisher, 2, int(number)))
            self.send(mqtt.Pubrec(packet.packet_id))
        else:
            self.seen.append((publisher, 1, int(number)))
            self.send(mqtt.Puback(packet.packet_id))

    def _acknowledged(self, kind: str, packet: Any) -> None:
        entry = self.outbox.get(packet.packet_id)
        if entry is None:
            return
        _, message = entry
        if kind == "Pubrec":
            self.outbox[packet.packet_id] = ("rel", message)
            self.send(mqtt.Pubrel(packet.packet_id))
        elif (kind == "Puback") == (message.qos == 1):
            del self.outbox[packet.packet_id]
        self.acked.add((message.qos, int(message.payload.split(b":")[1])))

    def publish(self, rng: random.Random) -> None:
        if len(self.outbox) >= WINDOW or not self.sim.all_subscribed():
            return
        qos = rng.choice((1, 2))
        self.sequence[qos] += 1
        while self.next_id in self.outbox:
            self.next_id = self.next_id % 65535 + 1
        payload = f"{self.name}:{self.sequence[qos]}".encode()
        message = mqtt.Publish(b"sim/" + self.name.encode(), payload, qos, packet_id=self.next_id)
        self.outbox[self.next_id] = ("pub", message)
        self.next_id = self.next_id % 65535 + 1
        if self.connected:
            self.send(message)


class Simulation:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1_700_000_000_000
        settings = load(
            None,
            {},
            [
                "mqtt.max_mqueue_len=0",
                f"mqtt.max_inflight={self.rng.choice((1, 4, 32))}",
                "mqtt.max_awaiting_rel=100",
                f"mqtt.retry_interval={self.rng.choice(('infinity', '5s'))}",
                f"mqtt.shared_subscription_strategy={self.rng.choice(STRATEGIES)}",
            ],
        ).settings
        self.routes = MemoryRoutes()
        self.shards = [SansIoRouter(settings, self.routes, i, self.now_ms, seed=seed) for i in range(SHARDS)]
        self.routes.shards = self.shards
        self.rings: dict[tuple[int, int], deque[Any]] = {(a, b): deque() for a in range(SHARDS) for b in range(SHARDS) if a != b}
        self.publishers = self._clients("pub", PUBLISHERS, None)
        self.subscribers = self._clients("sub", SUBSCRIBERS, FILTER)
        self.members = self._clients("member", MEMBERS, SHARED)
        self.passing = SimClient(self, "passing", 5, SHARED, self.rng.choice((0, 1, 5)))
        self.watcher = SimClient(self, "watcher", self.rng.choice((4, 5)), b"wills/+")
        self.clients = [*self.publishers, *self.subscribers, *self.members, self.passing, self.watcher]
        self.losses = 0
        """How many messages of the group may have ended with a session of its passing member."""
        self.mortals = {name: Mortal(name, self.shard_of(name)) for name in (f"mortal{i}" for i in range(MORTALS))}
        self.sleeper = Sleeper(*self.rng.sample(self.shards, 2))

    def _clients(self, kind: str, count: int, filter: bytes | None) -> list[SimClient]:
        return [SimClient(self, f"{kind}{i}", self.rng.choice((4, 5)), filter) for i in range(count)]

    def shard_of(self, name: str) -> SansIoRouter:
        return self.shards[zlib.crc32(name.encode()) % 1024 % SHARDS]

    def all_subscribed(self) -> bool:
        return all(client.ready for client in self.subscribers + self.members)

    def step(self) -> None:
        rng = self.rng
        client = rng.choice(self.publishers if rng.random() < 0.2 else self.clients)
        act = rng.random()
        if client.wire is None:
            if act < 0.3:
                client.connect()
        elif client.awaits_bad_news():
            client.carry(rng)
        elif act < 0.01:
            client.cut()
        elif act < 0.013:
            # A second connection with the same client id takes over while the first one is still there.
            client.connected = False
            client.connect()
        elif act < 0.25 and client.filter is None:
            client.publish(rng)
        else:
            client.carry(rng)
        if self.watcher.ready and rng.random() < 0.02:
            rng.choice(list(self.mortals.values())).act(rng, self.now_ms)
        if rng.random() < 0.1:
            self.sleeper.act(rng, self.now_ms)
        if rng.random() < 0.5:
            self.end_pass(rng.choice((0, 0, 1, 20, 300)))
        if rng.random() < 0.5:
            self.carry_ring(rng.choice(list(self.rings)), rng.randint(1, 5))

    def end_pass(self, elapsed_ms: int) -> None:
        self.sleeper.drain(self.now_ms)
        self.now_ms += elapsed_ms
        for number, router in enumerate(self.shards):
            router.advance(self.now_ms)
            for destination, record in router.outgoing:
                self.rings[number, destination].append(record)
            router.outgoing = []

    def carry_ring(self, pair: tuple[int, int], count: int) -> None:
        for _ in range(min(count, len(self.rings[pair]))):
            self.shards[pair[1]].deliver(self.rings[pair].popleft())

    def heal(self) -> int:
        """Everybody is connected and all bytes arrive, until nothing moves any more and all that can expire has expired."""
        for mortal in self.mortals.values():
            if mortal.channel is not None:
                mortal.go(self.now_ms, "cut")
        if self.sleeper.channel is None:
            self.sleeper.come()
        last_ms = max((mortal.life.session_ends_ms for mortal in self.mortals.values() if mortal.life), default=0) + GRAIN_MS
        for _ in range(3000):
            for client in self.clients:
                if client.wire is None:
                    client.connect()
                client.carry(self.rng, everything=True)
            self.sleeper.acknowledge(1000)
            self.end_pass(100)
            for pair in self.rings:
                self.carry_ring(pair, 1000)
            busy = any(client.outbox or client.open_qos2 or not client.connected for client in self.clients) or any(
                any(state) for router in self.shards for state in router.leftovers().values()
            )
            if not busy and not any(self.rings.values()) and self.now_ms >= last_ms:
                for mortal in self.mortals.values():
                    mortal.rest_in_peace(self.now_ms)
                return self.sleeper.check(self.now_ms)
        raise AssertionError(f"not quiet: {[router.leftovers() for router in self.shards]}")

    def check(self) -> int:
        """Raises AssertionError if an invariant is broken; returns how many deliveries were checked."""
        checked = 0
        for subscriber in self.subscribers:
            for publisher in self.publishers:
                for qos in (1, 2):
                    numbers = [n for name, q, n in subscriber.seen if q == qos and name == publisher.name.encode()]
                    where = f"QoS {qos} from {publisher.name} to {subscriber.name}"
                    acked = {number for q, number in publisher.acked if q == qos}
                    assert acked <= set(numbers), f"{where}: lost {sorted(acked - set(numbers))[:5]}"
                    if qos == 2:
                        assert len(numbers) == len(set(numbers)), f"{where}: twice {Counter(numbers).most_common(2)}"
                    first_seen = list(dict.fromkeys(numbers))
                    assert first_seen == sorted(first_seen), f"{where}: out of order"
                    checked += len(numbers)
        checked += self.check_group()
        checked += sum(mortal.check(self.watcher.seen) for mortal in self.mortals.values())
        left = {client_id for router in self.shards for client_id in router.leftovers()}
        assert not left & {name.encode() for name in self.mortals}, "a session has outlived its expiry"
        for router in self.shards:
            for client_id, state in router.leftovers().items():
                assert state == (0, 0, 0), f"{client_id!r} has packet ids or messages left: {state}"
        return checked

    def check_group(self) -> int:
        """The members together are one subscriber, but for what the passing one took with it."""
        checked = 0
        for publisher in self.publishers:
            name = publisher.name.encode()
            for qos in (1, 2):
                where = f"QoS {qos} from {publisher.name} to the group"
                numbers = [n for member in (*self.members, self.passing) for one, q, n in member.seen if (one, q) == (name, qos)]
                lost = {number for q, number in publisher.acked if q == qos} - set(numbers)
                assert len(lost) <= (self.losses if qos == 2 else 0), f"{where}: lost {sorted(lost)[:5]}"
                if qos == 2:
                    assert len(numbers) == len(set(numbers)), f"{where}: twice {Counter(numbers).most_common(2)}"
                checked += len(numbers)
        return checked


def run(seed: int, steps: int) -> int:
    """One run; raises AssertionError with the seed in it."""
    simulation = Simulation(seed)
    try:
        for _ in range(steps):
            simulation.step()
        return simulation.heal() + simulation.check()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, {steps} steps: {error}") from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=0, help="further seeds until this time is over")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(32)
    end = time.monotonic() + arguments.seconds
    runs = 0
    while True:
        print(f"seed {seed}: {run(seed, arguments.steps)} deliveries checked over {arguments.steps} steps", flush=True)
        seed, runs = seed + 1, runs + 1
        if time.monotonic() >= end:
            return


if __name__ == "__main__":
    main()
