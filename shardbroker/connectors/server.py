"""The address of a server, and TLS towards it."""

import asyncio
import ssl

from shardbroker.config.connectors import (
    CassandraConnection,
    Connection,
    DynamodbConnection,
    HttpConnection,
    KafkaConnection,
    PulsarConnection,
    S3Connection,
    ShardbrokerConnection,
)
from shardbroker.connectors.errors import ConnectionSettingError

__all__ = ["WithTls", "address_of", "context_of", "end_connection", "tls_of"]

WithTls = (
    Connection
    | HttpConnection
    | CassandraConnection
    | DynamodbConnection
    | KafkaConnection
    | PulsarConnection
    | S3Connection
    | ShardbrokerConnection
)
"""Settings with the keys of TLS."""


def address_of(settings: Connection | ShardbrokerConnection, key: str) -> tuple[str, int]:
    """Returns host and port. `key`: of the settings, for errors. Raises ConnectionSettingError if there is no server."""
    host, _, port = settings.server.rpartition(":")
    if not host:
        raise ConnectionSettingError(f"{key}.server", "HOST:PORT", settings.server)
    return host.strip("[]"), int(port)


def tls_of(settings: Connection | KafkaConnection | S3Connection | ShardbrokerConnection, key: str) -> ssl.SSLContext | None:
    """Returns the context of `context_of`, or None for a connection without TLS."""
    return context_of(settings, key) if settings.tls else None


def context_of(settings: WithTls, key: str) -> ssl.SSLContext:
    """Returns a context that verifies the server's certificate, and has the client's.

    Raises ConnectionSettingError if the files cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca or None)
    except OSError as error:  # includes ssl.SSLError
        must = "a PEM file of CA certificates"
        raise ConnectionSettingError(f"{key}.tls_ca", must, settings.tls_ca, error.strerror or "") from None
    if settings.tls_key and not settings.tls_cert:
        raise ConnectionSettingError(f"{key}.tls_cert", "a PEM file of a certificate, as there is tls_key", "")
    if settings.tls_cert:
        _load_certificate(context, settings, key)
    if not settings.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_certificate(context: ssl.SSLContext, settings: WithTls, key: str) -> None:
    for name in ("tls_cert", "tls_key"):
        path = getattr(settings, name)
        try:
            with open(path or settings.tls_cert, "rb"):
                pass
        except OSError as error:
            raise ConnectionSettingError(f"{key}.{name}", "a PEM file", path, error.strerror or "") from None
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key or None, password="")  # else it would be asked for
    except (OSError, ValueError) as error:
        detail = str(getattr(error, "reason", None) or "encrypted, or not a private key").replace("_", " ").lower()
        must = "a PEM file of a certificate, with its private key in it or in tls_key, which has no passphrase"
        raise ConnectionSettingError(f"{key}.tls_cert", must, settings.tls_cert, detail) from None


def end_connection(transport: asyncio.Transport) -> None:
    """Closes a connection behind what was written, or at once if the server does not take that: it might never do so."""
    if transport.get_write_buffer_size():
        transport.abort()
    else:
        transport.close()
