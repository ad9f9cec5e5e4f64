"""Keys of gateways, which speak other protocols than MQTT; docs/gateways.md."""

from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from shardbroker.config.access import CHAIN_HELP, Names, chain_names
from shardbroker.config.base import LIMIT_MAX, LONGEST_WAIT_S, SHORTEST_S, Section
from shardbroker.config.listeners import Listener, Mountpoint, Rules, Tls, check_listener_names, parse_address
from shardbroker.config.units import Allowed, ByteRate, Duration, Limit, Rate, Size, Whole

__all__ = ["GatewayListener", "Gateways", "StompGateway", "inner_listeners", "needs_stomp", "outer_listeners", "state_file"]

GATEWAY_LISTENERS_MAX = 8
"""Most listeners of one gateway: each has an internal listener, which takes one of the places of `listeners`."""
Bind = Annotated[str, Allowed("HOST:PORT with a port from 0 to 65535, such as 0.0.0.0:61613 or [::1]:61613")]


class GatewayListener(Section):
    """One listening address of a gateway."""

    bind: Bind = Field("127.0.0.1:61613", description="HOST:PORT; IPv6 as [::1]:61613.")
    type: Literal["tcp", "ssl"] = Field("tcp", description="Transport.")
    max_connections: Limit = Field(
        1024, ge=0, le=LIMIT_MAX, description="Most connections at a time; further ones are closed. 0: no limit."
    )
    max_conn_rate: Rate = Field(inf, description="Sessions opened per second; further ones wait.")
    messages_rate: Rate = Field(inf, description="Messages per second of one client, which is read more slowly above it.")
    bytes_rate: ByteRate = Field(inf, description="Bytes per second of one client; likewise.")
    enable_authn: bool | Literal["quick_deny_anonymous"] = Field(
        True, description="Whether its clients are authenticated; quick_deny_anonymous: without a user name they are rejected."
    )
    access_rules: Rules = Field(
        ["allow all"],
        description="Addresses that may connect; the first matching rule decides, without a match connecting is allowed.",
    )
    tls: Tls = Tls()

    @field_validator("bind")
    @classmethod
    def _address(cls, value: str) -> str:
        parse_address(value)
        return value

    @model_validator(mode="after")
    def _certificate(self) -> "GatewayListener":
        if self.secure and not self.tls.certfile:
            raise ValueError("allowed is type ssl only with tls.certfile, the broker's certificate")
        if not self.secure and self.tls != Tls():
            raise ValueError("allowed is tls only for type ssl, not tcp")
        return self

    @property
    def secure(self) -> bool:
        """Whether the listener uses TLS."""
        return self.type == "ssl"


class StompFrame(Section):
    """Limits on frames of STOMP clients; a frame above one is answered by ERROR."""

    max_headers: Whole = Field(32, ge=4, le=1000, description="Most headers of a frame.")
    max_headers_length: Size = Field(1024, ge=64, le=65535, description="Longest header line: name, colon and value.")
    max_body_length: Size = Field(65536, ge=0, le=256 << 20, description="Longest body.")


class StompGateway(Section):
    """STOMP 1.0, 1.1 and 1.2."""

    enable: bool = Field(False, description="Whether the gateway runs.")
    mountpoint: Mountpoint = Field(
        "", description="Prefix of all destinations of its clients, removed again on delivery; empty: none."
    )
    authentication: Annotated[Names, AfterValidator(chain_names), Allowed(f"inherit, or {CHAIN_HELP}")] = Field(
        ["inherit"], description="Replaces `auth.chain` for its clients."
    )
    idle_timeout: Duration = Field(
        30.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="Longest time from accept to CONNECT, and for each wait of the gateway "
        "for the broker's answer to it."
    )  # fmt: skip
    session_expiry_interval: Duration = Field(
        7200.0, ge=0, le=2**32 - 2, description="Time for which the session of a client with `client-id` outlives its connection."
    )
    max_inflight: Whole = Field(
        100, ge=1, le=65535, description="Messages sent to a client that it has not acknowledged; further ones wait in its session."
    )
    max_subscriptions: Whole = Field(100, ge=1, le=10000, description="Subscriptions of one connection.")
    max_transactions: Whole = Field(10, ge=0, le=1000, description="Transactions of one connection that are open.")
    max_transaction_frames: Whole = Field(100, ge=1, le=65535, description="Frames of one transaction.")
    frame: StompFrame = StompFrame()
    listeners: dict[str, GatewayListener] = Field({"default": GatewayListener()})

    @field_validator("listeners")
    @classmethod
    def _names(cls, value: dict[str, GatewayListener]) -> dict[str, GatewayListener]:
        check_listener_names(value)
        if not 1 <= len(value) <= GATEWAY_LISTENERS_MAX:
            raise ValueError(f"allowed are 1 to {GATEWAY_LISTENERS_MAX} of them, not {len(value)}")
        return value


class Gateways(Section):
    """Gateways for other protocols, in a process each."""

    stomp: StompGateway = StompGateway()

    @property
    def enabled(self) -> dict[str, StompGateway]:
        """The gateways that run, by kind."""
        return {kind: gateway for kind, gateway in self if gateway.enable}


def outer_listeners(settings: Any) -> Iterator[tuple[str, str, str, GatewayListener]]:
    """Yields (kind, name, id, settings) of each listener of the gateways that run; the id is EMQX's, `stomp:tcp:default`."""
    for kind, gateway in settings.gateways.enabled.items():
        for name, one in gateway.listeners.items():
            yield kind, name, f"{kind}:{one.type}:{name}", one


def inner_listeners(settings: Any, runtime_dir: Path) -> dict[str, Listener]:
    """Returns the internal MQTT listeners, by id of the gateway's listener: their unix sockets are in the runtime directory, and
    all that a listener does for its clients is done by them."""
    found = {}
    for kind, name, id, one in outer_listeners(settings):
        gateway = getattr(settings.gateways, kind)
        found[id] = Listener(
            bind=f"unix:{runtime_dir}/{kind}-{name}.sock", proxy_protocol=True, mountpoint=gateway.mountpoint,
            auth_chain=gateway.authentication, enable_authn=one.enable_authn, max_conn_rate=one.max_conn_rate,
            messages_rate=one.messages_rate, bytes_rate=one.bytes_rate,
        )  # fmt: skip
    return found


def needs_stomp(settings: Any, listeners: Sequence[Any]) -> bool:
    """Returns whether the process of the STOMP gateway runs."""
    return bool(settings.gateways.stomp.enable)


def state_file(runtime_dir: Path, kind: str) -> Path:
    """Returns the file in which the process of a gateway records the state of its listeners and its counts, as JSON."""
    return runtime_dir / f"gateway-{kind}.json"
