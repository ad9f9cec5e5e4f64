"""Addresses of `--listen`."""

from shardbroker.config import ConfigError
from shardbroker.config.listeners import URL_HELP, split_url

__all__ = ["LISTEN_HELP", "parse_listen"]

LISTEN_HELP = URL_HELP


def parse_listen(address: str) -> tuple[str, str]:
    """Returns (type, bind) of a listener; without a port it is the usual one of the type. Raises ConfigError."""
    try:
        return split_url(address)
    except ValueError:
        raise ConfigError(f"--listen: must be {LISTEN_HELP}, got {address}") from None
