"""What clients saw of a broker, and what of it a broker must not do.

Messages have numbers in the order in which they were first sent; payloads carry them. All times are seconds of one clock.

    SUBSCRIBE sent      SUBACK seen                  UNSUBSCRIBE sent     UNSUBACK seen
    asked_s             granted_s                    leaving_s            left_s
       |   may arrive       |       must arrive          |    may arrive      |   must not arrive

A message must arrive if it was first sent after `granted_s`, and acknowledged before `leaving_s` (by IN_FLIGHT_S). While workers
are moved that time does not run: the message waits in a ring, and an UNSUBSCRIBE in a socket, until the successor serves.

Of a shared group one member has to get it, whichever. So each group needs one that stays. In which order the members get
what they share is up to the broker.

A will is a message that is sent with CONNECT and acknowledged with CONNACK. It must arrive unless it may have been taken back.

How often a message may arrive. The publisher wrote its PUBLISH once on each of some connections (`History.attempted`). Each of
them makes one publication at most if the QoS is 1; of QoS 2 and 0 all of them together make one. A publication arrives

    QoS 2, QoS 0    once at most
    QoS 1           once at most on each connection of the subscriber, and on none after one on which the broker has read the
                    PUBACK (`History.settled`: it has answered what the subscriber sent behind the PUBACK)

so that at any moment  arrivals on this connection + PUBACKs read on earlier ones <= publications,  where those with QoS 0 count on
every connection: the subscription may have had another QoS before. Kills need no term of their own: one that makes the broker send
again also ends a connection, of the publisher or of the subscriber. The bound holds without a retry interval
(`mqtt.retry_interval`), which is the default.

Order. Messages of one publisher and topic arrive in the order in which they were first sent, whatever their QoS, with the
exceptions that docs/ordering.md has: QoS 0 does not wait for room in a subscriber's window, so it may overtake QoS 1 and 2; and
QoS 1 that a killed worker had is sent again by its publisher, maybe behind QoS 2 that stands in the worker's journal.

QoS 0 is acknowledged when something is that its publisher sent behind it on the same connection. From then on no kill stops it.
A subscriber that was connected when it was sent must get it, unless that connection ended before. It did not if a later
message of the same kind arrived on it, or if it never ended.

An exclusive subscription has one holder at a time: none is granted to a client between `granted_s` and `leaving_s` of another.

A delayed message must not arrive before its time, which begins when it is first sent.

Full queues. Where queues are short and publishers wait for those of connected clients (`mqtt.mqueue_overflow = push_back`), each
message that is dropped is known, and why (overflows.py). It need not arrive; QoS 1 that is sent again by its publisher may arrive
behind newer messages then. Three things may be dropped (docs/design/0017-push-back.md), all else is a
fault of its own:

    a client that is absent      what waits for it
    a queue that has stalled     its oldest messages
    no acknowledgement is owed   QoS 0, wills and delayed messages (`History.owed_nothing`)

Connections. The broker must not end one but by the death of the process that had it, from the moment on at which the client
began to connect. So where there were only moves since (a worker replaced, the broker upgraded), none ends.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice, pairwise

from tests.harness.broker import worker_of

INFINITE = float("inf")
EARLY_S = 0.1
"""A worker reads its clock once a pass, and counts a delay from there: the pass may have begun before the message was sent."""
IN_FLIGHT_S = 1.0
"""An UNSUBSCRIBE may overtake a message acknowledged just before on its way to the subscriber's worker: no standard forbids it."""
ABSENT_S = 1.0
"""A worker that replaces a killed one may drop what waits for its clients before these notice that their connections have ended."""
SHOWN = 12
"""Message numbers, and faults of a kind, that a report shows."""
KILLS_AROUND = 3
REPLACE, UPGRADE, RESIZE = "replace", "upgrade", "resize"
"""Moves: `replace-1` is that of worker 1."""
SHARE = "$share/"
EXCLUSIVE = "$exclusive/"
BYSTANDERS = ("acceptor", "manager")
"""Processes that have no messages, and no connection beyond its CONNACK: killing them excuses nothing."""
OF_ONE_WORKER = ("worker-", "successor-", "predecessor-")
"""Victims that had the clients of one worker at most; its number follows."""


