"""What clients saw of a broker, and what of it a broker must not do.

Messages have numbers in the order in which they were first sent; payloads carry them. All times are seconds of one clock.

    SUBSCRIBE sent      SUBACK seen                  UNSUBSCRIBE sent     UNSUBACK seen
    asked_s             granted_s                    leaving_s            left_s
       |   may arrive       |       must arrive          |    may arrive      |   must not arrive

A message must arrive if it was first sent after `granted_s`, and acknowledged before `leaving_s` (by IN_FLIGHT_S).

Of a shared group one member has to get it, whichever. So each group needs one that stays. In which order the members get
what they share is up to the broker.

A will is a message that is sent with CONNECT and acknowledged with CONNACK. It must arrive unless it may have been taken back.
"""

from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

INFINITE = float("inf")
IN_FLIGHT_S = 1.0
"""An UNSUBSCRIBE may overtake a message acknowledged just before on its way to the subscriber's worker: no standard forbids it."""
SHOWN = 12
"""Message numbers, and faults of a kind, that a report shows."""
KILLS_AROUND = 3
SHARE = "$share/"


class Kind(StrEnum):
    SESSION = "session lost"
    SUBSCRIPTION = "subscription lost"
    LOST = "message lost"
    DUPLICATE = "QoS 2 message more than once"
    ORDER = "out of order"
    UNWANTED = "message nobody asked for"
    RETAINED = "retained message lost or too old"
    PROTOCOL = "protocol"
    STUCK = "never finished"
    CRASH = "process ended by itself"


@dataclass(frozen=True)
class Fault:
    """Something that a broker must not do."""

    kind: Kind
    client: str
    text: str
    at_s: float
    consequence: bool = False
    """Its client, or the messages' publisher, had lost its session before: what can follow from that is no fault of its own."""

    def __str__(self) -> str:
        return f"{self.at_s:9.3f} s  {self.client}: {self.text}"


@dataclass
class Interval:
    """A subscription from its SUBSCRIBE to its UNSUBACK."""

    qos: int
    asked_s: float
    granted_s: float = INFINITE
    leaving_s: float = INFINITE
    left_s: float = INFINITE


@dataclass
class Arrivals:
    """What one client got, in order: message number, QoS, when."""

    numbers: array = field(default_factory=lambda: array("L"))
    qos: array = field(default_factory=lambda: array("B"))
    at_s: array = field(default_factory=lambda: array("d"))


def matches(topic_filter: str, topic: str) -> bool:
    """MQTT 5.0 §4.7, for topics that do not begin with $."""
    wanted, levels = topic_filter.split("/"), topic.split("/")
    for number, level in enumerate(wanted):
        if level == "#":
            return True
        if number >= len(levels) or level not in ("+", levels[number]):
            return False
    return len(wanted) == len(levels)


