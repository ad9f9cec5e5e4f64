"""Files of disk_log: lines, rotation, what is refused, a full disk."""

import asyncio
import errno
import json
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shardbroker.config.sinks.disk_log import DiskLogAction, DiskLogConnector
from shardbroker.connectors.errors import ConnectionSettingError
from shardbroker.flows.drivers.disk_log import DiskLog, connect, make
from shardbroker.flows.sinks.driver import Failure, Unusable
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.values import UNDEFINED


def row(number: int, **values: Any) -> Row:
    return Row("0", number, "c", {"n": number, **values}, "ID", "node-1")


def driver(data_dir: Path, path: object, template: str = "", **connector: Any) -> DiskLog:
    file = connect(DiskLogConnector(filepath=str(path), **connector), "connectors.disk_log.x")
    file.data_dir = data_dir
    return make(DiskLogAction.model_validate({"parameters": {"template": template}}), file, "disk_log:x")


def written(one: DiskLog, *batches: Sequence[Row]) -> list[Sequence[Failure]]:
    async def write() -> list[Sequence[Failure]]:
        await one.open()
        found = [await one.write(rows) for rows in batches]
        await one.sync()
        await one._connector.close()
        return found

    return asyncio.run(write())


def test_lines_are_json_with_the_position(tmp_path: Path) -> None:
    values = {"text": "a\nb\u2028", "bytes": b"\xff", "none": None, "missing": UNDEFINED, "big": 1 << 70, "half": "\ud800"}
    written(driver(tmp_path, "a/b.log"), [row(1), row(2, **values)])
    lines = (tmp_path / "disk_log/a/b.log").read_bytes().split(b"\n")
    assert json.loads(lines[0]) == {"position": "node-1/0/1", "n": 1}
    assert json.loads(lines[1]) == {"position": "node-1/0/2", "n": 2, **values, "bytes": {"$bytes": "/w=="}, "missing": "undefined"}
    assert lines[2:] == [b""]
    assert (tmp_path / "disk_log/a/b.log").stat().st_mode & 0o777 == 0o600


def test_a_client_makes_no_line_of_its_own(tmp_path: Path) -> None:
    written(driver(tmp_path, "x.log", "${n} ${t} ${id}"), [row(1, t="a\r\n2 forged"), row(2, t="b\x85\u2028c")])
    assert (tmp_path / "disk_log/x.log").read_bytes() == b"1 a\\r\\n2 forged ID\n2 b\\x85\\u2028c ID\n"


def test_a_row_that_is_no_text_fails_alone(tmp_path: Path) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    (failures,) = written(driver(tmp_path, "x.log"), [row(1), row(2, deep=deep), row(3)])
    assert failures == [Failure(1, "line not made: RecursionError")]
    assert len((tmp_path / "disk_log/x.log").read_bytes().splitlines()) == 2


def test_files_rotate_and_the_oldest_is_removed(tmp_path: Path) -> None:
    rows = [row(number) for number in range(200)]
    written(driver(tmp_path, "x.log", max_file_size=1024, max_file_number=3), rows[:100], rows[100:150], rows[150:])
    files = [tmp_path / "disk_log" / name for name in ("x.log.2", "x.log.1", "x.log")]
    found = [json.loads(line)["n"] for one in files for line in one.read_bytes().splitlines()]
    assert found == [*range(200)][-len(found) :] and len(found) > 50
    assert sorted(one.name for one in (tmp_path / "disk_log").iterdir()) == ["x.log", "x.log.1", "x.log.2", "x.log.lock"]
    assert all(one.stat().st_size <= 1024 for one in files)


def test_processes_share_a_file(tmp_path: Path) -> None:
    """Four processes write and rotate at the same time; no line is torn, none is missing."""
    program = (
        "import sys; from pathlib import Path; from tests.flows.drivers.test_disk_log import *\n"
        "one = driver(Path(sys.argv[1]), 'x.log', max_file_size=4096, max_file_number=1000)\n"
        "written(one, *([row(b * 10 + n, p=int(sys.argv[2])) for n in range(10)] for b in range(100)))"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(number)]) for number in range(4)]
    assert [one.wait() for one in processes] == [0] * 4
    found = [json.loads(line) for one in (tmp_path / "disk_log").glob("x.log*") for line in one.read_bytes().splitlines()]
    assert len(found) == 4000
    assert len({(one["p"], one["n"]) for one in found}) == 4000


