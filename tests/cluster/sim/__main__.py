"""Many seeds: `python -m tests.cluster.sim --seeds N --first S`. Failing seeds are printed, and the exit code is then 1."""

import argparse
import sys
import time

from tests.cluster.sim.cluster import Cluster, run
from tests.cluster.sim.sessions import RoamingCluster
from tests.cluster.sim.workers import WorkersCluster


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=23)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sessions", action="store_true", help="clients that move between nodes")
    parser.add_argument("--workers", action="store_true", help="with --sessions: several workers in each node")
    arguments = parser.parse_args()
    kind = (WorkersCluster if arguments.workers else RoamingCluster) if arguments.sessions else Cluster
    failed = 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        start = time.monotonic()
        try:
            one = run(seed, arguments.nodes, arguments.steps, kind)
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
