"""What a worker does before it serves: its sessions come back from the journal, and the journal goes on."""

import time
from contextlib import suppress

from shm.counters import Counters
from shm.records import DAMAGE
from shm.ring import Inbox

from shardbroker.journal import open_journal
from shardbroker.journal.layout import segment_paths
from shardbroker.journal.recorder import JournalRecorder
from shardbroker.worker.one_pass import Worker
from shardbroker.worker.recovery import Recovery
from shm.partitions import workers_of
from shm.topology import Topology

__all__ = ["recover"]

DAMAGE_LINES = 20
"""Damaged places that are told one by one."""
BLOCK_BYTES = 1 << 30
"""A pass of the loop is one block, whatever it holds: it happened, or it did not."""
RETRY_S = 0.1
"""Between two tries to write what was recovered, while the disk refuses."""


def recover(worker: Worker, topology: Topology, number: int, inbox: Inbox) -> None:
    """Makes the sessions of worker `number` again and opens its journal. Raises JournalBusy, OSError."""

    def owns(client_id: bytes) -> bool:
        return topology.division.worker_of(client_id) == number

    # Once all have served, each has its sessions in its own journal; what others have of them is old.
    moving = topology.written_by not in (0, topology.division.number) and not Counters.attach(topology.counters_name).serving
    recovery = Recovery(worker, owns)
    own = topology.journal_dir(number)
    others = [other for other in range(max(workers_of(topology.written_by), topology.workers)) if other != number]
    sources = [source for source in (*others, number) if topology.journal_dir(source).exists()] if moving else [number]
    if moving:
        for source in sources:
            recovery.compare(topology.journal_dir(source), source)
    for source in sources:
        with suppress(FileNotFoundError):
            recovery.replay(topology.journal_dir(source), source)
    _tell_damage(worker, [str(damage) for damage in recovery.damage if damage.error])
    recovery.take_own_ring(inbox)
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
        recorder, sum(path.stat().st_size for path in segment_paths(own)), recovery.latest_arrivals(inbox)
    )
    if synced:
        worker.durability.guard_outputs()
    recovery.finish()
    old_rings = {}
    for left_over in topology.left_over:
        for process, name in enumerate(left_over.inboxes[:-1]):  # the last one is the manager's
            try:
                old = Inbox.attach(name)
            except FileNotFoundError:
                continue  # everybody has served for a while: what was in it is in the journals
            except (OSError, ValueError) as error:
                worker.log(DAMAGE, f"ring of a broker that was killed: {error}; messages in it are lost")
                continue
            if len(old.lanes) != len(left_over.inboxes):
                continue  # that broker was killed while it made or removed them
            old_rings[old.identity, process] = old
            if process == number or moving:
                recovery.take_old_rings(old, process, left_over.spill_dir)
    if moving:
        recovery.take_forwarded(old_rings)
        worker.durability.save_sessions()
        recovery.note_connected()
    counters = Counters.attach(topology.counters_name)
    while not worker.settle_now():
        counters.beat(number, time.monotonic_ns() // 1_000_000)
        time.sleep(RETRY_S)  # the alarm says why; the others go on without this worker
    for process in range(topology.workers):
        if process != number:
            other = Inbox.attach(topology.inbox_name(process))
            old_rings[other.identity, process] = other
    if not moving:
        recovery.ask_others(old_rings, topology.journal_dir)
    worker.started = lambda: recovery.resume(old_rings)


def _tell_damage(worker: Worker, damages: list[str]) -> None:
    for text in damages[:DAMAGE_LINES]:
        worker.log(DAMAGE, text)
    if len(damages) > DAMAGE_LINES:
        worker.log(DAMAGE, f"{len(damages) - DAMAGE_LINES} more damaged places; `shardbroker journal verify` names all")