@pytest.mark.parametrize("path", ["", "../x", "a/../../x", "/tmp/../etc/x", "a\0b", "/"])
def test_paths_that_lead_elsewhere_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConnectionSettingError, match=r"connectors\.disk_log\.x\.filepath: must be the path of a file"):
        driver(tmp_path, path)


@pytest.mark.parametrize("what", ["file", "rotated", "link", "dangling", "hard", "pipe", "directory", "data", "parent"])
def test_files_of_others_are_not_touched(tmp_path: Path, what: str) -> None:
    data, other, place = tmp_path / "data", tmp_path / "other", tmp_path / "logs"
    place.mkdir()
    data.mkdir()
    other.write_text("precious\n")
    path = place / "x.log"
    if what == "file":
        path.write_text("precious\n")
        other = path
    elif what == "rotated":
        other = place / "x.log.1"
        other.write_text("precious\n")
    elif what in ("link", "dangling"):
        path.symlink_to(other if what == "link" else tmp_path / "new")
    elif what == "hard":
        path.hardlink_to(other)
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    elif what == "data":
        path = data / "cursors.mdb"
    else:
        (data / "disk_log").mkdir()
        (data / "disk_log" / "out").symlink_to(tmp_path)
        path = Path("out/x.log")
    with pytest.raises(Unusable, match="must be"):
        written(driver(data, path), [row(1)])
    assert other.read_text() == "precious\n"
    assert not (tmp_path / "new").exists() and not (data / "cursors.mdb").exists()


@pytest.mark.parametrize("what", ["link", "hard", "pipe"])
def test_a_file_that_is_replaced_later_is_not_written(tmp_path: Path, what: str) -> None:
    path, other = tmp_path / "disk_log" / "x.log", tmp_path / "other"
    written(driver(tmp_path, "x.log"), [row(1)])
    path.unlink()
    other.write_text("precious\n")
    if what == "link":
        path.symlink_to(other)
    elif what == "hard":
        path.hardlink_to(other)
    else:
        os.mkfifo(path)
    with pytest.raises(Unusable):
        written(driver(tmp_path, "x.log"), [row(1)])
    assert other.read_text() == "precious\n"


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=rf"file {tmp_path}/none/x.log: No such file or directory"):
        written(driver(tmp_path / "data", tmp_path / "none/x.log"), [row(1)])


