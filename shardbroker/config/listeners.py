"""Keys of a listener: its address, the layers below MQTT, and which clients may connect."""

import re
from collections.abc import Iterable
from ipaddress import ip_network
from math import inf
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator, model_validator

from shardbroker.config.access import CHAIN_HELP, Names, chain_names
from shardbroker.config.base import LIMIT_MAX, LONGEST_WAIT_S, SHORTEST_S, Section
from shardbroker.config.units import Allowed, ByteRate, Duration, Limit, Rate, Size

__all__ = [
    "DEFAULT_PORTS",
    "LISTENERS_MAX",
    "Certificate",
    "Limiter",
    "Listener",
    "Mountpoint",
    "Rules",
    "Tls",
    "WebSocket",
    "ZoneLimiter",
    "check_listener_names",
    "parse_address",
    "parse_rule",
    "split_url",
    "unix_path",
]

DEFAULT_PORTS = {"tcp": 1883, "ssl": 8883, "ws": 8083, "wss": 8084}
"""Default port of each type, as in EMQX."""
SCHEMES = {**{one: one for one in DEFAULT_PORTS}, "mqtt": "tcp", "mqtts": "ssl"}
"""Types of listeners by the scheme of a URL."""
URL_HELP = "tcp://HOST:PORT (mqtt:// is the same), ssl:// (mqtts://), ws:// or wss:// likewise, or unix:///PATH"

ADDRESS_HELP = "HOST:PORT with a port from 0 to 65535, such as 0.0.0.0:1883 or [::1]:1883, or unix:PATH"
MOUNTPOINT_HELP = "text that ends with / and has no + and #, such as tenants/${username}/; placeholders: ${clientid}, ${username}"
RULE_HELP = '"allow ADDRESS" or "deny ADDRESS", the address being an IP address, a network such as 10.0.0.0/8, or all'
LISTENER_NAME = re.compile(r"[a-z0-9_-]+")
"""Names that need no quotes in TOML and are valid in names of environment variables."""
LISTENERS_MAX = 64
"""Most listeners at a time, including those added at run time: each has a place in the counters of every process."""
UNIX_PATH_MAX = 107
"""Longest path of a unix socket, bytes: sun_path of Linux without the final zero."""
SERVER_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")

MOUNTPOINT_MAX = 1024
"""Most bytes of a mount point, with placeholders as they are written."""
PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")

Texts = Annotated[
    list[str],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Allowed('a text or a list of them, such as ["a", "b"]'),
]
Rules = Annotated[
    list[str],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    AfterValidator(lambda value: check_rules(value)),
    Allowed(f"a list of {RULE_HELP}"),
]
Mountpoint = Annotated[str, AfterValidator(lambda value: check_mountpoint(value)), Allowed(MOUNTPOINT_HELP)]
Versions = Annotated[
    list[Literal["tlsv1.2", "tlsv1.3"]],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Allowed('a list of "tlsv1.2" and "tlsv1.3"'),
]


class Certificate(Section):
    """A certificate for one host name."""

    certfile: str = Field("", description="PEM file: the certificate, followed by those of its issuers.")
    keyfile: str = Field("", description="PEM file of the private key; empty: `certfile` contains the key.")


class Tls(Section):
    """TLS of a listener of type ssl or wss."""

    certfile: str = Field("", description="PEM file: the certificate of the broker, followed by those of its issuers.")
    keyfile: str = Field("", description="PEM file of the private key; empty: `certfile` contains the key.")
    password: SecretStr = Field(SecretStr(""), description="Password of the private key, if it is encrypted.")
    cacertfile: str = Field("", description="PEM file: issuers of client certificates that are trusted.")
    crlfile: str = Field("", description="PEM file: lists of revoked client certificates; empty: revocation is not checked.")
    verify: Literal["verify_none", "verify_peer"] = Field(
        "verify_none", description="Whether the broker requests a certificate from clients."
    )
    fail_if_no_peer_cert: bool = Field(False, description="With verify_peer: whether a client without a certificate is rejected.")
    versions: Versions = Field(["tlsv1.2", "tlsv1.3"], description="TLS versions that are offered.")
    ciphers: str = Field("", description="Ciphers of TLS 1.2, as a list of OpenSSL; empty: its default.")
    handshake_timeout: Duration = Field(
        15.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="Longest time from accept to the end of the handshake."
    )
    session_tickets: bool = Field(False, description="Whether a client may resume its TLS session, for up to 2 h.")
    sni: Annotated[dict[str, Certificate], Allowed("a table of host name = { certfile, keyfile }")] = Field(
        {}, description="Certificates for other host names (SNI)."
    )

    @field_validator("versions")
    @classmethod
    def _some_version(cls, value: list[str]) -> list[str]:
        if not value:
            raise ValueError('allowed is a list of "tlsv1.2" and "tlsv1.3", not an empty one')
        return value

    @field_validator("sni")
    @classmethod
    def _server_names(cls, value: dict[str, Certificate]) -> dict[str, Certificate]:
        for name, certificate in value.items():
            if not SERVER_NAME.fullmatch(name):
                raise ValueError(f"allowed are host names in lower case, not {name!r}")
            if not certificate.certfile:
                raise ValueError(f"allowed are host names with a certfile; {name} has none")
        return value

    @model_validator(mode="after")
    def _trusted(self) -> "Tls":
        if self.verify == "verify_peer" and not self.cacertfile:
            raise ValueError("allowed is verify_peer only with tls.cacertfile, which says whose certificates are trusted")
        if self.crlfile and self.verify != "verify_peer":
            raise ValueError("allowed is tls.crlfile only with tls.verify = verify_peer")
        return self