class Kind(StrEnum):
    SESSION = "session lost"
    SUBSCRIPTION = "subscription lost"
    LOST = "message lost"
    DROPPED = "message dropped for a connected client"
    DUPLICATE = "QoS 2 message more than once"
    REPEATED = "message more often than it was sent"
    ORDER = "out of order"
    ORDER_OF_LEVELS = "out of order between QoS levels"
    EARLY = "delayed message before its time"
    HOLDERS = "exclusive subscription with two holders"
    UNWANTED = "message nobody asked for"
    RETAINED = "retained message lost or too old"
    PROTOCOL = "protocol"
    STUCK = "never finished"
    DISCONNECTED = "disconnected without cause"
    MOVE = "replacement or upgrade failed"
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
    discarded: bool = False
    """Its client ended the session: what waited for it is gone."""


@dataclass
class Outage:
    """The end of a process, from before the kill until it has ended; of the whole broker until it is started again."""

    victim: str
    begin_s: float
    end_s: float = INFINITE


@dataclass(frozen=True)
class Move:
    """A worker that was replaced, or an upgrade."""

    what: str
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Drop:
    """A connection that the broker has ended."""

    client: str
    opened_s: float
    at_s: float
    how: str


@dataclass(frozen=True)
class Overflow:
    """A message that did not stay in a full queue."""

    at_s: float
    stalled: bool
    """The queue has."""
    connected: bool
    """Its client was, as far as the broker knew."""


