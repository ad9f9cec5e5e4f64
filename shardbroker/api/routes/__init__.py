"""Paths by subject; each module has a `router`."""

from shardbroker.api import paths  # noqa: F401 - registers its convertors, before routes are made
from shardbroker.api.routes import access, accounts, clients, configuration, messages, node

__all__ = ["ROUTERS"]

ROUTERS = (accounts.router, node.router, clients.router, messages.router, access.router, configuration.router)
"""In the order of docs/rest.md."""
