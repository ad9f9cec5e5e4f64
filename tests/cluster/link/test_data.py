"""Two data processes between rings that the test fills and empties."""

import random
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from shardbroker.cluster.outbound import Level, PeerState
from shardbroker.cluster.view import LinkState
from shardbroker.config.cluster import ClusterTls
from shardbroker.link.frames import FrameType, pack_frame
from shardbroker.link.sockets import tls_contexts
from tests.cluster.link.harness import ARRIVAL, HEADER, Node, connect, pump, record, until
from tests.edge.certificates import Authority


@pytest.fixture
def made() -> Iterator[list[Node]]:
    nodes: list[Node] = []
    yield nodes
    for node in nodes:
        node.close()


def pair(tmp_path: Path, made: list[Node], **limits: object) -> tuple[Node, Node]:
    """Two nodes that know each other; every topic below t/ of the second has worker 0."""
    one, other = Node(tmp_path, 1, **limits), Node(tmp_path, 2, **limits)
    made += [one, other]
    connect(one, other)
    other.subscribe(b"t/#", 0)
    return one, other


def live(one: Node, other: Node) -> None:
    """Starts both in this process, and waits for the streams."""
    for node in (one, other):
        node.process()
    pump([one, other], lambda: all(state(*nodes) == PeerState.LIVE for nodes in ((one, other), (other, one))))


def state(one: Node, other: Node) -> PeerState:
    assert one.driver is not None
    return one.driver.core.peers[other.node_id].outbound.state


def carry(one: Node, other: Node, count: int, worker: int = 0) -> list[int]:
    """Drives both nodes until so many new records have arrived at a worker."""
    found: list[int] = []
    pump([one, other], lambda: len(found.extend(other.numbers(worker)) or found) >= count)
    return found


def test_records_arrive_in_order_and_room_is_given_back(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made)
    live(one, other)
    assert one.put(2, 0, *[record(number) for number in range(100)]) == 100
    assert carry(one, other, 100) == list(range(100))
    lane = one.to[2].lanes[0]
    pump([one, other], lambda: lane.fill() == 0)


def test_an_arrival_has_origin_identity_and_position(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made)
    live(one, other)
    one.put(2, 1, record(1, qos=2, topic=b"t/long/topic", size=300), record(2, qos=0))
    arrived: list = []
    pump([one, other], lambda: len(arrived.extend(other.take(0)) or arrived) == 2)
    first, second = arrived
    identity = one.to[2].identity >> 12 << 12 | 1
    assert (first.origin, first.identity, first.qos, first.topic) == (1, identity, 2, b"t/long/topic")
    assert (second.origin, second.identity, second.qos, second.topic) == (1, identity, 0, b"t/1")
    span = lambda size: size + 8 + 7 & ~7  # noqa: E731
    assert first.position == span(len(record(1, topic=b"t/long/topic", size=300)))
    assert second.position == first.position + span(len(record(2)))


def test_more_than_a_ring_in_both_directions(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made)
    one.subscribe(b"t/#", 1)
    live(one, other)
    sent = {1: 0, 2: 0}
    found: dict[int, list[int]] = {1: [], 2: []}
    total = 5_000

    def done() -> bool:
        for node, peer, worker in ((one, other, 0), (other, one, 1)):
            batch = [record(number, size=number % 700) for number in range(sent[node.node_id], min(total, sent[node.node_id] + 60))]
            sent[node.node_id] += node.put(peer.node_id, 0, *batch)
            found[node.node_id] += peer.numbers(worker)
        return all(len(one) == total for one in found.values())

    pump([one, other], done, 30)
    assert found[1] == found[2] == list(range(total))


def test_each_worker_with_a_subscriber_gets_a_record_once_and_a_new_one_from_then_on(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made)
    live(one, other)
    one.put(2, 0, record(1), record(2, topic=b"u"))
    assert carry(one, other, 1) == [1]
    other.subscribe(b"t/1", 1)
    one.put(2, 0, record(3))
    assert carry(one, other, 1) == [3]
    assert other.numbers(1) == [3]