@dataclass
class Arrivals:
    """What one client got, in order: message number, QoS, when, on which of its connections."""

    numbers: array = field(default_factory=lambda: array("L"))
    qos: array = field(default_factory=lambda: array("B"))
    at_s: array = field(default_factory=lambda: array("d"))
    connection: array = field(default_factory=lambda: array("L"))


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

    def __init__(self, clock: Callable[[], float], workers: int = 0) -> None:
        """workers: how many the broker has; 0: the number changes."""
        self.clock = clock
        self.workers = workers
        self.owed_nothing: tuple[str, ...] = ()
        """Beginnings of topics whose messages have no publisher that waits."""
        self.overflows: dict[tuple[str, int], list[Overflow]] = defaultdict(list)
        """Client and message: when its full queue dropped it."""
        self.names: list[str] = []
        self.topics: list[str] = []
        self._name_numbers: dict[str, int] = {}
        self._topic_numbers: dict[str, int] = {}
        self.publisher, self.topic, self.qos = array("H"), array("H"), array("B")
        self.sent_s, self.acked_s = array("d"), array("d")
        self.attempts: dict[int, list[float]] = defaultdict(list)
        """When a message was sent again."""
        self.due_s: dict[int, float] = {}
        """Delayed messages, and when they may arrive."""
        self.arrivals: dict[str, Arrivals] = defaultdict(Arrivals)
        self.settlements: dict[tuple[str, int], list[int]] = defaultdict(list)
        """Client and message: on which connections the broker has read a PUBACK for it."""
        self.intervals: dict[tuple[str, str], list[Interval]] = {}
        self.taken_back: set[int] = set()
        """Wills that may arrive or not."""
        self.awaited: set[int] = set()
        """Messages of which a client wants to know when the first subscriber has them."""
        self.retained_floor: dict[str, int] = {}
        """Last acknowledged message of each topic with retained messages."""
        self.lost_sessions: dict[str, float] = {}
        self.kills: list[tuple[float, str]] = []
        self.outages: list[Outage] = []
        self.moves: list[Move] = []
        self.pauses: list[tuple[float, float]] = []
        """When moves were tried, one after the other, also in vain."""
        self.unmoved: Counter[str] = Counter()
        """Replacements and upgrades that were refused, or did not complete, by reason."""
        self.cut_short = 0
        """Kills while a worker was replaced or the broker upgraded."""
        self.drops: list[Drop] = []
        self.faults: list[Fault] = []
        self.connects: Counter[str] = Counter()
        self.connections: dict[str, list[list[float]]] = defaultdict(list)
        """When each began, CONNACK seen, and ended."""
        self.refused: Counter[str] = Counter()
        """Exclusive subscriptions that another client had."""
        self.trap: Callable[[], None] | None = None
        """To be called when a client sees the broker's next promise: an acknowledgement, a SUBACK, a CONNACK."""

    # --- publishers -----------------------------------------------------------------------------------------------------

    def sent(self, client: str, topic: str, qos: int, delay_s: float = 0.0) -> int:
        """A message is about to be sent for the first time; its number."""
        self.publisher.append(_number(self.names, self._name_numbers, client))
        self.topic.append(_number(self.topics, self._topic_numbers, topic))
        self.qos.append(qos)
        self.sent_s.append(self.clock())
        self.acked_s.append(INFINITE)
        number = len(self.qos) - 1
        if delay_s:
            self.due_s[number] = self.sent_s[number] + delay_s
        return number

    def attempted(self, number: int) -> None:
        """PUBLISH is about to be sent once more, on another connection."""
        self.attempts[number].append(self.clock())

    def acknowledged(self, number: int, retain: bool = False) -> None:
        """PUBACK or PUBCOMP seen; of QoS 0 what was sent behind it is acknowledged."""
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
        arrivals.connection.append(self.connects[client])

    def settled(self, client: str, number: int) -> None:
        """The broker has read a PUBACK of this client's connection of now."""
        self.settlements[client, number].append(self.connects[client])

    def asked(self, client: str, topic_filter: str, qos: int) -> None:
        self.intervals.setdefault((client, topic_filter), []).append(Interval(qos, self.clock()))

    def granted(self, client: str, topic_filter: str) -> None:
        self._spring()
        interval = self.intervals[client, topic_filter][-1]
        interval.granted_s = min(
            interval.granted_s, self.clock()
        )  # granted again after its session was lost: the promise is the first

    def declined(self, client: str, topic_filter: str) -> None:
        """Another client has the exclusive subscription: what was asked for has never been."""
        self.intervals[client, topic_filter].pop()
        self.refused[topic_filter] += 1

    def leaving(self, client: str, topic_filter: str, discarded: bool = False) -> None:
        interval = self.intervals[client, topic_filter][-1]
        interval.leaving_s = min(interval.leaving_s, self.clock())
        interval.discarded = discarded

    def left(self, client: str, topic_filter: str) -> None:
        self._spring()
        self.intervals[client, topic_filter][-1].left_s = self.clock()

    def overflowed(self, client: str, number: int, overflow: Overflow) -> None:
        """The full queue of the client has dropped the message."""
        self.overflows[client, number].append(overflow)

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
        self.connections[client].append([self.clock(), INFINITE])

    def disconnected(self, client: str) -> None:
        """From now on nothing of its connection is read."""
        self.connections[client][-1][1] = self.clock()

    def dropped(self, client: str, opened_s: float, how: str) -> None:
        """The broker has ended a connection, behind its CONNACK."""
        self.drops.append(Drop(client, opened_s, self.clock(), how))

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

    def falls(self, victim: str) -> Outage:
        """A process is about to be killed."""
        self.outages.append(Outage(victim, self.clock()))
        return self.outages[-1]

    def fell(self, outage: Outage) -> None:
        """What was killed has ended."""
        outage.end_s = min(outage.end_s, self.clock())

    @property
    def done(self) -> int:
        """Kills and moves."""
        return len(self.kills) + len(self.moves)

    def tried(self, begin_s: float) -> None:
        """A move has ended, one way or the other."""
        self.pauses.append((begin_s, self.clock()))

    def moving_s(self, since_s: float, until_s: float) -> float:
        """Seconds between the two in which something was moved."""
        start = bisect_right(self.pauses, since_s, key=lambda pause: pause[1])
        found = 0.0
        for begin_s, end_s in islice(self.pauses, start, None):
            if begin_s >= until_s:
                break
            found += min(end_s, until_s) - max(begin_s, since_s)
        return found

    def moved(self, what: str, begin_s: float) -> None:
        """A worker was replaced, or the broker upgraded."""
        self.moves.append(Move(what, begin_s, self.clock()))

    def fault(self, kind: Kind, client: str, text: str) -> None:
        self.faults.append(Fault(kind, client, text, self.clock(), kind != Kind.SESSION and client in self.lost_sessions))

    def describe(self, number: int) -> str:
        acked = self.acked_s[number]
        answer = f"acknowledged at {acked:.3f}" if acked < INFINITE else "not acknowledged"
        publisher, topic = self.names[self.publisher[number]], self.topics[self.topic[number]]
        return f"message {number} ({publisher} to {topic}, QoS {self.qos[number]}, sent at {self.sent_s[number]:.3f}, {answer})"

    def killed_between(self, since_s: float, until_s: float) -> bool:
        """Whether a worker was killed between the two."""
        start = bisect_left(self.kills, since_s, key=lambda kill: kill[0])
        return any(when <= until_s and not victim.startswith(BYSTANDERS) for when, victim in islice(self.kills, start, None))

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
    found += _check_exclusive(history)
    found += _check_drops(history)
    found += _check_overflows(history)
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
    """Order and repetition, whether it was time, and whether it was subscribed at all."""
    arrivals = history.arrivals[client]
    newest: dict[tuple[int, int], dict[tuple[int, bool], int]] = defaultdict(dict)
    seen = bytearray(len(count))
    on_connection: dict[int, tuple[int, int]] = {}
    of_qos_0: Counter[int] = Counter()
    """Arrivals of each message, on all connections."""
    intervals = {number: _intervals(history, client, topic) for number, topic in enumerate(history.topics)}
    shared = {number for number, topic in enumerate(history.topics) if _is_shared(history, client, topic)}
    lost = history.lost_sessions

    def fault(kind: Kind, number: int, at_s: float, text: str) -> Fault:
        publisher = history.names[history.publisher[number]]
        return Fault(kind, client, f"{history.describe(number)} {text}", at_s, client in lost or publisher in lost)

    for number, qos, at_s, connection in zip(arrivals.numbers, arrivals.qos, arrivals.at_s, arrivals.connection, strict=True):
        topic, sent_s = history.topic[number], history.sent_s[number]
        possible = list(_open_between(intervals[topic], at_s, sent_s))
        if not possible:
            yield fault(Kind.UNWANTED, number, at_s, "arrived without a subscription")
        elif not any(qos == min(one.qos, history.qos[number]) for one in possible):
            yield fault(Kind.PROTOCOL, number, at_s, f"arrived with QoS {qos}")
        if at_s < history.due_s.get(number, 0.0) - EARLY_S:
            yield fault(Kind.EARLY, number, at_s, f"arrived at {at_s:.3f}, due at {history.due_s[number]:.3f}")
        last, here = on_connection.get(number, (connection, 0))
        here = (here if last == connection else 0) + (qos != 0)
        on_connection[number] = connection, here
        of_qos_0[number] += qos == 0
        if seen[number]:
            if qos == 2 and seen[number] == 1:
                yield fault(Kind.DUPLICATE, number, at_s, f"arrived {count[number]} times, again at {at_s:.3f}")
            elif qos != 2 and here + of_qos_0[number] + _settled_before(history, client, number, connection) > _publications(
                history, number, at_s
            ):
                yield fault(Kind.REPEATED, number, at_s, f"arrived {count[number]} times, again with QoS {qos} at {at_s:.3f}")
            seen[number] = 2
            continue
        seen[number] = 1
        stream = newest[history.publisher[number], topic]
        if topic not in shared:
            spanned = _spanned(possible, sent_s, at_s)
            for (level, at_once), before in stream.items():
                if before < number or (at_once and qos) or _dropped_before(history, client, number, at_s):
                    continue
                if level == history.qos[number]:
                    if qos == 2 or spanned:
                        yield fault(Kind.ORDER, number, at_s, f"arrived behind message {before}, at {at_s:.3f}")
                elif spanned and not _sent_again_after_a_kill(history, number, at_s):
                    yield fault(Kind.ORDER_OF_LEVELS, number, at_s, f"arrived behind message {before} (QoS {level}), at {at_s:.3f}")
        place = history.qos[number], qos == 0
        stream[place] = max(number, stream.get(place, -1))


