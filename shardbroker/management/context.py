"""Context of the handlers of verbs: the parts shared with the manager."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shardbroker.logs.log import Log
from shardbroker.management.adopting import Adopter
from shardbroker.management.alarms import AlarmList
from shardbroker.management.audit import Audit
from shardbroker.management.cluster_settings import ClusterSettings
from shardbroker.management.configuration import Configuration
from shardbroker.management.core_calls import CoreCalls
from shardbroker.management.evacuation import Evacuator
from shardbroker.management.nodes import Nodes
from shardbroker.management.rules import Rules
from shardbroker.management.sinks import Sinks
from shardbroker.management.streams import Streams
from shardbroker.management.telemetry import Telemetry
from shardbroker.management.topic_metrics import TopicMetrics
from shardbroker.management.tracing import Traces
from shardbroker.management.workers import Workers
from shardbroker.stores.exclusive import ExclusiveTable
from shardbroker.stores.registry import Registry
from shardbroker.stores.retained import RetainedStore
from shm.counters import Counters
from shm.routes import RouteTable
from shm.topology import Topology
from shm.view import ViewSegment

__all__ = ["HANDLERS", "Context", "breathe", "handles"]

HANDLERS: dict[str, Callable[[Any, Any], Any]] = {}
"""Verb -> handler(context, params): a coroutine with the result, or an asynchronous generator whose last item is the result."""


@dataclass
class Context:
    """One per manager."""

    topology: Topology
    counters: Counters
    retained: RetainedStore
    routes: RouteTable
    exclusive: ExclusiveTable
    workers: Workers
    log: Log
    configuration: Configuration
    audit: Audit
    traces: Traces
    topic_metrics: TopicMetrics
    alarms: AlarmList
    rules: Rules
    connectors: Sinks
    actions: Sinks
    sources: Sinks
    streams: Streams
    core: CoreCalls
    cluster_settings: ClusterSettings
    evacuation: Evacuator
    adopter: Adopter
    telemetry: Telemetry
    registries: list[Registry] = field(default_factory=list)
    """By worker."""
    view: ViewSegment | None = None
    """The members of the cluster; None without one."""
    nodes: Nodes | None = None
    """The managers of the other nodes; None without a cluster."""
    snapshot_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a snapshot is taken."""
    started_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def route_count(self) -> int:
        """Returns the number of routes to subscribers: without those of rules and streams, as in lists of routes."""
        return self.routes.count() - self.rules.route_count

    def worker_of(self, client_id: bytes) -> int:
        """Returns the worker that owns this client id."""
        return self.topology.division.worker_of(client_id)


def handles(verb: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that registers the handler of a verb."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        HANDLERS[verb] = handler
        return handler

    return register


async def breathe() -> None:
    """Yields to other tasks of the manager between two pages."""
    await asyncio.sleep(0)