def test_a_shared_record_goes_to_the_home_worker_of_its_group(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made)
    live(one, other)
    group, filter = b"g", b"t/+"
    whole = record(7)
    fields = list(HEADER.unpack_from(whole))
    fields[0], fields[7], fields[8] = 2, len(group), len(filter)
    topic = whole[HEADER.size : HEADER.size + fields[4]]
    shared = HEADER.pack(*fields) + topic + group + filter + whole[HEADER.size + fields[4] :]
    one.put(2, 0, shared)
    assert carry(one, other, 1, crc32(group + b"\0" + filter) % 2) == [7]


def test_a_cut_at_any_time_loses_and_repeats_nothing(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made, grace_ms=20)
    live(one, other)
    rng = random.Random(5)
    sent, found, cuts = 0, [], 0
    total = 4_000

    def done() -> bool:
        nonlocal sent, cuts
        batch = [record(number, 1 + number % 2, size=rng.randint(0, 900)) for number in range(sent, min(total, sent + 30))]
        sent += one.put(2, 0, *batch)
        if rng.random() < 0.05:
            found.extend(other.numbers(0))
        if rng.random() < 0.01:
            for node in (one, other):
                assert node.driver is not None
                for link in node.driver._links.values():
                    link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    link.sock.shutdown(socket.SHUT_RDWR)
                    cuts += 1
        return len(found) >= total

    pump([one, other], done, 60)
    assert found == list(range(total)) and cuts > 5


def test_a_killed_link_process_on_either_side_loses_and_repeats_nothing(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made, grace_ms=50)
    for node in (one, other):
        node.start()
    rng = random.Random(6)
    sent, found, kills = 0, [], 0
    total = 20_000

    def done() -> bool:
        nonlocal sent, kills
        sent += one.put(2, 0, *[record(number, 1, size=200) for number in range(sent, min(total, sent + 50))])
        found.extend(other.numbers(0))
        if len(found) > (kills + 1) * total // 8:
            kills += 1
            victim = rng.choice((one, other))
            victim.kill()
            victim.start()
        return len(found) >= total

    until(done, 60)
    assert found == list(range(total)) and kills >= 6


def test_a_full_worker_stops_its_peer_and_other_workers_go_on(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made, peer_bytes=1 << 23)
    other.subscribe(b"u", 1)
    live(one, other)
    count = 6_000
    assert one.put(2, 0, *[record(number, size=1000) for number in range(2_000)]) == 2_000
    assert one.put(2, 1, record(1, topic=b"u")) == 1
    assert carry(one, other, 1, 1) == [1]
    assert one.put(2, 0, *[record(number, size=1000) for number in range(2_000, count)]) == count - 2_000
    assert other.driver is not None and one.driver is not None
    inbound = other.driver.core.peers[1].inbound
    pump([one, other], lambda: not inbound.is_reading)
    for _ in range(20):
        for node in (one, other):
            node.driver.one_pass(1)  # type: ignore[union-attr]
    assert inbound._overflow_bytes < 8 << 20
    assert carry(one, other, count) == list(range(count))
    assert inbound._overflow_bytes == 0 and inbound.is_reading


def test_an_unreachable_peer_is_spooled_for_and_gets_everything_in_order(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made, grace_ms=10)
    live(one, other)
    other.drop_process()
    sent, total = 0, 3_000

    def put_all() -> bool:
        nonlocal sent
        batch = [record(number, number % 3, size=500) for number in range(sent, min(total, sent + 40))]
        sent += one.put(2, 0, *batch)
        return sent == total

    pump([one], put_all, 30)
    spool = one.driver._spools[2]  # type: ignore[union-attr]
    pump([one], lambda: one.to[2].lanes[0].fill() == 0)
    assert spool.bytes > 1 << 20
    one.drop_process()
    one.process()
    other.process()
    one.put(2, 0, record(total))
    wanted = [*(number for number in range(total) if number % 3), total]
    assert carry(one, other, len(wanted)) == wanted
    pump([one, other], lambda: one.driver._spools[2].bytes == 0)  # type: ignore[union-attr]


def lagging(node: Node) -> int:
    assert node.driver is not None
    return node.driver._lagging


