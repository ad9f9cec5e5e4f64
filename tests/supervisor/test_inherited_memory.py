"""Processes share the memory that they inherit: a worker that copies it takes 17 MB more."""

from pathlib import Path

import pytest

from tests.harness import Broker, Client, client_id_on, until

pytestmark = pytest.mark.own_broker


def kilobytes(pid: int) -> dict[str, int]:
    """Sizes of /proc/<pid>/smaps_rollup by name."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.partition(":")[0]: int(line.split()[1]) for line in lines}


@pytest.mark.parametrize("again", [False, True])
def test_a_worker_leaves_most_of_what_it_inherits_alone(again: bool) -> None:
    with Broker(2) as broker:
        if again:
            killed = broker.child_pids("worker")[0]
            broker.kill_process(killed)
            until(lambda: len(pids := broker.child_pids("worker")) == 2 and killed not in pids)
            with Client(broker.address, 5, client_id_on(0, 2)) as first, Client(broker.address, 5, client_id_on(1, 2)) as second:
                first.ping()
                second.ping()
        for pid in broker.child_pids("worker"):
            sizes = kilobytes(pid)
            assert sizes["Private_Dirty"] < sizes["Anonymous"] / 2, sizes
