"""Requests to the processes flows over a channel whose other end is this test: order of answers, processes that do not answer."""

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cbor2
import pytest

from shardbroker.control import ControlError
from shardbroker.management import flows_calls
from shardbroker.management.flows_calls import FlowsCalls


class Flows:
    """The other ends of the channels, one a process."""

    def __init__(self, processes: int, runtime_dir: Path) -> None:
        self.pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(processes)]
        ends = [near.fileno() for near, _ in self.pairs]
        topology: Any = SimpleNamespace(sending_ends=lambda role: ends, places_of=lambda role: ends, runtime_dir=runtime_dir)
        self.topology = topology
        for _, far in self.pairs:
            far.setblocking(False)

    async def take(self, process: int = 0) -> dict[str, Any]:
        message = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.pairs[process][1], 1 << 20), 5)
        found: dict[str, Any] = cbor2.loads(message)
        return found

    def answer(self, request: dict[str, Any], process: int = 0, **more: Any) -> None:
        self.pairs[process][1].send(cbor2.dumps({"id": request["id"], **more}))

    def close(self) -> None:
        for pair in self.pairs:
            for end in pair:
                end.close()


@pytest.fixture
def flows(tmp_path: Path) -> Iterator[Flows]:
    made = Flows(2, tmp_path)
    yield made
    made.close()


def test_a_probe_delays_no_other_request(flows: Flows) -> None:
    async def run() -> None:
        calls = FlowsCalls(flows.topology)
        probe = asyncio.create_task(calls.probe("http", {"url": "http://a/"}))
        probed = await flows.take()
        assert (probed["verb"], probed["type"], probed["settings"]) == ("probe", "http", {"url": "http://a/"})
        order = asyncio.create_task(calls.order("sink_stop", "http:a"))
        for process in range(2):
            asked = await flows.take(process)
            assert (asked["verb"], asked["sink"]) == ("sink_stop", "http:a")
            flows.answer(asked, process, problems={})
        await asyncio.wait_for(order, 5)
        assert not probe.done()
        flows.answer(probed, error="no route")
        assert await asyncio.wait_for(probe, 5) == "no route"

    asyncio.run(run())


def test_answers_to_requests_that_were_given_up_are_dropped(flows: Flows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows_calls, "ANSWER_S", 0.1)

    async def run() -> None:
        calls = FlowsCalls(flows.topology)
        with pytest.raises(ControlError, match="process flows-0 did not respond: timed out"):
            await calls.order("sink_stop", "http:a")
        late = await flows.take()
        order = asyncio.create_task(calls.order("sink_start", "http:a"))
        asked = await flows.take()
        flows.answer(late, problems={"http:a": "late"})
        flows.answer(asked, problems={})
        flows.answer(await flows.take(1), 1, problems={"http:a": "no such action"})
        with pytest.raises(ControlError, match="no such action"):
            await order

    asyncio.run(run())


def test_a_full_channel_is_waited_for(flows: Flows) -> None:
    async def run() -> None:
        calls = FlowsCalls(flows.topology)
        near, far = flows.pairs[0]
        sent = 0
        while True:
            try:
                near.send(b"x" * 1000, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            sent += 1
        probe = asyncio.create_task(calls.probe("http", {}))
        await asyncio.sleep(0.1)
        for _ in range(sent):
            far.recv(2000)
        flows.answer(await flows.take(), error="")
        assert await asyncio.wait_for(probe, 5) == ""

    asyncio.run(run())


def test_figures_of_processes_are_put_together(flows: Flows) -> None:
    one = {"matched": 1, "status": "connected", "error": "", "lag_seconds": 3.0, "lag_records": 2, "cursor": {"0": 7}}
    other = {"matched": 2, "status": "disconnected", "error": "no route", "lag_seconds": 1.0, "lag_records": 3, "cursor": {"1": 9}}
    for process, figures in enumerate((one, other)):
        content = {"rules": {}, "actions": {"http:a": figures}}
        (flows.topology.runtime_dir / f"flows-{process}.json").write_text(json.dumps(content))
    assert FlowsCalls(flows.topology).sinks("actions") == {"http:a": {
        "matched": 3, "status": "disconnected", "error": "no route", "lag_seconds": 3.0, "lag_records": 5,
        "cursor": {"0": 7, "1": 9},
    }}  # fmt: skip
    assert FlowsCalls(flows.topology).sinks("connectors") == {}
