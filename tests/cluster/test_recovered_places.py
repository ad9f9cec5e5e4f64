"""What the journal has of a node's right to its sessions, read back by the recovery of a worker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.cluster.claims import SETTLE_MS, SessionState
from shardbroker.cluster.messages import SessionMessage, TailAck
from shardbroker.config import Settings
from shardbroker.stores.registry import Registry
from shardbroker.stores.retained import RetainedStore
from shardbroker.supervisor.layout import lay_out, tear_down
from shardbroker.worker.assembly import assemble
from shardbroker.worker.memory import MemoryWatch
from shardbroker.worker.passed_ids import PassedIds
from shardbroker.worker.recovery.replay import Replay
from shm.counters import Counters
from shm.epochs import Epochs
from shm.ring import Inbox
from shm.routes import RouteTable
from shm.topology import Topology
from tests.cluster.workers import Net
from tests.harness import wire

CLIENT = "c"


@pytest.fixture
def topology(tmp_path: Path) -> Iterator[Topology]:
    process = {"data_dir": tmp_path / "data", "workers": 1, "acceptors": 1}
    settings = Settings.model_validate({"process": process, "listeners": {"default": {"bind": "127.0.0.1:0"}}})
    found = lay_out(settings, [0])
    try:
        yield found
    finally:
        tear_down(found)


def places(topology: Topology, journal: Path) -> list[Any]:
    """Returns the places of sessions in a journal."""
    return replayed(topology, journal)[0]


def replayed(topology: Topology, journal: Path) -> tuple[list[Any], list[int]]:
    """Returns the places of sessions in a journal, and the highest message ids."""
    counters = Counters.attach(topology.counters_name)
    epochs, inbox = Epochs.attach(topology.epochs_name), Inbox.attach(topology.inbox_name(0))
    routes, retained = RouteTable(topology.routes_dir), RetainedStore(topology.retained_dir)
    registry = Registry(topology.registry_dir(0), create=True)
    try:
        worker = assemble(topology, 0, counters, routes, retained, epochs, registry, inbox, MemoryWatch(counters, 0, 1, 0))
        worker.router.passed = PassedIds()
        replay = Replay(worker, lambda _: True)
        replay.read(journal, 0)
        return [*replay.places.values()], worker.router.passed.ids()
    finally:
        routes.close()
        retained.close()
        registry.close()


def is_answer(_sender: int, _receiver: int, message: SessionMessage) -> bool:
    return isinstance(message, TailAck)


@pytest.mark.parametrize(("node", "state"), [(1, SessionState.STALE), (2, SessionState.OWNED)])
def test_both_sides_know_a_merge_without_an_answer(tmp_path: Path, topology: Topology, node: int, state: SessionState) -> None:
    """The stale session is bound to its heir, and the heir knows that it has merged it."""
    net = Net(tmp_path)
    net.nodes[1].connect(CLIENT).subscribe("t", 2)
    net.split(1, 2)
    heir = net.nodes[2].connect(CLIENT)
    net.run(6_000)
    heir.subscribe("t", 2)
    heir.channel.receive(wire.disconnect())
    net.nodes[1].connect("publisher").publish("t", b"x", 2)
    net.drops = is_answer
    net.heal()
    net.run(SETTLE_MS)
    [stale] = net.nodes[1].sessions.core.claims.leaving.values()
    assert (stale.state, stale.heir) == (SessionState.STALE, 2)
    found = [one for one in places(topology, tmp_path / f"n{node}") if one.state == state and one.seen is not None]
    assert [(one.peer, one.merged) for one in found] == [(2, frozenset()) if node == 1 else (0, frozenset({(1, stale.uid)}))]


def test_the_ids_that_a_worker_has_dealt_with_are_those_of_its_journal(tmp_path: Path, topology: Topology) -> None:
    """A session that moves behind a restart of its worker takes them along: what it has delivered is not taken again."""
    net = Net(tmp_path, skews_ms={1: -3_600_000})
    net.nodes[2].connect(CLIENT).subscribe("t", 2)
    publisher = net.nodes[1].connect("publisher")
    for number in range(3):
        publisher.publish("t", b"%d" % number, 2, number + 1)
    [last] = [one for one in net.nodes[2].router.passed.ids() if one >> 48 & 0xFFFF == 1]
    assert last in replayed(topology, tmp_path / "n2")[1]
    net.nodes[1].connect(CLIENT)
    [moved] = [one for one in places(topology, tmp_path / "n1") if one.state == SessionState.OWNED and one.seen is not None]
    assert last in moved.seen.passed and last + (1 << 64) not in moved.seen.passed


def test_a_session_that_has_replaced_another_one_is_known_behind_a_restart(tmp_path: Path, topology: Topology) -> None:
    """Its client may have packet ids of the other one."""
    net = Net(tmp_path)
    net.nodes[1].connect(CLIENT).subscribe("t", 2)
    net.split(1, 2)
    heir = net.nodes[2].connect(CLIENT)
    net.run(6_000)
    assert heir.connack() == (False, 0)
    net.heal()
    net.run(2 * SETTLE_MS)
    (place,) = [place for place in places(topology, tmp_path / "n2") if place.state == SessionState.OWNED]
    assert place.mixed
