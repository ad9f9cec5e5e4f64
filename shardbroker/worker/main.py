"""Entry point of a worker process."""

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import shardbroker.worker.claim_commands
import shardbroker.worker.handoff.commands
import shardbroker.worker.observers.commands  # noqa: F401 - registers them
from shardbroker.access.auth_client import AuthClient
from shardbroker.access.contract import Client
from shardbroker.access.wire import Kind
from shardbroker.config import machine_memory, mark_bytes
from shardbroker.hooks.exhook import ExHook, presumed
from shardbroker.hooks.plugins import PluginError, own_settings
from shardbroker.hooks.wanted import read_wanted
from shardbroker.logs.phrases import Line, log_line, print_line
from shardbroker.stores.evacuation import read_evacuation
from shardbroker.stores.exclusive import ExclusiveTable
from shardbroker.stores.fed_events import read_fed_events
from shardbroker.stores.registry import Registry
from shardbroker.stores.replicated import retained_store
from shardbroker.stores.retained import RetainedStore, RetainedStoreRefused
from shardbroker.stores.stream_definitions import read_streams
from shardbroker.stores.trace_state import OF_RULES, read_traced
from shardbroker.worker.assembly import assemble
from shardbroker.worker.commands import Commands
from shardbroker.worker.drain import drain as drain_worker
from shardbroker.worker.evacuation import Evacuation
from shardbroker.worker.event_feed import EventFeed
from shardbroker.worker.features.mountpoint import mounted_connection
from shardbroker.worker.handoff.arrival import Arrival
from shardbroker.worker.handoff.departure import depart
from shardbroker.worker.handoff.predecessor import hand_over
from shardbroker.worker.handoff.protocol import receive_end
from shardbroker.worker.handoff.successor import Succession
from shardbroker.worker.hook_dispatch import HookDispatcher
from shardbroker.worker.memory import MemoryWatch, memory_share
from shardbroker.worker.observers.observers import Observers
from shardbroker.worker.one_pass import Worker
from shardbroker.worker.recovery.start import recover, take_over
from shardbroker.worker.retaining import SyncedRetained
from shm.counters import Counters, ProcessState
from shm.destinations import worker_destination
from shm.epochs import Epochs
from shm.in_force import InForce
from shm.peers import HandoffError
from shm.records import DAMAGE
from shm.remote_routes import RemoteRoutes
from shm.ring import Inbox
from shm.roles import LINK
from shm.routes import RouteTable
from shm.topology import Topology

if TYPE_CHECKING:
    from shardbroker.cluster.claims import LateQueues
    from shardbroker.worker.cluster_sessions import ClusterSessions

__all__ = ["run"]


def _retained(topology: Topology, number: int) -> tuple[RetainedStore | SyncedRetained, Path | None]:
    """The store, and where a damaged one was put that it takes the place of."""
    retainer = topology.settings.retainer
    store = retained_store(topology, max_messages=retainer.max_messages, max_bytes=retainer.max_total_bytes)
    sync = topology.settings.durability.level == "machine"
    return SyncedRetained(store, number, topology.doorbells[number]) if sync else store, store.set_aside


def _load_plugins(hooked: HookDispatcher, topology: Topology, log: Callable[[str, Line], None]) -> None:
    """Those that were loaded before it was started; what cannot be loaded is told."""
    settings = topology.settings.plugins
    try:
        wanted = read_wanted(topology.data_dir)
    except PluginError as error:
        log("error", log_line("plugins not loaded", reason=error))
        return
    given = {name: {**own_settings(settings.settings, name), **own} for name, own in wanted.items()}
    hooked.plugins.start(given, settings.dir)


def _join_exhook(hooked: HookDispatcher, worker: Worker, topology: Topology, number: int, counters: Counters) -> None:
    """Programs outside take part in hooks, behind plugins. What they want says the process integrations, later too."""
    gate = worker.router.access_gate
    (events,) = topology.sending_ends("events", number)
    exhook = ExHook(hooked.registry, gate.request, events, partial(counters.access_changed, rules=True), worker.router.log)
    hooked.exhook = gate.on_wanted = exhook
    exhook.take(presumed(topology.settings.exhook.enabled))
    gate.request(Kind.HOOKS, exhook, Client(""), [], 0.0)


