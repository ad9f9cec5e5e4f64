"""The schema of the REST API."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from shardbroker.config.base import Section
from shardbroker.config.listeners import parse_address
from shardbroker.config.units import Allowed, Duration

__all__ = ["AUTO_BIND", "Api", "needs_api"]

AUTO_BIND = "127.0.0.1:18083"
"""Of `auto`: the port of EMQX's dashboard, for this machine alone."""

PACKAGES = ("argon2", "fastapi", "httptools", "python_multipart", "uvicorn")
"""Packages of the extra `api`; checked before the broker starts."""


class Api(Section):
    """REST API and dashboard, in a process of their own; they need `pip install 'shardbroker[dashboard]'`."""

    bind: Annotated[str, Allowed("HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:18083, auto or disabled")] = Field(
        "auto",
        description=f"HOST:PORT to listen on. auto: {AUTO_BIND}, unless a package is missing; the broker starts without it, too.",
    )
    certfile: str = Field("", description="PEM file: the certificate, followed by those of its issuers; empty: plain HTTP.")
    keyfile: str = Field("", description="PEM file of the private key; empty: `certfile` contains the key.")
    token_expired_time: Duration = Field(3600.0, ge=1, le=30 * 86400, description="Lifetime of a login token.")

    @field_validator("bind")
    @classmethod
    def _address(cls, value: str) -> str:
        if value not in ("auto", "disabled"):
            parse_address(value)
        return value

    @model_validator(mode="after")
    def _certificate(self) -> "Api":
        if self.keyfile and not self.certfile:
            raise ValueError("allowed is keyfile only with certfile")
        return self

    @property
    def address(self) -> str | None:
        """HOST:PORT to listen on; None: there is neither API nor dashboard."""
        if self.bind == "disabled" or (self.bind == "auto" and self.lacking):
            return None
        return AUTO_BIND if self.bind == "auto" else self.bind

    @property
    def lacking(self) -> str | None:
        """An error message that names missing packages; None if there are none, or none is needed."""
        lacking = [name for name in PACKAGES if find_spec(name) is None] if self.bind != "disabled" else []
        return f"api.bind needs {', '.join(lacking)}, which are not installed: pip install 'shardbroker[api]'" if lacking else None

    @property
    def missing(self) -> str | None:
        """An error message that names missing packages; None if the broker starts without them."""
        return None if self.bind == "auto" else self.lacking


def needs_api(settings: Any, listeners: Sequence[Any]) -> bool:
    """Returns whether the process of the REST API runs."""
    return settings.api.address is not None
