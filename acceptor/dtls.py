"""The context of a listener with DTLS 1.2, of pyOpenSSL: Python's own ssl has none."""

from hashlib import sha256
from hmac import compare_digest, digest
from importlib import import_module
from pathlib import Path
from typing import Any

from acceptor.tls import TlsError

__all__ = ["build_dtls"]


def build_dtls(settings: Any, secret: bytes) -> Any:
    """Returns the context of a listener, an OpenSSL.SSL.Context. settings: its `tls`. secret: the key of its cookies, which the
    processes that share its address have in common. Raises TlsError."""
    try:
        SSL: Any = import_module("OpenSSL.SSL")
        load_key = import_module("cryptography.hazmat.primitives.serialization").load_pem_private_key
    except ImportError:
        raise TlsError("DTLS needs the package pyOpenSSL: pip install 'shardbroker[dtls]'") from None
    context = SSL.Context(SSL.DTLS_SERVER_METHOD)
    context.set_options(SSL.OP_COOKIE_EXCHANGE | SSL.OP_NO_QUERY_MTU | SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_TICKET)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)

    def cookie_of(connection: Any) -> bytes:
        return digest(secret, repr(connection.get_app_data()).encode(), sha256)

    context.set_cookie_generate_callback(cookie_of)
    context.set_cookie_verify_callback(lambda connection, cookie: compare_digest(cookie, cookie_of(connection)))
    if settings.ciphers:
        try:
            context.set_cipher_list(settings.ciphers.encode())
        except SSL.Error:
            text = f"ciphers {settings.ciphers!r}: no cipher of OpenSSL"
            raise TlsError(text, "ciphers", "a list of OpenSSL's ciphers") from None
    what, key = f"certificate {settings.certfile}", ("certfile", "a PEM file with a certificate and its key")
    try:
        context.use_certificate_chain_file(settings.certfile)
        keyfile = settings.keyfile or settings.certfile
        what = f"key {keyfile}"
        password = settings.password.get_secret_value().encode()
        context.use_privatekey(load_key(Path(keyfile).read_bytes(), password or None))
        context.check_privatekey()
        if settings.verify == "verify_peer":
            what, key = f"CA certificates {settings.cacertfile}", ("cacertfile", "a PEM file of CA certificates")
            context.load_verify_locations(settings.cacertfile)
            mode = SSL.VERIFY_PEER | (SSL.VERIFY_FAIL_IF_NO_PEER_CERT if settings.fail_if_no_peer_cert else 0)
            context.set_verify(mode)
    except (OSError, ValueError, TypeError) as error:  # of the key
        raise TlsError(f"{what}: {error}", *key) from None
    except SSL.Error as error:
        reasons = "; ".join(part[-1] for part in error.args[0]) if error.args and isinstance(error.args[0], list) else str(error)
        raise TlsError(f"{what}: {reasons or 'it cannot be read'}", *key) from None
    return context
