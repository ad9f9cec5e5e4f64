"""The process link-0 without a broker around it: SUBACKs, rings to peers, the view, sockets for other link processes."""

import json
import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import multiprocess
import psutil
import pytest

from shardbroker.cluster.view import LinkState
from shardbroker.config import load
from shardbroker.link.frames import preface
from shardbroker.link.main import run
from shardbroker.link.sockets import take_sockets
from shardbroker.link.subacks import MESSAGE_BYTES, decode_answer, encode_request
from shardbroker.supervisor.layout import lay_out, tear_down, usable_cores
from shm.cleanup import cleanup, forget_left_over, set_aside
from shm.counters import Counters, ProcessState
from shm.ring import Inbox
from shm.roles import LINK, WORKER
from shm.topology import Topology
from shm.view import ViewSegment
from tests.cluster.real.nodes import Nodes
from tests.harness.broker import free_port
from tests.harness.waiting import until


class Half:
    """One node: what the supervisor lays out, and its link-0."""

    def __init__(self, nodes: Nodes, number: int, **more: Any) -> None:
        values = {
            **nodes.settings(number), "process.workers": 2, "process.acceptors": 1, "cluster.links": 2,
            "process.data_dir": nodes.directory / f"data-{number}", "listeners.default.bind": f"127.0.0.1:{free_port()}", **more,
        }  # fmt: skip
        values["process.data_dir"].mkdir()
        settings = load(None, None, [f"{key}={value}" for key, value in values.items()], {}).settings
        self.topology: Topology = lay_out(settings, usable_cores())
        self.view = ViewSegment.attach(self.topology.view_name)
        self.counters = Counters.attach(self.topology.counters_name)
        self.set_workers(ProcessState.READY)
        self.process: Any = None

    def set_workers(self, state: ProcessState) -> None:
        """Sets the state of the workers, of which none runs."""
        for place in self.topology.places_of(WORKER):
            self.counters.set_state(place.slot, state)

    def start(self) -> None:
        self.process = multiprocess.get_context("fork").Process(target=run, args=(self.topology, 0))
        self.process.start()

    def suback(self, worker: int, ticket: int, position: int) -> tuple[int, bool]:
        """Holds a SUBACK, and returns the answer."""
        end = self.topology.sending_ends("subacks", worker)[0]
        with socket.socket(fileno=end) as channel:
            try:
                channel.send(encode_request(ticket, position))
                assert select.select([channel], [], [], 5)[0]
                return decode_answer(channel.recv(MESSAGE_BYTES))
            finally:
                channel.detach()


@contextmanager
def two(directory: Path, each: Sequence[dict[str, Any]] = ({}, {}), linked: bool = True, **more: Any) -> Iterator[list[Half]]:
    """Two nodes, with settings of each and of both; once they are linked, if they are to be."""
    nodes = Nodes(directory, 2)
    halves = [Half(nodes, number, **more, **own) for number, own in enumerate(each, 1)]
    try:
        for half in halves:
            half.start()
        until(lambda: not linked or all(half.view.link_of(3 - number) == LinkState.UP for number, half in enumerate(halves, 1)))
        yield halves
    finally:
        for half in halves:
            with suppress(psutil.Error):
                half.process.terminate()
                psutil.Process(half.process.pid).resume()
            half.process.join(10)
            tear_down(half.topology)


def test_a_suback_waits_until_peers_have_the_route(tmp_path: Path) -> None:
    with two(tmp_path) as (one, _):
        assert one.suback(0, 7, 0) == (7, False)
        begun = time.monotonic()
        assert one.suback(1, 1 << 60, 5) == (1 << 60, True), "a position that no peer has"
        assert 0.09 < time.monotonic() - begun < 2
        assert one.counters.totals()["suback.late"] == 1


def test_a_suback_does_not_wait_with_suback_local(tmp_path: Path) -> None:
    with two(tmp_path, **{"cluster.suback": "local"}) as (one, _):
        assert one.suback(0, 7, 5) == (7, False)


def test_rings_to_a_peer_are_there_when_it_is_established(tmp_path: Path) -> None:
    with two(tmp_path) as (one, other):
        for number, half in (2, one), (1, other):
            for link in 1, 2:
                inbox = Inbox.attach(half.topology.peer_inbox_name(number, link))
                assert len(inbox.lanes) == 2
                inbox.close()
        identity = Inbox.attach(one.topology.peer_inbox_name(2, 1)).identity
        one.process.kill()
        one.process.join()
        until(lambda: other.view.link_of(1) == LinkState.DOWN)
        one.start()
        until(lambda: (one.view.link_of(2), other.view.link_of(1)) == (LinkState.UP, LinkState.UP))
        assert Inbox.attach(one.topology.peer_inbox_name(2, 1)).identity == identity, "records in it are kept"


