"""The checker finds what it is there to find, and nothing where nothing is wrong."""

import pytest

from tests.harness import wire
from tests.harness.broker import worker_of
from tests.torture.checker import ABSENT_S, IN_FLIGHT_S, Fault, History, Kind, Outage, Overflow, Seen, check, matches, report, seen
from tests.torture.client import Network, Subscriber, payload_of


class Story:
    """A history told by hand: one publisher `p`, one subscriber `s` of `t/+` with QoS 2, a clock that goes on by itself."""

    def __init__(self, qos: int = 2) -> None:
        self.now = 0.0
        self.history = History(self._clock)
        self.subscribe(qos)

    def _clock(self) -> float:
        self.now += 0.001
        return self.now

    def publish(self, qos: int = 2, topic: str = "t/a", publisher: str = "p", acknowledge: bool = True) -> int:
        number = self.history.sent(publisher, topic, qos)
        if acknowledge:
            self.history.acknowledged(number)
        return number

    def arrive(self, *numbers: int, qos: int = 2) -> None:
        for number in numbers:
            self.history.arrived("s", number, qos)

    def send_again(self, *numbers: int) -> None:
        """By the publisher, on another connection."""
        for number in numbers:
            self.history.attempted(number)

    def come_back(self) -> None:
        """The subscriber's next connection."""
        if self.history.connects["s"]:
            self.history.disconnected("s")
        self.history.connected("s")

    def subscribe(self, qos: int) -> None:
        self.history.asked("s", "t/+", qos)
        self.history.granted("s", "t/+")

    def leave(self) -> None:
        self.now += IN_FLIGHT_S
        self.history.leaving("s", "t/+")
        self.history.left("s", "t/+")

    def faults(self) -> list[Fault]:
        found = check(self.history)
        assert report(self.history, found)
        return found

    def kinds(self) -> list[Kind]:
        return [fault.kind for fault in self.faults()]


def test_all_is_well() -> None:
    story = Story()
    story.arrive(*[story.publish() for _ in range(10)])
    first, second = story.publish(1), story.publish(1)
    story.send_again(first, second)
    story.arrive(first, second, first, second, qos=1)  # at least once
    other = [story.publish(topic=topic, publisher=publisher) for topic, publisher in (("t/b", "p"), ("t/a", "q"))]
    story.arrive(*reversed(other))  # of another topic, or from another publisher: in any order
    story.leave()
    story.publish()
    assert story.kinds() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_a_lost_message(qos: int) -> None:
    story = Story()
    numbers = [story.publish(qos) for _ in range(5)]
    story.history.killed("worker-1")
    story.arrive(*numbers[:2], *numbers[3:], qos=qos)
    (fault,) = story.faults()
    assert fault.kind == Kind.LOST and fault.client == "s" and not fault.consequence
    assert f"1 of 5 missing: {numbers[2]};" in fault.text
    assert "worker" in report(story.history, [fault])


def test_a_lost_subscription() -> None:
    story = Story()
    numbers = [story.publish() for _ in range(5)]
    story.arrive(*numbers[:3])
    assert story.kinds() == [Kind.SUBSCRIPTION]


def test_a_message_lost_just_before_the_subscription_ends_may_have_been_overtaken() -> None:
    story = Story()
    story.history.acknowledged(story.publish())
    story.now -= IN_FLIGHT_S
    story.leave()
    assert story.kinds() == []


def test_a_message_twice() -> None:
    story = Story()
    number, again = story.publish(), story.publish(1)
    story.arrive(number, number)
    story.send_again(again)
    story.arrive(again, again, qos=1)
    (fault,) = story.faults()
    assert fault.kind == Kind.DUPLICATE and f"message {number} " in fault.text


def test_a_message_far_later_again() -> None:
    story = Story()
    first, *others = [story.publish() for _ in range(4)]
    story.arrive(first, *others, first)
    assert story.kinds() == [Kind.DUPLICATE]


