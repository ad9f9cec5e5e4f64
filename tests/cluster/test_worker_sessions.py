"""Sessions that move between the workers of nodes: real sessions and journals, a network in memory."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest

from shardbroker.cluster.claims import FORWARD_MS, HOLD_MS, SETTLE_MS, TAIL_MESSAGES, SessionState
from shardbroker.cluster.messages import Claim, Ended, State, StateAck, Tail, Take
from shardbroker.cluster.takeover import PART_BYTES_MAX, STATE_BYTES_MAX
from shardbroker.hooks.points import POINTS
from shardbroker.hooks.registry import PRIORITY, Callback
from shardbroker.journal.images import ImageError
from shardbroker.worker.cluster_sessions import FORGET_MS
from shardbroker.worker.hook_dispatch import HookDispatcher
from shardbroker.worker.session_queues import SEEN_IDS_MAX, SeenBefore, decode_queued, decode_state, encode_queued, encode_state
from shm.counters import Counter
from tests.cluster.workers import Net, Session
from tests.harness import wire


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    net = Net(tmp_path)
    yield net
    assert not net.errors()


def last(session: Session) -> wire.Packet:
    session.take()
    return session.packets[-1]


def test_a_new_client_is_accepted_by_a_claim_and_a_returning_one_needs_none(net: Net) -> None:
    first = net.nodes[1].connect("c")
    assert first.connack() == (False, 0)
    claims = net.count(Claim)
    first.channel.receive(wire.disconnect())
    again = net.nodes[1].connect("c")
    assert again.connack() == (True, 0)
    assert net.count(Claim) == claims


@pytest.mark.parametrize("name", ["c", "d", "e", "f"])
def test_a_session_moves_with_its_subscriptions_and_queue(net: Net, name: str) -> None:
    """Registrar of the client id is either node."""
    old = net.nodes[1].connect(name)
    old.subscribe("t/#", 2)
    old.channel.receive(wire.disconnect())
    publisher = net.nodes[1].connect("publisher")
    for number in range(5):
        publisher.publish("t/1", b"%d" % number, number % 2 + 1, number + 1)
    new = net.nodes[2].connect(name)
    assert new.connack() == (True, 0)
    assert new.drain() == [b"0", b"1", b"2", b"3", b"4"]
    publisher.publish("t/1", b"later", 2)
    assert new.drain() == [b"later"]
    assert net.count(Take) == net.count(StateAck) == 1
    assert name.encode() not in net.nodes[1].router.sessions
    net.run(FORWARD_MS + 1_000)
    assert not net.nodes[1].sessions.core.claims.leaving
    publisher.publish("t/1", b"last", 1)
    assert new.drain() == [b"last"]


def test_the_old_connection_is_taken_over(net: Net) -> None:
    old = net.nodes[1].connect("c")
    old.subscribe("t", 1)
    new = net.nodes[2].connect("c")
    assert new.connack() == (True, 0)
    disconnect = last(old)
    assert isinstance(disconnect, wire.Disconnect)
    assert disconnect.code == 0x8E
    assert old.channel.is_closing


def test_hooks_and_counters_are_those_of_a_takeover_and_a_resumption(net: Net) -> None:
    """As EMQX has them: session.takenover where the session was, session.resumed where it is."""
    called: list[tuple[int, str, object]] = []
    for number, node in net.nodes.items():
        hooked = HookDispatcher(node.router, 0, node.router.log)
        for point in POINTS:
            if point.startswith(("session.", "client.connected", "client.disconnected")):
                hooked.registry.add([Callback("test", point, partial(note, called, number, point), PRIORITY)])
    net.nodes[1].connect("c").subscribe("t", 1)
    called.clear()
    net.nodes[2].connect("c")
    net.run(FORWARD_MS + 1_000)
    assert called == [
        (1, "session.takenover", None),
        (1, "client.disconnected", 0x8E),
        (2, "session.resumed", None),
        (2, "client.connected", None),
    ]
    assert [net.nodes[1].router.counted(one) for one in (Counter.SESSION_TAKENOVER, Counter.SESSION_TERMINATED)] == [1, 0]
    assert [net.nodes[2].router.counted(one) for one in (Counter.SESSION_RESUMED, Counter.SESSION_CREATED)] == [1, 0]


def note(called: list[tuple[int, str, object]], number: int, point: str, *arguments: object) -> None:
    called.append((number, point, arguments[1] if point == "client.disconnected" else None))


def test_what_was_sent_and_not_acknowledged_is_sent_again_with_its_packet_id(net: Net) -> None:
    old = net.nodes[1].connect("c")
    old.subscribe("t", 2)
    publisher = net.nodes[1].connect("publisher")
    for number in range(3):
        publisher.publish("t", b"%d" % number, 2)
    sent = [packet for packet in old.take() if isinstance(packet, wire.Publish)]
    old.send(wire.pubrec(sent[0].packet_id or 0))
    new = net.nodes[2].connect("c")
    packets = new.take()[1:]
    assert [type(packet) for packet in packets] == [wire.Pubrel, wire.Publish, wire.Publish]
    again = [packet for packet in packets if isinstance(packet, wire.Publish)]
    assert [(packet.packet_id, packet.dup) for packet in again] == [(packet.packet_id, True) for packet in sent[1:]]


def test_a_message_that_reaches_the_old_node_late_is_delivered_once(net: Net) -> None:
    old = net.nodes[1].connect("c")
    old.subscribe("t", 2)
    new = net.nodes[2].connect("c")
    other = net.nodes[2].connect("other")
    other.subscribe("t", 2)
    publisher = net.nodes[1].connect("publisher")
    # Both nodes have a route, so each message arrives at both: directly, and by the queue of the session that has moved.
    for number in range(4):
        publisher.publish("t", b"%d" % number, 1 + number % 2)
    assert new.drain() == [b"0", b"1", b"2", b"3"]
    net.run(2_000)
    assert new.drain() == []
    assert other.drain() == [b"0", b"1", b"2", b"3"]
    assert net.count(Tail)


def test_a_message_that_only_the_old_node_gets_is_forwarded(net: Net) -> None:
    net.nodes[1].connect("c").subscribe("t", 2)
    publisher = net.nodes[1].connect("publisher")
    new = net.nodes[2].connect("c")
    # As from a publisher that does not know the routes of node 2 yet.
    publisher.channel.receive(wire.publish("t", b"x", qos=2, packet_id=1))
    assert net.nodes[1].router.outgoing
    net.nodes[1].router.outgoing = []
    net.run()
    assert new.drain() == [b"x"]


def only_to(net: Net, kept: int) -> None:
    """Takes back what node 1 has sent to other nodes but one, as if it did not know their routes."""
    router = net.nodes[1].router
    router.outgoing = [(destination, record) for destination, record in router.outgoing if destination == kept]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_direct_messages_wait_for_the_tail_of_the_former_node(net: Net, qos: int) -> None:
    net.nodes[1].connect("c").subscribe("t", 2)
    publisher = net.nodes[1].connect("publisher")
    net.drops = lambda _sender, _receiver, message: isinstance(message, Tail | Ended)
    new = net.nodes[2].connect("c")
    publisher.channel.receive(wire.publish("t", b"former", qos=1, packet_id=1))
    only_to(net, 0)
    net.run(20)
    direct = net.nodes[2].connect("direct")
    for number in range(5):
        direct.channel.receive(wire.publish("t", b"%d" % number, qos=qos, packet_id=number + 1 if qos else None))
        if qos == 2:
            direct.channel.receive(wire.pubrel(number + 1))
    net.nodes[2].router.outgoing = []
    net.run(100)
    assert new.drain() == [], "sent before the tail"
    net.drops = lambda *_: False
    net.run(600)
    assert new.drain() == [b"former", *(b"%d" % number for number in range(5))]
    publisher.publish("t", b"last", 1)
    assert new.drain() == [b"last"]


def test_messages_are_held_for_a_second_at_most(net: Net) -> None:
    net.nodes[1].connect("c").subscribe("t", 2)
    net.drops = lambda _sender, _receiver, message: isinstance(message, Tail | Ended)
    new = net.nodes[2].connect("c")
    publisher = net.nodes[2].connect("publisher")
    publisher.publish("t", b"x", 1)
    assert new.drain() == []
    net.run(HOLD_MS)
    assert new.drain() == [b"x"]


def test_what_is_held_moves_on_with_its_session(net: Net) -> None:
    net.nodes[1].connect("c").subscribe("t", 2)
    net.drops = lambda _sender, _receiver, message: isinstance(message, Ended)
    net.nodes[2].connect("c")
    net.nodes[2].connect("publisher").publish("t", b"x", 1)
    net.drops = lambda *_: False
    back = net.nodes[1].connect("c")
    assert back.drain() == [b"x"]
    net.run(2_000)
    assert back.drain() == []


def test_what_is_held_ends_with_its_session(net: Net) -> None:
    net.nodes[1].connect("c").subscribe("t", 2)
    net.drops = lambda _sender, _receiver, message: isinstance(message, Ended)
    net.nodes[2].connect("c")
    net.nodes[2].connect("publisher").publish("t", b"x", 1)
    new = net.nodes[2].connect("c", clean=True)
    assert new.connack() == (False, 0)
    net.run(2_000)
    assert new.drain() == []
    assert net.errors() == []


def test_a_clean_start_at_another_node_ends_the_session(net: Net) -> None:
    old = net.nodes[1].connect("c")
    old.subscribe("t", 1)
    publisher = net.nodes[1].connect("publisher")
    old.channel.receive(wire.disconnect())
    publisher.publish("t", b"x", 1)
    new = net.nodes[2].connect("c", clean=True)
    assert new.connack() == (False, 0)
    assert b"c" not in net.nodes[1].router.sessions
    publisher.publish("t", b"y", 1)
    assert new.drain() == []


def test_a_session_that_ends_with_its_connection_does_not_move(net: Net) -> None:
    old = net.nodes[1].connect("c", expiry=0)
    old.subscribe("t", 1)
    new = net.nodes[2].connect("c", expiry=0)
    assert new.connack() == (False, 0)
    assert isinstance(last(old), wire.Disconnect)
    net.run()
    assert not net.nodes[1].sessions.core.claims.leaving


def test_a_client_that_leaves_while_it_waits_is_forgotten(net: Net) -> None:
    net.drops = lambda *_: True
    names = [f"c{number}" for number in range(8)]
    waiting = [net.nodes[1].router.connect("127.0.0.1:1") for _ in names]
    for channel, name in zip(waiting, names, strict=True):
        channel.receive(wire.connect(name, properties={"session_expiry_interval": 300}))
    sessions = net.nodes[1].sessions
    assert sessions.waiting
    for channel in waiting:
        net.nodes[1].router.cut(channel)
    assert not sessions.waiting
    assert not sessions.core.claims._claims


def test_a_claim_without_an_answer_is_accepted_provisionally(net: Net) -> None:
    net.drops = lambda *_: True
    clients = [net.nodes[1].connect(f"c{number}") for number in range(4)]
    net.run(6_000)
    assert [client.connack() for client in clients] == [(False, 0)] * 4


def test_a_will_with_a_delay_goes_with_its_session(net: Net) -> None:
    watcher = net.nodes[1].connect("watcher")
    watcher.subscribe("will", 1)
    will = wire.Will("will", b"gone", 1, properties={"will_delay_interval": 2})
    net.nodes[1].connect("c", will=will)
    new = net.nodes[2].connect("c")
    assert new.connack() == (True, 0)
    net.run(5_000)
    assert watcher.drain() == []


def test_a_lost_state_leaves_the_session_at_its_node_and_it_is_merged(net: Net) -> None:
    old = net.nodes[1].connect("c")
    old.subscribe("t", 2)
    publisher = net.nodes[1].connect("publisher")
    old.channel.receive(wire.disconnect())
    publisher.publish("t", b"x", 2)
    net.drops = lambda _sender, _receiver, message: isinstance(message, State)
    new = net.nodes[2].connect("c")
    net.run(3_000)
    assert new.connack() == (False, 0), "its holder has not answered"
    new.subscribe("t", 2)
    net.drops = lambda *_: False
    net.run(10_000)
    assert new.drain() == [b"x"]
    assert len([node for node in net.nodes.values() if b"c" in node.router.sessions]) == 1


def test_a_lost_acknowledgement_is_asked_for(net: Net) -> None:
    old = net.nodes[1].connect("c")
    old.subscribe("t", 2)
    net.drops = lambda _sender, _receiver, message: isinstance(message, StateAck)
    new = net.nodes[2].connect("c")
    assert new.connack() == (True, 0)
    (holding,) = net.nodes[1].sessions.core.claims.leaving.values()
    assert holding.state == SessionState.MOVING
    net.drops = lambda *_: False
    net.run(8_000)
    assert holding.state == SessionState.GONE
    publisher = net.nodes[1].connect("publisher")
    publisher.publish("t", b"x", 2)
    assert new.drain() == [b"x"]


def test_sessions_of_both_sides_of_a_split_are_merged(net: Net) -> None:
    old = net.nodes[1].connect("c")
    old.subscribe("t", 2)
    old.channel.receive(wire.disconnect())
    publishers = {number: node.connect(f"publisher{number}") for number, node in net.nodes.items()}
    net.split(1, 2)
    publishers[1].publish("t", b"first", 2)
    new = net.nodes[2].connect("c")
    net.run(6_000)
    assert new.connack() == (False, 0)
    new.subscribe("t", 2)
    publishers[2].publish("t", b"second", 2)
    assert new.drain() == [b"second"]
    net.heal()
    net.run(SETTLE_MS)
    assert sorted(new.drain()) == [b"first"]
    assert sum(b"c" in node.router.sessions for node in net.nodes.values()) == 1


class Device:
    """A client that keeps its half of QoS 2 from one connection to the next."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.held: set[int] = set()
        """Packet ids without PUBREL."""

    def take(self, session: Session, breaks_at: type[wire.Packet] | None = None) -> None:
        """Takes what arrives, up to a packet of the type `breaks_at`."""
        for _ in range(5):
            for packet in session.take():
                if breaks_at is not None and isinstance(packet, breaks_at):
                    return
                if isinstance(packet, wire.Publish):
                    assert packet.packet_id is not None
                    if packet.packet_id not in self.held:
                        self.received.append(packet.payload)
                    self.held.add(packet.packet_id)
                    session.send(wire.pubrec(packet.packet_id))
                elif isinstance(packet, wire.Pubrel):
                    self.held.discard(packet.packet_id)
                    session.send(wire.pubcomp(packet.packet_id))


