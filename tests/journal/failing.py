"""Scenarios on a disk that fails, each in a process of its own: `python -m tests.journal.failing NAME DIRECTORY SEED`.

With faults.c in LD_PRELOAD, but for those that bring their own limit. Each ends with the journal read and compared.
"""

import ctypes
import errno
import random
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from shardbroker.journal import Writer, open_journal
from shardbroker.journal.schema import Kind, encode
from tests.journal.samples import found

WRITE, SYNC, OPEN = range(3)
RETRY_US = 200_000


class Run:
    """A writer, a clock, and what was appended."""

    def __init__(self, directory: Path, rng: random.Random, sync: bool = False, segment_bytes: int = 5000) -> None:
        self.directory = directory
        self.rng = rng
        self.writer: Writer = open_journal(directory, segment_bytes=segment_bytes, sync=sync)
        self.now_us = 1
        self.appended = 0

    def work(self, passes: int) -> None:
        """Passes with records, at times that let every one try again."""
        for _ in range(passes):
            for _ in range(self.rng.randrange(1, 6)):
                payload = self.rng.randbytes(self.rng.choice([0, 10, 100, 700]))
                assert self.writer.append(encode(Kind.RECEIVED, session=self.appended, packet_id=1, id=payload)) == self.appended
                self.appended += 1
            self.step()

    def step(self) -> int:
        self.now_us += RETRY_US
        durable = int(self.writer.seal(self.now_us))
        assert durable <= self.appended
        return durable

    def check(self) -> None:
        """Everything is there, once, in order, and nothing is damaged but what a broken write left."""
        assert self.writer.wait_durable(10), self.writer.problem
        assert self.writer.problem is None and self.writer.state == 0
        assert self.writer.durable == self.appended and self.writer.pending == 0
        records, damages = found(self.directory)
        assert [record["session"] for record in records.values()] == list(range(self.appended))
        assert not any(damage.error for damage in damages), damages
        assert self.writer.close()


def fault(call: int, error: int, after: int = 0, times: int = 1) -> None:
    ctypes.CDLL(None).disk_fault(call, error, ctypes.c_long(after), ctypes.c_long(times))


def room(size: int) -> None:
    ctypes.CDLL(None).disk_room(ctypes.c_long(size))


def full(directory: Path, rng: random.Random) -> None:
    """The disk fills up in the middle of a block; acknowledgements stop; then there is room, and all goes on."""
    run = Run(directory, rng)
    run.work(5)
    room(rng.randrange(3000))
    while run.writer.problem is None:
        run.work(1)
    assert run.writer.state == 1 and "No space left" in run.writer.problem
    stopped = run.writer.durable
    run.work(20)
    assert run.writer.durable == stopped < run.appended and run.writer.pending > 0
    room(-1)
    assert run.step() == run.appended
    run.work(5)
    run.check()


def reports_full(directory: Path, rng: random.Random) -> None:
    """So much waits that the worker has to stop reading; it is told, and nothing is lost."""
    run = Run(directory, rng)
    run.writer.close()
    run.writer = open_journal(directory, pending_max=10_000)
    room(0)
    while not run.writer.full:
        run.work(1)
        assert run.writer.pending < 20_000
    room(-1)
    run.step()
    assert not run.writer.full
    run.check()


def size_limit(directory: Path, rng: random.Random) -> None:
    """RLIMIT_FSIZE: no file may grow beyond a size that is below that of a segment."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
    run = Run(directory, rng, segment_bytes=1 << 20)
    run.work(60)
    assert run.writer.failures > 0
    run.check()


def small_disk(directory: Path, rng: random.Random) -> None:
    """A real file system without room (the directory is on a small tmpfs)."""
    run = Run(directory, rng, segment_bytes=50_000)
    run.work(10)
    ballast = directory.parent / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    while run.writer.problem is None:
        run.work(1)
    assert run.writer.state == 1
    run.work(100)
    found(directory)  # it can be read meanwhile
    ballast.unlink()
    run.step()
    run.check()


def no_new_segment(directory: Path, rng: random.Random) -> None:
    """Segments cannot be made: full, then read-only."""
    run = Run(directory, rng)
    for error, state in ((errno.ENOSPC, 1), (errno.EROFS, 2)):
        fault(OPEN, error, times=3)
        while run.writer.problem is None:
            run.work(1)
        assert run.writer.state == state
        run.work(8)
    run.check()


def write_error(directory: Path, rng: random.Random) -> None:
    """The disk cannot write a block: it stands in another segment."""
    run = Run(directory, rng)
    run.work(4)
    fault(WRITE, errno.EIO, after=rng.randrange(3), times=rng.randrange(1, 4))
    run.work(20)
    assert run.writer.failures > 0
    run.check()


def sync_error(directory: Path, rng: random.Random) -> None:
    """What a failed fdatasync was to make safe is written again; nothing was called durable meanwhile."""
    run = Run(directory, rng, sync=True)
    run.work(rng.randrange(8))
    assert run.writer.wait_durable(10)
    safe = run.writer.durable
    fault(SYNC, errno.EIO, times=1000)
    for _ in range(10):
        run.work(1)
        assert run.writer.durable == safe
    while run.writer.state != 3:
        run.step()
    assert run.writer.durable == safe
    fault(SYNC, 0, times=0)
    run.work(10)
    run.check()


def anything(directory: Path, rng: random.Random) -> None:
    """Any call fails at any time, in any way."""
    run = Run(directory, rng, sync=rng.random() < 0.5, segment_bytes=rng.choice([500, 5000]))
    for _ in range(40):
        call = rng.choice([WRITE, SYNC, OPEN])
        fault(call, rng.choice([0, errno.EIO, errno.ENOSPC, errno.EROFS, errno.EFBIG]), rng.randrange(4), rng.randrange(1, 4))
        if rng.random() < 0.2:
            room(rng.choice([0, 1, 70, 2000]))
        run.work(rng.randrange(6))
        if rng.random() < 0.5:
            room(-1)
    room(-1)
    for call in (WRITE, SYNC, OPEN):
        fault(call, 0, times=0)
    run.check()


SCENARIOS: dict[str, Callable[[Path, random.Random], None]] = {
    scenario.__name__: scenario
    for scenario in (full, reports_full, size_limit, small_disk, no_new_segment, write_error, sync_error, anything)
}

if __name__ == "__main__":
    name, directory, seed = sys.argv[1:]
    SCENARIOS[name](Path(directory), random.Random(int(seed)))