@pytest.mark.parametrize("qos", [1, 2])
def test_out_of_order(qos: int) -> None:
    story = Story()
    numbers = [story.publish(qos) for _ in range(4)]
    story.arrive(numbers[0], numbers[2], numbers[1], numbers[3], qos=qos)
    (fault,) = story.faults()
    assert fault.kind == Kind.ORDER and f"behind message {numbers[2]}" in fault.text


@pytest.mark.parametrize(("qos", "kinds"), [(1, []), (2, [Kind.ORDER])])
def test_out_of_order_where_the_first_was_sent_before_the_subscription(qos: int, kinds: list[Kind]) -> None:
    story = Story(qos)
    story.leave()
    first = story.publish(qos, acknowledge=False)
    story.subscribe(qos)
    second = story.publish(qos)
    story.history.acknowledged(first)
    story.arrive(second, first, qos=qos)  # the first was sent again: both had come to a worker that was killed
    assert story.kinds() == kinds


def test_a_lost_session_and_what_follows_from_it() -> None:
    story = Story()
    story.arrive(story.publish())
    story.publish()
    story.history.session_lost("s")
    story.arrive(story.publish())
    assert [(fault.kind, fault.consequence) for fault in story.faults()] == [(Kind.LOST, True), (Kind.SESSION, False)]


def test_another_clients_lost_session_excuses_nothing() -> None:
    story = Story()
    story.publish()
    story.history.session_lost("other")
    story.arrive(story.publish())
    assert [(fault.kind, fault.consequence) for fault in story.faults()] == [(Kind.LOST, False), (Kind.SESSION, False)]


def test_a_subscription_that_came_back() -> None:
    story = Story()
    story.leave()
    story.arrive(story.publish())
    assert story.kinds() == [Kind.UNWANTED]


def test_a_subscription_granted_again_promises_what_it_did() -> None:
    story = Story()
    story.publish()
    story.history.granted("s", "t/+")
    story.arrive(story.publish())
    assert story.kinds() == [Kind.LOST]


def test_the_wrong_qos() -> None:
    story = Story()
    story.arrive(story.publish(2), qos=1)
    assert story.kinds() == [Kind.PROTOCOL]


def test_a_message_that_nobody_acknowledged() -> None:
    story = Story()
    story.arrive(story.publish(acknowledge=False))
    story.publish(acknowledge=False)  # and that may be lost
    assert story.kinds() == [Kind.STUCK, Kind.STUCK]


def test_retained_messages() -> None:
    story = Story()
    old, acknowledged, newer = (story.history.sent("p", "r", 1) for _ in range(3))
    story.history.acknowledged(acknowledged, retain=True)
    story.history.acknowledged(old, retain=True)
    story.history.acknowledged(newer)
    for found, expected in (({}, 1), ({"r": old}, 1), ({"r": acknowledged}, 0), ({"r": newer}, 0)):
        before = len(story.history.faults)
        story.history.retained("reader", dict(story.history.retained_floor), found)
        assert [fault.kind for fault in story.history.faults[before:]] == [Kind.RETAINED] * expected


# --- repetition ------------------------------------------------------------------------------------------------------------


def test_qos_1_arrives_once_for_each_time_that_it_was_sent_on_each_connection() -> None:
    story = Story()
    number = story.publish(1)
    story.send_again(number)
    for _ in range(3):
        story.come_back()
        story.arrive(number, number, qos=1)
    assert story.kinds() == []
    story.arrive(number, qos=1)
    (fault,) = story.faults()
    assert fault.kind == Kind.REPEATED and "arrived 7 times" in fault.text


def test_qos_1_again_after_its_acknowledgement_was_read() -> None:
    story = Story()
    story.come_back()
    number, other = story.publish(1), story.publish(1)
    story.arrive(number, other, qos=1)
    story.history.settled("s", number)
    story.come_back()
    story.arrive(number, other, qos=1)
    (fault,) = story.faults()
    assert fault.kind == Kind.REPEATED and f"message {number} " in fault.text


