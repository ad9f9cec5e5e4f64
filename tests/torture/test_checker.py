"""The checker finds what it is there to find, and nothing where nothing is wrong."""

import pytest

from tests.torture.checker import IN_FLIGHT_S, Fault, History, Kind, check, matches, report


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
    story.arrive(first, second, first, second, qos=1)  # sent again: at least once
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


def test_a_will_that_was_taken_back_may_come_or_not() -> None:
    story = Story()
    numbers = [story.publish(acknowledge=number % 2 == 0) for number in range(4)]
    story.history.taken_back.update(numbers)
    story.arrive(numbers[3])
    assert story.kinds() == []


def test_matching() -> None:
    assert all(matches(topic_filter, "a/b") for topic_filter in ("a/b", "a/+", "+/b", "#", "a/#", "a/b/#"))
    assert not any(matches(topic_filter, "a/b") for topic_filter in ("a", "a/b/c", "+", "a/+/c", "b/#", "a/b/+"))