def test_messages_may_be_missing_until_a_new_connection_has_brought_them(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made)
    other.process()
    assert lagging(other) == 1, "before the process is ready"
    one.process()
    pump([one, other], lambda: lagging(other) == 0)
    one.drop_process()
    pump([other], lambda: lagging(other) == 1)
    for number in range(200):
        one.put(2, 0, record(number))
    one.process()
    pump([one, other], lambda: lagging(other) == 0)
    assert other.numbers(0) == [*range(200)]
    one.drop_process()
    pump([other], lambda: lagging(other) == 1)
    other.add_peer(one, link=LinkState.DOWN)
    pump([other], lambda: lagging(other) == 0)      # its messages are not waited for


def test_an_attempt_that_hangs_is_given_up_when_the_signal_link_is_up(tmp_path: Path, made: list[Node]) -> None:
    """The next SYN of a connection that began during a split comes after 1, 2 or 4 s."""
    one, other = Node(tmp_path, 1), Node(tmp_path, 2)
    made += [one, other]
    with ExitStack() as stack:
        deaf = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        other.address = f"127.0.0.1:{deaf.getsockname()[1]}"
        one.me = one.me._replace(address="127.0.0.1:1")  # the lower address dials
        for _ in range(2):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        one.add_peer(other, link=LinkState.DOWN)
        driver = one.process()
        pump([one], lambda: any(link.is_connecting for link in driver._links.values()))
        (hanging,) = driver._links
        deaf.listen(8)
        one.add_peer(other)
        pump([one], lambda: any(link.wire is not None for link in driver._links.values()), 0.5)
        assert hanging not in driver._links


def test_at_level_machine_room_is_given_back_once_it_is_on_the_disk_of_the_worker(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made, level=Level.MACHINE)
    live(one, other)
    one.put(2, 0, record(1))
    arrived: list = []
    pump([one, other], lambda: bool(arrived.extend(other.take(0, secure=False)) or arrived))
    for _ in range(100):
        for node in (one, other):
            node.driver.one_pass(1)  # type: ignore[union-attr]
    lane = one.to[2].lanes[0]
    assert lane.fill() > 0
    other.take(0)
    pump([one, other], lambda: lane.fill() == 0)


def test_at_level_machine_the_spool_is_synced_before_the_worker_is_told(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made, level=Level.MACHINE, grace_ms=10)
    one.process()
    one.put(2, 0, record(1))
    spool = one.driver._spools[2]  # type: ignore[union-attr]
    pump([one], lambda: spool.head == 1 and spool.synced == 1)
    one.drop_process()
    one.process()
    other.process()
    assert carry(one, other, 1) == [1]


@pytest.mark.parametrize("size", [1 << 20, 20 << 20])
def test_spilled_records(tmp_path: Path, made: list[Node], size: int) -> None:
    one, other = pair(tmp_path, made)
    live(one, other)
    one.put(2, 0, record(1))
    one.put_spilled(2, 0, record(2, size=size), "0-peer-1-1")
    one.put(2, 0, record(3))
    arrived: list = []
    pump([one, other], lambda: len(arrived.extend(other.take(0)) or arrived) >= 3, 30)
    assert [int(one.payload.split(b" ")[0]) for one in arrived] == [1, 2, 3]
    assert arrived[1].payload == b"2 " + b"x" * size
    pump([one, other], lambda: one.to[2].lanes[0].fill() == 0)
    assert not [*one.spill.iterdir()] and not [*other.spill.iterdir()]


def test_a_spilled_record_in_the_spool(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made, grace_ms=10)
    one.process()
    one.put(2, 0, record(1))
    one.put_spilled(2, 0, record(2, size=1 << 20), "0-peer-1-1")
    one.put(2, 0, record(3))
    pump([one], lambda: one.to[2].lanes[0].fill() == 0)
    assert not [*one.spill.iterdir()] and [*(one.spool / "2" / "1").glob("*.large")]
    one.drop_process()
    live(one, other)
    arrived: list = []
    pump([one, other], lambda: len(arrived.extend(other.take(0)) or arrived) >= 3)
    assert [len(one.payload) for one in arrived] == [22, 2 + (1 << 20), 22]
    pump([one, other], lambda: not [*(one.spool / "2" / "1").glob("*.large")])