def _publications(history: History, number: int, at_s: float) -> int:
    """How many the broker may have made of the message by then."""
    return 1 + bisect_right(history.attempts.get(number, ()), at_s) if history.qos[number] == 1 else 1


def _settled_before(history: History, client: str, number: int, connection: int) -> int:
    """PUBACKs for the message that the broker has read on earlier connections of the client."""
    return sum(one < connection for one in history.settlements.get((client, number), ()))


def _sent_again_after_a_kill(history: History, number: int, at_s: float) -> bool:
    """Whether it may have been lost with a worker that had newer messages of QoS 2 in its journal."""
    sent_s = history.sent_s[number]
    return history.qos[number] == 1 and _publications(history, number, at_s) > 1 and history.killed_between(sent_s, at_s)


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
        return "", topic_filter.removeprefix(EXCLUSIVE)
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
    last = {client: _last_on_connections(history, client) for client in counts}
    for (client, topic_filter), intervals in history.intervals.items():
        if topic_filter.startswith(SHARE):
            continue  # another member may have it
        proper = _group_and_filter(topic_filter)[1]
        topics = [number for number, topic in enumerate(history.topics) if matches(proper, topic)]
        for interval in intervals:
            if interval.discarded:
                continue
            due: list[int] = []
            for topic in topics:
                due += (
                    number
                    for number in _due(history, by_topic[topic], interval)
                    if min(interval.qos, history.qos[number]) or _connection_lasted(history, client, number, last[client])
                )
            due.sort()
            missing = [number for number in due if not counts[client][number] and (client, number) not in history.overflows]
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
        acked_s = history.acked_s[number]
        if acked_s == INFINITE or acked_s + IN_FLIGHT_S > interval.leaving_s:
            continue
        pause_s = 0.0 if interval.leaving_s == INFINITE else history.moving_s(acked_s, interval.leaving_s)
        if acked_s + IN_FLIGHT_S + pause_s <= interval.leaving_s:
            yield number