class History:
    """Written by the clients as things happen, in numbers rather than objects: a run has millions of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.names: list[str] = []
        self.topics: list[str] = []
        self._name_numbers: dict[str, int] = {}
        self._topic_numbers: dict[str, int] = {}
        self.publisher, self.topic, self.qos = array("H"), array("H"), array("B")
        self.sent_s, self.acked_s = array("d"), array("d")
        self.arrivals: dict[str, Arrivals] = defaultdict(Arrivals)
        self.intervals: dict[tuple[str, str], list[Interval]] = {}
        self.taken_back: set[int] = set()
        """Wills that may arrive or not."""
        self.awaited: set[int] = set()
        """Messages of which a client wants to know when the first subscriber has them."""
        self.retained_floor: dict[str, int] = {}
        """Last acknowledged message of each topic with retained messages."""
        self.lost_sessions: dict[str, float] = {}
        self.kills: list[tuple[float, str]] = []
        self.faults: list[Fault] = []
        self.connects: Counter[str] = Counter()
        self.trap: Callable[[], None] | None = None
        """To be called when a client sees the broker's next promise: an acknowledgement, a SUBACK, a CONNACK."""

    # --- publishers -----------------------------------------------------------------------------------------------------

    def sent(self, client: str, topic: str, qos: int) -> int:
        """A message is about to be sent for the first time; its number."""
        self.publisher.append(_number(self.names, self._name_numbers, client))
        self.topic.append(_number(self.topics, self._topic_numbers, topic))
        self.qos.append(qos)
        self.sent_s.append(self.clock())
        self.acked_s.append(INFINITE)
        return len(self.qos) - 1

    def acknowledged(self, number: int, retain: bool = False) -> None:
        """PUBACK or PUBCOMP seen."""
        self._spring()
        self.acked_s[number] = self.clock()
        if retain:
            topic = self.topics[self.topic[number]]
            self.retained_floor[topic] = max(number, self.retained_floor.get(topic, -1))

    # --- subscribers ----------------------------------------------------------------------------------------------------

    def arrived(self, client: str, number: int, qos: int) -> None:
        self.awaited.discard(number)
        arrivals = self.arrivals[client]
        arrivals.numbers.append(number)
        arrivals.qos.append(qos)
        arrivals.at_s.append(self.clock())

    def asked(self, client: str, topic_filter: str, qos: int) -> None:
        self.intervals.setdefault((client, topic_filter), []).append(Interval(qos, self.clock()))

    def granted(self, client: str, topic_filter: str) -> None:
        self._spring()
        interval = self.intervals[client, topic_filter][-1]
        interval.granted_s = min(
            interval.granted_s, self.clock()
        )  # granted again after its session was lost: the promise is the first

    def leaving(self, client: str, topic_filter: str) -> None:
        self.intervals[client, topic_filter][-1].leaving_s = self.clock()

    def left(self, client: str, topic_filter: str) -> None:
        self._spring()
        self.intervals[client, topic_filter][-1].left_s = self.clock()

    def retained(self, client: str, floor: dict[str, int], found: dict[str, int]) -> None:
        """A new subscriber got these retained messages, with these acknowledged before it asked."""
        for topic, least in floor.items():
            if found.get(topic, -1) < least:
                got = found.get(topic, "none")
                self.fault(Kind.RETAINED, client, f"{topic}: got {got}, {self.describe(least)} was acknowledged")

    def connected(self, client: str) -> None:
        """CONNACK seen."""
        self._spring()
        self.connects[client] += 1

    # --- both -----------------------------------------------------------------------------------------------------------

    def session_lost(self, client: str) -> None:
        """CONNACK said that there is no session, and there had been one."""
        self.lost_sessions.setdefault(client, self.clock())
        self.fault(Kind.SESSION, client, "CONNACK without session present")

    def _spring(self) -> None:
        trap, self.trap = self.trap, None
        if trap is not None:
            trap()

    def killed(self, victim: str) -> None:
        self.kills.append((self.clock(), victim))

    def fault(self, kind: Kind, client: str, text: str) -> None:
        self.faults.append(Fault(kind, client, text, self.clock(), kind != Kind.SESSION and client in self.lost_sessions))

    def describe(self, number: int) -> str:
        acked = self.acked_s[number]
        answer = f"acknowledged at {acked:.3f}" if acked < INFINITE else "not acknowledged"
        publisher, topic = self.names[self.publisher[number]], self.topics[self.topic[number]]
        return f"message {number} ({publisher} to {topic}, QoS {self.qos[number]}, sent at {self.sent_s[number]:.3f}, {answer})"

    def kills_around(self, at_s: float) -> str:
        """The kills before and after that moment."""
        end = bisect_right(self.kills, at_s, key=lambda kill: kill[0])
        near = self.kills[max(0, end - KILLS_AROUND) : end + KILLS_AROUND]
        return ", ".join(f"{victim} {abs(at_s - when):.3f} s {'before' if when <= at_s else 'after'}" for when, victim in near)


def _number(names: list[str], numbers: dict[str, int], name: str) -> int:
    if name not in numbers:
        numbers[name] = len(names)
        names.append(name)
    return numbers[name]


# --- the check --------------------------------------------------------------------------------------------------------------


def check(history: History) -> list[Fault]:
    """All faults, by time: those that clients saw at once, and those that only show in the end."""
    counts = {client: _count(history, client) for client in {client for client, _ in history.intervals}}
    found = list(history.faults)
    found += _unacknowledged(history)
    for client, count in counts.items():
        found += _check_arrivals(history, client, count)
    found += _check_losses(history, counts)
    found += _check_groups(history, counts)
    return sorted(found, key=lambda fault: fault.at_s)


def _count(history: History, client: str) -> bytearray:
    """How often each message arrived, up to 255."""
    count = bytearray(len(history.qos))
    for number in history.arrivals[client].numbers:
        if number < len(count) and count[number] < 255:
            count[number] += 1
    return count