@pytest.fixture
def _equal_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of one client id begin with the same packet id."""
    monkeypatch.setattr("shardbroker.worker.cluster_sessions.randrange", lambda *_: 1)


@pytest.mark.usefixtures("_equal_ids")
@pytest.mark.parametrize("when", ["in the split", "just healed", "merged", "connects again"])
def test_a_client_that_returns_over_a_split_takes_no_new_message_for_an_old_one(net: Net, when: str) -> None:
    """A message of QoS 2 of its session at node 2 lacks PUBREL when it returns to node 1, where the next one has the same id."""
    device = Device()
    first = net.nodes[1].connect("c")
    first.subscribe("t", 2)
    net.split(1, 2)
    first.send(wire.disconnect())
    second = net.nodes[2].connect("c")
    net.run(6_000)
    assert second.connack() == (False, 0)
    second.subscribe("u", 2)
    publishers = {number: node.connect(f"publisher{number}") for number, node in net.nodes.items()}
    publishers[2].publish("u", b"there", 2)
    device.take(second, breaks_at=wire.Pubrel)
    assert device.held == {1}
    second.send(wire.disconnect())
    if when == "just healed":
        net.heal()
        net.run(100)
    third = net.nodes[1].connect("c")
    assert third.connack() == (True, 0)
    if when in ("merged", "connects again"):
        net.heal()
        net.run(SETTLE_MS + 5_000)
    if when == "connects again":
        third.send(wire.disconnect())
        third = net.nodes[1].connect("c")
    publishers[1].publish("t", b"here", 2)
    device.take(third)
    assert device.received.count(b"here") == 1
    assert not third.channel.is_closing


@pytest.mark.usefixtures("_equal_ids")
@pytest.mark.parametrize("lost", ["PUBREL", "PUBLISH"])
def test_a_message_that_a_returning_client_has_not_read_is_not_lost(net: Net, lost: str) -> None:
    """It holds the packet id of a message of its other session. What is sent from a packet on is lost with the connection."""
    device = Device()
    first = net.nodes[1].connect("c")
    first.subscribe("t", 2)
    net.split(1, 2)
    first.send(wire.disconnect())
    second = net.nodes[2].connect("c")
    net.run(6_000)
    second.subscribe("u", 2)
    publishers = {number: node.connect(f"publisher{number}") for number, node in net.nodes.items()}
    publishers[2].publish("u", b"there", 2)
    device.take(second, breaks_at=wire.Pubrel)
    assert device.held == {1}
    second.send(wire.disconnect())
    third = net.nodes[1].connect("c")
    assert third.connack() == (True, 0)
    publishers[1].publish("t", b"here", 2)
    if lost == "PUBLISH":
        device.take(third, breaks_at=wire.Publish)
    fourth = net.nodes[1].connect("c")
    device.take(fourth)
    publishers[1].publish("t", b"next", 2)
    device.take(fourth)
    assert device.received == [b"there", b"here", b"next"]


def test_messages_stay_in_order_while_packet_ids_are_released(net: Net) -> None:
    first = net.nodes[1].connect("c")
    first.subscribe("t", 2)
    publisher = net.nodes[1].connect("publisher")
    net.split(1, 2)
    doubted = net.nodes[1].connect("c")
    sent = [b"%d" % number for number in range(100)]
    for number, payload in enumerate(sent):
        publisher.publish("t", payload, 2 - number % 2, number + 1)
    assert doubted.drain() == sent


@pytest.mark.parametrize("qos", [1, 2])
def test_packet_ids_go_on_where_a_session_moves_to(net: Net, qos: int) -> None:
    """The client may hold lower ones, of another session that was merged into this one."""
    publisher = net.nodes[1].connect("publisher")
    old = net.nodes[1].connect("c")
    old.subscribe("t", qos)
    publisher.publish("t", b"1", qos)
    assert old.drain() == [b"1"]
    (first,) = [packet.packet_id for packet in old.packets if isinstance(packet, wire.Publish)]
    new = net.nodes[2].connect("c")
    publisher.publish("t", b"2", qos, 2)
    assert new.drain() == [b"2"]
    (second,) = [packet.packet_id for packet in new.packets if isinstance(packet, wire.Publish)]
    assert first is not None and second == first % 65_535 + 1


def test_a_client_that_had_no_other_session_is_sent_no_pubrel_before_a_message(net: Net) -> None:
    first = net.nodes[1].connect("c")
    first.subscribe("t", 2)
    first.send(wire.disconnect())
    publisher = net.nodes[1].connect("publisher")
    net.split(1, 2)
    again = net.nodes[1].connect("c")
    net.heal()
    net.run(SETTLE_MS + 5_000)
    again.take()
    publisher.publish("t", b"x", 2)
    assert [type(packet) for packet in again.take()] == [wire.Publish]


def test_a_wrong_acknowledgement_is_a_fault_again_once_nothing_is_released_first(net: Net) -> None:
    """PUBCOMP of a packet id that was released first is accepted before PUBREC, and on that connection only."""
    net.nodes[1].connect("c").subscribe("t", 2)
    publisher = net.nodes[1].connect("publisher")
    net.split(1, 2)
    doubted = net.nodes[1].connect("c")
    publisher.publish("t", b"x", 2)
    doubted.take()
    released = next(packet for packet in doubted.packets if isinstance(packet, wire.Pubrel))
    assert not any(isinstance(packet, wire.Publish) for packet in doubted.packets)
    doubted.send(wire.pubcomp(released.packet_id))
    published = last(doubted)
    assert isinstance(published, wire.Publish) and published.packet_id == released.packet_id
    doubted.send(wire.pubcomp(released.packet_id))
    assert not doubted.channel.is_closing
    net.heal()
    net.run(SETTLE_MS + 5_000)
    again = net.nodes[1].connect("c")
    again.take()
    again.send(wire.pubcomp(released.packet_id))
    assert again.channel.is_closing


@pytest.mark.parametrize("qos", [1, 2])
def test_a_queue_that_needs_several_tails_is_merged_into_a_session_whose_client_is_slow(net: Net, qos: int) -> None:
    """What the other session has handed over is not what it has delivered: the queue of the winner keeps it."""
    old = net.nodes[1].connect("c")
    old.subscribe("t", qos)
    old.channel.receive(wire.disconnect())
    publisher = net.nodes[1].connect("publisher")
    net.split(1, 2)
    new = net.nodes[2].connect("c")
    net.run(6_000)
    new.subscribe("t", qos)
    payloads = [b"%d" % number for number in range(2 * TAIL_MESSAGES + 10)]
    for payload in payloads:
        publisher.publish("t", payload, qos)
    net.heal()
    net.run(SETTLE_MS)
    received: list[bytes] = []
    while some := new.drain():
        received += some
    assert received == payloads


def test_a_session_of_a_split_knows_what_it_has_delivered(net: Net) -> None:
    first = net.nodes[1].connect("c")
    first.subscribe("t", 2)
    publisher = net.nodes[1].connect("publisher")
    net.split(1, 2)
    second = net.nodes[2].connect("c")
    net.run(6_000)
    second.subscribe("t", 2)
    second.channel.receive(wire.disconnect())
    publisher.publish("t", b"x", 2)
    assert first.drain() == [b"x"]
    # Node 2 gets it behind the split, too, and its session stays, since its client has connected last.
    net.heal()
    net.run(SETTLE_MS)
    assert b"c" not in net.nodes[1].router.sessions
    assert any(isinstance(message, Tail) and message.delivered for _, _, message in net.sent)
    third = net.nodes[2].connect("c")
    assert third.connack() == (True, 0)
    assert third.drain() == []


def test_ids_are_forgotten_once_there_can_be_no_other_session(net: Net) -> None:
    net.nodes[1].connect("c").subscribe("t", 2)
    new = net.nodes[2].connect("c")
    sessions = net.nodes[2].sessions
    assert len(sessions.noting) == 1
    net.now_ms += FORGET_MS
    net.run(200)
    assert not sessions.noting
    net.nodes[1].connect("publisher").publish("t", b"x", 2)
    assert new.drain() == [b"x"]


MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize("skew_ms", [-3 * DAY_MS, -HOUR_MS, -2 * MINUTE_MS, 2 * MINUTE_MS, HOUR_MS, 3 * DAY_MS])
@pytest.mark.parametrize("wrong", [1, 2, 3])
def test_clocks_that_differ_lose_nothing(tmp_path: Path, wrong: int, skew_ms: int) -> None:
    """Former node, new node or node of the publisher: a message is delivered once, however long after the move it is published."""
    net = Net(tmp_path, 3, skews_ms={wrong: skew_ms})
    old = net.nodes[1].connect("c")
    old.subscribe("t", 2)
    publishers = {number: node.connect(f"publisher-{number}") for number, node in net.nodes.items()}
    sent: list[bytes] = []

    def publish() -> None:
        for number, publisher in publishers.items():
            for qos in (1, 2):
                sent.append(b"%d %d" % (number, len(sent)))
                publisher.publish("t", sent[-1], qos)

    publish()
    received = old.drain()
    old.channel.receive(wire.disconnect())
    publish()
    new = net.nodes[2].connect("c")
    assert new.connack() == (True, 0)
    for pause_ms in (0, FORWARD_MS // 2, FORWARD_MS, MINUTE_MS, 5 * MINUTE_MS):
        net.run(pause_ms)
        publish()
        received += new.drain()
    assert sorted(received) == sorted(sent)
    assert not net.errors()


@pytest.mark.parametrize("skew_ms", [-HOUR_MS, -2_000, 2_000, HOUR_MS])
def test_a_session_that_is_new_while_a_node_is_lost_misses_nothing_of_a_clock_that_is_behind(tmp_path: Path, skew_ms: int) -> None:
    net = Net(tmp_path, 3, skews_ms={3: skew_ms})
    net.nodes[1].connect("c").subscribe("t", 2)
    net.split(1, 2)
    net.split(1, 3)
    new = net.nodes[2].connect("c")
    net.run(6_000)
    assert new.connack() == (False, 0)
    new.subscribe("t", 2)
    net.nodes[3].connect("publisher").publish("t", b"x", 2)
    net.run()
    assert new.drain() == [b"x"]
    assert not net.errors()


def test_a_delayed_message_that_is_older_than_the_move_is_delivered(net: Net) -> None:
    """Its id would be one that the former node has dealt with."""
    net.nodes[1].connect("c").subscribe("t", 2)
    publisher = net.nodes[1].connect("publisher")
    publisher.publish("$delayed/90/t", b"late", 1)
    publisher.publish("t", b"at once", 1)
    new = net.nodes[2].connect("c")
    assert new.drain() == [b"at once"]
    net.run(95_000)
    assert new.drain() == [b"late"]


def test_a_will_that_is_delayed_moves_with_what_is_left_of_its_delay(tmp_path: Path) -> None:
    net = Net(tmp_path, skews_ms={1: -HOUR_MS})
    watcher = net.nodes[2].connect("watcher")
    watcher.subscribe("w", 1)
    will = wire.Will("w", b"gone", qos=1, properties={"will_delay_interval": 60})
    net.nodes[1].connect("c", will=will)
    new = net.nodes[2].connect("c", will=will)
    net.nodes[2].router.cut(new.channel)
    net.run(50_000)
    assert watcher.drain() == []
    net.run(15_000)
    assert watcher.drain() == [b"gone"]
    assert not net.errors()


def test_a_damaged_image_ends_nothing_but_itself(net: Net) -> None:
    old = net.nodes[1].connect("c")
    old.subscribe("t", 2)
    send = net.send

    def damage(sender: int, receiver: int, message: object) -> None:
        if isinstance(message, State):
            message = message._replace(body=message.body[:-9] + b"x" * 9)
        send(sender, receiver, message)  # type: ignore[arg-type]

    net.send = damage  # type: ignore[method-assign]
    new = net.nodes[2].connect("c")
    net.run(8_000)
    assert new.connack() == (False, 0)
    assert sum(b"c" in node.router.sessions for node in net.nodes.values()) == 1
    (line,) = net.nodes[2].router.lines
    assert "session not imported client_id=c reason=" in line[1]
    net.nodes[2].router.lines.clear()


def test_a_lost_take_is_repeated(net: Net) -> None:
    """As when the worker of the holder is restarted at this moment."""
    net.nodes[1].connect("c").subscribe("t", 2)
    taken: list[object] = []

    def drop_first(_sender: int, _receiver: int, message: object) -> bool:
        taken.extend([message] if isinstance(message, Take) else [])
        return isinstance(message, Take) and len(taken) <= 2

    net.drops = drop_first
    new = net.nodes[2].connect("c")
    net.run(600)
    assert new.connack() == (True, 0)
    assert len(taken) == 3


@pytest.mark.parametrize("name", ["c", "d", "e", "f"])
def test_a_claimant_that_is_killed_before_it_has_the_session_leaves_no_lock(tmp_path: Path, name: str) -> None:
    net = Net(tmp_path, 3)
    net.nodes[1].connect(name).subscribe("t", 2)
    net.drops = lambda _sender, _receiver, message: isinstance(message, State)
    net.nodes[2].connect(name)
    net.drops = lambda *_: False
    net.replace(2)
    new = net.nodes[3].connect(name)
    net.run(2_000)
    assert new.connack() == (True, 0)
    assert not net.errors()


def test_claims_takeovers_and_merges_are_counted(net: Net) -> None:
    net.nodes[1].connect("c").subscribe("t", 2)
    net.nodes[2].connect("c")
    figures = net.nodes[2].sessions.core.claims.figures
    assert (figures.results, figures.takeovers) == ({"granted": 1}, 1)
    assert 0 < figures.takeover_ms == figures.claim_ms
    net.split(1, 2)
    net.nodes[1].connect("c")
    net.run(6_000)
    net.heal()
    net.run(SETTLE_MS)
    counted = [net.nodes[number].sessions.core.claims.figures for number in (1, 2)]
    assert counted[0].results == {"granted": 2}
    assert [one.merges for one in counted] == [{"kept": 1}, {"given_up": 1}]


def encoded() -> list[bytes]:
    ids = [1 << 64 | number for number in range(5)]
    seen = SeenBefore(7, 1 << 64, [9, 10], [3], ids)
    parts = encode_state(b"image", seen)
    assert parts is not None
    assert decode_state(parts) == (b"image", seen)
    return parts


def test_a_state_that_is_cut_or_changed_is_refused_or_has_another_image() -> None:
    (state,) = encoded()
    for size in range(len(state) - len(b"image")):
        with pytest.raises(ImageError):
            decode_state([state[:size]])
    rng = Random(1)
    for _ in range(2_000):
        damaged = bytearray(state)
        damaged[rng.randrange(len(state))] = rng.randrange(256)
        with suppress(ImageError):
            assert len(decode_state([bytes(damaged)])[1].ids) <= SEEN_IDS_MAX


def test_a_state_that_is_too_large_does_not_move() -> None:
    nothing = SeenBefore(0, 0, [], [], [])
    assert encode_state(bytes(STATE_BYTES_MAX), nothing) is None
    parts = encode_state(bytes(PART_BYTES_MAX), nothing)
    assert parts is not None and [len(part) <= PART_BYTES_MAX for part in parts] == [True, True]


def test_a_queued_message_that_is_changed_raises_image_error_and_nothing_else() -> None:
    number = 1_700_000_000_000 << 16 << 64 | 5
    queued = encode_queued(number, 2, True, b"\x0b\x01", b"t/1", b"payload", b"", b"publisher", 2, 0)
    message, qos, retain, ids = decode_queued(queued)
    assert (message.topic, message.payload, qos, retain, ids) == (b"t/1", b"payload", 2, True, b"\x0b\x01")
    rng = Random(2)
    for _ in range(5_000):
        body = bytearray(queued.body)
        for _ in range(rng.randint(1, 3)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        with suppress(ImageError):
            decode_queued(queued._replace(body=bytes(body[: rng.randint(0, len(body))] if rng.random() < 0.3 else body)))
    for wrong in (queued._replace(topic=b"a/#"), queued._replace(id=number | 0xFFFF << 64), queued._replace(qos=1)):
        with pytest.raises(ImageError):
            decode_queued(wrong)
