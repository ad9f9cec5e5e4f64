"""Creation of a worker: its parts, and what each of them gets of the others."""

from libc.stdint cimport int64_t, uint64_t

from shardbroker.worker.access_checks cimport AccessChecks
from shardbroker.worker.backpressure cimport Backpressure
from shardbroker.worker.command_queue cimport CommandQueue
from shardbroker.worker.durability cimport Durability
from shardbroker.worker.inlets cimport Inlets
from shardbroker.worker.intake cimport Intake
from shardbroker.worker.memory cimport MemoryWatch
from shardbroker.worker.one_pass cimport Worker
from shardbroker.worker.outlets cimport RingOutlets
from shardbroker.worker.push_back cimport PushBack
from shardbroker.worker.rates cimport Quotas
from shardbroker.worker.reporter cimport Reporter
from shardbroker.worker.router cimport Router
from shardbroker.worker.turn cimport Turn
from shm.counters cimport Counters
from shm.epochs cimport Epochs
from shm.posix cimport CLOCK_MONOTONIC, CLOCK_REALTIME, EPOLLIN, clock_gettime, timespec
from shm.ring cimport Inbox
from shm.view cimport ViewSegment

from shm.destinations import worker_destination

__all__ = ["assemble"]

cdef enum:
    CLOCK_READINGS = 5                     # of the clock at the start, of which the shortest counts

CACHE_SHARE = 16
"""Part of the memory limit for each generation of the topic cache, if that is less than its own limit."""


def assemble(
    topology, int number, Counters counters not None, routes, retained, Epochs epochs, registry, Inbox inbox,
    MemoryWatch memory not None,
) -> Worker:
    """Returns worker `number` before its start. topology: shm.topology.Topology; the others are shared parts, opened in this process."""
    cdef Worker worker = Worker.__new__(Worker)
    cdef Router router
    cdef RingOutlets rings
    cdef int64_t offset_ns = clock_offset_ns()
    settings = topology.settings
    router = Router(
        settings, (clock_ns(CLOCK_MONOTONIC) + offset_ns) // 1000000, counters.slot(number), routes, retained, epochs,
        worker_destination(number), topology.node_id)
    router.clock_offset_ns = offset_ns
    router.counters_segment = router.retries.counters_segment = counters
    router.memory = memory
    router.resolver.capture_topics(settings.journal.capture)
    router.journal_replays.configure(settings)
    router.lookups.configure(settings.persistence.lookups())
    router.change_topics(settings)
    if memory.mark:
        router.resolver.cache.weight_limit = min(
            router.resolver.cache.weight_limit, memory.mark // <uint64_t>(CACHE_SHARE * topology.workers))
    rings = RingOutlets(router, topology, number)
    router.set_outlets(rings)
    if topology.links:
        rings.join(ViewSegment.attach(topology.view_name))
    router.reporter = Reporter(router, rings, counters, epochs, registry, router.sessions)
    worker.topology = topology
    worker.number = number
    worker.router = router
    worker.rings = rings
    worker.reporter = router.reporter
    worker.memory = memory
    worker.settings_wanted = counters.settings_word(number)
    worker.durability = Durability(router, rings, inbox, counters, settings)
    if readers := topology.places_of("flows"):
        process = readers[number % len(readers)].slot
        worker.durability.wake(process, Inbox.attach(topology.inbox_name(process)))
    worker.turn = Turn(router, rings, worker.durability)
    worker.backpressure = Backpressure(router, worker.turn, rings, memory)
    worker.inlets = Inlets(router, rings, worker.durability, worker.backpressure, inbox, counters.histogram(number, "ring.hop_us"))
    worker.push_back = PushBack(router, rings, worker.inlets, settings)
    worker.command_queue = CommandQueue(router, worker.durability, worker.inlets)
    worker.intake = Intake(router, worker.turn, Quotas(counters, settings.mqtt.limiter))
    worker.access_checks = AccessChecks(router, worker.turn, counters)
    worker.pass_times = counters.histogram(number, "pass_us")
    worker.turn.listen_to(rings.doorbells[number], EPOLLIN)
    if readers:
        router.journal_replays.connect(topology.sending_ends("replays", number))
        for channel in topology.sending_ends("replays", number):
            worker.turn.listen_to(channel, EPOLLIN)
    return worker


cdef int64_t clock_ns(int clock) noexcept:
    cdef timespec now
    clock_gettime(clock, &now)
    return now.tv_sec * 1000000000 + now.tv_nsec


cdef int64_t clock_offset_ns() noexcept:
    """Returns Unix ns - CLOCK_MONOTONIC ns. In ns: rounded to ms, the clocks of two workers, and of this one and the machine, would
    differ by 1 ms. Of several readings the shortest counts, since by the time for which this process does not run between the two
    clocks they would differ for as long as the worker lives."""
    cdef int64_t began_ns, wall_ns, took_ns, least_ns = 0, offset_ns = 0
    cdef int reading
    for reading in range(CLOCK_READINGS):
        began_ns = clock_ns(CLOCK_MONOTONIC)
        wall_ns = clock_ns(CLOCK_REALTIME)
        took_ns = clock_ns(CLOCK_MONOTONIC) - began_ns
        if reading == 0 or took_ns < least_ns:
            least_ns, offset_ns = took_ns, wall_ns - began_ns
    return offset_ns
