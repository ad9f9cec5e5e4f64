"""What another user of the machine can do with names in shared memory, and what a broker makes of rings that are damaged.

The names that a broker uses can be known to everyone: they come from the path of its data directory.
"""

import os
import shutil
import struct
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from shm import runtime
from shm.records import encode_publish, encode_spilled
from tests.harness import Broker, Client, Publish, until

pytestmark = pytest.mark.own_broker
STRANGER = 65534
"""Uid of `nobody`."""
SHARED_DIR = Path("/dev/shm")
PAGE, LANE, MAGIC = 4096, 1 << 16, 0x31474E4952425300
PUBLISH = 1
MARK = f"left-{17:020}"
SESSION = {"session_expiry_interval": 1000}
as_a_stranger = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def ring(*records: bytes, lanes: int = 2, lane_bytes: int = LANE, head: int | None = None, consumed: int = 0) -> bytes:
    """An inbox with these records in its first lane; layout in shm/ring.pyx."""
    data = b"".join(struct.pack("<II", len(one), 0) + one + bytes(-len(one) % 8) for one in records)
    cursors = struct.pack("<Q56xQ", len(data) if head is None else head, consumed).ljust(PAGE, b"\0")
    whole = struct.pack("<QQQQ", MAGIC, lanes, lane_bytes, 7).ljust(PAGE, b"\0")
    return whole + (cursors + data.ljust(LANE, b"\0") + bytes(PAGE + LANE))


FORGED = encode_publish(b"t/forged", b"forged", qos=1, originate=False)


def instance_of(data_dir: Path) -> str:
    return sha256(str(data_dir.resolve()).encode()).hexdigest()[:12]


def by_stranger(work: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            os.umask(0)
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Broker]:
    """A broker that has stopped, with a session that has subscribed to `t/#`. Afterwards nothing that was planted is left."""
    broker = Broker(1, {}, tmp_path)
    with broker, Client(broker.address, 5, "reader", clean=False, properties=SESSION) as reader:
        reader.subscribe("t/#", 1)
    yield broker
    for path in SHARED_DIR.glob(f"shardbroker-{instance_of(tmp_path)}*"):
        shutil.rmtree(path) if not path.is_symlink() and path.is_dir() else path.unlink()


def read_by_session(broker: Broker) -> list[bytes]:
    with Client(broker.address, 5, "reader", clean=False, properties=SESSION) as reader:
        reader.publish("t/end", b"end", 1)
        got = []
        while not got or got[-1] != b"end":
            got.append(reader.expect(Publish).payload)
    return got[:-1]


def start(broker: Broker) -> None:
    """Like start(), and what it has in shared memory is known without a mapping of its own name."""
    broker.output.clear()
    broker.start()


def stop(broker: Broker) -> None:
    """As Broker.stop(), but what a stranger has put there stays."""
    assert broker.process is not None
    broker.process.terminate()
    assert broker.process.wait(20) == 0
    assert not [line for line in broker.output if "process died" in line], broker.output


def flat(instance: str, content: bytes) -> None:
    """Segments as POSIX names them: anybody may create one."""
    for number in range(2):
        (SHARED_DIR / f"shardbroker-{instance}-{MARK}-{number}").write_bytes(content)


def in_a_directory(instance: str, content: bytes) -> None:
    for place in ("rings", MARK):
        (SHARED_DIR / f"shardbroker-{instance}" / place).mkdir(parents=True)
        for number in range(2):
            (SHARED_DIR / f"shardbroker-{instance}" / place / f"inbox-{number}").write_bytes(content)


@as_a_stranger
@pytest.mark.parametrize("place", [flat, in_a_directory])
@pytest.mark.parametrize(
    "content",
    [ring(FORGED), ring(FORGED, lanes=1 << 40), ring(b"", head=1 << 40), b"", b"x"],
    ids=["forged", "many lanes", "endless", "empty", "short"],
)
def test_rings_of_another_user_are_not_read(kept: Broker, place: Callable[[str, bytes], None], content: bytes) -> None:
    by_stranger(lambda: place(instance_of(kept.data_dir), content))
    start(kept)
    assert read_by_session(kept) == []
    stop(kept)
    planted = [path for path in SHARED_DIR.glob(f"shardbroker-{instance_of(kept.data_dir)}*") if path.stat().st_uid == STRANGER]
    assert planted


