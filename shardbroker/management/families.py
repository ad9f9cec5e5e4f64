"""Figures of the broker as families of samples, for Prometheus and OpenTelemetry.

    <name>             over all processes; EMQX's names, with dots
    worker.<name>      the same of one worker, with the label `worker`

Histograms have the powers of two of a microsecond as bounds: the shared ones are finer, and these fall on their bounds exactly.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shardbroker import __version__
from shardbroker.config.sinks.definition import ACTIONS, SOURCES
from shardbroker.control.losses import LOSSES
from shardbroker.flows.wire import COUNTS
from shardbroker.hooks.wanted import PLUGINS_FILE
from shardbroker.management.cluster_view import peers_of
from shardbroker.management.context import Context
from shardbroker.management.exhook_state import read_state
from shardbroker.management.gateway_state import gateway_rows
from shardbroker.management.sinks import Sinks
from shm.counters import GAUGES, HISTOGRAMS, Counters, ProcessState

__all__ = ["AnyFamily", "Family", "Histogram", "Summary", "gather", "plain"]

BOUNDS_US = [(1 << power) - 1 for power in range(3, 25)]
"""7 µs to 16.8 s."""
HISTOGRAM_HELP = {
    "ring.hop_us": "A record's way from one process to another.",
    "pass_us": "One pass of a worker's loop, the longest wait of a packet for its turn.",
}
NOT_SUMMED = ("overload.level.count",)
"""Gauges with the same value in every worker."""

ACTION_COUNTS = (
    "matched", "success", "failed", "dropped", "dropped.expired", "dropped.queue_full", "dropped.resource_not_found",
    "dropped.resource_stopped", "dropped.other", "late_reply", "received", "retried", "retried.success", "retried.failed",
)  # fmt: skip
"""Counts of an action with the names of EMQX."""
ACTION_GAUGES = ("inflight", "queuing", "queuing_bytes", "rate", "rate_last5m", "lag_records", "lag_seconds")
"""Rows of an action at this moment, likewise, and how far it is behind the journals."""

SOURCE_COUNTS = ("received", "published", "failed", "acknowledged")
"""Counts of a source: records."""
SOURCE_GAUGES = ("inflight", "rate", "rate_last5m", "lag_records")
"""Records of a source at this moment, and how many the server has that were not received yet."""

Labels = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one counter or gauge, by labels."""

    name: str
    kind: str
    """counter or gauge."""
    text: str
    samples: Sequence[tuple[Labels, float]]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Seconds, counted by bounds: the last count is of those above all bounds."""

    name: str
    text: str
    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Sum and count, by labels."""

    name: str
    text: str
    samples: Sequence[tuple[Labels, float, int]]


AnyFamily = Family | Histogram | Summary


async def gather(context: Context) -> list[AnyFamily]:
    """Returns all figures. Those of workers that do not answer are left out."""
    found: list[AnyFamily] = [*_shared(context), *_journals(await context.workers.call_available("journal"))]
    if (context.topology.data_dir / PLUGINS_FILE).exists():
        found += _hooks(await context.workers.call_available("hooks"))
    found += _exhook(read_state(context))
    found += _gateways(gateway_rows(context.topology, context.counters, context.configuration.settings))
    if context.rules.all():
        found += _rules(context)
    for sinks in (context.connectors, context.actions, context.sources):
        found += _sinks(sinks)
    if context.topology.settings.cluster.enable and context.topology.settings.cluster.registry == "on":
        found += _claims(await context.workers.call_available("cluster claims"))
    if context.configuration.settings.opentelemetry.metrics.enable:
        rows = [({"result": result}, count) for result, count in context.telemetry.counts.items()]
        found.append(_family("opentelemetry_exports", "counter", "Exports of metrics by OTLP.", rows))
    if context.configuration.settings.opentelemetry.traces.enable:
        rows = [({"result": result}, count) for result, count in context.telemetry.spans.items()]
        found.append(_family("opentelemetry_spans", "counter", "Spans of messages by what has become of them.", rows))
    return found


def plain(families: Iterable[AnyFamily]) -> list[dict[str, Any]]:
    """Returns families as lists and tables, for another process."""
    return [
        {
            "name": one.name,
            "kind": one.kind if isinstance(one, Family) else type(one).__name__.lower(),
            "text": one.text,
            "samples": [one.bounds, one.counts, one.sum] if isinstance(one, Histogram) else one.samples,
        }
        for one in families
    ]


