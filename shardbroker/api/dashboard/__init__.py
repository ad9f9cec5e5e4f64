"""The dashboard: pages below /dashboard, in the process of the REST API: theory of operation.

A browser logs in with an account; the token stands in a cookie that scripts cannot read. A page is built on the server by NiceGUI,
which ships every asset itself, and is kept up to date over a WebSocket. What a page asks goes through `session`, which looks at the
token and the role each time and asks the same verbs as REST; figures come from one Monitor, however many pages are open.

`session` is who looks, `frame` what all pages share, each other module one page.
"""

from fastapi import FastAPI

from shardbroker.api.dashboard import (
    access,
    clients,
    diagnose,
    frame,
    journals,
    messages,
    overview,
    plugins,
    session,
    settings,
    subscriptions,
    trace,
    webclient,
)

__all__ = ["add_dashboard"]


def add_dashboard(app: FastAPI) -> None:
    """Adds the pages to the application."""
    session.add_login(app)
    modules = (
        overview, clients, subscriptions, messages, access, webclient, trace, diagnose, journals, plugins, settings,
    )  # fmt: skip
    frame.add_pages(app, [module.page for module in modules])
