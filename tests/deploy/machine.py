"""A machine with a systemd of its own, in namespaces: what is installed there is gone with it."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil

__all__ = ["Machine", "why_not"]

BOOT = Path(__file__).with_name("boot.sh")
UNSHARE = ("unshare", "--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup", "--fork", "--kill-child")
BOOT_S = 60.0
ROOT = Path(__file__).parents[2]
SOURCES = ("acceptor", "perf", "shardbroker", "shm", "spark", "tests")
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Of commands on the machine: see `Machine.__enter__`."""
PROBE = """
mount --make-rprivate / && mount -t tmpfs tmpfs /mnt && mkdir /mnt/changes /mnt/work /mnt/root &&
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/changes,workdir=/mnt/work /mnt/root &&
mount -t proc proc /mnt/root/proc && mount -t cgroup2 cgroup2 /mnt/root/mnt
"""
"""What booting begins with, and what containers may not do."""


@cache
def why_not() -> str:
    """Why no machine can be booted here; empty if one can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [name for name in ("unshare", "nsenter", "ip", "pivot_root") if shutil.which(name) is None]
    if not Path("/lib/systemd/systemd").exists():
        missing.append("systemd")
    if missing:
        return f"needs {', '.join(missing)}"
    tried = subprocess.run([*UNSHARE, "sh", "-c", PROBE], capture_output=True, text=True, check=False)
    return f"namespaces: {(tried.stderr or 'refused').splitlines()[0]}" if tried.returncode else ""


class Machine:
    """Context manager: booted on entry."""

    def __enter__(self) -> "Machine":
        # What the machine below makes after it was missed here is not seen here: so directories for bytecode are made before.
        subprocess.run([sys.executable, "-m", "compileall", "-q", *SOURCES], cwd=ROOT, check=True)
        trees = [str(ROOT)] if Path(sys.prefix).is_relative_to(ROOT) else [str(ROOT), sys.prefix]
        self._view = tempfile.mkdtemp(prefix="shardbroker-machine-")
        self._output = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [*UNSHARE, "bash", str(BOOT), self._view, *trees],
            stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        deadline = time.monotonic() + BOOT_S
        try:
            while self._state() not in ("running", "degraded"):
                assert self._process.poll() is None and time.monotonic() < deadline, self._said()
                time.sleep(0.2)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for child in psutil.Process(self._process.pid).children() if self._process.poll() is None else []:
            child.kill()
        self._process.kill()
        self._process.wait()
        self._output.close()
        os.rmdir(self._view)

    def run(
        self, *command: str, check: bool = True, timeout_s: float = 60.0, stdin: "IO[bytes] | int" = subprocess.DEVNULL
    ) -> "subprocess.CompletedProcess[str]":
        """A command on the machine."""
        done = subprocess.run(
            self._inside(command), capture_output=True, text=True, check=False, stdin=stdin, timeout=timeout_s,
            env=os.environ | ENVIRONMENT,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def start(self, *command: str) -> "subprocess.Popen[str]":
        """A command on the machine that goes on."""
        return subprocess.Popen(self._inside(command), stdout=subprocess.PIPE, text=True, env=os.environ | ENVIRONMENT)

    def _inside(self, command: tuple[str, ...]) -> list[str]:
        (init,) = psutil.Process(self._process.pid).children()
        return ["nsenter", "-t", str(init.pid), "-a", *command]

    def _state(self) -> str:
        try:
            return self.run("systemctl", "is-system-running", check=False, timeout_s=10).stdout.strip()
        except (ValueError, subprocess.TimeoutExpired):
            return ""  # nobody is there yet

    def _said(self) -> str:
        self._output.seek(0)
        return self._output.read()