@pytest.mark.parametrize("first, second", [(1, 0), (0, 1)])
def test_one_publication_with_qos_1_and_another_with_qos_0(first: int, second: int) -> None:
    """The subscription has got another QoS between the two."""
    story = Story(qos=first)
    story.come_back()
    number = story.publish(1)
    story.arrive(number, qos=first)
    if first:
        story.history.settled("s", number)
    story.come_back()
    story.subscribe(second)
    story.send_again(number)
    story.arrive(number, qos=second)
    assert story.kinds() == []
    story.arrive(number, qos=second)
    assert story.kinds() == [Kind.REPEATED]


def test_qos_1_again_before_its_publisher_sent_it_again() -> None:
    story = Story()
    number = story.publish(1)
    story.arrive(number, number, qos=1)
    story.send_again(number)
    assert story.kinds() == [Kind.REPEATED]


def test_what_was_published_with_qos_2_is_one_message_however_often_it_was_sent() -> None:
    story = Story(qos=1)
    number = story.publish(2)
    story.send_again(number)
    story.come_back()
    story.arrive(number, qos=1)
    story.come_back()
    story.arrive(number, qos=1)
    assert story.kinds() == []
    story.arrive(number, qos=1)
    assert story.kinds() == [Kind.REPEATED]


@pytest.mark.parametrize("connections", [1, 2])
def test_qos_0_twice(connections: int) -> None:
    story = Story()
    number = story.publish(0)
    for turn in range(2):
        if turn < connections:
            story.come_back()
        story.arrive(number, qos=0)
    assert story.kinds() == [Kind.REPEATED]


# --- QoS levels beside each other ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1), (0, 1), (0, 2)])
def test_out_of_order_between_levels(first: int, second: int) -> None:
    story = Story()
    early, late = story.publish(first), story.publish(second)
    story.arrive(late, qos=second)
    story.arrive(early, qos=first)
    (fault,) = story.faults()
    assert fault.kind == Kind.ORDER_OF_LEVELS and f"behind message {late} (QoS {second})" in fault.text


@pytest.mark.parametrize("level", [1, 2])
def test_qos_0_overtakes_what_waits(level: int) -> None:
    story = Story()
    early, late = story.publish(level), story.publish(0)
    story.arrive(late, qos=0)
    story.arrive(early, qos=level)
    assert story.kinds() == []


@pytest.mark.parametrize(
    ("victim", "again", "kinds"),
    [("worker-0", True, []), ("worker-0", False, [Kind.ORDER_OF_LEVELS]), ("manager", True, [Kind.ORDER_OF_LEVELS])],
)
def test_qos_1_behind_qos_2_only_where_a_worker_died_with_it(victim: str, again: bool, kinds: list[Kind]) -> None:
    story = Story()
    early, late = story.publish(1), story.publish(2)
    story.history.killed(victim)
    if again:
        story.send_again(early)
    story.arrive(late)
    story.arrive(early, qos=1)
    assert story.kinds() == kinds


# --- QoS 0 -----------------------------------------------------------------------------------------------------------------


def test_qos_0_out_of_order() -> None:
    story = Story()
    early, late = story.publish(0), story.publish(0)
    story.arrive(late, early, qos=0)
    assert story.kinds() == [Kind.ORDER]


@pytest.mark.parametrize("lasts", [False, True])
def test_qos_0_lost_on_a_connection(lasts: bool) -> None:
    """A later one has come by it, or it never ended."""
    story = Story()
    story.come_back()
    number, later = story.publish(0), story.publish(0)
    story.history.killed("worker-0")
    story.arrive(later, qos=0)
    if not lasts:
        story.come_back()
    (fault,) = story.faults()
    assert fault.kind == Kind.LOST and f"1 of 2 missing: {number};" in fault.text


def test_qos_0_may_be_lost_with_a_connection_while_there_is_none_or_with_its_publisher() -> None:
    story = Story()
    story.come_back()
    story.publish(0)
    story.history.disconnected("s")
    story.publish(0)
    story.history.connected("s")
    story.history.taken_back.add(story.publish(0, acknowledge=False))
    story.arrive(story.publish(0), qos=0)
    assert story.kinds() == []


