"""Actors of the simulation whose sessions and messages end by the clock: wills with delays, expiring sessions and messages.

They speak to the core without a network in between, so that the moment at which something must have happened is known exactly.
"""

import random
from dataclasses import dataclass
from typing import Any

from shardbroker.mqtt import packets as mqtt
from shardbroker.worker.sansio import SansIoChannel, SansIoRouter

GRAIN_MS = 64
"""How late a timer of the core may be: one slot of its wheel."""
SESSION_EXPIRY, WILL_DELAY, MESSAGE_EXPIRY = 0x11, 0x18, 0x02
LONG_S = 1_000_000


def take(channel: SansIoChannel) -> list[Any]:
    """Everything that the core has written."""
    data = b""
    while more := channel.take_output():
        data += more
    found, offset = [], 0
    while (one := mqtt.decode(data, offset, 5)) is not None:
        packet, offset = one
        found.append(packet)
    return found


@dataclass
class Life:
    """One connection with a will."""

    number: int
    qos: int
    delay_s: int
    expiry_s: int
    ended_ms: int = 0
    will_due_ms: int | None = None
    """When the will is to be sent; None: never, or not known yet."""

    @property
    def session_ends_ms(self) -> int:
        return self.ended_ms + self.expiry_s * 1000


class Mortal:
    """A client with a will that comes and goes. Knows of each will whether it must come, may come (a matter of milliseconds) or
    must not, and not before when (MQTT 5.0 §3.1.2.5, §3.1.3.2.2); and of each session whether it is still there (§3.1.2.11.2)."""

    def __init__(self, name: str, router: SansIoRouter) -> None:
        self.name, self.router = name, router
        self.channel: SansIoChannel | None = None
        self.life: Life | None = None
        self.count = 0
        self.must: set[tuple[int, int]] = set()
        self.may: set[tuple[int, int]] = set()
        self.earliest: dict[int, int] = {}

    def act(self, rng: random.Random, now_ms: int) -> None:
        if self.channel is None or rng.random() < 0.1:
            self.come(now_ms, rng.choice((0, 1, 4)), rng.choice((0, 2, 20)), rng.choice((1, 2)), rng.random() < 0.2)
        else:
            self.go(now_ms, rng.choice(("cut", "disconnect", "disconnect with will")))

    def come(self, now_ms: int, delay_s: int, expiry_s: int, qos: int, clean: bool) -> None:
        """Connects: for the first time, again, or while the last connection is there, which then ends [MQTT-3.1.4-3]."""
        if self.channel is not None:
            self._ended(now_ms, True)
        old = self.life
        present, unsure = self._back(old, now_ms, clean)
        self.count += 1
        self.life = Life(self.count, qos, delay_s, expiry_s)
        will = mqtt.Will(b"wills/" + self.name.encode(), f"{self.name}:{self.count}".encode(), qos, False, {WILL_DELAY: delay_s})
        self.channel = self.router.connect(self.name)
        connect = mqtt.Connect(5, self.name.encode(), clean, 0, will=will, properties={SESSION_EXPIRY: expiry_s})
        self.channel.receive(connect.encode(5))
        (answer,) = take(self.channel)
        assert answer.reason_code == 0
        assert unsure or answer.session_present == present, f"{self.name}: session present {answer.session_present}, life {old}"

    def _back(self, old: Life | None, now_ms: int, clean: bool) -> tuple[bool, bool]:
        """Whether the session must be there, and whether that is a matter of milliseconds; settles the last life's will."""
        if old is None:
            return False, False
        gone = now_ms >= old.session_ends_ms
        unsure = gone and now_ms < old.session_ends_ms + GRAIN_MS and old.expiry_s > 0
        due = old.will_due_ms
        if due is not None:
            # A clean start ends the session, which sends the will [MQTT-3.1.2-8]; resuming it in time does not [MQTT-3.1.3-9].
            if clean or now_ms >= due + GRAIN_MS or due == old.ended_ms:
                self._expect(old, min(due, now_ms))
            elif now_ms >= due:
                self.may.add((old.qos, old.number))
                self.earliest[old.number] = due
        return not gone and not clean, unsure and not clean

    def _expect(self, life: Life, earliest_ms: int) -> None:
        self.must.add((life.qos, life.number))
        self.earliest[life.number] = earliest_ms
        life.will_due_ms = None

    def _ended(self, now_ms: int, with_will: bool) -> None:
        assert self.life is not None
        self.life.ended_ms = now_ms
        if with_will:
            self.life.will_due_ms = now_ms + min(self.life.delay_s, self.life.expiry_s) * 1000
        self.channel = None

    def go(self, now_ms: int, how: str) -> None:
        assert self.channel is not None
        if how == "cut":
            self.router.cut(self.channel)
        else:
            self.channel.receive(mqtt.Disconnect(0 if how == "disconnect" else 4).encode(5))
            assert self.channel.is_closing
        self._ended(now_ms, how != "disconnect")

    def will_came(self, number: int, now_ms: int) -> None:
        """A will of this client has reached a subscriber."""
        earliest = self.earliest.get(number)
        if earliest is None and self.life is not None and self.life.number == number:
            earliest = self.life.will_due_ms
        assert earliest is not None, f"{self.name}: will {number} must not come"
        assert now_ms >= earliest, f"{self.name}: will {number} came at {now_ms}, not before {earliest}"

    def rest_in_peace(self, now_ms: int) -> None:
        """All delays and sessions have run out: what is due has been sent."""
        if self.life is not None and self.life.will_due_ms is not None:
            self._expect(self.life, self.life.will_due_ms)

    def check(self, seen: list[tuple[bytes, int, int]]) -> int:
        wills = [(qos, number) for name, qos, number in seen if name == self.name.encode()]
        lost, wrong = self.must - set(wills), set(wills) - self.must - self.may
        assert not lost, f"{self.name}: wills lost {sorted(lost)[:5]}"
        assert not wrong, f"{self.name}: wills that must not come {sorted(wrong)[:5]}"
        twice = [one for one in wills if one[0] == 2]
        assert len(twice) == len(set(twice)), f"{self.name}: wills twice"
        return len(wills)