def test_a_peer_that_stands_still_is_suspect_and_then_down(tmp_path: Path) -> None:
    with two(tmp_path, **{"cluster.suspect": "300ms"}) as (one, other):
        process = psutil.Process(other.process.pid)
        process.suspend()
        until(lambda: one.view.link_of(2) == LinkState.SUSPECT)
        until(lambda: one.view.link_of(2) in (LinkState.DOWN, LinkState.HELLO))
        assert one.view.knows(2)
        process.resume()
        until(lambda: one.view.link_of(2) == LinkState.UP)


def test_a_connection_for_data_reaches_its_process(tmp_path: Path) -> None:
    with two(tmp_path) as (one, _):
        host, _, port = one.topology.link_address.rpartition(":")
        channel = socket.socket(fileno=one.topology.receiving_ends("sockets", 2)[0])
        try:
            with socket.create_connection((host, int(port))) as sock:
                sock.sendall(preface(2) + b"hello")
                assert select.select([channel], [], [], 5)[0]
                (taken,) = take_sockets(channel)
                taken.setblocking(True)
                assert taken.recv(5) == b"hello"
                taken.close()
                assert sock.recv(1) == b""
        finally:
            channel.detach()


@pytest.mark.parametrize("sent", [preface(3), b"GET / HTTP/1.1\r\n", b"SB"])
def test_a_connection_that_is_no_peer_is_closed(tmp_path: Path, sent: bytes) -> None:
    with two(tmp_path, **{"cluster.link.auth_timeout": "300ms"}) as (one, _):
        host, _, port = one.topology.link_address.rpartition(":")
        before = one.counters.totals()["link.refused"]  # on a busy machine that of the other node, too
        with socket.create_connection((host, int(port)), timeout=5) as sock:
            sock.sendall(sent)
            with suppress(ConnectionResetError):
                assert sock.recv(1) == b""
        until(lambda: one.counters.totals()["link.refused"] == before + 1)
        assert one.view.link_of(2) == LinkState.UP


def test_records_that_a_peer_has_not_taken_are_kept_for_the_next_start(tmp_path: Path) -> None:
    with two(tmp_path) as (one, other):
        for half, number in (one, 2), (other, 1):
            inbox = Inbox.attach(half.topology.peer_inbox_name(number, 2))
            assert half is other or inbox.lanes[1].put(b"a record")
            inbox.close()
    assert not other.topology.runtime_dir.exists()
    (kept,) = set_aside(one.topology.runtime_dir)
    try:
        assert [Path(path).name for path in kept.peers] == ["peer-2-1", "peer-2-2"]
        assert Inbox.attach(kept.peers[1]).lanes[1].take() == b"a record"
    finally:
        forget_left_over((kept,))
        cleanup(one.topology.runtime_dir)


def test_nodes_talk_over_ipv6(tmp_path: Path) -> None:
    addresses = [f"[::1]:{free_port()}" for _ in range(2)]
    each = [{"cluster.link.bind": address, "cluster.static.seeds": json.dumps(addresses)} for address in addresses]
    with two(tmp_path, each=each) as (one, _):
        assert one.view.read().nodes[2].address == addresses[1]


def test_a_node_is_not_linked_before_its_workers_have_their_routes(tmp_path: Path) -> None:
    with two(tmp_path) as (one, other):
        other.process.terminate()
        other.process.join(10)
        until(lambda: one.view.link_of(2) == LinkState.DOWN)
        other.set_workers(ProcessState.STARTING)
        other.start()
        time.sleep(0.5)
        assert one.view.link_of(2) in (LinkState.DOWN, LinkState.HELLO)
        other.set_workers(ProcessState.READY)
        until(lambda: one.view.link_of(2) == LinkState.UP)


def test_sigterm_ends_it_while_it_waits_for_workers(tmp_path: Path) -> None:
    with two(tmp_path, linked=False) as (one, _):
        one.process.terminate()
        one.process.join(10)
        one.set_workers(ProcessState.STARTING)
        slot = one.topology.places_of(LINK)[0].slot
        one.counters.set_state(slot, ProcessState.DOWN)
        one.start()
        until(lambda: one.counters.state(slot) == ProcessState.STARTING, lambda: one.counters.state(slot).name)
        one.process.terminate()
        one.process.join(10)
        assert one.process.exitcode == 0


def test_sigterm_ends_it(tmp_path: Path) -> None:
    with two(tmp_path) as (one, other):
        psutil.Process(one.process.pid).send_signal(signal.SIGTERM)
        one.process.join(10)
        assert one.process.exitcode == 0
        until(lambda: other.view.link_of(1) == LinkState.DOWN)