def _unacknowledged(history: History) -> Iterator[Fault]:
    for number, acked_s in enumerate(history.acked_s):
        if acked_s == INFINITE and number not in history.taken_back:
            publisher = history.names[history.publisher[number]]
            yield Fault(Kind.STUCK, publisher, history.describe(number), history.sent_s[number], publisher in history.lost_sessions)


def _check_arrivals(history: History, client: str, count: bytearray) -> Iterator[Fault]:
    """Order and duplicates, and whether it was subscribed at all."""
    arrivals = history.arrivals[client]
    newest: dict[tuple[int, int, int], int] = {}
    seen = bytearray(len(count))
    intervals = {number: _intervals(history, client, topic) for number, topic in enumerate(history.topics)}
    shared = {number for number, topic in enumerate(history.topics) if _is_shared(history, client, topic)}
    lost = history.lost_sessions

    def fault(kind: Kind, number: int, at_s: float, text: str) -> Fault:
        publisher = history.names[history.publisher[number]]
        return Fault(kind, client, f"{history.describe(number)} {text}", at_s, client in lost or publisher in lost)

    for number, qos, at_s in zip(arrivals.numbers, arrivals.qos, arrivals.at_s, strict=True):
        topic, sent_s = history.topic[number], history.sent_s[number]
        possible = list(_open_between(intervals[topic], at_s, sent_s))
        if not possible:
            yield fault(Kind.UNWANTED, number, at_s, "arrived without a subscription")
        elif not any(qos == min(one.qos, history.qos[number]) for one in possible):
            yield fault(Kind.PROTOCOL, number, at_s, f"arrived with QoS {qos}")
        if seen[number]:
            if qos == 2 and seen[number] == 1:
                yield fault(Kind.DUPLICATE, number, at_s, f"arrived {count[number]} times, again at {at_s:.3f}")
            seen[number] = 2
            continue
        seen[number] = 1
        stream = history.publisher[number], topic, history.qos[number]
        before = newest.get(stream, -1)
        if before > number and topic not in shared and (qos == 2 or _spanned(possible, sent_s, at_s)):
            yield fault(Kind.ORDER, number, at_s, f"arrived behind message {before}, at {at_s:.3f}")
        newest[stream] = max(before, number)


def _intervals(history: History, client: str, topic: str) -> list[list[Interval]]:
    """Those of each filter of the client that matches the topic, by time."""
    return [
        intervals
        for (name, topic_filter), intervals in history.intervals.items()
        if name == client and matches(_group_and_filter(topic_filter)[1], topic)
    ]


def _group_and_filter(topic_filter: str) -> tuple[str, str]:
    """Name of the shared group, "" if there is none, and the filter proper."""
    if not topic_filter.startswith(SHARE):
        return "", topic_filter
    group, _, proper = topic_filter.removeprefix(SHARE).partition("/")
    return group, proper


def _is_shared(history: History, client: str, topic: str) -> bool:
    """Whether what the client gets of this topic comes to it as a member of a shared group."""
    return any(
        name == client and topic_filter.startswith(SHARE) and matches(_group_and_filter(topic_filter)[1], topic)
        for name, topic_filter in history.intervals
    )


def _open_between(filters: list[list[Interval]], at_s: float, sent_s: float) -> Iterator[Interval]:
    """Subscriptions that were asked for before `at_s` and not over before `sent_s`; those of a filter do not overlap."""
    for intervals in filters:
        for place in range(bisect_right(intervals, at_s, key=lambda one: one.asked_s) - 1, -1, -1):
            if intervals[place].left_s < sent_s:
                break
            yield intervals[place]


def _spanned(possible: list[Interval], sent_s: float, at_s: float) -> bool:
    """Whether one subscription was there all the time. One of QoS 1 that is sent again may have come the first time when there was
    none, and a later one between the two."""
    return any(one.granted_s <= sent_s and at_s <= one.leaving_s for one in possible)