def test_a_record_too_large_for_the_ring_of_the_worker(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made, peer_bytes=1 << 18)
    live(one, other)
    one.put(2, 0, record(1, size=40_000), record(2))
    arrived: list = []
    pump([one, other], lambda: len(arrived.extend(other.take(0)) or arrived) >= 2)
    assert [len(one.payload) for one in arrived] == [40_002, 22]


def test_a_peer_with_another_data_directory_gets_nothing_of_what_was_kept(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made, grace_ms=10)
    one.process()
    one.put(2, 0, record(1))
    pump([one], lambda: one.driver._spools[2].head == 1)  # type: ignore[union-attr]
    one.add_peer(other, is_new=1)
    pump([one], lambda: one.driver._spools[2].bytes == 0)  # type: ignore[union-attr]
    other.process()
    pump([one, other], lambda: state(one, other) == PeerState.LIVE)
    one.put(2, 0, record(2))
    assert carry(one, other, 1) == [2]


def test_a_gone_node_leaves_nothing(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made)
    live(one, other)
    other.drop_process()
    one.put(2, 0, record(1))
    one.add_peer(other, gone=1, is_member=False)
    pump([one], lambda: one.to[2].lanes[0].fill() == 0)
    assert one.driver is not None and one.driver.core.peers[2].outbound.is_empty


def test_rings_of_a_killed_broker_are_in_the_spool_before_the_process_is_ready(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made)
    one.put(2, 0, record(1), record(2, qos=0), record(3))
    left = Path(one.inbox_of(2)).rename(tmp_path / "left-peer-2-1")
    damaged = tmp_path / "left-damaged"
    damaged.write_bytes(bytes(8192))
    damaged.chmod(0o600)
    one.left_over = ((2, tmp_path / "left-removed", one.spill), (2, damaged, one.spill), (2, left, one.spill))
    del one.to[2]
    one.add_peer(other)
    one.process()
    assert one.driver is not None and one.driver.is_ready
    assert any("peer rings not read" in line for line in one.lines)
    left.unlink()
    one.put(2, 0, record(4))
    other.process()
    assert carry(one, other, 3) == [1, 3, 4]


def test_a_stop_leaves_nothing_in_the_rings(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made, grace_ms=60_000)
    one.start()
    until((one.spool / "2" / "1").is_dir)
    one.put(2, 0, record(1), record(2))
    assert one.kill(signal.SIGTERM) == 0
    assert one.to[2].lanes[0].fill() == 0
    for node in (one, other):
        node.start()
    found: list[int] = []
    until(lambda: len(found.extend(other.numbers(0)) or found) == 2)
    assert found == [1, 2]


def test_a_stop_sends_what_a_peer_takes(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made)
    for node in (one, other):
        node.start()
    one.put(2, 0, record(1))
    until(lambda: other.numbers(0) == [1])
    one.put(2, 0, *[record(number) for number in range(100)])
    assert one.kill(signal.SIGTERM) == 0
    assert other.numbers(0) == list(range(100))


# --- what a peer may not send -------------------------------------------------------------------------------------------


def sealed(frame: bytes) -> bytes:
    """Returns a frame with the right checksum."""
    return frame[:12] + crc32(frame[:12] + bytes(4) + frame[16:]).to_bytes(4, "little") + frame[16:]


def patched(frame: bytes, at: int, value: int, size: int) -> bytes:
    return sealed(frame[:at] + value.to_bytes(size, "little") + frame[at + size :])


DATA_FAULTS = {
    "magic": lambda frame: patched(frame, 0, 1, 2),
    "type": lambda frame: patched(frame, 2, 200, 1),
    "flags": lambda frame: patched(frame, 3, 1, 1),
    "length above the limit": lambda frame: patched(frame, 4, 3 << 20, 4),
    "stream": lambda frame: patched(frame, 8, 77, 2),
    "zero": lambda frame: patched(frame, 10, 1, 2),
    "checksum": lambda frame: frame[:12] + b"oops" + frame[16:],
    "start": lambda frame: patched(frame, 16, 8, 8),
    "end before the last record": lambda frame: patched(frame, 24, 8, 8),
    "end beyond all positions": lambda frame: patched(frame, 24, 1 << 63, 8),
    "hlc": lambda frame: patched(frame, 32, 1, 8),
    "size of a record": lambda frame: patched(frame, 40, 1 << 20, 4),
    "record shorter than its header": lambda frame: patched(frame, 40, 20, 4),
    "gap beyond the end": lambda frame: patched(frame, 40, 0xFFFFFFFF, 4),
    "kind": lambda frame: patched(frame, 48, 5, 1),
    "flag originate": lambda frame: patched(frame, 49, 9, 1),
    "QoS 3": lambda frame: patched(frame, 49, 3, 1),
    "flag spilled": lambda frame: patched(frame, 49, 17, 1),
    "topic size": lambda frame: patched(frame, 52, 1 << 31, 4),
    "payload size": lambda frame: patched(frame, 72, 0, 4),
    "group without kind": lambda frame: patched(patched(frame, 64, 1, 4), 68, 1, 4),
    "wildcard in a topic": lambda frame: patched(frame, 48 + HEADER.size, 0x23, 1),
    "NUL in a topic": lambda frame: patched(frame, 48 + HEADER.size, 0, 1),
}


