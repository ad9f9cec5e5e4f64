"""The address of a server, and TLS towards it."""

import ssl

from shardbroker.config.connectors import Connection
from shardbroker.connectors.errors import ConnectionSettingError

__all__ = ["address_of", "tls_of"]


def address_of(settings: Connection, key: str) -> tuple[str, int]:
    """Returns host and port. `key`: of the settings, for errors. Raises ConnectionSettingError if there is no server."""
    host, _, port = settings.server.rpartition(":")
    if not host:
        raise ConnectionSettingError(f"{key}.server", "HOST:PORT", settings.server)
    return host.strip("[]"), int(port)


def tls_of(settings: Connection, key: str) -> ssl.SSLContext | None:
    """Returns a context that verifies the server's certificate, or None for a connection without TLS.

    Raises ConnectionSettingError if the CA certificates cannot be used.
    """
    if not settings.tls:
        return None
    try:
        return ssl.create_default_context(cafile=settings.tls_ca or None)
    except OSError as error:  # includes ssl.SSLError
        raise ConnectionSettingError(
            f"{key}.tls_ca", "a PEM file of CA certificates", settings.tls_ca, error.strerror or ""
        ) from None
