"""Many seeds: `python -m tests.cluster.sim --seeds N --first S`. Failing seeds are printed, and the exit code is then 1."""

import argparse
import sys
import time

from tests.cluster.sim.cluster import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=23)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    failed = 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        start = time.monotonic()
        try:
            one = run(seed, arguments.nodes, arguments.steps)
        except AssertionError as error:
            failed += 1
            print(f"FAILED {error}", flush=True)
            continue
        counts = f"{len(one.messages)} messages, {one.checked} deliveries, {one.faults} faults, {one.network.messages} frames"
        print(f"seed {seed}: {one.level.value}, {counts}, {time.monotonic() - start:.1f} s", flush=True)
    print(f"{arguments.seeds} seeds, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
