"""Entry point of a worker process."""

import gc
import signal
from dataclasses import replace

from shm.counters import Counters, ProcessState
from shm.epochs import Epochs
from shm.ring import Inbox

from shardbroker.config import machine_memory, mark_bytes
from shardbroker.config.live import in_force
from shardbroker.worker.commands import Commands
from shardbroker.worker.loop import Loop
from shardbroker.worker.memory import MemoryWatch, memory_share
from shardbroker.worker.recover import recover
from shardbroker.worker.retaining import SyncedRetained
from shm.registry import Registry
from shm.retained import RetainedStore
from shm.routes import RouteTable, worker_destination
from shm.topology import Topology

__all__ = ["run"]


def _retained(topology: Topology, number: int) -> RetainedStore | SyncedRetained:
    sync = topology.settings.durability.level == "machine"
    store = RetainedStore(topology.retained_dir, max_messages=topology.settings.retainer.max_messages, sync=sync)
    return SyncedRetained(store, number, topology.doorbells[number]) if sync else store


def run(topology: Topology, number: int) -> None:
    """Serves as worker `number` until SIGTERM; returns after the drain.

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
    mark = mark_bytes(topology.settings.overload.memory_high_water, machine_memory())
    loop = Loop(
        topology,
        number,
        counters,
        routes,
        _retained(topology, number),
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
    loop.on_command = Commands(loop, topology.spill_dir)
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
    loop.run()
    counters.set_state(number, ProcessState.DOWN)
