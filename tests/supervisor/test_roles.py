"""The table of processes: numbers that follow from it, and a broker with one more row."""

import os
import re
import signal
from collections.abc import Sequence

import pytest

from shardbroker.config import load
from shardbroker.control import Control
from shm.roles import ROLES, Cores, Role, lay_places
from shm.roles import load as load_function
from tests.harness import Client, Publish
from tests.supervisor.one_more import ECHOES
from tests.supervisor.test_tree import Tree

WORKERS, MANAGER = 2, 2
ECHO = MANAGER + 2
"""Number of the first echo: behind all other processes with an inbox."""


THREE = Cores([0, 1, 2], [0, 1, 2])


def places(*settings: str, roles: Sequence[Role] = ROLES, cores: Cores = THREE) -> list[tuple[int, str, tuple[int, ...]]]:
    laid = lay_places(roles, load(None, None, list(settings), {}).settings, cores)
    return [(place.slot, place.title, place.cores) for place in laid]


def test_processes_are_numbered_by_the_table() -> None:
    found = places("process.workers=2", "process.acceptors=1", cores=Cores([0, 4, 5], [4], [0, 5]))
    assert found == [(0, "worker-0", (4,)), (1, "worker-1", (4,)), (2, "manager", ()), (3, "flows-0", ()), (4, "integrations", ()),
                     (5, "api", ()), (6, "acceptor-0", (0, 5)), (7, "gateway-coap-0", ()),
                     (8, "gateway-exproto", ()), (9, "gateway-mqttsn-0", ()), (10, "gateway-stomp-0", ()),
                     (11, "cluster", ())]  # fmt: skip


def test_numbers_that_the_machine_decides() -> None:
    titles = [title for _, title, _ in places(cores=Cores([0, 1, 2], [1, 2]))]
    assert titles == [
        "worker-0", "worker-1", "manager", "flows-0", "integrations", "api", "acceptor-0", "acceptor-1", "gateway-coap-0",
        "gateway-exproto", "gateway-mqttsn-0", "gateway-stomp-0", "cluster",
    ]  # fmt: skip
    assert [title for _, title, _ in places(cores=Cores([0], [0]))][-7:] == [
        "api", "acceptor-0", "gateway-coap-0", "gateway-exproto", "gateway-mqttsn-0", "gateway-stomp-0", "cluster",
    ]  # fmt: skip


def test_a_row_with_an_inbox_comes_behind_workers_and_manager_and_before_the_others() -> None:
    row = Role("echo", lambda topology: None, drain_order=1, inbox=True)
    assert [title for _, title, _ in places("process.workers=1", "process.acceptors=1", roles=(*ROLES, row))] == [
        "worker-0", "manager", "flows-0", "echo", "integrations", "api", "acceptor-0", "gateway-coap-0",
        "gateway-exproto", "gateway-mqttsn-0", "gateway-stomp-0", "cluster",
    ]  # fmt: skip


def test_the_table_can_be_used() -> None:
    assert len({role.name for role in ROLES}) == len(ROLES)
    assert ROLES[0].name == "worker" and ROLES[0].inbox  # the number of a worker is its destination
    assert max(ROLES, key=lambda role: role.drain_order).name == "manager"
    for role in ROLES:
        assert callable(load_function(role.entry))
        assert role.needed is None or callable(load_function(role.needed))


def test_a_function_that_does_not_exist_is_an_error() -> None:
    for name in ("shm.roles:no_such", "shm.no_such:load"):
        with pytest.raises((ImportError, AttributeError), match="no_such"):
            load_function(name)


def got(tree: Tree, number: int) -> list[list[str]]:
    """What an echo has received: (title of the sender, lane)."""
    return sorted([line[2], line[5]] for line in tree.events(f"echo-{number}", "got"))


def processes(tree: Tree) -> dict[str, str]:
    with Control(tree.data_dir) as control:
        return {row["name"]: row["state"] for row in control.call("workers list")["data"]}


def connect(tree: Tree, line: str) -> Client:
    port = re.search(r":(\d+), workers", line)
    assert port is not None
    return Client(("127.0.0.1", int(port[1])))


@pytest.mark.own_broker
def test_one_more_kind_of_process_costs_a_row_and_an_entry_point() -> None:
    """It gets an inbox that workers and the manager write into, is started again when it dies, and ends in its order."""
    everyone = [["manager", str(MANAGER)], ["worker-0", "0"], ["worker-1", "1"]]
    with Tree(program="tests.supervisor.one_more") as tree:
        line = tree.ready()
        for number in range(ECHOES):
            tree.until(lambda number=number: got(tree, number) == everyone)  # type: ignore[misc]
        assert processes(tree) == {
            "worker-0": "ready", "worker-1": "ready", "manager": "ready", "echo-0": "ready", "echo-1": "ready",
            "acceptor-0": "ready", "acceptor-1": "ready",
        }  # fmt: skip

        # What a worker sends to one that is stopped and then killed is found by its successor.
        os.kill(tree.pid("echo-1"), signal.SIGSTOP)
        os.kill(tree.pid("worker-0"), signal.SIGKILL)
        tree.until(lambda: len(got(tree, 0)) == len(everyone) + 1)
        assert got(tree, 1) == everyone
        os.kill(tree.pid("echo-1"), signal.SIGKILL)
        tree.until(lambda: len(tree.events("echo-1", "start")) == 2)
        tree.until(lambda: got(tree, 1) == sorted([*everyone, ["worker-0", "0"]]))

        tree.until(lambda: {*processes(tree).values()} == {"ready"})
        with connect(tree, line) as client:  # the others are what they were
            client.subscribe("a/#")
            client.publish("a/b", b"hello", qos=1)
            assert isinstance(packet := client.expect(Publish), Publish) and packet.payload == b"hello"

        assert tree.end() == 0
        ends = [line[0].split("-")[0] for line in tree.events("stop")]
        assert ends == ["worker"] * WORKERS + ["echo"] * ECHOES + ["manager"]