class Sleeper:
    """A subscriber that is often away, and a publisher on another shard whose messages expire (MQTT 5.0 §3.3.2.3.3)."""

    TOPIC = b"brief/news"

    def __init__(self, here: SansIoRouter, there: SansIoRouter) -> None:
        self.here, self.there = here, there
        self.channel: SansIoChannel | None = None
        self.unacknowledged: list[int] = []
        self.sent: dict[int, tuple[int, int | None]] = {}
        """Number to the time of publication and the expiry in seconds."""
        self.seen: list[int] = []
        self.subscribed = False
        self.publisher = there.connect("brief")
        self.publisher.receive(mqtt.Connect(5, b"brief", keepalive_s=0).encode(5))
        take(self.publisher)

    def act(self, rng: random.Random, now_ms: int) -> None:
        act = rng.random()
        if self.channel is None and act < 0.2:
            self.come()
        elif self.channel is not None and act < 0.1:
            self.here.cut(self.channel)
            self.channel = None
        elif act < 0.6 and self.subscribed:
            self.publish(rng, now_ms)
        else:
            self.acknowledge(rng.randint(0, 10))

    def come(self) -> None:
        self.channel = self.here.connect("sleeper")
        self.unacknowledged.clear()
        properties = {SESSION_EXPIRY: LONG_S}
        self.channel.receive(mqtt.Connect(5, b"sleeper", False, 0, properties=properties).encode(5))
        if not self.subscribed:
            self.channel.receive(mqtt.Subscribe(1, [(self.TOPIC, 1)]).encode(5))

    def publish(self, rng: random.Random, now_ms: int) -> None:
        number, expiry_s = len(self.sent), rng.choice((None, 0, 1, 3, 30))
        self.sent[number] = now_ms, expiry_s
        properties = None if expiry_s is None else {MESSAGE_EXPIRY: expiry_s}
        self.publisher.receive(mqtt.Publish(self.TOPIC, b"%d" % number, 1, packet_id=1, properties=properties).encode(5))
        assert take(self.publisher) == [mqtt.Puback(1)]

    def acknowledge(self, count: int) -> None:
        while self.channel is not None and self.unacknowledged and count:
            self.channel.receive(mqtt.Puback(self.unacknowledged.pop(0)).encode(5))
            count -= 1

    def drain(self, now_ms: int) -> None:
        """Called before time goes on: what comes out has been written now."""
        if self.channel is None:
            return
        for packet in take(self.channel):
            if isinstance(packet, mqtt.Suback):
                self.subscribed = True
            elif isinstance(packet, mqtt.Publish):
                self._receive(packet, now_ms)

    def _receive(self, packet: Any, now_ms: int) -> None:
        number = int(packet.payload)
        self.unacknowledged.append(packet.packet_id)
        published_ms, expiry_s = self.sent[number]
        left = (packet.properties or {}).get(MESSAGE_EXPIRY)
        if expiry_s is None:
            assert left is None
        else:
            left_ms = published_ms + expiry_s * 1000 - now_ms
            # What has been sent once may come again whenever [MQTT-4.3.3-7]; what has not must still be alive.
            assert packet.dup or left_ms >= 0, f"message {number} was sent {-left_ms} ms after it had expired"
            assert left == max(0, (left_ms + 999) // 1000), f"message {number}: expiry {left}, {left_ms} ms are left"
        if not packet.dup:
            assert number not in self.seen, f"message {number} came twice without DUP"
        self.seen.append(number)

    def check(self, now_ms: int) -> int:
        lost = [
            number
            for number, (published_ms, expiry_s) in self.sent.items()
            if (expiry_s is None or published_ms + expiry_s * 1000 > now_ms) and number not in self.seen
        ]
        assert not lost, f"messages lost before they had expired: {lost[:5]}"
        return len(self.seen)
