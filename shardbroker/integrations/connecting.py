"""What back ends with connections have in common."""

import ssl
from typing import Any

from shardbroker.access.contract import BackendError

__all__ = ["address_of", "tls_of"]


def address_of(section: Any, name: str) -> tuple[str, int]:
    """Host and port of a settings section. Raises BackendError if there is none."""
    host, _, port = section.server.rpartition(":")
    if not host:
        raise BackendError(f"{name}.server is empty; allowed is HOST:PORT")
    return host.strip("[]"), int(port)


def tls_of(section: Any) -> ssl.SSLContext | None:
    """A context that checks the server's certificate, or None for a connection in the clear."""
    return ssl.create_default_context(cafile=section.tls_ca or None) if section.tls else None