def _check_overflows(history: History) -> Iterator[Fault]:
    """What full queues may not drop."""
    for (client, number), overflows in history.overflows.items():
        if not history.qos[number] or history.topics[history.topic[number]].startswith(history.owed_nothing):
            continue
        for one in overflows:
            if not one.stalled and (one.connected or _is_connected(history, client, one.at_s)):
                known = "a" if one.connected else "no"
                text = f"{history.describe(number)} dropped at {one.at_s:.3f}, when the broker had {known} connection of it"
                yield Fault(Kind.DROPPED, client, text, one.at_s)


def _is_connected(history: History, client: str, at_s: float) -> bool:
    """Whether its connection cannot have ended by then."""
    return any(begin_s <= at_s <= end_s - ABSENT_S for begin_s, end_s in history.connections.get(client, ()))


def _dropped_before(history: History, client: str, number: int, at_s: float) -> bool:
    """Whether it arrived of a later attempt of its publisher, and an earlier one was dropped."""
    return history.qos[number] == 1 and any(one.at_s <= at_s for one in history.overflows.get((client, number), ()))


def _last_on_connections(history: History, client: str) -> dict[tuple[int, int, int, int], int]:
    """The newest message on each connection of each publisher, topic and QoS."""
    newest: dict[tuple[int, int, int, int], int] = {}
    arrivals = history.arrivals[client]
    for number, connection in zip(arrivals.numbers, arrivals.connection, strict=True):
        key = (connection, *_kind_of(history, number))
        newest[key] = max(number, newest.get(key, -1))
    return newest


