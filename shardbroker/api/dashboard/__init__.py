"""The dashboard: pages below /dashboard, in the process of the REST API: theory of operation.

A browser logs in with an account; the token is in a cookie that scripts cannot read. A page is built on the server by NiceGUI,
which serves all assets itself, and is updated over a WebSocket. A page calls the same verbs as REST through `session`, which checks
token and role with each call; one Monitor supplies the figures of all pages.

`session` is the login of a page, `frame` has the common parts of all pages, `model_form` makes a form from a section of the
configuration, and each other module is one page, or two.
"""

from fastapi import FastAPI

from shardbroker.api.dashboard import (
    access,
    clients,
    cluster,
    data,
    diagnose,
    frame,
    gateways,
    journals,
    messages,
    overview,
    plugins,
    rules,
    session,
    settings,
    sinks,
    subscriptions,
    trace,
    webclient,
)

__all__ = ["add_dashboard"]


def add_dashboard(app: FastAPI) -> None:
    """Adds the pages to the application."""
    session.add_login(app)
    before = (overview, cluster, clients, subscriptions, messages, access, rules)
    behind = (webclient, trace, diagnose, journals, gateways, plugins, settings, data)
    pages = [*(module.page for module in before), *sinks.pages, *(module.page for module in behind)]
    frame.add_pages(app, pages)
