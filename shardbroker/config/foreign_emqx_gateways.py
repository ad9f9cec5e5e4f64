"""Gateways of emqx.conf: `gateway.coap`, `exproto`, `mqttsn` and `stomp`, whose keys mostly have the same names here.

A gateway is enabled here if it is in the file, at least one of its listeners could be taken over, and nothing that restricts its
clients was left out: an authenticator of its own becomes the broker's own users.
"""

import re
from collections.abc import Iterator
from typing import Any

from shardbroker.config.foreign import OWN_STORE, Imported, bind_of, flatten
from shardbroker.config.keys import KeyPath

__all__ = ["take_gateways"]

KINDS = ("coap", "exproto", "mqttsn", "stomp")
TYPES = {"coap": ("udp", "dtls"), "exproto": ("tcp", "ssl", "udp", "dtls"), "mqttsn": ("udp", "dtls"), "stomp": ("tcp", "ssl")}
"""Transports of the listeners of each kind."""
HARMLESS = re.compile(r"enable_stats|subs_resume")
"""Keys of a gateway without which its clients can do no more."""
PLACEHOLDERS = {
    "${ConnInfo.clientid}": "${clientid}", "${ConnInfo.username}": "${username}", "${ConnInfo.password}": "${password}",
    "${Packet.clientid}": "${clientid}", "${Packet.headers.client-id}": "${clientid}", "${Packet.headers.login}": "${username}",
    "${Packet.headers.passcode}": "${password}",
}  # fmt: skip
"""Of `clientinfo_override`, with those that are here."""
LISTENER = ("max_connections", "max_conn_rate", "access_rules", "enable_authn")
LISTENER_HARMLESS = re.compile(
    r"acceptors|proxy_protocol_timeout|tcp_options\..*|udp_options\..*|health_check\..*"
    r"|(ssl|dtls)_options\.(depth|secure_renegotiate|honor_cipher_order|reuse_sessions|hibernate_after|gc_after_handshake|log_level"
    r"|client_renegotiation|dhfile|password|ciphers|versions|keep_secrets)"
)
TLS = ("certfile", "keyfile", "cacertfile", "verify", "fail_if_no_peer_cert", "handshake_timeout")
EXPROTO_TLS = ("enable", "cacertfile", "certfile", "keyfile")
BROADCAST_S = 900.0
"""Interval of ADVERTISE in EMQX with `broadcast`, seconds."""


def take_gateways(found: Imported, given: Any) -> None:
    """Imports the section `gateway`; None: there is none."""
    if given is not None and not isinstance(given, dict):
        found.remark(f"gateway = {given}: must be a table")
    for kind, section in given.items() if isinstance(given, dict) else ():
        said = f"gateway.{kind}"
        if kind not in KINDS or not isinstance(section, dict):
            found.remark(f"{said}: allowed are tables {', '.join(KINDS)}")
        else:
            _take_gateway(found, kind, dict(section), said)


def _take_gateway(found: Imported, kind: str, section: dict[str, Any], said: str) -> None:
    here: KeyPath = ("gateways", kind)
    listeners, login = section.pop("listeners", {}), section.pop("authentication", None)
    is_on = section.pop("enable", True) is not False
    broadcast = section.pop("broadcast", None) if kind == "mqttsn" else None
    for path, value in flatten(section):
        text = f"{said}.{'.'.join(path)} = {value}"
        if HARMLESS.fullmatch(".".join(path)) or (kind == "exproto" and _is_other_tls(path)):
            found.remark(f"{text}: there is nothing like it here")
        elif path[0] == "clientinfo_override":
            shown = f"{said}.{'.'.join(path)} = ******" if path[-1] == "password" else text
            found.take((*here, *path), _placeholders(str(value)), shown)
        else:
            found.take((*here, *path), value, text)
    if broadcast is True:
        found.take((*here, "advertise_interval"), BROADCAST_S, f"{said}.broadcast")
    if login:
        found.settings[*here, "authentication"] = [OWN_STORE]
        found.remark(f"{said}.authentication: not taken over; its clients have to be among the broker's users: ctl users add")
    taken = [_take_listener(found, kind, type, name, one, said) for type, name, one in _listeners(listeners)]
    if is_on and any(taken):
        found.settings[*here, "enable"] = True
    elif is_on:
        found.remark(f"{said}: not enabled, since none of its listeners was taken over")


def _placeholders(text: str) -> str:
    for theirs, ours in PLACEHOLDERS.items():
        text = text.replace(theirs, ours)
    return text


def _is_other_tls(path: KeyPath) -> bool:
    return len(path) == 3 and path[1] == "ssl_options" and path[2] not in EXPROTO_TLS


def _listeners(given: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for type, named in given.items() if isinstance(given, dict) else ():
        for name, one in named.items() if isinstance(named, dict) else ():
            if isinstance(one, dict):
                yield type, name, one


def _take_listener(found: Imported, kind: str, type: str, name: str, given: dict[str, Any], said: str) -> bool:
    """Returns whether the listener is there now."""
    said = f"{said}.listeners.{type}.{name}"
    if type not in TYPES[kind]:
        found.remark(f"{said}: left out: allowed are {', '.join(TYPES[kind])}")
        return False
    own = name.lower()
    if ("gateways", kind, "listeners", own, "type") in found.settings:
        own = f"{type}-{own}"
    here: KeyPath = ("gateways", kind, "listeners", own)
    values: dict[KeyPath, Any] = {(*here, "type"): type}
    for path, value in flatten(given):
        text = f"{said}.{'.'.join(path)} = {'******' if path[-1] == 'password' else value}"
        if path in (("enable",), ("enabled",)):
            if value is False:
                found.remark(f"{said}: left out: not enabled")
                return False
        elif path == ("bind",):
            values[*here, "bind"] = bind_of(value)
        elif len(path) == 1 and path[0] in LISTENER:
            values[*here, path[0]] = value
        elif len(path) == 2 and path[0] in ("ssl_options", "dtls_options") and path[1] in TLS:
            values[*here, "tls", path[1]] = value
        elif LISTENER_HARMLESS.fullmatch(".".join(path)):
            found.remark(f"{text}: there is nothing like it here")
        else:
            found.remark(f"{said}: left out: {'.'.join(path)}: there is nothing like it here")
            return False
    return found.take_together(values, said)