def _kind_of(history: History, number: int) -> tuple[int, int, int]:
    return history.publisher[number], history.topic[number], history.qos[number]


def _connection_lasted(history: History, client: str, number: int, newest: dict[tuple[int, int, int, int], int]) -> bool:
    """Whether the connection that the client had when the message was sent lasted until it must have come by it, if with QoS 0."""
    connections = history.connections.get(client)
    if connections is None:
        return True  # never away
    place = bisect_right(connections, history.sent_s[number], key=lambda one: one[0])
    if not place or connections[place - 1][1] < history.sent_s[number]:
        return False
    return connections[place - 1][1] == INFINITE or newest.get((place, *_kind_of(history, number)), -1) >= number


def _check_exclusive(history: History) -> Iterator[Fault]:
    held: dict[str, list[tuple[float, str, Interval]]] = defaultdict(list)
    for (client, topic_filter), intervals in history.intervals.items():
        if topic_filter.startswith(EXCLUSIVE):
            held[topic_filter] += ((one.granted_s, client, one) for one in intervals if one.granted_s < INFINITE)
    for topic_filter, holders in held.items():
        holders.sort(key=lambda holder: holder[0])
        _, owner, longest = holders[0]
        for granted_s, client, interval in holders[1:]:
            if granted_s < longest.leaving_s and client != owner:
                text = f"{topic_filter}: granted at {granted_s:.3f}, {owner} has had it since {longest.granted_s:.3f}"
                yield Fault(Kind.HOLDERS, client, text, granted_s, owner in history.lost_sessions)
            if interval.leaving_s >= longest.leaving_s:
                owner, longest = client, interval


def _check_drops(history: History) -> Iterator[Fault]:
    for drop in history.drops:
        worker = worker_of(drop.client, history.workers) if history.workers else -1
        if not any(_ends_connections(one, drop, worker) for one in history.outages):
            moves = [one.what for one in history.moves if one.begin_s <= drop.at_s and one.end_s >= drop.opened_s]
            text = f"{drop.how}, connected since {drop.opened_s:.3f}; moves since: {', '.join(moves) or 'none'}"
            yield Fault(Kind.DISCONNECTED, drop.client, text, drop.at_s)


def _ends_connections(outage: Outage, drop: Drop, worker: int) -> bool:
    """Whether the connection may have ended with that process. worker: that of the client; negative: not known."""
    if outage.begin_s > drop.at_s or outage.end_s < drop.opened_s or outage.victim.startswith(BYSTANDERS):
        return False
    for prefix in OF_ONE_WORKER:
        if outage.victim.startswith(prefix) and worker >= 0:
            return int(outage.victim.removeprefix(prefix)) == worker
    return True


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
            missing = [
                number for number in due
                if not any(counts[client][number] or (client, number) in history.overflows for client in clients)
            ]  # fmt: skip
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
    senders = Counter(history.names[history.publisher[number]] for number in missing)
    named = ", ".join(f"{name} {count}" for name, count in senders.most_common(SHOWN))
    text = f"{topic_filter}: {len(missing)} of {len(due)} missing: {shown}; of {named}; first {history.describe(missing[0])}"
    return Fault(kind, client, text, history.sent_s[missing[0]], consequence)


class Seen(StrEnum):
    """What a run must have had for its checks to mean anything."""

    SENT_AGAIN = "QoS 1 sent again"
    ARRIVED_AGAIN = "QoS 1 arrived again"
    SETTLED = "PUBACKs known to be read"
    MIXED = "arrived next to another QoS of the same publisher and topic"
    QOS0 = "QoS 0 arrived"
    QOS0_DUE = "QoS 0 had to arrive"
    DELAYED = "delayed messages arrived"
    DELAYED_OVER_A_KILL = "delayed messages waited over the death of a worker"
    HELD = "exclusive subscriptions granted"
    HELD_OVER_A_KILL = "exclusive subscriptions held over the death of a worker"
    REFUSED = "exclusive subscriptions refused"
    PASSED_ON = "exclusive subscriptions passed on to another client"
    REPLACED = "workers replaced"
    UPGRADED = "upgrades"
    CUT_SHORT = "kills in the middle of those"
    KEPT = "connections kept over those"


