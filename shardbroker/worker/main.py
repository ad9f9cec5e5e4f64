"""Entry point of a worker process."""

import gc
import signal

from shm.counters import Counters, ProcessState
from shm.epochs import Epochs
from shm.ring import Inbox

from shardbroker.worker.loop import Loop
from shm.registry import Registry
from shm.retained import RetainedStore
from shm.routes import RouteTable, worker_destination
from shm.topology import Topology

__all__ = ["run"]


def run(topology: Topology, number: int) -> None:
    """Serves as worker `number` until SIGTERM; returns after the drain.

    The sessions of a worker that died are gone with it, so what it left in the route table goes first.
    """
    counters = Counters.attach(topology.counters_name)
    counters.reset_gauges(number)
    counters.set_state(number, ProcessState.STARTING)
    routes = RouteTable(topology.routes_dir)
    routes.purge(worker_destination(number))
    epochs = Epochs.attach(topology.epochs_name)
    epochs.bump_all()
    loop = Loop(
        topology,
        number,
        counters,
        routes,
        RetainedStore(topology.retained_dir, max_messages=topology.settings.retainer.max_messages),
        epochs,
        Registry(topology.registry_dir(number), create=True),
        Inbox.attach(topology.inbox_name(number)),
    )

    def drain(_signal: int, _frame: object) -> None:
        loop.draining = True

    signal.signal(signal.SIGTERM, drain)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The data plane's objects form no lasting cycles; a collection over a million sessions would stop the loop.
    gc.collect()
    gc.freeze()
    gc.disable()
    counters.set_state(number, ProcessState.READY)
    loop.run()
    counters.set_state(number, ProcessState.DOWN)
