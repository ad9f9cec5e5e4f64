"""Paths by subject; each module has a `router`."""

from shardbroker.api import paths  # noqa: F401 - registers its convertors, before routes are made
from shardbroker.api.routes import access, accounts, clients, configuration, delayed, exhooks, messages, node, plugins, watching

__all__ = ["ROUTERS"]

ROUTERS = (
    accounts.router, node.router, clients.router, messages.router, delayed.router, watching.router, access.router,
    plugins.router, exhooks.router, configuration.router,
)  # fmt: skip
"""In the order of docs/rest.md."""