def seen(history: History) -> Counter[Seen]:
    """How often each happened."""
    count = Counter(dict.fromkeys(Seen, 0))
    count[Seen.SENT_AGAIN] = sum(len(times) for number, times in history.attempts.items() if history.qos[number] == 1)
    count[Seen.SETTLED] = sum(map(len, history.settlements.values()))
    count[Seen.REFUSED] = history.refused.total()
    count[Seen.REPLACED] = sum(one.what not in (UPGRADE, RESIZE) for one in history.moves)
    count[Seen.UPGRADED] = sum(one.what == UPGRADE for one in history.moves)
    count[Seen.CUT_SHORT] = history.cut_short
    count[Seen.KEPT] = sum(
        begin_s < one.begin_s and one.end_s < end_s
        for one in history.moves for client, connections in history.connections.items() for begin_s, end_s in connections
        if one.what in (UPGRADE, RESIZE) or not history.workers or one.what == f"{REPLACE}-{worker_of(client, history.workers)}"
    )  # fmt: skip
    delayed_over_a_kill = set()
    for client, arrivals in history.arrivals.items():
        last: dict[tuple[int, int], int] = {}
        known: set[int] = set()
        for number, qos in zip(arrivals.numbers, arrivals.qos, strict=True):
            count[Seen.ARRIVED_AGAIN] += qos == 1 and number in known
            known.add(number)
            stream = history.publisher[number], history.topic[number]
            count[Seen.MIXED] += last.get(stream, history.qos[number]) != history.qos[number]
            last[stream] = history.qos[number]
            count[Seen.QOS0] += qos == 0
            if number in history.due_s:
                count[Seen.DELAYED] += 1
                if history.killed_between(history.acked_s[number], history.due_s[number]):
                    delayed_over_a_kill.add(number)
        newest = _last_on_connections(history, client)
        count[Seen.QOS0_DUE] += sum(
            not history.qos[number] and number not in history.taken_back and _connection_lasted(history, client, number, newest)
            for number in known
        )
    count[Seen.DELAYED_OVER_A_KILL] = len(delayed_over_a_kill)
    holders: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for (client, topic_filter), intervals in history.intervals.items():
        for one in intervals:
            if topic_filter.startswith(EXCLUSIVE) and one.granted_s < INFINITE:
                holders[topic_filter].append((one.granted_s, client))
                count[Seen.HELD_OVER_A_KILL] += history.killed_between(one.granted_s, one.leaving_s)
    for of_filter in holders.values():
        of_filter.sort()
        count[Seen.HELD] += len(of_filter)
        count[Seen.PASSED_ON] += sum(before[1] != after[1] for before, after in pairwise(of_filter))
    return count


def report(history: History, faults: list[Fault]) -> str:
    """For people: how many of which kind, and the first of each with the kills around it."""
    arrived = sum(len(arrivals.numbers) for arrivals in history.arrivals.values())
    victims = Counter(victim.rstrip("0123456789-") for _, victim in history.kills)
    lines = [
        f"{len(history.qos)} messages sent, {arrived} arrived; {sum(history.connects.values())} connections; "
        f"{len(history.kills)} kills: {', '.join(f'{name} {count}' for name, count in sorted(victims.items()))}"
    ]
    if history.unmoved:
        lines.append(f"not moved: {', '.join(f'{reason} {count}' for reason, count in sorted(history.unmoved.items()))}")
    lines.append("; ".join(f"{what}: {number}" for what, number in seen(history).items()))
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
