"""Runs a command with the sanitizers' runtime loaded, in the copy that `make asan` and `make fuzz` build, and fails on any report.

    cd build/asan && python -m fuzz.sanitizers COMMAND [ARGUMENT ...]

Processes started by the command are watched too: their reports are written to files, so that the death of a worker that is
restarted is not missed. The exit code is 1 if there are reports, which are printed, else that of the command.
"""

import functools
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["CLANG", "environment", "library", "reports"]

CLANG = os.environ.get("CC", "clang")
ASAN_OPTIONS = {
    "detect_leaks": 0,  # CPython keeps its memory until the process ends
    "quarantine_size_mb": 16,  # per process, and a broker has many; 256 is for long-lived programs
    "symbolize": 0,  # llvm-symbolizer inherits the preloaded runtime and hangs: reports() names functions afterwards
    "handle_abort": 1,  # a failed assertion gets its stack, too
    "verify_asan_link_order": 0,  # libFuzzer's library is first: its counters replace the runtime's empty ones
}

FRAME = re.compile(rf"\(({re.escape(str(Path.cwd()))}/\S+\.so)\+(0x[0-9a-f]+)\)")
"""An address in a module of this build, as in reports."""


def library(name: str) -> str:
    """Returns the path of a library of clang. Raises FileNotFoundError with the package to install."""
    path = Path(subprocess.run([CLANG, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip())
    if not path.is_absolute():
        raise FileNotFoundError(f"clang has no {name}: install libclang-rt-dev")
    return str(path)


def environment(build: Path, logs: Path, *preloaded: str) -> dict[str, str]:
    """Returns the environment of a Python with the compiled modules below `build`; reports are written to files in `logs`."""
    runtime = library(f"libclang_rt.asan-{platform.machine()}.so")
    return dict(os.environ) | {
        "ASAN_OPTIONS": ":".join(f"{key}={value}" for key, value in (ASAN_OPTIONS | {"log_path": logs / "report"}).items()),
        "UBSAN_OPTIONS": f"print_stacktrace=1:symbolize=0:log_path={logs / 'report'}",
        "LD_PRELOAD": " ".join([*preloaded, runtime]),
        "PYTHONMALLOC": "malloc",  # otherwise small objects are adjacent, without forbidden bytes between them
        "PYTHONPATH": str(build),
    }


def reports(logs: Path) -> str:
    """Returns the reports of sanitizers, with function and line of each address in a compiled module."""
    text = "\n".join(path.read_text(errors="replace") for path in sorted(logs.iterdir()))
    return FRAME.sub(lambda frame: f"{_function(frame[1], frame[2])} {frame[0]}", text)


@functools.cache
def _function(module: str, offset: str) -> str:
    command = ["addr2line", "--functions", "--pretty-print", "--basenames", "--exe", module, offset]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.strip()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="shardbroker-asan-") as name:
        code = subprocess.run(sys.argv[1:], env=environment(Path.cwd(), Path(name))).returncode
        found = reports(Path(name))
    if found:
        sys.exit(found)
    sys.exit(code)


if __name__ == "__main__":
    main()
