"""Fuzzes all targets, or those named, with libFuzzer under AddressSanitizer and UndefinedBehaviorSanitizer (`make fuzz`).

    cd build/asan && python -m fuzz.run [TARGET ...] --seconds 60 [--keep]

Two targets run at a time, each for `seconds`. Prints executions and branches reached; exit code 1 and the input on a finding.
With --keep inputs that reach more than those in fuzz/corpus do are added there.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fuzz.engine import TARGETS
from fuzz.sanitizers import CLANG, environment, library, reports

INPUT_TIMEOUT_S = 5
START_MAX_S = 120
"""Beyond its time, for the seeds and the end."""
MEMORY_MAX_MB = 2048
"""Targets take 200 to 600 with all that AddressSanitizer keeps: more is a reservation of a length that an input only announces."""
PAST_THE_END = """
import ctypes
from fuzz.engine import exact
packet = exact(bytes(2))
ctypes.string_at(id(packet) + bytes.__basicsize__ - 1, 3)
"""
"""What has to end in a report, before anything that does not is believed: the byte behind a packet is read."""


@dataclass
class Outcome:
    """Of one target."""

    name: str
    executions: int
    reached: int
    branches: int
    finding: str

    def __str__(self) -> str:
        share = f"{self.reached} of {self.branches} branches"
        return f"{self.name:<10} {self.executions:>10} executions, {share}: {'a finding' if self.finding else 'no finding'}"


def link_libfuzzer(folder: Path) -> str:
    """Path of a library with all of libFuzzer; clang comes with an archive of it."""
    path = folder / "libfuzzer.so"
    archive = library(f"libclang_rt.fuzzer_no_main-{platform.machine()}.a")
    whole = [f"-Wl,--whole-archive,{archive},--no-whole-archive"]
    subprocess.run([CLANG, "-shared", "-o", str(path), *whole, "-lstdc++", "-lpthread", "-lm"], check=True)
    return str(path)


def fuzz(name: str, seconds: int, folder: Path, libfuzzer: str, keep: bool) -> Outcome:
    """Runs one target in a process of its own."""
    start, found, logs = folder / name / "start", folder / name / "found", folder / name / "logs"
    for path in (start, found, logs):
        path.mkdir(parents=True)
    command = [sys.executable, "-m", "fuzz.engine", name]
    watched = environment(Path.cwd(), logs, libfuzzer)
    subprocess.run([*command, "--write", str(start)], env=watched, check=True)
    options = [f"-artifact_prefix={folder / name}/finding-", f"-timeout={INPUT_TIMEOUT_S}", f"-rss_limit_mb={MEMORY_MAX_MB}"]
    options += [f"-max_total_time={seconds}", "-print_final_stats=1", "-reload=0"]
    process = subprocess.run(
        [*command, *options, str(found), str(start)],
        env=watched,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=seconds + START_MAX_S,
    )
    finding = ""
    if process.returncode:
        data = "".join(f"input: {path.read_bytes().hex()}\n" for path in (folder / name).glob("finding-*"))
        finding = process.stdout[-8000:] + reports(logs) + data
    elif keep:
        merged = folder / name / "merged"
        merged.mkdir()
        merge = [*command, "-merge=1", str(merged), str(start), str(found)]
        subprocess.run(merge, env=watched, check=True, capture_output=True)
        subprocess.run([*command, "--keep", str(merged)], env=watched, check=True)
    patterns = (r"units: +(\d+)", r" cov: (\d+)", r"(\d+) inline 8-bit counters")
    numbers = [re.findall(pattern, process.stdout) for pattern in patterns]
    executions, reached, branches = (int(found[-1]) if found else 0 for found in numbers)
    return Outcome(name, executions, reached, branches, finding)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz what parses bytes from outside, guided by coverage.")
    parser.add_argument("targets", nargs="*", default=TARGETS, help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--keep", action="store_true", help="add to fuzz/corpus what reaches more")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shardbroker-fuzz-") as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        watched = environment(Path.cwd(), folder / "logs")
        process = subprocess.run([sys.executable, "-c", PAST_THE_END], env=watched, capture_output=True, timeout=60)
        if process.returncode == 0 or not reports(folder / "logs"):
            sys.exit("a byte behind a packet was read without a report: modules are not built for this, see fuzz/README.md")
        libfuzzer = link_libfuzzer(folder)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            runs = [pool.submit(fuzz, target, arguments.seconds, folder, libfuzzer, arguments.keep) for target in arguments.targets]
            outcomes = [run.result() for run in runs]
        for outcome in outcomes:
            print(outcome.finding + str(outcome), flush=True)
    sys.exit(1 if any(outcome.finding for outcome in outcomes) else 0)


if __name__ == "__main__":
    main()
