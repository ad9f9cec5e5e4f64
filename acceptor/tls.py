"""TLS contexts from the configuration, and the names in a client's certificate.

A context is rebuilt when one of its files has changed. Connections keep the context that they began with and stay open.
"""

import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from acceptor.openssl import SessionTickets

__all__ = ["TlsError", "build_context", "certificate_names", "watched_files"]

MQTT, HTTP = "mqtt", "http/1.1"
"""ALPN names of MQTT and of the HTTP request before a WebSocket. Clients that offer others are accepted as well."""

VERSIONS = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}

ATTRIBUTES = {
    "countryName": "C",
    "stateOrProvinceName": "ST",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "commonName": "CN",
    "domainComponent": "DC",
    "userId": "UID",
}
"""Short names of RFC 4514; any other attribute keeps the name that OpenSSL gives it."""


class TlsError(Exception):
    """A certificate, key, CA or CRL file is unusable; the text names it. `key`: setting below `tls`, `what`: its valid form."""

    def __init__(self, text: str, key: str = "certfile", what: str = "a PEM file with a certificate and its key") -> None:
        super().__init__(text)
        self.key, self.what = key, what


def build_context(tls: Any, websocket: bool, keylog: str = "", tickets: SessionTickets | None = None) -> ssl.SSLContext:
    """Builds the context of a listener (`shardbroker.config.listeners.Tls`). Raises TlsError.

    keylog: see acceptor.secrets. tickets: keys of its session tickets; None: OpenSSL makes some for each context.
    """
    context = _context(tls, tls.certfile, tls.keyfile, websocket)
    others = {name: _context(tls, one.certfile, one.keyfile, websocket) for name, one in tls.sni.items()}
    for one in (context, *others.values()):
        if keylog:
            one.keylog_filename = keylog
        if tickets is not None:
            tickets.install(one)
    if others:

        def choose(connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
            other = others.get(name.lower()) if name else None
            if other is not None:
                connection.context = other

        context.sni_callback = choose
    return context


def watched_files(tls: Any) -> list[Path]:
    """Returns every file that a context is made from."""
    names = [tls.certfile, tls.keyfile, tls.cacertfile, tls.crlfile]
    for one in tls.sni.values():
        names += [one.certfile, one.keyfile]
    return [Path(name) for name in dict.fromkeys(names) if name]


def _context(tls: Any, certfile: str, keyfile: str, websocket: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    wanted = [VERSIONS[version] for version in tls.versions]
    context.minimum_version, context.maximum_version = min(wanted), max(wanted)
    # Renegotiation would let a client force any number of signatures.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = int(tls.session_tickets)
    if not tls.session_tickets:
        context.options |= ssl.OP_NO_TICKET
    context.set_alpn_protocols([HTTP if websocket else MQTT])
    if tls.ciphers:
        try:
            context.set_ciphers(tls.ciphers)
        except ssl.SSLError as error:
            raise TlsError(f"ciphers {tls.ciphers!r}: {_words(error)}", "ciphers", "a list of OpenSSL's ciphers") from None
    _load(context, tls, certfile, keyfile)
    return context


def _load(context: ssl.SSLContext, tls: Any, certfile: str, keyfile: str) -> None:
    what = f"certificate {certfile}" + (f" with key {keyfile}" if keyfile else "")
    setting: tuple[str, ...] = ("certfile" if certfile == tls.certfile else "sni",)
    try:
        # Without a password OpenSSL would prompt for one at the terminal, so one is always passed.
        context.load_cert_chain(certfile, keyfile or None, tls.password.get_secret_value())
        if tls.verify == "verify_peer":
            context.verify_mode = ssl.CERT_REQUIRED if tls.fail_if_no_peer_cert else ssl.CERT_OPTIONAL
            what = f"CA certificates {tls.cacertfile}"
            setting = ("cacertfile", "a PEM file of CA certificates")
            context.load_verify_locations(tls.cacertfile)
        if tls.crlfile:
            what = f"revocation list {tls.crlfile}"
            setting = ("crlfile", "a PEM file of revocation lists")
            context.load_verify_locations(tls.crlfile)
            if not context.cert_store_stats()["crl"]:
                raise TlsError(f"{what}: none found", *setting)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    except OSError as error:  # ssl.SSLError too
        raise TlsError(f"{what}: {_words(error)}", *setting) from None


def _words(error: OSError) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else error.strerror or str(error)


def certificate_names(certificate: Any) -> tuple[str, str]:
    """Returns (common name, distinguished name) of the result of `getpeercert()`; empty ones without a certificate."""
    if not certificate:
        return "", ""
    pairs: Iterable[tuple[str, str]] = [pair for part in certificate.get("subject", ()) for pair in part]
    common = next((value for name, value in pairs if name == "commonName"), "")
    return common, ",".join(f"{ATTRIBUTES.get(name, name)}={_escaped(value)}" for name, value in pairs)


def _escaped(value: str) -> str:
    """Escapes as in RFC 4514 §2.4, so that a common name cannot forge further attributes."""
    text = "".join("\\" + c if c in ',+"\\<>;=' else c for c in value)
    if text.startswith((" ", "#")):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and len(value) > 1 else text
