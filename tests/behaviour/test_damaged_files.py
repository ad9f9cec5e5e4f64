"""Files that are cut off, or have flipped bits: the broker starts, names the damage, and has everything outside it."""

import os
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbroker.journal import Block, Damage, read_segment
from shardbroker.journal.layout import segment_paths
from shardbroker.journal.schema import Kind
from tests.harness import Broker, Client, Publish, client_id_on, until, worker_of

pytestmark = pytest.mark.own_broker
WORKERS = 3
SESSION = {"session_expiry_interval": 1000}
QUEUED = 30
RETAINED = 400
SESSIONS = [client_id_on(number % WORKERS, WORKERS, f"s{number}x") for number in range(6)]
SEED = int(os.environ.get("DAMAGE_SEED", random.SystemRandom().getrandbits(32)))


@pytest.fixture(params=["killed", "stopped"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """With sessions that have queues, and retained messages, on all workers; not running."""
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        own = Broker(WORKERS, data_dir=Path(name))
        try:
            own.start()
            fill(own)
            if request.param == "killed":
                kill(own)
            else:
                own.stop()
            yield own
            own.stop()
        finally:
            own.kill()


def fill(broker: Broker) -> None:
    for name in SESSIONS:
        with Client(broker.address, 5, name, clean=False, properties=SESSION) as client:
            client.subscribe(f"q/{name}", 2)
    for name in SESSIONS:
        # Acknowledged by the session's own worker, so each message has a pass of its own, and a block of the journal.
        with Client(broker.address, 5, client_id_on(worker_of(name, WORKERS), WORKERS, "fills")) as publisher:
            for number in range(QUEUED):
                publisher.publish(f"q/{name}", b"%d" % number, 1 + number % 2)
    with Client(broker.address, 5) as publisher:
        for number in range(RETAINED):
            publisher.publish(f"r/{number}", b"%d " % number * (1 + number % 7 * 40), 1, retain=True)


def kill(broker: Broker) -> None:
    broker.kill()


def start(broker: Broker, told: str = "") -> str:
    """Its output so far. told: what there has to be, which the manager may write later than the broker is ready."""
    del broker.output[:]
    broker.start()
    with Client(broker.address, 5) as client:
        client.ping()
    return output_with(broker, told)


def output_with(broker: Broker, told: str) -> str:
    """Its output so far, once this is part of it."""
    until(lambda: told in "".join(broker.output), lambda: f"DAMAGE_SEED={SEED} {told}: {''.join(broker.output)}")
    return "".join(broker.output)


def queues(broker: Broker) -> dict[str, list[int]]:
    """What each session has, and is left with: all that comes before a message that is put behind it."""
    found: dict[str, list[int]] = {}
    with Client(broker.address, 5) as publisher:
        for name in SESSIONS:
            found[name] = []
            publisher.publish(f"q/{name}", b"end", 1)
            with Client(broker.address, 5, name, clean=False, properties=SESSION) as client:
                while (packet := client.expect(Publish, 20)).payload != b"end":
                    found[name].append(int(packet.payload))
    return found


def retained(broker: Broker) -> dict[int, bytes]:
    with Client(broker.address, 5) as reader:
        reader.subscribe("r/#", 0)
        found: dict[int, bytes] = {}
        while isinstance(packet := reader.recv(3 if len(found) < RETAINED else 0.5), Publish):
            found[int(packet.topic[2:])] = packet.payload
        return found


def flip(path: Path, rng: random.Random, start: int = 0, end: int | None = None) -> int:
    """One bit of a file; where."""
    size = path.stat().st_size if end is None else end
    at = rng.randrange(start, size)
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1 << rng.randrange(8)]), at)
    return at


def blocks(path: Path) -> list[Block]:
    return [item for item in read_segment(path) if isinstance(item, Block)]


def journal(broker: Broker, worker: int) -> Path:
    return segment_paths(broker.data_dir / "journal" / str(worker))[-1]