def test_a_subscription_with_qos_0_may_lose_qos_2_with_its_connection_only() -> None:
    story = Story(qos=0)
    story.come_back()
    story.publish(2)
    story.come_back()
    assert story.kinds() == []
    story.publish(2)
    assert story.kinds() == [Kind.LOST]


def test_a_message_that_no_client_sent_or_that_was_changed() -> None:
    history = Story().history
    network = Network(("127.0.0.1", 1), history)
    subscriber = Subscriber(network, "c", 5, 0)
    number = history.sent("p", "t/a", 0)
    right, other = payload_of(number), payload_of(number + 1)
    for topic, payload in (("t/a", right), ("t/a", other), ("t/b", right), ("t/a", right + b".")):
        packet, _ = wire.parse(wire.publish(topic, payload), 5)
        subscriber._on_publish(packet)
    network.selector.close()
    assert list(history.arrivals["c"].numbers) == [number]
    assert [fault.kind for fault in history.faults] == [Kind.PROTOCOL] * 3


# --- delayed messages ------------------------------------------------------------------------------------------------------


def delayed(story: Story, delay_s: float) -> int:
    number = story.history.sent("p", "t/a", 2, delay_s)
    story.history.acknowledged(number)
    return number


def test_a_delayed_message_before_its_time() -> None:
    story = Story()
    early, at_its_time = delayed(story, 2.0), delayed(story, 1.0)
    story.now += 1.0
    story.arrive(early, at_its_time)
    (fault,) = story.faults()
    assert fault.kind == Kind.EARLY and f"message {early} " in fault.text


def test_a_delayed_message_that_was_lost_over_a_kill() -> None:
    story = Story()
    lost, number = delayed(story, 1.0), delayed(story, 1.0)
    story.history.killed("worker-0")
    story.now += 1.0
    story.arrive(number)
    (fault,) = story.faults()
    assert fault.kind == Kind.LOST and f"missing: {lost};" in fault.text
    assert seen(story.history)[Seen.DELAYED_OVER_A_KILL] == 1


# --- exclusive subscriptions -----------------------------------------------------------------------------------------------


class Contest(Story):
    """Clients that want `$exclusive/x`."""

    def grant(self, client: str) -> None:
        self.history.asked(client, "$exclusive/x", 1)
        self.history.granted(client, "$exclusive/x")

    def give_up(self, client: str, discarded: bool = False) -> None:
        self.history.leaving(client, "$exclusive/x", discarded)
        self.history.left(client, "$exclusive/x")


def test_an_exclusive_subscription_goes_from_one_client_to_the_next() -> None:
    story = Contest()
    for client in "aba":
        story.grant(client)
        story.history.asked("c", "$exclusive/x", 1)
        story.history.declined("c", "$exclusive/x")
        story.history.arrived(client, story.publish(1, "x"), 1)
        story.now += IN_FLIGHT_S
        story.give_up(client)
    assert story.kinds() == []
    count = seen(story.history)
    assert (count[Seen.HELD], count[Seen.PASSED_ON], count[Seen.REFUSED]) == (3, 2, 3)


def test_two_holders_of_an_exclusive_subscription() -> None:
    story = Contest()
    story.grant("a")
    story.history.killed("worker-0")
    story.grant("b")
    story.give_up("b")
    story.grant("c")
    story.give_up("a")
    assert [(fault.kind, fault.client) for fault in story.faults()] == [(Kind.HOLDERS, "b"), (Kind.HOLDERS, "c")]
    assert seen(story.history)[Seen.HELD_OVER_A_KILL] == 1


@pytest.mark.parametrize("discarded", [False, True])
def test_the_holder_of_an_exclusive_subscription_gets_the_messages_unless_its_session_ends(discarded: bool) -> None:
    story = Contest()
    story.grant("a")
    story.publish(1, "x")
    story.now += IN_FLIGHT_S
    story.give_up("a", discarded)
    assert story.kinds() == ([] if discarded else [Kind.LOST])


# --- shared groups and wills -----------------------------------------------------------------------------------------------