@as_a_stranger
@pytest.mark.parametrize("place", [flat, in_a_directory])
def test_a_forged_name_of_a_spilled_message_reads_and_removes_nothing(
    kept: Broker, place: Callable[[str, bytes], None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    victim = tmp_path_factory.mktemp("other") / "victim"
    victim.write_bytes(FORGED)
    content = ring(encode_spilled(PUBLISH, str(victim).encode()))
    by_stranger(lambda: place(instance_of(kept.data_dir), content))
    start(kept)
    assert read_by_session(kept) == []
    stop(kept)
    assert victim.read_bytes() == FORGED


@as_a_stranger
@pytest.mark.parametrize("kind", ["directory", "file", "link", "fifo", "inbox name"])
def test_a_name_that_another_user_has_taken_does_not_stop_the_start(kept: Broker, kind: str, tmp_path: Path) -> None:
    instance = instance_of(kept.data_dir)
    path = SHARED_DIR / f"shardbroker-{instance}"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)

    def plant() -> None:
        match kind:
            case "directory":
                path.mkdir()
            case "file":
                path.write_bytes(b"x")
            case "link":
                path.symlink_to(elsewhere)
            case "fifo":
                os.mkfifo(path)
            case _:
                for name in ("inbox-x", f"{MARK}-x", "left-x"):
                    (SHARED_DIR / f"shardbroker-{instance}-{name}").write_bytes(b"x")

    by_stranger(plant)
    start(kept)
    assert read_by_session(kept) == []
    if kind != "inbox name":
        until(lambda: any("shared memory name not trusted" in line and str(path) in line for line in kept.output))
    kept.kill()  # its rings stay, and the next start finds them although the name is taken
    start(kept)
    assert read_by_session(kept) == []
    stop(kept)
    assert not list(elsewhere.iterdir())
    assert path.is_symlink() or kind == "inbox name" or path.exists()
    ours = [one for one in SHARED_DIR.glob(f"shardbroker-{instance}*") if one.lstat().st_uid == os.geteuid()]
    assert not ours


@as_a_stranger
def test_the_directory_is_closed_to_others(kept: Broker) -> None:
    start(kept)
    try:
        found = [*SHARED_DIR.glob(f"shardbroker-{instance_of(kept.data_dir)}*")]
        assert [path.stat().st_mode & 0o7777 for path in found] == [0o700]
        assert all(path.stat().st_mode & 0o077 == 0 for path in found[0].rglob("*"))
        with pytest.raises(AssertionError):
            by_stranger(lambda: print(os.listdir(found[0])))
    finally:
        kept.stop()


def test_without_the_sticky_bit_there_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "ROOT", tmp_path)
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="sticky bit"):
        runtime.make_runtime_dir("x")
    assert not list(tmp_path.iterdir())
    tmp_path.chmod(0o1777)
    assert runtime.make_runtime_dir("x").stat().st_mode & 0o7777 == 0o700


DAMAGED = {
    "short": ring(FORGED)[:100],
    "empty": b"",
    "no lanes": ring(FORGED, lanes=0),
    "many lanes": ring(FORGED, lanes=1 << 63),
    "odd lanes": ring(FORGED, lane_bytes=LANE - 8),
    "lanes that overflow": ring(FORGED, lanes=2, lane_bytes=(1 << 63) + LANE),
    "head before consumed": ring(FORGED, consumed=1 << 20),
    "more than there is room for": ring(FORGED, head=1 << 40),
    "odd head": ring(FORGED, head=3),
    "record too long": ring(FORGED, head=8).replace(struct.pack("<II", len(FORGED), 0), struct.pack("<II", 0x7FFFFFF0, 0)),
    "record without a header": ring(b"abc"),
    "texts longer than the record": ring(FORGED[:4] + struct.pack("<I", 0x7FFFFFFF) + FORGED[8:]),
    "spilled above the directory": ring(encode_spilled(PUBLISH, b"../../../../etc/hostname")),
    "spilled as a directory": ring(encode_spilled(PUBLISH, b"..")),
    "spilled without a name": ring(encode_spilled(PUBLISH, b"")),
    "spilled NUL": ring(encode_spilled(PUBLISH, b"a\0b")),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_rings_of_the_broker_that_are_damaged_end_no_worker(kept: Broker, content: bytes) -> None:
    place = SHARED_DIR / f"shardbroker-{instance_of(kept.data_dir)}" / MARK
    place.parent.mkdir(mode=0o700)
    place.mkdir(mode=0o700)
    for number in range(2):
        (place / f"inbox-{number}").touch(mode=0o600)
        (place / f"inbox-{number}").write_bytes(content)
    start(kept)
    assert read_by_session(kept) == []
    until(lambda: any("message dropped" in line or "inbox-0" in line for line in kept.output))
    assert not [line for line in kept.output if "process died" in line]
    kept.stop()


def test_sound_rings_of_the_broker_are_read(kept: Broker) -> None:
    """The tests above would pass if none was ever read."""
    place = SHARED_DIR / f"shardbroker-{instance_of(kept.data_dir)}" / MARK
    place.parent.mkdir(mode=0o700)
    place.mkdir(mode=0o700)
    for number in range(2):
        (place / f"inbox-{number}").touch(mode=0o600)
        (place / f"inbox-{number}").write_bytes(ring(FORGED) if number == 0 else ring())
    start(kept)
    assert read_by_session(kept) == [b"forged"]
    kept.stop()