class Limiter(Section):
    """Limits on what all clients together publish."""

    messages_rate: Rate = Field(inf, description="PUBLISH packets per second; docs/listeners.md describes what happens above it.")
    bytes_rate: ByteRate = Field(inf, description="Bytes per second of topics, properties and payloads; likewise.")


class ZoneLimiter(Limiter):
    """Limits on the clients of all listeners together."""

    max_conn_rate: Rate = Field(inf, description="Connections accepted per second; further ones wait.")


class WebSocket(Section):
    """WebSocket of a listener of type ws or wss."""

    path: str = Field("/mqtt", pattern=r"^/[!-~]*$", description="Path of the request.")
    supported_subprotocols: Texts = Field(
        ["mqtt", "mqtt-v3", "mqtt-v3.1.1", "mqtt-v5"], description="The first of these that the client offers is selected."
    )
    fail_if_no_subprotocol: bool = Field(True, description="Whether a client that offers none of them is rejected.")
    check_origins: Texts = Field([], description="Origins (scheme://host[:port]) whose scripts may connect; empty: all.")
    max_frame_size: Size = Field(
        1 << 20,
        ge=1024,
        le=256 << 20,
        description="Largest frame of a client. Messages of several frames are not limited by it, since frames are not joined.",
    )


class Listener(Section):
    """One listening address."""

    bind: Annotated[str, Allowed(ADDRESS_HELP)] = Field(
        "127.0.0.1:1883",
        description="HOST:PORT; IPv6 as [::1]:1883; unix:PATH; or a URL such as mqtts://0.0.0.0, which defines `type` too. The "
        "default port of ssl is 8883, of ws 8083, of wss 8084.",
    )
    type: Literal["tcp", "ssl", "ws", "wss"] = Field("tcp", description="Transport.")
    max_connections: Limit = Field(
        0, ge=0, le=LIMIT_MAX, description="Most connections at a time; further ones are closed. 0: no limit."
    )
    max_conn_rate: Rate = Field(inf, description="Connections accepted per second; further ones wait.")
    messages_rate: Rate = Field(inf, description="PUBLISH packets per second of one client, which is read more slowly above it.")
    bytes_rate: ByteRate = Field(inf, description="Bytes per second of one client; likewise.")
    mqueue_overflow: Literal["inherit", "drop", "push_back"] = Field(
        "inherit",
        description="Behaviour of the full queues of its clients in place of `mqtt.mqueue_overflow` and `mqtt.push_back_topics`; "
        "inherit: those apply.",
    )
    mountpoint: Mountpoint = Field(
        "", description="Prefix of all topics and filters of its clients, removed again on delivery; empty: none."
    )
    enable_authn: bool | Literal["quick_deny_anonymous"] = Field(
        True, description="Whether its clients are authenticated; quick_deny_anonymous: without a user name they are rejected."
    )
    auth_chain: Annotated[Names, AfterValidator(chain_names), Allowed(f"inherit, or {CHAIN_HELP}")] = Field(
        ["inherit"], description="Replaces `auth.chain` for its clients."
    )
    access_rules: Rules = Field(
        ["allow all"],
        description="Addresses that may connect; the first matching rule decides, without a match connecting is allowed.",
    )
    proxy_protocol: bool = Field(False, description="Whether connections begin with a PROXY header of version 1 or 2.")
    proxy_protocol_timeout: Duration = Field(
        3.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="Longest time from accept to the end of the header."
    )
    peer_cert_as_username: Literal["disabled", "cn", "dn"] = Field(
        "disabled",
        description="The user name is the common or distinguished name of the client certificate; without one it is rejected.",
    )
    peer_cert_as_clientid: Literal["disabled", "cn", "dn"] = Field("disabled", description="Likewise for the client id.")
    limiter: Limiter = Limiter()
    tls: Tls = Tls()
    websocket: WebSocket = WebSocket()

    @model_validator(mode="before")
    @classmethod
    def _default_port(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(url := value.get("bind"), str) and "://" in url:
            kind, bind = split_url(url)
            if value.get("type", kind) != kind:
                raise ValueError(f"allowed is type {kind} with bind = {url}, not {value['type']}")
            return {**value, "type": kind, "bind": bind}
        if isinstance(value, dict) and "bind" not in value and value.get("type") in DEFAULT_PORTS:
            return {**value, "bind": f"127.0.0.1:{DEFAULT_PORTS[value['type']]}"}
        return value

    @field_validator("bind")
    @classmethod
    def _address(cls, value: str) -> str:
        if unix_path(value) is None:
            parse_address(value)
        return value

    @model_validator(mode="after")
    def _certificate(self) -> "Listener":
        if self.secure and not self.tls.certfile:
            raise ValueError(f"allowed is type {self.type} only with tls.certfile, the broker's certificate")
        if not self.secure and self.tls != Tls():
            raise ValueError(f"allowed is tls only for type ssl and wss, not {self.type}")
        asks = [key for key in ("peer_cert_as_username", "peer_cert_as_clientid") if getattr(self, key) != "disabled"]
        if asks and self.tls.verify != "verify_peer" and not self.proxy_protocol:
            raise ValueError(f"allowed is {asks[0]} only with tls.verify = verify_peer, or with proxy_protocol")
        whole = [key for key in asks if getattr(self, key) == "dn"]
        if whole and self.tls.verify != "verify_peer":
            raise ValueError(f"allowed is {whole[0]} = dn only with tls.verify = verify_peer: a PROXY header has common names")
        return self

    @property
    def secure(self) -> bool:
        """Whether the listener uses TLS."""
        return self.type in ("ssl", "wss")

    @property
    def over_websocket(self) -> bool:
        return self.type in ("ws", "wss")


def check_mountpoint(value: str) -> str:
    """Returns a mount point. Raises ValueError for one that cannot be used."""
    text = PLACEHOLDER.sub("x", value)
    wrong = any(c in text for c in "+#$\0") or not set(PLACEHOLDER.findall(value)) <= {"clientid", "username"}
    if value and (wrong or not value.endswith("/") or len(value.encode()) > MOUNTPOINT_MAX):
        raise ValueError(f"allowed is {MOUNTPOINT_HELP}")
    return value


def split_url(url: str) -> tuple[str, str]:
    """Returns (type, bind) of a listener's URL; without a port it is the default port of the type. Raises ValueError."""
    scheme, separator, bind = url.partition("://")
    bind = bind.removesuffix("/") if scheme != "unix" else bind
    if not separator or not bind or scheme not in (*SCHEMES, "unix"):
        raise ValueError(f"allowed is {URL_HELP}")
    if scheme == "unix":
        return "tcp", f"unix:{bind}"
    kind = SCHEMES[scheme]
    return kind, bind if ":" in bind.rpartition("]")[2] else f"{bind}:{DEFAULT_PORTS[kind]}"


def unix_path(bind: str) -> str | None:
    """Returns the path of `unix:PATH`, None for another address. Raises ValueError for a path that the system does not accept."""
    scheme, separator, path = bind.partition(":")
    if scheme != "unix" or not separator:
        return None
    if not path.startswith("/") or "\0" in path or len(path.encode()) > UNIX_PATH_MAX:
        raise ValueError(f"allowed is unix:PATH with an absolute path of up to {UNIX_PATH_MAX} bytes")
    return path


def parse_address(text: str) -> tuple[str, int]:
    """Returns (host, port) of HOST:PORT, without the brackets of an IPv6 host. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""  # without brackets the end of an IPv6 address is ambiguous
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"allowed is {ADDRESS_HELP}")
    return host, int(port)


def check_rules(rules: list[str]) -> list[str]:
    """Returns access rules. Raises ValueError for one that is malformed."""
    for rule in rules:
        parse_rule(rule)
    return rules


def check_listener_names(names: Iterable[str]) -> None:
    """Raises ValueError for a name that no listener may have."""
    for name in names:
        if not LISTENER_NAME.fullmatch(name):
            raise ValueError(f"allowed is a name of a-z, 0-9, _ and -, not {name!r}")


def parse_rule(text: str) -> tuple[bool, str]:
    """Returns (whether it allows, "all" or a network in CIDR form) of an access rule. Raises ValueError."""
    verdict, _, whom = text.strip().partition(" ")
    whom = whom.strip()
    if verdict not in ("allow", "deny") or not whom:
        raise ValueError(f"allowed is {RULE_HELP}, not {text!r}")
    if whom == "all":
        return verdict == "allow", whom
    try:
        return verdict == "allow", str(ip_network(whom, strict=False))
    except ValueError:
        raise ValueError(f"allowed is {RULE_HELP}, not {text!r}") from None
