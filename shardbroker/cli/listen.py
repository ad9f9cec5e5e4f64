"""Addresses of `--listen`."""

from shardbroker.config import ConfigError
from shardbroker.config.listeners import DEFAULT_PORTS

__all__ = ["LISTEN_HELP", "parse_listen"]

LISTEN_HELP = "tcp://HOST:PORT (mqtt:// is the same), ssl:// (mqtts://), ws:// or wss:// likewise, or unix:///PATH"
SCHEMES = {**{one: one for one in DEFAULT_PORTS}, "mqtt": "tcp", "mqtts": "ssl"}
"""Types of listeners by the scheme of an address."""


def parse_listen(address: str) -> tuple[str, str]:
    """Returns (type, bind) of a listener; without a port it is the usual one of the type. Raises ConfigError."""
    scheme, separator, bind = address.partition("://")
    bind = bind.removesuffix("/") if scheme != "unix" else bind
    if not separator or not bind or scheme not in (*SCHEMES, "unix"):
        raise ConfigError(f"--listen: must be {LISTEN_HELP}, got {address}")
    if scheme == "unix":
        return "tcp", f"unix:{bind}"
    kind = SCHEMES[scheme]
    return kind, bind if ":" in bind.rpartition("]")[2] else f"{bind}:{DEFAULT_PORTS[kind]}"