class Group(Story):
    """A shared group of `a` and `b` beside it, both of which stay."""

    def __init__(self) -> None:
        super().__init__()
        for member in "ab":
            self.history.asked(member, "$share/g/t/#", 2)
            self.history.granted(member, "$share/g/t/#")

    def give(self, member: str, number: int, qos: int = 2) -> None:
        self.history.arrived(member, number, qos)


def test_a_shared_group_gets_each_message_once_in_any_order() -> None:
    story = Group()
    numbers = [story.publish() for _ in range(6)]
    story.arrive(*numbers)
    for place in (2, 0, 1, 5, 4, 3):
        story.give("ab"[place % 2], numbers[place])
    assert story.kinds() == []


def test_a_message_that_no_member_got() -> None:
    story = Group()
    numbers = [story.publish() for _ in range(3)]
    story.arrive(*numbers)
    story.give("a", numbers[0])
    story.give("b", numbers[2])
    (fault,) = story.faults()
    assert fault.kind == Kind.LOST and f"1 of 3 missing: {numbers[1]};" in fault.text


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_two_members_got(qos: int) -> None:
    story = Group()
    number = story.publish(qos)
    story.arrive(number, qos=qos)
    story.give("a", number, qos)
    story.give("b", number, qos)
    assert story.kinds() == ([Kind.DUPLICATE] if qos == 2 else [])


@pytest.mark.parametrize("stalled", [False, True])
@pytest.mark.parametrize("known", ["connected", "absent"])
def test_a_message_that_a_full_queue_dropped(known: str, stalled: bool) -> None:
    """For a connected client only where its queue has stalled, whether its worker or only the client knows the connection."""
    story = Story()
    story.come_back()
    first, second = story.publish(), story.publish()
    story.history.overflowed("s", first, Overflow(story.now, stalled, known == "connected"))
    story.arrive(second)
    story.now += 2 * ABSENT_S
    assert story.kinds() == ([] if stalled else [Kind.DROPPED])


def test_a_message_that_was_dropped_for_an_absent_client() -> None:
    story = Story()
    story.come_back()
    story.history.disconnected("s")
    story.now += 2 * ABSENT_S
    first, second, third = story.publish(), story.publish(), story.publish()
    story.history.overflowed("s", first, Overflow(story.now, False, False))
    story.come_back()
    story.arrive(third)
    (fault,) = story.faults()
    assert fault.kind == Kind.LOST and f"missing: {second};" in fault.text


def test_what_no_publisher_waits_for_may_be_dropped() -> None:
    story = Story()
    story.history.owed_nothing = ("t/w",)
    story.come_back()
    for number in (story.publish(topic="t/w"), story.publish(0)):
        story.history.overflowed("s", number, Overflow(story.now, False, True))
    story.now += 2 * ABSENT_S
    assert story.kinds() == []


@pytest.mark.parametrize(("dropped", "kinds"), [(True, []), (False, [Kind.ORDER])])
def test_qos_1_that_was_dropped_and_sent_again_comes_late(dropped: bool, kinds: list[Kind]) -> None:
    story = Story(1)
    first, second = story.publish(1, acknowledge=False), story.publish(1)
    if dropped:
        story.history.overflowed("s", first, Overflow(story.now, True, True))
    story.send_again(first)
    story.history.acknowledged(first)
    story.arrive(second, first, qos=1)
    assert story.kinds() == kinds


def test_a_shared_message_that_one_member_dropped() -> None:
    story = Story()
    for client in ("a", "b"):
        story.history.asked(client, "$share/g/t/+", 2)
        story.history.granted(client, "$share/g/t/+")
    first = story.publish()
    story.history.overflowed("a", first, Overflow(story.now, True, True))
    second = story.publish()
    story.arrive(first, second)
    (fault,) = story.faults()
    assert fault.kind == Kind.LOST and f"missing: {second};" in fault.text


def test_a_will_that_was_taken_back_may_come_or_not() -> None:
    story = Story()
    numbers = [story.publish(acknowledge=number % 2 == 0) for number in range(4)]
    story.history.taken_back.update(numbers)
    story.arrive(numbers[3])
    assert story.kinds() == []


# --- connections that the broker ends ---------------------------------------------------------------------------------------

