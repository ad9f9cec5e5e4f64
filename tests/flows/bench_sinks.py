"""`shardbroker perf sinks` for types of sinks, each against the server that its tests have.

python -m tests.flows.bench_sinks [--type redis] [--rows 200000]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.flows.sinks.kinds import KINDS

TIMEOUT = "20s"
"""Of requests: two cores are shared by server and broker."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.flows.bench_sinks", description=__doc__.partition("\n")[0])
    parser.add_argument("--type", action="append", choices=tuple(KINDS), help="may be repeated; all")
    parser.add_argument("--rows", type=int, default=200_000)
    given = parser.parse_args()
    missed = 0
    for kind in given.type or KINDS:
        with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, KINDS[kind].serve(Path(name)) as sink:
            connector = {**sink.connector, **({"timeout": TIMEOUT} if "timeout" in sink.connector else {})}
            command = [str(Path(sys.executable).with_name("shardbroker")), "perf", "sinks", "--type", kind, f"--rows={given.rows}"]
            command += ["--connector", json.dumps(connector), "--parameters", json.dumps(sink.measured)]
            print(kind, flush=True)
            missed += subprocess.run(command).returncode != 0
    return min(missed, 1)


if __name__ == "__main__":
    raise SystemExit(main())
