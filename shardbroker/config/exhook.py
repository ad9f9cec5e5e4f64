"""Keys of hooks over gRPC, named as in EMQX."""

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from shardbroker.config.base import LONGEST_WAIT_S, Section
from shardbroker.config.connectors import BackendTimeout, PoolSize
from shardbroker.config.packages import missing_packages
from shardbroker.config.units import Allowed, OptionalDuration

__all__ = ["STATE_FILE", "ExHook", "ExHookServer", "ExHookTls", "is_grpc_url"]

STATE_FILE = "exhook.json"
"""File in the runtime directory: the servers, their state, and the results of calls."""
PACKAGES = ("grpc", "google.protobuf")
"""Packages of the extra `exhook`."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""Name of a server, which is a label in metrics."""
URL_HELP = "http://HOST:PORT, or https://HOST:PORT with ssl.enable"


class ExHookTls(Section):
    """TLS to a server: the certificate is verified, and its name must be the host of the URL."""

    enable: bool = False
    cacertfile: str = ""
    certfile: str = ""
    keyfile: str = ""

    @model_validator(mode="after")
    def _whole(self) -> "ExHookTls":
        if bool(self.certfile) != bool(self.keyfile):
            raise ValueError("ssl.certfile and ssl.keyfile belong together")
        return self


class ExHookServer(Section):
    """A program that takes part in hooks; docs/exhook.md explains each key."""

    name: str
    enable: bool = True
    url: str
    request_timeout: BackendTimeout = 5.0
    failed_action: Literal["deny", "ignore"] = "deny"
    auto_reconnect: OptionalDuration = Field(5.0, ge=0.1, le=LONGEST_WAIT_S)
    pool_size: PoolSize = 8
    ssl: ExHookTls = ExHookTls()

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError(f"name {value!r}: allowed are up to 64 letters, digits, - and _, a letter or digit first")
        return value

    @model_validator(mode="after")
    def _reachable(self) -> "ExHookServer":
        if not is_grpc_url(self.url):
            raise ValueError(f"url {self.url!r}: allowed is {URL_HELP}")
        if (urlsplit(self.url).scheme == "https") != self.ssl.enable:
            raise ValueError(f"url {self.url!r} and ssl.enable = {str(self.ssl.enable).lower()} do not fit: allowed is {URL_HELP}")
        return self


class ExHook(Section):
    """Hooks over gRPC: programs in any language that receive events and take decisions; docs/exhook.md."""

    servers: Annotated[
        list[ExHookServer],
        Allowed(
            "a list of tables with name, url (http://HOST:PORT), enable, request_timeout (5s), failed_action (deny or ignore), "
            "auto_reconnect (5s, or disabled), pool_size (8), and ssl = { enable, cacertfile, certfile, keyfile }"
        ),
    ] = Field([], description="Called in this order, after plugins. They need `pip install shardbroker[exhook]`.")

    @field_validator("servers")
    @classmethod
    def _names(cls, value: list[ExHookServer]) -> list[ExHookServer]:
        names = [one.name for one in value]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"allowed is each name once, not {twice} twice")
        return value

    @property
    def enabled(self) -> list[ExHookServer]:
        """The servers that are enabled."""
        return [one for one in self.servers if one.enable]

    @property
    def missing(self) -> str | None:
        """An error message that names missing packages; None if the servers can be used."""
        return missing_packages("exhook.servers", PACKAGES, "exhook") if self.enabled else None


def is_grpc_url(text: str) -> bool:
    """Returns whether a text is http://HOST:PORT or https://HOST:PORT."""
    parts = urlsplit(text)
    try:
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and bool(parts.port)
    except ValueError:  # the port
        return False
    return is_whole and not parts.path.strip("/") and parts.username is None and not (parts.query or parts.fragment)
