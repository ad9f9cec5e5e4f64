"""Answers to the verbs of shardbroker.control; each module registers its own with `handles`."""

from shardbroker.management.handlers import (
    access,
    accounts,
    clients,
    configuration,
    listeners,
    messages,
    node,
    snapshots,
    subscriptions,
)

__all__ = ["access", "accounts", "clients", "configuration", "listeners", "messages", "node", "snapshots", "subscriptions"]