def test_a_flipped_bit_in_a_segment_costs_its_block(broker: Broker) -> None:
    """In the middle of the journal of worker 1: the damage is named, and only its sessions can miss something."""
    rng = random.Random(SEED)
    print(f"DAMAGE_SEED={SEED}")
    path = journal(broker, 1)
    # A session that is lost, or its subscription, would not get the message that ends queues().
    hit = rng.choice([block for block in blocks(path)[1:-1] if any(one.kind == Kind.QUEUED for one in block.records())])
    at = flip(path, rng, hit.offset, hit.end)
    damage = [item for item in read_segment(path) if isinstance(item, Damage) and item.error]
    assert len(damage) == 1 and damage[0].start <= at < damage[0].end
    output = start(broker, "alarm activated name=files_damaged")
    assert f"{path}: bytes {damage[0].start} to {damage[0].end - 1}" in output, (SEED, output)
    for name, got in queues(broker).items():
        assert got == sorted(got)
        if worker_of(name, WORKERS) != 1:
            assert got == list(range(QUEUED)), (SEED, name)
    assert len(retained(broker)) == RETAINED


@pytest.mark.parametrize("part", [0.0, 0.3, 0.999])
def test_a_segment_that_ends_within_its_last_block(broker: Broker, part: float) -> None:
    """What was not finished has not happened; it is no damage."""
    path = journal(broker, 2)
    last = blocks(path)[-1]
    os.truncate(path, last.offset + int(part * (last.end - last.offset)))
    assert "damaged" not in start(broker)
    for name, got in queues(broker).items():
        assert got in (list(range(QUEUED)), list(range(QUEUED - 1))), name


@pytest.mark.parametrize("name", ["workers", "1/recover-from"])
def test_damaged_notes_beside_the_journals(broker: Broker, name: str) -> None:
    """Whatever bit it is, everything is there; also if the number of workers changes at the same time."""
    rng = random.Random(SEED)
    path = broker.data_dir / "journal" / name
    if not path.exists():
        path.write_text("0\n")  # nothing was to be removed yet
    flip(path, rng)
    broker.workers = rng.choice([2, WORKERS])
    start(broker, f"{path}: damaged" if name == "workers" else "")
    assert queues(broker) == {name: list(range(QUEUED)) for name in SESSIONS}, SEED


def test_flipped_bits_in_the_file_of_retained_messages(broker: Broker) -> None:
    """Of each broken copy what can be read is kept, and nothing else is served."""
    rng = random.Random(SEED)
    print(f"DAMAGE_SEED={SEED}")
    file = broker.data_dir / "retained" / "data.mdb"
    sound = file.read_bytes()
    whole = None
    for _ in range(6):
        file.write_bytes(sound)
        for _ in range(rng.randrange(1, 4)):
            flip(file, rng)
        start(broker)
        found = retained(broker)
        for number, payload in found.items():
            assert payload == b"%d " % number * (1 + number % 7 * 40), SEED
        output = output_with(broker, "alarm activated name=files_damaged" if len(found) != RETAINED else "")
        assert len(found) > RETAINED // 2 or "SIG" in output or "cannot" in output or "nothing of it" in output, (SEED, output)
        with Client(broker.address, 5) as publisher:
            publisher.publish("r/0", b"0 ", 1, retain=True)
        whole = queues(broker) if whole is None else whole
        kill(broker)
    assert whole == {name: list(range(QUEUED)) for name in SESSIONS}
    start(broker)


def test_what_the_broker_skips_a_repair_mends(broker: Broker) -> None:
    path = journal(broker, 0)
    flip(path, random.Random(SEED), blocks(path)[2].offset, blocks(path)[3].end)
    command = [broker.command()[0], "journal"]
    assert subprocess.run([*command, "verify", str(path.parent)], capture_output=True).returncode == 1
    assert subprocess.run([*command, "repair", str(path.parent)], capture_output=True).returncode == 0
    assert "damaged" not in start(broker)