def _feed_events(hooked: HookDispatcher, worker: Worker, topology: Topology) -> EventFeed:
    """Returns what journals events for rules, once it is told which."""
    addresses = {name: listener.bind for name, listener in topology.settings.listeners.items()}
    hooked.event_feed = feed = EventFeed(hooked.registry, hooked.journal_event, hooked.now_ms, addresses)
    feed.holds_back = worker.router.lookups.holds_back
    return feed


def _read_orders(worker: Worker, feed: EventFeed, observers: Observers, topology: Topology) -> None:
    """Puts in force what the manager has ordered. Read at the moment from which on the worker takes commands: those before it are
    dropped, and their content is in the files already."""
    recovered = worker.started

    def start() -> None:
        feed.take(read_fed_events(topology.runtime_dir))
        worker.router.journal_replays.take_streams(read_streams(topology.runtime_dir))
        observers.traces.set([one for one in read_traced(topology.runtime_dir) or [] if one["type"] != OF_RULES])
        evacuated = read_evacuation(topology.data_dir)
        if evacuated is not None and evacuated.turns_away(time.time_ns() // 1_000_000):
            worker.evacuation.begin(evacuated.redirect_to.encode())
        if recovered is not None:
            recovered()

    worker.started = start


def _cluster_sessions(
    worker: Worker, topology: Topology, number: int, counters: Counters, in_force: InForce, begins: bool
) -> "ClusterSessions | None":
    """Returns what lets the sessions of this worker move between nodes, or None. begins: it replaces no other process."""
    cluster = topology.settings.cluster
    if not cluster.enable or cluster.registry == "off":
        return None
    # Loaded here: 4 MB that a broker without them does not need.
    from shardbroker.cluster.claims import ClaimSettings
    from shardbroker.cluster.clock import HybridClock
    from shardbroker.cluster.handshake import cluster_uuid
    from shardbroker.cluster.sessions import NodeSessions
    from shardbroker.link.session_channel import SessionChannel
    from shardbroker.worker.cluster_sessions import ClusterSessions

    clock = HybridClock()
    partitions = [partition for partition, owner in enumerate(topology.division.owners) if owner == number]

    def settings() -> ClaimSettings:
        return ClaimSettings(*in_force.settings.cluster.lost_policy)

    def core(queues: "LateQueues") -> NodeSessions:
        return NodeSessions(topology.node_id, queues, clock, settings, partitions=partitions, number=time.time_ns() // 1000)

    _, *data_links = (place.slot for place in topology.places_of(LINK))

    def lags() -> bool:
        return any(counters.state(slot) != ProcessState.READY or counters.lagging(slot) for slot in data_links)

    channel = SessionChannel(topology.sending_ends("sessions", number)[0], clock, begins=begins)
    uuid = topology.cluster_uuid or cluster_uuid(cluster.name)
    return ClusterSessions(worker.router, channel, core, uuid, topology.division.owners, lags)


def run(topology: Topology, number: int) -> None:
    """Serves as worker `number` until SIGTERM; returns after the drain. Ends with one line if the disk does not let it start."""
    try:
        worker = _start(topology, number)
    except (OSError, RetainedStoreRefused) as error:
        print_line("error", f"worker-{number}", log_line("process not started", reason=error))
        sys.exit(1)
    _serve(worker)
    drain_worker(worker)
    Counters.attach(topology.counters_name).set_state(number, ProcessState.DOWN)


def _serve(worker: Worker) -> None:
    """Serves until SIGTERM. Ends the process if others have replaced it."""
    successors: list[tuple[int, bool]] = []
    is_stopped = False

    def stop(_signal: int, _frame: object) -> None:
        nonlocal is_stopped
        is_stopped = worker.draining = True

    def replace_by(channel: int) -> None:
        try:
            ends, departs = receive_end(channel)
        except HandoffError as error:
            worker.router.log("error", log_line("worker not replaced", reason=error))
            return
        if is_stopped:
            for end in ends:
                os.close(end)
            return
        successors.extend((end, departs) for end in ends)
        worker.draining = worker.draining or bool(ends)

    is_stopped = worker.draining
    signal.signal(signal.SIGTERM, stop)
    is_stopped = is_stopped or worker.draining
    (succession,) = worker.topology.receiving_ends("successions", worker.number)
    worker.listen_for(succession, replace_by)
    while not is_stopped:
        worker.run()
        while successors and not is_stopped:
            end, departs = successors.pop()
            if depart(worker, end) if departs else hand_over(worker, end):
                os._exit(0)  # nothing here is this process's any more
        worker.draining = False  # a signal from here on sets it again, and one before has set the other


def _start(topology: Topology, number: int) -> Worker:
    """Everything up to the first pass.

    Its sessions are those of its journal. Until they are there again the route table stays as a predecessor left it, and what
    others publish for them waits in the rings.
    """
    counters = Counters.attach(topology.counters_name)
    in_force = InForce(topology, counters, number)
    succession = None if topology.predecessor is None else Succession(topology.predecessor, number)
    arrival = Arrival(topology.arrivals, number, counters) if topology.arrivals else None
    taken = succession or arrival
    topology = replace(topology, settings=in_force.settings, predecessor=None, arrivals=())
    if succession is None:
        counters.reset_gauges(number)
        counters.set_state(number, ProcessState.STARTING)
    remote = RemoteRoutes(topology.remote_routes_dir) if topology.links else None
    bell = topology.doorbells[topology.slot_of("link")] if topology.links else -1
    routes = RouteTable(topology.routes_dir, log=remote is not None, remote=remote, node=topology.node_id, bell=bell)
    epochs = Epochs.attach(topology.epochs_name)
    inbox = Inbox.attach(topology.inbox_name(number))
    retained, set_aside = _retained(topology, number)
    mark = mark_bytes(topology.settings.overload.memory_high_water, machine_memory())
    worker = assemble(
        topology,
        number,
        counters,
        routes,
        retained,
        epochs,
        Registry(topology.registry_dir(number), create=succession is None),
        inbox,
        MemoryWatch(
            counters,
            number,
            topology.workers,
            memory_share(topology, mark),
            [folder / "data.mdb" for folder in (topology.routes_dir, *map(topology.registry_dir, range(topology.workers)))],
        ),
    )

    def drain(_signal: int, _frame: object) -> None:
        worker.draining = True

    worker.intake.mounted_connection = mounted_connection
    worker.command_queue.execute = Commands(worker, topology.spill_dir)
    worker.in_force = in_force
    worker.holds_clients = arrival is not None
    worker.evacuation = Evacuation(worker)
    observers = Observers(worker.router, number, topology.workers)
    observers.configure(topology.settings)
    (access,) = topology.sending_ends("access", number)
    gate = AuthClient(lambda: in_force.settings, topology.data_dir, topology.runtime_dir, access)
    worker.access_checks.begin(gate, in_force.settings)
    cluster = topology.settings.cluster
    if cluster.enable and cluster.suback == "cluster":
        worker.hold_subacks(topology.sending_ends("subacks", number)[0])
    # The data plane's objects form no lasting cycles; a collection over a million sessions would stop the loop, and many of them
    # take a fifth of the time of a recovery.
    gc.collect()
    gc.disable()
    sessions = _cluster_sessions(worker, topology, number, counters, in_force, succession is None)
    if succession is not None:
        succession.receive(worker, counters)
        signal.signal(signal.SIGTERM, drain)  # clients that it gets are not left to a kill
    if topology.settings.durability.level != "none":
        recover(worker, topology, number, inbox, taken)
    elif taken is not None:
        take_over(worker, topology, number, inbox, taken)
    else:
        routes.purge(worker_destination(number))
    if set_aside is not None:
        worker.router.log(DAMAGE, f"{set_aside}/data.mdb: damaged; all retained messages are lost")
    for claim in worker.router.subscriptions.keep_exclusive(ExclusiveTable(topology.exclusive_dir), worker.router.sessions):
        worker.router.log("warning", log_line("exclusive subscription lost", client_id=claim.client_id, filter=claim.filter))
    epochs.bump_all()
    if sessions is not None:
        if succession is None:
            sessions.restore()
        else:
            succession.restore(sessions)
        worker.join_sessions(sessions)
    hooked = HookDispatcher(worker.router, number, worker.router.log)
    _load_plugins(hooked, topology, worker.router.log)
    _join_exhook(hooked, worker, topology, number, counters)
    _read_orders(worker, _feed_events(hooked, worker, topology), observers, topology)

    signal.signal(signal.SIGTERM, drain)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    counters.set_state(number, ProcessState.READY)
    return worker