def test_a_full_disk_cuts_no_line(tmp_path: Path) -> None:
    """The limit on the size of files of a process stands for a full disk: the kernel takes a part of a write, then fails."""
    program = (
        "import resource, signal, sys; from pathlib import Path; from tests.flows.drivers.test_disk_log import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "one = driver(Path(sys.argv[1]), 'x.log')\n"
        "written(one, [row(1)])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        "try: written(driver(Path(sys.argv[1]), 'x.log'), [row(n) for n in range(2, 100)])\n"
        "except Unusable as error: print(error)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "written(driver(Path(sys.argv[1]), 'x.log'), [row(n) for n in range(2, 100)])\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    output = subprocess.check_output([sys.executable, "-c", program, str(tmp_path)], text=True)
    path = tmp_path / "disk_log/x.log"
    assert output == f"file {path}: File too large\n"
    assert [json.loads(line)["n"] for line in path.read_bytes().splitlines()] == [*range(1, 100)]


# --- an fsync that fails ----------------------------------------------------------------------------------------------------------


class Disk:
    """A stand-in for a disk: while `fails`, an fsync reports an error once and drops what the file had since the last good one.

    The next one succeeds, as on Linux: what was dropped is not dirty any more.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures = 0
        """Calls that fail from now on."""
        self._good: dict[tuple[int, int], int] = {}
        self._fsync = os.fsync
        monkeypatch.setattr("shardbroker.flows.drivers.disk_log.os.fsync", self.fsync)

    def fsync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        file = (found.st_dev, found.st_ino)
        if not stat.S_ISREG(found.st_mode):
            return self._fsync(descriptor)
        if self.failures:
            self.failures -= 1
            good = self._good.get(file, 0)
            os.ftruncate(descriptor, good)
            os.ftruncate(descriptor, found.st_size)  # zeros
            raise OSError(errno.EIO, "Input/output error")
        self._good[file] = found.st_size
        return self._fsync(descriptor)


def numbers_in(directory: Path) -> list[int]:
    """Returns the numbers of all whole lines, each once, in ascending order."""
    texts = [line.strip(b"\0") for one in directory.glob("x.log*") for line in one.read_bytes().splitlines()]
    return sorted({json.loads(one)["n"] for one in texts if one.strip(b"\0")})


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("failures", [1, 2, 5])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_lines_are_written_again_after_an_fsync_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, failures: int, mode: str
) -> None:
    """Also those of another action, whose write had returned; old files stay, however often it fails."""
    disk = Disk(monkeypatch)
    directory = tmp_path / "disk_log"

    async def scenario() -> None:
        one = driver(tmp_path, "x.log", max_file_number=files)
        action = DiskLogAction.model_validate({"parameters": {"write_mode": mode}})
        other = make(action, one._connector, "disk_log:other")
        await one.open()
        await one.write([row(n) for n in range(10)])
        await one.sync()
        await one.write([row(n) for n in range(10, 20)])
        disk.failures = failures
        for attempt in range(failures):
            with pytest.raises(Unusable, match=r"x\.log: Input/output error$"):
                await (other.write([row(99)]) if mode == "sync" and not attempt else one.sync())
        await one.open()
        await one.sync()
        await other.write([row(n) for n in range(20, 30)])
        await other.sync()
        await one._connector.close()

    asyncio.run(scenario())
    assert numbers_in(directory) == [*range(30)]
    assert len([*directory.glob("x.log.[0-9]")]) == min(files - 1, 1)


def test_more_than_a_file_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)

    async def scenario() -> None:
        one = driver(tmp_path, "x.log", max_file_size=10_000, max_file_number=100)
        await one.open()
        for at in range(0, 1000, 50):
            disk.failures = 1 if at % 200 == 150 else 0
            while True:
                try:
                    await one.write([row(n) for n in range(at, at + 50)])
                    await one.sync()
                    break
                except Unusable:
                    pass
        await one._connector.close()

    asyncio.run(scenario())
    assert numbers_in(tmp_path / "disk_log") == [*range(1000)]


def test_lines_in_memory_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbroker.flows.drivers.disk_log.UNSYNCED_MAX", 1000)

    async def scenario() -> None:
        one = driver(tmp_path, "x.log")
        for number in range(100):
            await one.write([row(number)])
            assert len(one._connector._unsynced) <= 1000
        await one._connector.close()

    asyncio.run(scenario())


def test_a_close_whose_fsync_fails_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)

    async def scenario() -> None:
        one = driver(tmp_path, "x.log")
        await one.write([row(1)])
        disk.failures = 1
        with pytest.raises(Unusable):
            await one._connector.close()
        assert one._connector._file == one._connector._lock == -1

    asyncio.run(scenario())


FULL = """
import sys; from pathlib import Path; from tests.flows.drivers.test_disk_log import *
async def main():
    where = Path(sys.argv[1])
    one = driver(where / "data", where / "x.log", max_file_number=3)
    n, errors = 0, []
    while not errors:
        try:
            await one.write([row(n + i, fill="x" * 1000) for i in range(10)])
            n += 10
        except Unusable as error:
            errors.append(str(error))
    (where / "ballast").unlink()
    await one.open()
    await one.write([row(n + i) for i in range(10)])
    await one.sync()
    await one._connector.close()
    print(errors[0], numbers_in(where) == [*range(n + 10)], n >= 10, sep="|")
asyncio.run(main())
"""


def test_a_file_system_that_is_full_loses_no_line(tmp_path: Path) -> None:
    """A real one of 256 KB in memory, from which something else is removed later."""
    mounted = f"mount -t tmpfs -o size=256k none {tmp_path} && head -c 100000 /dev/zero > {tmp_path}/ballast"
    command = [
        "unshare",
        "-m",
        "--map-root-user",
        "sh",
        "-c",
        f'{mounted} && exec "$@"',
        "sh",
        sys.executable,
        "-c",
        FULL,
        str(tmp_path),
    ]
    if subprocess.run(["unshare", "-m", "--map-root-user", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    output = subprocess.check_output(command, text=True)
    assert output == f"file {tmp_path}/x.log: No space left on device|True|True\n"
