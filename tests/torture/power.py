"""The machine loses power: all processes end, shared memory is gone, and of what was not synced the disk keeps what chance keeps.

The broker runs with recorder.c in LD_PRELOAD, which writes down what its processes do to files. A cut replays that onto a model of
the disk (tests/journal/power_cut.py) and puts what the model has kept in the place of the data directory.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from hashlib import sha256
from pathlib import Path

import psutil

from tests.harness import Broker
from tests.harness.broker import SHARED_DIR
from tests.journal.power_cut import Disk, read_steps

RECORDER = Path(__file__).parents[1] / "journal" / "recorder.c"
KEPT = ("nothing", "nothing", "all", "length", "some", "some")
"""What a cut keeps of names and bytes that were not synced, drawn for each; see `File.content`."""
END_S = 20.0


class Power:
    """Of one broker, from before its first start on."""

    def __init__(self, broker: Broker, place: Path) -> None:
        """place: a directory for what is recorded."""
        library = place / "recorder.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", library, RECORDER, "-ldl", "-lpthread"], check=True)
        self._broker = broker
        self._root = broker.data_dir.resolve()
        self._steps = place / "steps"
        self._begin()
        broker.environment |= {
            "LD_PRELOAD": str(library), "RECORD_DIRECTORY": str(self._root), "RECORD_LOG": str(self._steps)
        }  # fmt: skip

    def _begin(self) -> None:
        self._steps.unlink(missing_ok=True)
        self._disk = Disk(str(self._root))

    def switch_off(self) -> None:
        """Every process ends at once."""
        processes = [psutil.Process(self._broker.pid), *self._broker.children()]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._broker.pid, signal.SIGKILL)
        deadline = time.monotonic() + END_S
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    if time.monotonic() > deadline:
                        raise AssertionError(f"{process} does not end")
                    time.sleep(0.002)

    def cut(self, rng: random.Random) -> str:
        """What a machine finds that is switched on again; says what was kept. The broker has ended."""
        instance = sha256(str(self._root).encode()).hexdigest()[:12]
        for path in SHARED_DIR.glob(f"*{instance}*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        for step in read_steps(self._steps) if self._steps.exists() else ():
            self._disk.do(step)
        for path in self._root.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        names, bytes_ = rng.choice(KEPT), rng.choice(KEPT)
        self._disk.cut(rng, names, bytes_, self._root)
        self._begin()
        return f"names {names}, bytes {bytes_}"

    def damaged(self) -> list[Path]:
        """What the broker has set aside as damaged: a power cut must not damage anything."""
        return [path for path in self._root.rglob("*") if ".bad-" in path.name]
