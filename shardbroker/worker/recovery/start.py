"""The steps of a start, before the worker serves."""

import time
from contextlib import suppress
from pathlib import Path

from shardbroker.journal import open_journal
from shardbroker.journal.layout import segment_paths
from shardbroker.journal.recorder import JournalRecorder
from shardbroker.journal.schema import DeferredFor
from shardbroker.worker.handoff.arrival import Arrival
from shardbroker.worker.handoff.successor import Succession
from shardbroker.worker.one_pass import Worker
from shardbroker.worker.recovery.repartition import Repartition
from shardbroker.worker.recovery.replay import Replay
from shardbroker.worker.recovery.rings import RingRecovery
from shardbroker.worker.recovery.sessions import record_sessions, resume_sessions
from shm.counters import Counters
from shm.destinations import DestinationKind, destination
from shm.partitions import PARTITIONS, workers_of
from shm.records import DAMAGE
from shm.ring import Inbox
from shm.roles import LINK, MANAGER, WORKER
from shm.topology import PEER_INBOX, LeftOver, Topology

__all__ = ["recover", "take_over"]

DAMAGE_LINES = 20
"""Damaged places that have a log line of their own."""
BLOCK_BYTES = 1 << 30
"""Largest block: a pass is one block, whatever it holds."""
LANES_BEFORE_LINKS = 2
"""Lanes between those of workers and those with messages of other nodes: the manager, and the link process for signals."""
RETRY_S = 0.1
"""Between two tries to write what was recovered, while the disk refuses."""


def recover(worker: Worker, topology: Topology, number: int, inbox: Inbox, succession: Succession | Arrival | None = None) -> None:
    """Recovers the sessions of worker `number` and opens its journal. Raises JournalBusy, OSError.

    succession: the worker replaces a running one, or some of all. Until it commits, nothing that is shared is written.
    """

    def owns(client_id: bytes) -> bool:
        return topology.division.worker_of(client_id) == number

    # Once all workers have served, each has its sessions in its own journal; what other journals have of them is old.
    written_by = topology.division.number if Counters.attach(topology.counters_name).serving else topology.written_by
    moving = written_by not in (0, topology.division.number)
    replay = Replay(worker, owns, written_by if workers_of(written_by) <= PARTITIONS else 0)
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
    if succession is not None:
        succession.adopt(replay)
        succession.commit()
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
    recorder = JournalRecorder(journal, topology.division.number)
    worker.durability.keep_journal(
        recorder, sum(path.stat().st_size for path in segment_paths(own)), rings.latest_arrivals(inbox)
    )
    worker.durability.streams.restore(replay.stream_positions())
    if synced:
        worker.durability.guard_outputs()
    record_sessions(replay, isinstance(succession, Succession) and not replay.damage)
    if succession is not None:
        succession.finish(worker)
    if moving:
        repartition.take_deferred(DeferredFor.LOCAL)  # each was in its ring before what is there now
    old_rings = {}
    for left_over in topology.left_over:
        workers, first_link, end_links = _lanes_of(left_over, topology)
        for process, name in enumerate(left_over.inboxes[:workers]):
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
                rings.take_old_rings(old, process, left_over.spill_dir, first_link, end_links)
        for name in left_over.peers:
            _attach_peer(worker, old_rings, name)
    if moving:
        repartition.take_forwarded(old_rings)
        repartition.take_deferred(DeferredFor.RING)
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
    for path in topology.rings_dir.glob(f"{PEER_INBOX}*"):
        _attach_peer(worker, old_rings, str(path))
    if not moving:
        rings.query_others(old_rings, topology.journal_dir)

    def resume() -> None:
        rings.forward_again(old_rings)
        repartition.record_moved()
        resume_sessions(replay)
        replay.clear()
        if succession is not None:
            succession.serves(worker)

    worker.started = resume


def take_over(worker: Worker, topology: Topology, number: int, inbox: Inbox, succession: Succession | Arrival) -> None:
    """Takes the sessions of the workers that this one replaces, without a journal (level `none`)."""
    replay = Replay(worker, lambda client_id: topology.division.worker_of(client_id) == number, 0)
    succession.adopt(replay)
    succession.commit()
    RingRecovery(replay, Repartition(replay)).take_own_ring(inbox)
    succession.finish(worker)

    def resume() -> None:
        resume_sessions(replay)
        replay.clear()
        succession.serves(worker)

    worker.started = resume


def _attach_peer(worker: Worker, rings: dict[tuple[int, int], Inbox], name: str) -> None:
    """Adds rings to another node to `rings`: they show which messages for it have left this worker."""
    node = int(Path(name).name.removeprefix(PEER_INBOX).partition("-")[0])
    try:
        inbox = Inbox.attach(name)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        worker.router.log(DAMAGE, f"ring to a node: {error}; messages in it are lost")
        return
    rings[inbox.identity, destination(DestinationKind.NODE, node)] = inbox


def _lanes_of(left_over: LeftOver, topology: Topology) -> tuple[int, int, int]:
    """Returns the number of workers of a broker that was killed, and where lanes of its links with messages begin and end."""
    if not left_over.roles:
        workers = _workers_of(left_over, topology)
        return workers, workers + LANES_BEFORE_LINKS, len(left_over.inboxes)
    workers, links = left_over.roles.count(WORKER), left_over.roles.count(LINK)
    behind_manager = left_over.roles.index(MANAGER) + 1
    return workers, behind_manager + min(links, 1), behind_manager + links


def _workers_of(left_over: LeftOver, topology: Topology) -> int:
    """Returns the number of workers of a broker that noted no roles: behind their inboxes are the manager's and those of links."""
    found = len(left_over.inboxes) - 1
    links = max((int(peer.rpartition("-")[2]) for peer in left_over.peers), default=0)
    if links:
        return found - links - 1
    known = workers_of(topology.written_by)
    return min(found, known) if topology.links and known else found


def _log_damage(worker: Worker, damages: list[str]) -> None:
    for text in damages[:DAMAGE_LINES]:
        worker.router.log(DAMAGE, text)
    if len(damages) > DAMAGE_LINES:
        worker.router.log(DAMAGE, f"{len(damages) - DAMAGE_LINES} more damaged places; `shardbroker journal verify` names all")