def _shared(context: Context) -> Iterator[AnyFamily]:
    """Yields the figures from shared memory."""
    topology, counters = context.topology, context.counters
    workers = [counters.of(worker) for worker in range(topology.workers)]
    yield _family("build_info", "gauge", "Always 1.", [({"version": __version__, "node": topology.node_name}, 1)])
    routes = context.route_count()
    meaning = "Routes to subscribers: one for each filter and destination, or group member."
    yield _family("routes_count", "gauge", meaning, [({}, routes)])
    totals = counters.totals()
    lost = [({"reason": reason}, totals[counter]) for reason, (counter, _) in LOSSES.items()]
    yield _family("messages_lost", "counter", "Messages that a subscriber did not get, by reason.", lost)
    for name, value in totals.items():
        kind = "gauge" if name in GAUGES else "counter"
        if name in NOT_SUMMED:
            value = max(of[name] for of in workers)
        yield _family(name, kind, f"{name}, of all processes.", [({}, value)])
        yield _family(
            f"worker.{name}", kind, f"{name}, of each worker.", [({"worker": n}, of[name]) for n, of in enumerate(workers)]
        )
    for name in HISTOGRAMS:
        yield _histogram(counters, name)
    yield from _processes(context)
    sockets = [({"listener": one.name}, counters.sockets(number)) for number, one in enumerate(topology.listeners)]
    yield _family("listener_connections", "gauge", "Open sockets of a listener.", sockets)
    fills = [
        ({"worker": worker, "producer": producer}, lane.fill())
        for worker, inbox in enumerate(context.workers.outboxes)
        for producer, lane in enumerate(inbox.lanes)
        if producer != worker
    ]
    yield _family("ring_fill_bytes", "gauge", "Bytes in the ring from a process to a worker that it has not taken.", fills)
    yield _family("ring_size_bytes", "gauge", "Bytes that a ring has room for.", [({}, topology.ring_bytes)])
    yield from _cluster(context)


def _cluster(context: Context) -> Iterator[AnyFamily]:
    """Yields the figures of the cluster; none without one."""
    topology, view = context.topology, context.view
    if view is None:
        return
    state = view.read()
    peers = peers_of(state, topology)
    running = 1 + sum(peer.state == "running" for peer in peers)
    for name, text, value in (
        ("nodes_running", "Nodes of the cluster that this node reaches, itself included.", running),
        ("nodes_stopped", "Nodes of the cluster that this node does not reach.", len(peers) + 1 - running),
        ("epoch", "Changes of the member set that this node has seen.", state.epoch),
        ("isolated", "Whether this node reaches fewer than half of the nodes.", int(state.isolated)),
    ):
        yield _family(f"cluster_{name}", "gauge", text, [({}, value)])
    if topology.settings.cluster.has_core:
        text = "Revision in etcd of the settings of all nodes that this node has applied."
        yield _family("conf_sync_txid", "gauge", text, [({}, context.configuration.cluster.revision)])
    up = [({"peer": peer.name}, int(peer.is_up)) for peer in peers]
    yield _family("cluster_link_up", "gauge", "Whether the link to a peer is up, with all routes on both sides.", up)
    skews = [({"peer": peer.name}, peer.skew_ms / 1000) for peer in peers]
    yield _family("cluster_clock_skew_seconds", "gauge", "By which the clock of a peer is ahead of this node's.", skews)
    lags = [({"peer": peer.name}, peer.lag) for peer in peers]
    yield _family("mria_server_mql", "gauge", "Entries of this node's route log that a peer has not stored.", lags)


