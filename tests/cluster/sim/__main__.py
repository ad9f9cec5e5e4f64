"""Many seeds: `python -m tests.cluster.sim --seeds N --first S`. Failing seeds are printed, and the exit code is then 1."""

import argparse
import sys
import time

from shardbroker.cluster.outbound import Level
from tests.cluster.sim.clocks import ClocksCluster
from tests.cluster.sim.cluster import Cluster, run
from tests.cluster.sim.core import CoreCluster
from tests.cluster.sim.deaths import STEPS, Role, takeover
from tests.cluster.sim.sessions import RoamingCluster
from tests.cluster.sim.splits import LongQueuesCluster, SplitsCluster
from tests.cluster.sim.workers import WorkersCluster

NODES, SPLIT_NODES = 23, 4


def deaths() -> int:
    """Ends each node of a takeover at each of its steps, killed and by a power cut."""
    failed = 0
    for level, power_cut in ((Level.PROCESS, False), (Level.MACHINE, False), (Level.MACHINE, True)):
        for role in Role:
            died = 0
            for step in range(1, STEPS[role]):
                try:
                    died += takeover(role, step, level, power_cut)
                except AssertionError as error:
                    failed += 1
                    print(f"FAILED {error}", flush=True)
            print(f"{role}, {level.value}, {'power cut' if power_cut else 'killed'}: {died} steps", flush=True)
    print(f"{failed} failed")
    return failed > 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--nodes", type=int, help="23, with --splits 4")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sessions", action="store_true", help="clients that move between nodes")
    parser.add_argument("--workers", action="store_true", help="with --sessions: several workers in each node")
    parser.add_argument("--splits", action="store_true", help="cuts under load: clients of both sides, slow ones among them")
    parser.add_argument("--long", action="store_true", help="with --splits: queues of some TAILs of the broker's own size")
    parser.add_argument("--clocks", action="store_true", help="clients that move between nodes whose clocks are wrong by an hour")
    parser.add_argument("--core", action="store_true", help="members in etcd, which is down, cut off, compacted and set up again")
    parser.add_argument("--deaths", action="store_true", help="each step of a takeover at which one of its nodes ends; no seeds")
    arguments = parser.parse_args()
    if arguments.deaths:
        return deaths()
    kind = (WorkersCluster if arguments.workers else RoamingCluster) if arguments.sessions else Cluster
    if arguments.splits:
        kind = LongQueuesCluster if arguments.long else SplitsCluster
    kind = ClocksCluster if arguments.clocks else CoreCluster if arguments.core else kind
    nodes = arguments.nodes or (SPLIT_NODES if arguments.splits or arguments.clocks else NODES)
    failed = 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        start = time.monotonic()
        try:
            one = run(seed, nodes, arguments.steps, kind)
        except AssertionError as error:
            failed += 1
            print(f"FAILED {error}", flush=True)
            continue
        counts = f"{len(one.messages)} messages, {one.checked} deliveries, {one.faults} faults, {one.network.messages} frames"
        counts += f", {one.numbers}" if isinstance(one, RoamingCluster) else ""
        print(f"seed {seed}: {one.level.value}, {counts}, {time.monotonic() - start:.1f} s", flush=True)
    print(f"{arguments.seeds} seeds, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
