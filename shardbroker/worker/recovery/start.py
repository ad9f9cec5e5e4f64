"""The steps of a start, before the worker serves."""

import time
from contextlib import suppress

from shardbroker.journal import open_journal
from shardbroker.journal.layout import segment_paths
from shardbroker.journal.recorder import JournalRecorder
from shardbroker.worker.one_pass import Worker
from shardbroker.worker.recovery.repartition import Repartition
from shardbroker.worker.recovery.replay import Replay
from shardbroker.worker.recovery.rings import RingRecovery
from shardbroker.worker.recovery.sessions import record_sessions, resume_sessions
from shm.counters import Counters
from shm.partitions import workers_of
from shm.records import DAMAGE
from shm.ring import Inbox
from shm.topology import Topology

__all__ = ["recover"]

DAMAGE_LINES = 20
"""Damaged places that have a log line of their own."""
BLOCK_BYTES = 1 << 30
"""Largest block: a pass is one block, whatever it holds."""
RETRY_S = 0.1
"""Between two tries to write what was recovered, while the disk refuses."""


def recover(worker: Worker, topology: Topology, number: int, inbox: Inbox) -> None:
    """Recovers the sessions of worker `number` and opens its journal. Raises JournalBusy, OSError."""

    def owns(client_id: bytes) -> bool:
        return topology.division.worker_of(client_id) == number

    # Once all workers have served, each has its sessions in its own journal; what other journals have of them is old.
    moving = topology.written_by not in (0, topology.division.number) and not Counters.attach(topology.counters_name).serving
    replay = Replay(worker, owns)
    repartition = Repartition(replay)
    rings = RingRecovery(replay, repartition)
    own = topology.journal_dir(number)
    others = [other for other in range(max(workers_of(topology.written_by), topology.workers)) if other != number]
    sources = [source for source in (*others, number) if topology.journal_dir(source).exists()] if moving else [number]
    if moving:
        for source in sources:
            replay.compare(topology.journal_dir(source), source)
    for source in sources:
        with suppress(FileNotFoundError):
            replay.read(topology.journal_dir(source), source)
    _log_damage(worker, [str(damage) for damage in replay.damage if damage.error])
    rings.take_own_ring(inbox)
    synced = topology.settings.durability.level == "machine"
    journal = open_journal(
        own,
        worker=number,
        workers=topology.workers,
        node_id=topology.node_id,
        block_bytes=BLOCK_BYTES,
        sync=synced,
        bell=topology.doorbells[number],
        segment_bytes=topology.settings.journal.segment_bytes,
        pending_max=topology.settings.durability.max_pending_bytes,
    )
    recorder = JournalRecorder(journal)
    worker.durability.keep_journal(
        recorder, sum(path.stat().st_size for path in segment_paths(own)), rings.latest_arrivals(inbox)
    )
    if synced:
        worker.durability.guard_outputs()
    record_sessions(replay)
    old_rings = {}
    for left_over in topology.left_over:
        for process, name in enumerate(left_over.inboxes[:-1]):  # the last one is the manager's
            try:
                old = Inbox.attach(name)
            except FileNotFoundError:
                continue  # all workers have served for a while: what was in it is in the journals
            except (OSError, ValueError) as error:
                worker.router.log(DAMAGE, f"ring of a broker that was killed: {error}; messages in it are lost")
                continue
            if len(old.lanes) != len(left_over.inboxes):
                continue  # that broker was killed while it made or removed them
            old_rings[old.identity, process] = old
            if process == number or moving:
                rings.take_old_rings(old, process, left_over.spill_dir)
    if moving:
        repartition.take_forwarded(old_rings)
        worker.durability.save_sessions()
        repartition.note_connected()
    counters = Counters.attach(topology.counters_name)
    while not worker.durability.settle_now():
        counters.beat(number, time.monotonic_ns() // 1_000_000)
        time.sleep(RETRY_S)  # the alarm has the reason; the other workers go on without this one
    for process in range(topology.workers):
        if process != number:
            other = Inbox.attach(topology.inbox_name(process))
            old_rings[other.identity, process] = other
    if not moving:
        rings.query_others(old_rings, topology.journal_dir)

    def resume() -> None:
        rings.forward_again(old_rings)
        repartition.record_moved()
        resume_sessions(replay)
        replay.clear()

    worker.started = resume


def _log_damage(worker: Worker, damages: list[str]) -> None:
    for text in damages[:DAMAGE_LINES]:
        worker.router.log(DAMAGE, text)
    if len(damages) > DAMAGE_LINES:
        worker.router.log(DAMAGE, f"{len(damages) - DAMAGE_LINES} more damaged places; `shardbroker journal verify` names all")
