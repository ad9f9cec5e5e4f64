"""Fuzzes all targets, or those named, with libFuzzer under AddressSanitizer and UndefinedBehaviorSanitizer (`make fuzz`).

    cd build/asan && python -m fuzz.run [TARGET ...] --seconds 60 [--seed N] [--keep]

Two targets run at a time, each for `seconds`. Prints executions, and the branches reached of each module. Exits with 1 and the
input on a finding, and if a target does not run. With --keep inputs that reach more than those in fuzz/corpus do are added there.
"""

import argparse
import platform
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fuzz.coverage import Share, reached
from fuzz.engine import TARGETS
from fuzz.sanitizers import CLANG, environment, library, reports

__all__ = ["Outcome", "fuzz", "report"]

JOBS = 2
INPUT_TIMEOUT_S = 5
START_MAX_S = 120
"""Seconds in addition to a target's time, for the seeds and the end, and for merging inputs of an earlier run."""
MEMORY_MAX_MB = 2048
"""Targets take 200 to 600 with all the memory held by AddressSanitizer: more is a reservation of a length that an input only
announces."""
OUTPUT_MAX = 8000
"""Characters of a target's output that are shown with a finding: libFuzzer prints a line for each input that reaches more."""
TOO_FAR = """
from acceptor.peek import peek_client_id
from fuzz.engine import exact
packet = bytes.fromhex("101000044d5154540402003c000466757a7a")
peek_client_id(exact(packet, readable=len(packet) - 1), 4096)
"""
"""A parser reads beyond the end: this must cause a report, before runs without reports are trusted."""


@dataclass
class Outcome:
    """The result of one target."""

    name: str
    executions: int = 0
    branches: int = 0
    finding: str = ""
    """The fault, with the input; empty without one."""


class Failed(Exception):
    """A process of a target has ended with an error; the text is its output."""


def link_libfuzzer(folder: Path) -> str:
    """Builds a library with all of libFuzzer and returns its path; clang provides an archive of it."""
    path = folder / "libfuzzer.so"
    archive = library(f"libclang_rt.fuzzer_no_main-{platform.machine()}.a")
    whole = [f"-Wl,--whole-archive,{archive},--no-whole-archive"]
    subprocess.run([CLANG, "-shared", "-o", str(path), *whole, "-lstdc++", "-lpthread", "-lm"], check=True)
    return str(path)


def fuzz(name: str, seconds: int, folder: Path, libfuzzer: str, keep: bool, seed: int = 0) -> Outcome:
    """Runs one target in processes of its own. `folder`/NAME/reached gets the reached branches. `seed` 0: any."""
    own = folder / name
    start, found, logs, merged, result = (own / part for part in ("start", "found", "logs", "merged", "reached"))
    for path in (start, found, logs, merged, result):
        path.mkdir(parents=True)
    engine = ["fuzz.engine", name]
    options = [f"-artifact_prefix={own}/finding-", f"-timeout={INPUT_TIMEOUT_S}", f"-rss_limit_mb={MEMORY_MAX_MB}"]
    options += [f"-max_total_time={seconds}", "-print_final_stats=1", "-reload=0", f"-seed={seed}"]
    # libFuzzer ends its process without Python's clean-up: files left by a target are removed with the folder.
    plain = environment(Path.cwd(), logs) | {"TMPDIR": str(own)}
    guided = environment(Path.cwd(), logs, libfuzzer) | {"TMPDIR": str(own)}
    outcome = Outcome(name)
    try:
        _python([*engine, "--write", str(start)], plain)
        output = _python([*engine, *options, str(found), str(start)], guided, seconds)
        outcome.executions, outcome.branches = _number(r"units: +(\d+)", output), _number(r" cov: (\d+)", output)
        if not outcome.executions or not outcome.branches:
            raise Failed(f"nothing was executed, or nothing counts branches\n{output}")
        _python(["fuzz.coverage", name, str(result), str(start), str(found)], plain)
        if keep:
            _python([*engine, "-merge=1", str(merged), str(start), str(found)], guided)
            _python([*engine, "--keep", str(merged)], plain)
    except Failed as error:
        inputs = "".join(f"input: {path.read_bytes().hex()}\n" for path in own.glob("finding-*"))
        outcome.finding = f"{name}:\n{error}\n{reports(logs)}\n{inputs}"
    return outcome


def _python(arguments: list[str], watched: dict[str, str], seconds: int = 0) -> str:
    """Returns the output of a Python module. Raises Failed if it ends with an error or not in time."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            env=watched,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds + START_MAX_S,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(str(error)) from None
    if done.returncode:
        raise Failed(f"exit code {done.returncode} of {' '.join(arguments)}\n{done.stdout[-OUTPUT_MAX:]}")
    return done.stdout


def _number(pattern: str, output: str) -> int:
    found = re.findall(pattern, output)
    return int(found[-1]) if found else 0


def report(outcomes: list[Outcome], modules: dict[str, Share]) -> int:
    """Prints findings and two tables. Returns the exit code."""
    failed = [outcome.finding for outcome in outcomes if outcome.finding]
    print(*failed, f"{'target':<40} {'executions':>10} {'branches':>10}", sep="\n")
    for outcome in outcomes:
        end = "  FAILED, see above" if outcome.finding else ""
        print(f"{outcome.name:<40} {outcome.executions:>10} {outcome.branches:>10}{end}")
    print(f"{'together':<40} {sum(outcome.executions for outcome in outcomes):>10}\n")
    print(f"{'module':<40} {'functions':>10} {'entered':>10} {'branches':>10} {'reached':>10}")
    for name, share in modules.items():
        print(f"{name:<40} {share.functions:>10} {share.entered:>10} {share.branches:>10} {share.reached:>10}")
    sys.stdout.flush()
    return 1 if failed else 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz the parsers of bytes from outside, guided by coverage.")
    parser.add_argument("targets", nargs="*", default=TARGETS, help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="duration per target")
    parser.add_argument("--seed", type=int, default=0, help="derives the same inputs again; 0: others each time")
    parser.add_argument("--keep", action="store_true", help="add inputs that reach further branches to fuzz/corpus")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shardbroker-fuzz-") as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        watched = environment(Path.cwd(), folder / "logs")
        process = subprocess.run([sys.executable, "-c", TOO_FAR], env=watched, capture_output=True, timeout=60)
        if process.returncode == 0 or "peek_client_id" not in reports(folder / "logs"):
            sys.exit("a parser has read too far without a report: modules are not built for this, see fuzz/README.md")
        libfuzzer = link_libfuzzer(folder)
        with ThreadPoolExecutor(JOBS) as pool:
            runs = [
                pool.submit(fuzz, target, arguments.seconds, folder, libfuzzer, arguments.keep, arguments.seed)
                for target in arguments.targets
            ]
            outcomes = [run.result() for run in runs]
        modules = reached([folder / target / "reached" for target in arguments.targets])
    sys.exit(report(outcomes, modules))


if __name__ == "__main__":
    main()
