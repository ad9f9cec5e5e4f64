"""Recovery without a broker around it, so often that every byte gets its turn: whatever is broken, sessions are back."""

import gc
import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from shardbroker.config import Settings
from shardbroker.journal import Block, read_segment
from shardbroker.journal.layout import segment_paths
from shardbroker.stores.registry import Registry
from shardbroker.stores.retained import RetainedStore
from shardbroker.supervisor.layout import lay_out, tear_down
from shardbroker.worker.assembly import assemble
from shardbroker.worker.memory import MemoryWatch
from shardbroker.worker.recovery.replay import Replay
from shm.counters import Counters
from shm.epochs import Epochs
from shm.ring import Inbox
from shm.routes import RouteTable
from tests.harness import Broker, Client
from tests.harness.wire import Will

pytestmark = pytest.mark.own_broker
SESSION = {"session_expiry_interval": 1000}
SEED = int(os.environ.get("DAMAGE_SEED", random.SystemRandom().getrandbits(32)))
FLIPS = 200
NAMES = {b"first", b"second", b"third"}


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a broker that was killed: sessions with subscriptions, wills, queues and deliveries in flight, in some dozen blocks."""
    directory = tmp_path_factory.mktemp("broker")
    broker = Broker(1, data_dir=directory)
    try:
        broker.start()
        for name in sorted(NAMES):
            will = Will(f"will/{name.decode()}", b"gone", 1)
            client = Client(broker.address, 5, name.decode(), clean=False, properties=SESSION, will=will, auto_ack=False)
            with client, Client(broker.address, 5) as publisher:
                client.subscribe("q/#", 2)
                for number in range(6):
                    publisher.publish(f"q/{number}", b"%d" % number, 1 + number % 2)
                client.ping()
    finally:
        broker.kill()
        broker.clear_shared()
    return segment_paths(directory / "journal" / "0")[-1]


class Outcome(NamedTuple):
    records: int
    damages: int
    errors: int
    sessions: set[bytes]


Recover = Callable[[Path], Outcome]


def in_a_process_of_its_own(work: Callable[[], Outcome]) -> Outcome:
    """A worker's loop ends with its process, and so it does here."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, pickle.dumps(tuple(work())))
        except BaseException as error:
            os.write(writing, pickle.dumps(repr(error)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0 and answer, f"it died: {status}"
    found = pickle.loads(answer)
    assert isinstance(found, tuple), found
    return Outcome(*found)


@pytest.fixture(scope="module")
def recover(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recover]:
    """Recovers the journal in a directory."""
    data_dir = tmp_path_factory.mktemp("data")
    settings = Settings.model_validate(
        {"process": {"data_dir": data_dir, "workers": 1, "acceptors": 1}, "listeners": {"default": {"bind": "127.0.0.1:0"}}}
    )
    topology = lay_out(settings, [0])
    try:
        counters = Counters.attach(topology.counters_name)
        routes, retained = RouteTable(topology.routes_dir), RetainedStore(topology.retained_dir)
        epochs, inbox = Epochs.attach(topology.epochs_name), Inbox.attach(topology.inbox_name(0))
        registry = Registry(topology.registry_dir(0), create=True)

        def recovered(directory: Path) -> Outcome:
            gc.disable()  # as in a worker
            memory = MemoryWatch(counters, 0, 1, 0)
            loop = assemble(topology, 0, counters, routes, retained, epochs, registry, inbox, memory)
            replay = Replay(loop, lambda client_id: True)
            replay.read(directory, 0)
            return Outcome(replay.records, len(replay.damage), sum(one.error for one in replay.damage), set(loop.router.sessions))

        yield lambda directory: in_a_process_of_its_own(lambda: recovered(directory))
        routes.close()
        retained.close()
        registry.close()
    finally:
        tear_down(topology)


def test_every_length_of_the_last_block(segment: Path, recover: Recover, tmp_path: Path) -> None:
    """What was not finished has not happened; all before it has, and nothing of it is called damaged."""
    copy = tmp_path / segment.name
    shutil.copyfile(segment, copy)
    blocks = [item for item in read_segment(segment) if isinstance(item, Block)]
    whole = recover(tmp_path)
    assert whole.sessions == NAMES and not whole.damages
    for size in range(blocks[-1].end - 1, blocks[-1].offset - 1, -1):
        os.truncate(copy, size)
        found = recover(tmp_path)
        assert found.sessions == NAMES, size
        assert found.records == whole.records - blocks[-1].header.count, size
        assert not found.errors, size


def test_a_bit_anywhere(segment: Path, recover: Recover, tmp_path: Path) -> None:
    """Never an error, always a name for it; only the sessions whose records were hit can be missing."""
    rng = random.Random(SEED)
    sound = segment.read_bytes()
    blocks = [item for item in read_segment(segment) if isinstance(item, Block)]
    total = sum(block.header.count for block in blocks)
    copy = tmp_path / segment.name
    for _ in range(FLIPS):
        broken = bytearray(sound)
        at = rng.randrange(len(broken))
        broken[at] ^= 1 << rng.randrange(8)
        copy.write_bytes(broken)
        found = recover(tmp_path)
        hit = [block for block in blocks if block.offset <= at < block.end]
        assert found.damages, (SEED, at)
        assert found.records >= total - sum(block.header.count for block in hit), (SEED, at)
        assert len(NAMES - found.sessions) <= len(hit), (SEED, at)
