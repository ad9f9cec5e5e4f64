"""The schema of the REST API."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from shardbroker.config.base import Section
from shardbroker.config.listeners import parse_address
from shardbroker.config.units import Allowed, Duration

__all__ = ["Api", "needs_api"]

PACKAGES = ("argon2", "fastapi", "httptools", "uvicorn")
"""Packages of the extra `api`; checked before the broker starts."""


class Api(Section):
    """REST API and dashboard, in a process of their own; they need `pip install 'shardbroker[api]'`."""

    bind: Annotated[str, Allowed("HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:18083, or disabled")] = Field(
        "disabled", description="HOST:PORT to listen on, such as 127.0.0.1:18083."
    )
    certfile: str = Field("", description="PEM file: the certificate, followed by those of its issuers; empty: plain HTTP.")
    keyfile: str = Field("", description="PEM file of the private key; empty: `certfile` contains the key.")
    token_expired_time: Duration = Field(3600.0, ge=1, le=30 * 86400, description="Lifetime of a login token.")

    @field_validator("bind")
    @classmethod
    def _address(cls, value: str) -> str:
        if value != "disabled":
            parse_address(value)
        return value

    @model_validator(mode="after")
    def _certificate(self) -> "Api":
        if self.keyfile and not self.certfile:
            raise ValueError("allowed is keyfile only with certfile")
        return self

    @property
    def missing(self) -> str | None:
        """An error message that names missing packages; None if `bind` can be used."""
        missing = [name for name in PACKAGES if find_spec(name) is None] if self.bind != "disabled" else []
        return f"api.bind needs {', '.join(missing)}, which are not installed: pip install 'shardbroker[api]'" if missing else None


def needs_api(settings: Any, listeners: Sequence[Any]) -> bool:
    """Returns whether the process of the REST API runs."""
    return bool(settings.api.bind != "disabled")