@pytest.mark.parametrize("name", DATA_FAULTS)
def test_a_corrupt_frame_ends_the_connection_and_nothing_is_lost(tmp_path: Path, made: list[Node], name: str) -> None:
    one, other = pair(tmp_path, made)
    live(one, other)
    assert one.driver is not None
    changed: list[bytes] = []

    def send_data(wire: Any, data: Any) -> None:
        stream, start, end, records = data
        frame = pack_frame(FrameType.DATA, bytes(records), stream, start, end)
        if not changed:
            frame = DATA_FAULTS[name](frame)
            changed.append(frame)
        wire.send(frame)

    one.driver._send_data = send_data  # type: ignore[method-assign, assignment]
    one.put(2, 0, record(1))
    assert carry(one, other, 1) == [1]
    assert changed and any("data connection closed" in line for line in other.lines), other.lines


def test_random_bytes_end_a_connection(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made)
    live(one, other)
    rng = random.Random(3)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", other.listener.getsockname()[1])) as sock:
            sock.sendall(rng.randbytes(8 + rng.randint(1, 200)))
            for _ in range(5):
                other.driver.one_pass(1)  # type: ignore[union-attr]
    one.put(2, 0, record(1))
    assert carry(one, other, 1) == [1]


def test_a_peer_that_reads_slowly_is_not_buffered_for(tmp_path: Path, made: list[Node]) -> None:
    one, other = pair(tmp_path, made, peer_bytes=1 << 25)
    live(one, other)
    assert one.driver is not None
    one.put(2, 0, *[record(number, size=4000) for number in range(6_000)])
    for _ in range(200):
        one.driver.one_pass(0)
    (link,) = one.driver._links.values()
    assert link.wire is not None and link.wire.pending < 2 << 20
    assert carry(one, other, 6_000) == list(range(6_000))


def secured(tmp_path: Path, names: tuple[str, str], made: list[Node]) -> tuple[Node, Node]:
    """Two nodes with certificates of these names."""
    one, other = pair(tmp_path, made, peer_bytes=1 << 20)
    authority = Authority(tmp_path)
    for node, name in ((one, names[0]), (other, names[1])):
        pem = str(authority.issue(name, name))
        node.tls = tls_contexts(ClusterTls(enable=True, cacertfile=str(authority.cafile), certfile=pem))
    return one, other


def test_records_over_tls(tmp_path: Path, made: list[Node]) -> None:
    one, other = secured(tmp_path, ("n1", "n2"), made)
    live(one, other)
    one.put(2, 0, *[record(number, size=500) for number in range(1_500)])
    one.put_spilled(2, 0, record(1_500, size=1 << 20), "0-peer-1-1")
    assert carry(one, other, 1_501) == list(range(1_501))


def test_a_certificate_of_another_name_is_refused(tmp_path: Path, made: list[Node]) -> None:
    one, other = secured(tmp_path, ("n1", "n3"), made)
    for node in (one, other):
        node.process()
    pump([one, other], lambda: any("certificate of node n2" in line for line in [*one.lines, *other.lines]))
    assert state(one, other) != PeerState.LIVE


def test_the_sizes_of_headers_are_those_of_the_code() -> None:
    assert (ARRIVAL.size, HEADER.size) == (24, 64)
    assert len(record(1)) == HEADER.size + 3 + 22