def _check_losses(history: History, counts: dict[str, bytearray]) -> Iterator[Fault]:
    by_topic = [array("L") for _ in history.topics]
    for number, topic in enumerate(history.topic):
        by_topic[topic].append(number)
    for (client, topic_filter), intervals in history.intervals.items():
        if topic_filter.startswith(SHARE):
            continue  # another member may have it
        topics = [number for number, topic in enumerate(history.topics) if matches(topic_filter, topic)]
        for interval in intervals:
            due: list[int] = []
            for topic in topics:
                due += _due(history, by_topic[topic], interval)
            due.sort()
            missing = [number for number in due if not counts[client][number]]
            if missing:
                yield _loss(history, client, topic_filter, due, missing)


def _due(history: History, numbers: array, interval: Interval) -> Iterator[int]:
    """What must have arrived under this subscription, of these messages."""
    start = bisect_right(numbers, interval.granted_s, key=history.sent_s.__getitem__)
    for number in numbers[start:]:
        if history.sent_s[number] > interval.leaving_s:
            return
        if number in history.taken_back:
            continue
        if history.acked_s[number] < INFINITE and history.acked_s[number] + IN_FLIGHT_S <= interval.leaving_s:
            yield number


def _check_groups(history: History, counts: dict[str, bytearray]) -> Iterator[Fault]:
    """Somebody in each shared group got each message, and of QoS 2 nobody else did."""
    members: dict[str, list[str]] = defaultdict(list)
    for client, topic_filter in history.intervals:
        if topic_filter.startswith(SHARE):
            members[topic_filter].append(client)
    for topic_filter, clients in members.items():
        staying = [one for client in clients for one in history.intervals[client, topic_filter] if one.leaving_s == INFINITE]
        proper = _group_and_filter(topic_filter)[1]
        topics = {number for number, topic in enumerate(history.topics) if matches(proper, topic)}
        of_group = array("L", (number for number, topic in enumerate(history.topic) if topic in topics))
        names = ", ".join(clients)
        if staying:
            due = list(_due(history, of_group, min(staying, key=lambda one: one.granted_s)))
            missing = [number for number in due if not any(counts[client][number] for client in clients)]
            if missing:
                yield _loss(history, names, topic_filter, due, missing)
        for number in of_group:
            having = [client for client in clients if counts[client][number]]
            if len(having) > 1 and history.qos[number] == 2 and all(one.qos == 2 for one in staying):
                lost = any(client in history.lost_sessions for client in (*having, history.names[history.publisher[number]]))
                text = f"{topic_filter}: {history.describe(number)} came to {', '.join(having)}"
                yield Fault(Kind.DUPLICATE, names, text, history.sent_s[number], lost)


def _loss(history: History, client: str, topic_filter: str, due: list[int], missing: list[int]) -> Fault:
    """A subscription from which, from some moment on, nothing came any more is itself lost."""
    kind = Kind.SUBSCRIPTION if len(missing) > 1 and due[-len(missing) :] == missing else Kind.LOST
    publishers = {history.names[history.publisher[number]] for number in missing}
    # Messages of a publisher that lost its session can be lost on their way in; nobody else's.
    consequence = client in history.lost_sessions or publishers <= history.lost_sessions.keys()
    shown = ", ".join(map(str, missing[:SHOWN])) + (", ..." if len(missing) > SHOWN else "")
    text = f"{topic_filter}: {len(missing)} of {len(due)} missing: {shown}; first {history.describe(missing[0])}"
    return Fault(kind, client, text, history.sent_s[missing[0]], consequence)


def report(history: History, faults: list[Fault]) -> str:
    """For people: how many of which kind, and the first of each with the kills around it."""
    arrived = sum(len(arrivals.numbers) for arrivals in history.arrivals.values())
    victims = Counter(victim.rstrip("0123456789-") for _, victim in history.kills)
    lines = [
        f"{len(history.qos)} messages sent, {arrived} arrived; {sum(history.connects.values())} connections; "
        f"{len(history.kills)} kills: {', '.join(f'{name} {count}' for name, count in sorted(victims.items()))}"
    ]
    for kind in Kind:
        of_kind = [fault for fault in faults if fault.kind == kind]
        if not of_kind:
            continue
        follow = sum(fault.consequence for fault in of_kind)
        lines.append(f"{kind}: {len(of_kind)}" + (f", {follow} of them where a session had been lost" if follow else ""))
        for fault in sorted(of_kind, key=lambda fault: (fault.consequence, fault.at_s))[:SHOWN]:
            lines.append(f"  {fault}")
            lines.append(f"{'':15}kills: {history.kills_around(fault.at_s) or 'none'}")
    return "\n".join(lines)