WORKERS = 3


class Ended(Story):
    """`s` begins to connect, something happens, and the broker ends the connection."""

    def __init__(self, workers: int = WORKERS) -> None:
        super().__init__()
        self.history.workers = workers
        self.opened_s = self.history.clock()
        self.come_back()
        self.worker = worker_of("s", WORKERS)
        self.other = (self.worker + 1) % WORKERS

    def fall(self, victim: str) -> Outage:
        outage = self.history.falls(victim)
        self.history.fell(outage)
        return outage

    def drop(self) -> None:
        self.history.dropped("s", self.opened_s, "end of the stream")
        self.history.disconnected("s")


def test_a_connection_that_ends_with_moves_alone() -> None:
    story = Ended()
    begin_s = story.history.clock()
    story.history.moved(f"replace-{story.worker}", begin_s)
    story.history.moved("upgrade", begin_s)
    story.drop()
    (fault,) = story.faults()
    assert fault.kind == Kind.DISCONNECTED and fault.client == "s"
    assert fault.text.endswith(f"moves since: replace-{story.worker}, upgrade")


@pytest.mark.parametrize("victim", ["worker-{own}", "successor-{own}", "predecessor-{own}", "supervisor", "everything", "stop"])
def test_a_connection_that_ends_with_the_process_that_had_it(victim: str) -> None:
    story = Ended()
    story.fall(victim.format(own=story.worker))
    story.drop()
    assert story.kinds() == []


@pytest.mark.parametrize("victim", ["worker-{other}", "successor-{other}", "predecessor-{other}", "acceptor-0", "manager"])
def test_a_connection_that_ends_with_another_process(victim: str) -> None:
    story = Ended()
    story.fall(victim.format(other=story.other))
    story.drop()
    assert story.kinds() == [Kind.DISCONNECTED]


def test_a_connection_that_ends_before_or_long_after_a_kill() -> None:
    story = Ended()
    story.drop()
    story.fall(f"worker-{story.worker}")
    story.opened_s = story.history.clock()
    story.come_back()
    story.drop()
    assert story.kinds() == [Kind.DISCONNECTED] * 2


def test_a_connection_that_began_while_the_broker_ended() -> None:
    story = Ended()
    story.history.falls("stop")  # it takes a while until all processes have ended
    story.opened_s = story.history.clock()
    story.come_back()
    story.drop()
    assert story.kinds() == []


def test_a_connection_of_any_worker_if_their_number_changes() -> None:
    story = Ended(workers=0)
    story.fall("worker-0")
    story.drop()
    assert story.kinds() == []


def test_a_message_that_waits_for_a_successor_may_be_overtaken_by_an_unsubscribe() -> None:
    """Behind the move it has the same time as ever."""
    for pause_s, kinds in ((IN_FLIGHT_S, []), (0.0, [Kind.LOST])):
        story = Story()
        story.publish()
        begin_s = story.history.clock()
        story.now += pause_s
        story.history.tried(begin_s)
        story.now += 0.1 * IN_FLIGHT_S if pause_s else IN_FLIGHT_S
        story.history.leaving("s", "t/+")
        story.history.left("s", "t/+")
        assert story.kinds() == kinds


def test_connections_kept_over_moves() -> None:
    story = Ended()
    begin_s = story.history.clock()
    story.history.moved(f"replace-{story.worker}", begin_s)
    story.history.moved(f"replace-{story.other}", begin_s)
    story.history.moved("upgrade", begin_s)
    story.history.cut_short += 1
    story.fall("worker-0")
    count = seen(story.history)
    assert [count[what] for what in (Seen.REPLACED, Seen.UPGRADED, Seen.CUT_SHORT, Seen.KEPT)] == [2, 1, 1, 2]


def test_matching() -> None:
    assert all(matches(topic_filter, "a/b") for topic_filter in ("a/b", "a/+", "+/b", "#", "a/#", "a/b/#"))
    assert not any(matches(topic_filter, "a/b") for topic_filter in ("a", "a/b/c", "+", "a/+/c", "b/#", "a/b/+"))
