"""Routes that are written by hand, by subject, and those derived from verbs.

A route is written by hand where it does not have the shape of one verb, since its path, fields or paging are those of EMQX 5; the
docstring of each module names the differences. All others are in the rows of the verbs (`shardbroker.control.rest`).
"""

from shardbroker.api import paths  # noqa: F401 - registers its convertors, before routes are made
from shardbroker.api.derived import derived_router
from shardbroker.api.routes import (
    access,
    accounts,
    chains,
    clients,
    configuration,
    data,
    exhooks,
    messages,
    node,
    plugins,
    rules,
    settings,
    sinks,
    streams,
    watching,
)

__all__ = ["ROUTERS"]

ROUTERS = (
    accounts.router, node.router, clients.router, messages.router, watching.router, access.router,
    chains.router, plugins.router, exhooks.router, rules.router, sinks.router, streams.router, configuration.router,
    data.router, settings.router, derived_router(),
)  # fmt: skip
