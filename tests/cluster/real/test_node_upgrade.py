"""`ctl upgrade` of a node of a cluster: other code under its clients, and under sessions that move."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from tests.cluster.real.moves import FAILED, MOVING
from tests.cluster.real.nodes import Nodes, running
from tests.cluster.real.streams import streams
from tests.cluster.real.test_messages import linked
from tests.handoff.installation import Installation

pytestmark = [pytest.mark.own_broker, pytest.mark.timeout(600)]
WORKERS = 2
LONGEST_S = 200
WAITS = (
    ("claims", "AGREE_MS = 500"), ("claims", "TAKE_MS = 1_000"), ("claims", "RELINK_MS = 1_000"), ("claims", "DRAIN_MS = 20"),
    ("registry", "WHO_MS = 300"),
)  # fmt: skip
"""Constants that are ten times as large in these tests: see patient.py."""
OTHER_FORMAT = "the installed version has another format of the hand-over"


class Upgradable:
    """Two nodes, the first of which runs from an installation of its own."""

    def __init__(self, directory: Path, nodes: Nodes) -> None:
        self.nodes, self.broker = nodes, nodes.brokers[1]
        self.code = Installation(directory, "0.1.1")
        for module, constant in WAITS:
            self.code.change(f"shardbroker/cluster/{module}.py", constant, f"{constant}0")
        for broker in nodes.brokers.values():
            broker.program, broker.environment = (str(self.code.program),), self.code.environment

    def call(self, verb: str, **given: Any) -> Any:
        with Control(self.broker.data_dir, timeout_s=LONGEST_S) as control:
            return control.call(verb, **given)

    def parts(self) -> dict[str, tuple[str, str]]:
        return {part["part"]: (part["way"], part["reason"]) for part in self.call("upgrade-check")["parts"]}

    def upgrade(self) -> dict[str, Any]:
        """Returns the state at the end."""
        self.call("upgrade", drain=False)
        deadline = time.monotonic() + LONGEST_S
        while True:
            with suppress(ControlError, OSError):  # the manager starts again
                state: dict[str, Any] = self.call("upgrade-state")
                if state["phase"] != "moving":
                    return state
            assert time.monotonic() < deadline, self.nodes.output(1)
            time.sleep(0.1)


@contextmanager
def two(directory: Path, **settings: Any) -> Iterator[Upgradable]:
    made: list[Upgradable] = []
    common = {**MOVING, "mqtt.max_mqueue_len": 0, "process.drain_timeout": "60s", **settings}
    with running(2, workers=WORKERS, prepare=lambda nodes: made.append(Upgradable(directory, nodes)), **common) as nodes:
        linked(nodes)
        yield made[0]


@pytest.mark.parametrize("level", ["process", "machine"])
def test_a_node_is_upgraded_under_traffic_and_takeovers(tmp_path: Path, level: str) -> None:
    with two(tmp_path, **{"durability.level": level}) as node:
        pid, before = node.broker.pid, {*node.nodes.processes(1)}
        with streams(node.nodes, WORKERS, exact=False) as (_, moving):
            node.code.install("0.1.2")
            ways = {part: way for part, (way, _) in node.parts().items()}
            assert ways.pop("supervisor") == "replaced"
            assert {ways.pop(f"worker-{number}") for number in range(WORKERS)} == {"moved"}
            assert {*ways.values()} == {"restarted"} and {"link-0", "link-1"} <= ways.keys()
            moves = [one.receiver.moves for one in moving]
            state = node.upgrade()
            assert (state["phase"], state["version"]) == ("done", "0.1.2"), f"{state}\n{node.nodes.output(1)}"
            assert node.broker.pid == pid and not before & {*node.nodes.processes(1)}
            assert all(one.receiver.moves > then for one, then in zip(moving, moves, strict=True))
            linked(node.nodes)
        for number in node.nodes.brokers:
            for line in FAILED:
                assert line not in node.nodes.output(number), node.nodes.output(number)


def test_what_other_code_cannot_take_over_is_told_before(tmp_path: Path) -> None:
    with two(tmp_path) as node:
        node.code.replace("shardbroker/worker/handoff/protocol.py", "FORMAT_OF_NODE = 1\n", "FORMAT_OF_NODE = 2\n")
        parts = node.parts()
        assert [parts[f"worker-{number}"] for number in range(WORKERS)] == [("drained", OTHER_FORMAT)] * WORKERS
        assert parts["link-0"] == ("restarted", "")
        node.code.restore("shardbroker/worker/handoff/protocol.py")
        node.code.replace("shm/layouts.py", '"sessions": 1', '"sessions": 2')
        found = node.call("upgrade-check")
        assert (found["way"], found["reason"]) == ("drained", "other layout in shared memory: sessions")
        node.code.restore("shm/layouts.py")
        node.code.replace("shardbroker/cluster/handshake.py", "PROTO_MIN = PROTO_MAX = 1\n", "PROTO_MIN = PROTO_MAX = 2\n")
        found = node.call("upgrade-check")
        reason = "link protocol: other nodes speak version 1, this program 2; stop all nodes to upgrade"
        assert (found["way"], found["reason"]) == ("refused", reason)


def test_a_node_of_a_core_keeps_its_clients(tmp_path: Path) -> None:
    """The process `cluster` is restarted, too, with its etcd."""
    with two(tmp_path, cores=(1,)) as node, streams(node.nodes, WORKERS, movers=(), exact=False):
        node.code.install("0.1.2")
        state = node.upgrade()
        assert (state["phase"], state["version"]) == ("done", "0.1.2"), f"{state}\n{node.nodes.output(1)}"
        linked(node.nodes)
