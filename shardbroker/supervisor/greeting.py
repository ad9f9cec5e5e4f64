"""What an operator needs after a start: who may connect where, the dashboard, the data, the documentation."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from shardbroker.config import Settings
from shardbroker.config.exposed import needed_logins
from shardbroker.config.listeners import Listener
from shardbroker.logs.phrases import Line, log_line

__all__ = ["greeting"]

DOCS = Path(__file__).parents[2] / "docs"
"""The pages of a source tree; a wheel has none."""


def greeting(settings: Settings, listeners: Iterable[tuple[str, str, Listener]]) -> Iterator[Line]:
    """Yields lines about a broker that has become ready. listeners: (name, address, settings) of each."""
    for name, address, listener in listeners:
        logins = ",".join(needed_logins(settings, listener, listener.auth_chain)) or "anonymous"
        yield log_line("clients can connect", listener=name, address=address, login=logins)
    api = settings.api
    if api.bind == "disabled":
        yield log_line("dashboard is disabled", setting="api.bind")
    yield log_line("sessions kept", data_dir=settings.process.data_dir, durability=settings.durability.level)
    yield log_line("documentation", read=DOCS / "index.md" if DOCS.is_dir() else "shardbroker --help")