def _processes(context: Context) -> Iterator[AnyFamily]:
    counters, topology = context.counters, context.topology
    places = topology.always_there
    up = [({"process": place.title}, int(counters.state(place.slot) == ProcessState.READY)) for place in places]
    yield _family("process_up", "gauge", "Whether it serves.", up)
    starts = [({"process": place.title}, counters.life(place.slot)[2]) for place in places]
    yield _family("process_starts", "counter", "Times that it was started.", starts)
    uptime_s = (time.time_ns() // 1_000_000 - counters.life(topology.manager)[1]) / 1000
    yield _family("uptime_seconds", "gauge", "Since the manager was started.", [({}, uptime_s)])


def _journals(states: Iterable[Any]) -> Iterator[AnyFamily]:
    """Yields the figures of journals. `states` by worker; None without an answer, empty without a journal."""
    known = [(worker, state) for worker, state in enumerate(states) if state]
    for name, kind, text in (
        ("bytes_written", "counter", "Bytes written to the journal."),
        ("blocks_written", "counter", "Blocks written to the journal."),
        ("pending_bytes", "gauge", "Bytes of the journal that are not yet as safe as they should be."),
        ("next_sequence", "counter", "Records of the journal."),
    ):
        yield _family(f"journal_{name}", kind, text, [({"worker": worker}, state[name]) for worker, state in known])
    failing = [({"worker": worker}, int(state["problem"] is not None)) for worker, state in known]
    yield _family("journal_failing", "gauge", "Whether the disk refuses what the journal writes.", failing)


def _hooks(states: Iterable[Any]) -> Iterator[AnyFamily]:
    """Yields the figures of plugins' callbacks, `states` by worker. They start at 0 when a plugin is loaded."""
    rows = [
        ({"worker": worker, "point": row["point"], "callback": row["callback"]}, row)
        for worker, state in enumerate(states)
        if state
        for row in state["callbacks"]
    ]
    for name, kind, text in (
        ("calls", "counter", "Calls of a callback."),
        ("errors", "counter", "Calls that raised, or returned what may not be."),
        ("seconds", "counter", "Time spent in a callback, for which the worker's clients waited."),
        ("slowest", "gauge", "Longest call of a callback, seconds."),
    ):
        yield _family(f"hook_{name}", kind, text, [(labels, row[name]) for labels, row in rows])


def _claims(states: Iterable[Any]) -> Iterator[AnyFamily]:
    """Yields the figures of claims and merges, `states` by worker. They start at 0 with their worker."""
    known = [(worker, state) for worker, state in enumerate(states) if state]
    for name, label, text in (
        ("claims", "result", "CONNECTs that needed the right to their session, by result."),
        ("merges", "outcome", "Sessions of one client id that were merged: kept here, or given_up here."),
    ):
        field = "results" if name == "claims" else name
        rows = [({"worker": worker, label: one}, count) for worker, state in known for one, count in state[field].items()]
        yield _family(f"cluster_{name}", "counter", text, rows)
    for name, field, ms, text in (
        ("claim", "claims", "claim_ms", "From CONNECT to the right to its session."),
        ("takeover", "takeovers", "takeover_ms", "From CONNECT to a session that another node had."),
    ):
        samples = [({"worker": worker}, state[ms] / 1000, state[field]) for worker, state in known]
        yield Summary(f"cluster_{name}_seconds", text, samples)


def _rules(context: Context) -> Iterator[AnyFamily]:
    """Yields the figures of rules, by id. They start at 0 when a rule is made, and with the processes flows."""
    rules, figures = context.rules.all(), context.rules.flows.figures()
    enabled = [({"id": rule["id"]}, int(rule["enable"] and not figures.get(rule["id"], {}).get("disabled"))) for rule in rules]
    yield _family("rule_enable", "gauge", "Whether a rule is evaluated.", enabled)
    for name in COUNTS:
        rows = [({"id": rule["id"]}, figures.get(rule["id"], {}).get(name, 0)) for rule in rules]
        yield _family(f"rule.{name}", "counter", f"{name} of a rule.", rows)
    seconds = [({"id": rule["id"]}, figures.get(rule["id"], {}).get("time_us", 0) / 1e6) for rule in rules]
    yield _family("rule_seconds", "counter", "Time in which a rule was evaluated, without its actions.", seconds)
    lags = [({"journal": journal}, seconds) for journal, seconds in sorted(context.rules.flows.lags().items())]
    yield _family("rules_lag_seconds", "gauge", "How far rules are behind the journal of a worker.", lags)


def _sinks(sinks: Sinks) -> Iterator[AnyFamily]:
    """Yields the figures of connectors, actions or sources, by id; none without any. Counts start at 0 with the processes flows."""
    one, all, figures = sinks.kind[:-1], sinks.all(), sinks.figures()
    if not all:
        return
    enabled = [({"id": sink["id"]}, int(sink["model"] is not None and sink["model"].enable)) for sink in all]
    yield _family(f"{one}_enable", "gauge", f"Whether the {one} is enabled.", enabled)
    up = [({"id": sink["id"]}, int(sinks.status(sink, figures.get(sink["id"], {}))[0] == "connected")) for sink in all]
    yield _family(f"{one}_status", "gauge", f"Whether the server of the {one} is connected.", up)
    counts, gauges = {ACTIONS: (ACTION_COUNTS, ACTION_GAUGES), SOURCES: (SOURCE_COUNTS, SOURCE_GAUGES)}.get(sinks.kind, ((), ()))
    article = "an" if sinks.kind == ACTIONS else "a"
    for name in (*counts, *gauges):
        kind = "counter" if name in counts else "gauge"
        rows = [({"id": sink["id"]}, figures.get(sink["id"], {}).get(name, 0)) for sink in all]
        yield _family(f"{one}.{name}", kind, f"{name} of {article} {one}.", rows)


def _exhook(states: Iterable[Any]) -> Iterator[AnyFamily]:
    """Yields the figures of programs behind hooks, by name and hook point. They start at 0 with the process integrations."""
    servers = list(states)
    up = [({"server": one["name"]}, int(one["status"] == "connected")) for one in servers if one["enable"]]
    if not up:
        return
    yield _family("exhook_up", "gauge", "Whether a program that takes part in hooks is connected.", up)
    for name, text in (
        ("succeeded", "Calls that were answered."),
        ("failed", "Calls that were not answered, or not in time."),
        ("dropped", "Events that were not sent: too many were pending, or the server was not connected."),
    ):
        rows = [
            ({"server": one["name"], "point": point}, figures[name]) for one in servers for point, figures in one["metrics"].items()
        ]
        yield _family(f"exhook_{name}", "counter", text, rows)


def _gateways(gateways: Iterable[dict[str, Any]]) -> Iterator[AnyFamily]:
    """Yields the figures of gateways that are enabled, by name. Counts continue when a process is started again."""
    enabled = [one for one in gateways if one["status"] != "unloaded"]
    if not enabled:
        return
    up = [({"gateway": one["name"]}, int(one["status"] == "running")) for one in enabled]
    yield _family("gateway_up", "gauge", "Whether a process of a gateway runs.", up)
    open_ = [({"listener": row["id"]}, row["current_connections"]) for one in enabled for row in one["listeners"]]
    yield _family("gateway_connections", "gauge", "Connections of a gateway's listener.", open_)
    for name, text in (
        ("accepted", "Connections that were accepted."),
        ("refused", "Connections that were refused by max_connections or access_rules."),
        ("received", "Frames of devices."),
        ("sent", "Frames sent to devices."),
        ("messages_in", "Messages that devices published."),
        ("messages_out", "Messages sent to devices."),
        ("messages_dropped", "Messages that no subscription of the device took, or QoS 0 beyond its window."),
        ("errors", "Connections that the gateway has ended with an error."),
        ("timeouts", "Connections without a timely CONNECT or heart-beat."),
        ("retries", "Messages sent to devices again, since they were not acknowledged."),
        ("duplicates", "Messages of devices that were received before."),
        ("malformed", "Datagrams that are no message of the protocol, or too long."),
        ("unknown_dropped", "Datagrams of unknown senders above max_unknown_rate."),
        ("lost", "Datagrams that the kernel did not take."),
        ("withheld", "Datagrams to an address that is not proven, above three times what it has sent."),
    ):
        rows = [({"gateway": one["name"]}, one["figures"][name]) for one in enabled if name in one["figures"]]
        if rows:
            yield _family(f"gateway_{name}", "counter", text, rows)


def _histogram(counters: Counters, name: str) -> Histogram:
    buckets = counters.buckets(name)
    total = sum(count for _, count in buckets)
    passed = [0, *(sum(count for greatest, count in buckets if greatest <= bound) for bound in BOUNDS_US), total]
    return Histogram(
        f"{name.removesuffix('_us')}_seconds",
        HISTOGRAM_HELP[name],
        [bound / 1e6 for bound in BOUNDS_US],
        [after - before for before, after in pairwise(passed)],
        counters.mean(name) * total / 1e6,
    )


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float]]) -> Family:
    return Family(name, kind, text, [*samples])
