"""Handlers of the verbs of shardbroker.control; each module registers its own with `handles`."""

from shardbroker.management.handlers import (
    access,
    accounts,
    chains,
    clients,
    cluster,
    configuration,
    data,
    delayed,
    evacuation,
    exhooks,
    gateways,
    journals,
    listeners,
    messages,
    node,
    persistence,
    plugins,
    rules,
    session_messages,
    sinks,
    snapshots,
    streams,
    subscriptions,
    upgrade,
    watching,
)

__all__ = [
    "access", "accounts", "chains", "clients", "cluster", "configuration", "data", "delayed", "evacuation", "exhooks", "gateways",
    "journals", "listeners", "messages", "node", "persistence", "plugins", "rules", "session_messages", "sinks", "snapshots",
    "streams", "subscriptions", "upgrade", "watching",
]  # fmt: skip
