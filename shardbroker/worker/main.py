"""Entry point of a worker process."""

import gc
import signal
import sys
from dataclasses import replace
from pathlib import Path

from shm.counters import Counters, ProcessState
from shm.epochs import Epochs
from shm.records import DAMAGE
from shm.ring import Inbox

from shardbroker.access.gate import Gate
from shardbroker.config import machine_memory, mark_bytes
from shardbroker.config.live import InForce, in_force
from shardbroker.worker.commands import Commands
from shardbroker.worker.loop import Loop
from shardbroker.worker.memory import MemoryWatch, memory_share
from shardbroker.worker.mounted import mounted_connection
from shardbroker.worker.recover import recover
from shardbroker.worker.retaining import SyncedRetained
from shm.registry import Registry
from shm.retained import RetainedStore, RetainedStoreRefused
from shm.routes import RouteTable, worker_destination
from shm.topology import Topology

__all__ = ["run"]


def _retained(topology: Topology, number: int) -> tuple[RetainedStore | SyncedRetained, Path | None]:
    """The store, and where a damaged one was put that it takes the place of."""
    sync = topology.settings.durability.level == "machine"
    retainer = topology.settings.retainer
    store = RetainedStore(
        topology.retained_dir, max_messages=retainer.max_messages, max_bytes=retainer.max_total_bytes, sync=sync
    )  # fmt: skip
    return SyncedRetained(store, number, topology.doorbells[number]) if sync else store, store.set_aside


def run(topology: Topology, number: int) -> None:
    """Serves as worker `number` until SIGTERM; returns after the drain. Ends with one line if the disk does not let it start."""
    try:
        loop = _start(topology, number)
    except (OSError, RetainedStoreRefused) as error:
        sys.exit(f"worker-{number} cannot start: {error}")
    loop.run()
    Counters.attach(topology.counters_name).set_state(number, ProcessState.DOWN)


def _start(topology: Topology, number: int) -> Loop:
    """Everything up to the first pass.

    Its sessions are those of its journal. Until they are there again the route table stays as a predecessor left it, and what
    others publish for them waits in the rings.
    """
    topology = replace(topology, settings=in_force(topology.runtime_dir, topology.settings))
    counters = Counters.attach(topology.counters_name)
    counters.reset_gauges(number)
    counters.set_state(number, ProcessState.STARTING)
    routes = RouteTable(topology.routes_dir)
    epochs = Epochs.attach(topology.epochs_name)
    inbox = Inbox.attach(topology.inbox_name(number))
    retained, set_aside = _retained(topology, number)
    mark = mark_bytes(topology.settings.overload.memory_high_water, machine_memory())
    loop = Loop(
        topology,
        number,
        counters,
        routes,
        retained,
        epochs,
        Registry(topology.registry_dir(number), create=True),
        inbox,
        MemoryWatch(
            counters,
            number,
            topology.workers,
            memory_share(topology, mark),
            [folder / "data.mdb" for folder in (topology.routes_dir, *map(topology.registry_dir, range(topology.workers)))],
        ),
    )
    loop.mounted_connection = mounted_connection
    loop.on_command = Commands(loop, topology.spill_dir)
    if set_aside is not None:
        loop.tell(DAMAGE, f"{set_aside}/data.mdb: damaged; no message is retained any more")
    settings = InForce(topology.runtime_dir, topology.settings)
    loop.check_access(Gate(settings, topology.data_dir, topology.runtime_dir, topology.access[number][0]))
    # The data plane's objects form no lasting cycles; a collection over a million sessions would stop the loop, and many of them
    # take a fifth of the time of a recovery.
    gc.collect()
    gc.disable()
    if topology.settings.durability.level == "none":
        routes.purge(worker_destination(number))
    else:
        recover(loop, topology, number, inbox)
    epochs.bump_all()

    def drain(_signal: int, _frame: object) -> None:
        loop.draining = True

    signal.signal(signal.SIGTERM, drain)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    counters.set_state(number, ProcessState.READY)
    return loop
