"""The dashboard: pages below /dashboard, in the process of the REST API: theory of operation.

A browser logs in with an account; the token is in a cookie that scripts cannot read. A page is built on the server by NiceGUI,
which serves all assets itself, and is updated over a WebSocket. A page calls the same verbs as REST through `session`, which checks
token and role with each call; one Monitor supplies the figures of all pages.

`session` is the login of a page, `frame` has the common parts of all pages, `model_form` makes a form from a section of the
configuration, `MENU` is the table of pages, and each other module is one page, or a few of one kind.
"""

from fastapi import FastAPI

from shardbroker.api.dashboard import (
    access,
    accounts,
    audit,
    chains,
    clients,
    cluster,
    data,
    diagnose,
    frame,
    gateways,
    journals,
    listeners,
    messages,
    metrics,
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

__all__ = ["MENU", "add_dashboard"]

_authentication, _authorization, _exhook = chains.pages
MENU: dict[str, tuple[frame.Page, ...]] = {
    "Monitoring": (
        overview.page, cluster.page, metrics.page, clients.page, subscriptions.page, *messages.pages, journals.page,
    ),
    "Access control": (_authentication, _authorization, access.page),
    "Integration": (rules.page, *sinks.pages),
    "Management": (listeners.page, settings.page, gateways.page, _exhook, plugins.page),
    "Diagnosis": (diagnose.page, trace.page, webclient.page),
    "System": (accounts.page, audit.page, data.page),
}  # fmt: skip
"""The menu: title of a group -> its pages."""


def add_dashboard(app: FastAPI) -> None:
    """Adds the pages to the application."""
    session.add_login(app)
    frame.add_pages(app, MENU)
