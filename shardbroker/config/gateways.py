"""Keys of gateways, which speak other protocols than MQTT; docs/gateways.md."""

import re
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from shardbroker.config.access import CHAIN_HELP, Names, chain_names
from shardbroker.config.base import LEVELS_MAX, LIMIT_MAX, LONGEST_WAIT_S, RESTART, SHORTEST_S, Section
from shardbroker.config.exhook import PACKAGES, is_grpc_url
from shardbroker.config.listeners import Listener, Mountpoint, Rules, Tls, check_listener_names, parse_address
from shardbroker.config.packages import missing_packages
from shardbroker.config.units import Allowed, ByteRate, Duration, Limit, Rate, Secret, Size, Whole
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_name

__all__ = [
    "TEMPLATE", "AnyListener", "ClientInfoOverride", "CoapGateway", "DatagramListener", "ExProtoGateway", "ExProtoHandler",
    "ExProtoListener", "ExProtoServer", "GatewayListener", "Gateways", "MqttSnGateway", "PredefinedTopic", "StompGateway",
    "handoff_path", "inner_listeners", "needs_coap", "needs_exproto", "needs_mqttsn", "needs_stomp", "outer_listeners",
    "state_file",
]  # fmt: skip

PROCESSES_MAX = 32
"""Most processes of one gateway."""
GATEWAY_LISTENERS_MAX = 8
"""Most listeners of one gateway: each has an internal listener, which takes one of the places of `listeners`."""
TEMPLATE = re.compile(r"\$\{([^}]*)\}")
TEMPLATE_NAMES = ("clientid", "username", "password")
TEMPLATE_HELP = ", ".join(f"${{{name}}}" for name in TEMPLATE_NAMES)
ID_NAMES = ("clientid", "username")
"""Placeholders of client ids: these are shown in lists and logs, so passwords are not among them."""
ID_HELP = ", ".join(f"${{{name}}}" for name in ID_NAMES)
TOPIC_ID_MAX = 65534
"""Topic ids 0 and 65535 are reserved (MQTT-SN §5.3.11)."""
Bind = Annotated[str, Allowed("HOST:PORT with a port from 0 to 65535, such as 0.0.0.0:61613 or [::1]:61613")]


def _address(value: str) -> str:
    parse_address(value)
    return value


class AnyListener(Section):
    """What listening addresses of all gateways have."""

    bind: Annotated[Bind, AfterValidator(_address)] = Field("127.0.0.1:0", description="HOST:PORT; IPv6 as [::1]:PORT.")
    max_connections: Limit = Field(
        1024, ge=0, le=LIMIT_MAX, description="Most connections at a time; further ones are refused. 0: no limit."
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

    @property
    def secure(self) -> bool:
        """Whether the listener uses TLS."""
        return False

    @property
    def for_datagrams(self) -> bool:
        """Whether devices send datagrams."""
        return False


class GatewayListener(AnyListener):
    """One listening address of a gateway over TCP."""

    bind: Annotated[Bind, AfterValidator(_address)] = Field("127.0.0.1:61613", description="HOST:PORT; IPv6 as [::1]:61613.")
    type: Literal["tcp", "ssl"] = Field("tcp", description="Transport.")
    tls: Tls = Tls()

    @model_validator(mode="after")
    def _certificate(self) -> "GatewayListener":
        if self.secure and not self.tls.certfile:
            raise ValueError(f"allowed is type {self.type} only with tls.certfile, the broker's certificate")
        if not self.secure and self.tls != Tls():
            raise ValueError(f"allowed is tls only for a type with TLS, not {self.type}")
        return self

    @property
    def secure(self) -> bool:
        return self.type == "ssl"


def _check_dtls(tls: Tls) -> None:
    default = Tls()
    for key in ("crlfile", "versions", "session_tickets", "sni"):
        if getattr(tls, key) != getattr(default, key):
            raise ValueError(f"allowed is tls.{key} only for type ssl, not dtls, which is DTLS 1.2")


class DatagramListener(AnyListener):
    """One listening address of a gateway over UDP."""

    bind: Annotated[Bind, AfterValidator(_address)] = Field("127.0.0.1:1884", description="HOST:PORT; IPv6 as [::1]:PORT.")
    type: Literal["udp", "dtls"] = Field("udp", description="Transport; dtls needs the extra shardbroker[dtls].")
    tls: Tls = Tls()
    max_unknown_rate: Rate = Field(
        1000.0, gt=0, description="Datagrams of unknown senders per second that are handled, those that open a session among "
        "them; further ones are dropped."
    )  # fmt: skip

    @model_validator(mode="after")
    def _certificate(self) -> "DatagramListener":
        if self.secure and not self.tls.certfile:
            raise ValueError("allowed is type dtls only with tls.certfile, the broker's certificate")
        if not self.secure and self.tls != Tls():
            raise ValueError("allowed is tls only for type dtls, not udp")
        _check_dtls(self.tls)
        return self

    @property
    def secure(self) -> bool:
        return self.type == "dtls"

    @property
    def for_datagrams(self) -> bool:
        return True


class CoapListener(DatagramListener):
    """One listening address of the CoAP gateway."""

    bind: Annotated[Bind, AfterValidator(_address)] = Field("127.0.0.1:5683", description="HOST:PORT; IPv6 as [::1]:PORT.")


def _check_template(text: str) -> str:
    unknown = sorted({*TEMPLATE.findall(text)} - {*TEMPLATE_NAMES})
    if unknown:
        raise ValueError(f"allowed are the placeholders {TEMPLATE_HELP}, not ${{{unknown[0]}}}")
    return text


def _check_id_template(text: str) -> str:
    """Checks that different clients get different client ids: they would take over each other's sessions."""
    names = TEMPLATE.findall(text)
    unknown = sorted({*names} - {*ID_NAMES})
    if unknown:
        raise ValueError(f"allowed is text with the placeholders {ID_HELP}, not ${{{unknown[0]}}}")
    if text and not names:
        raise ValueError(f"allowed is text with one of the placeholders {ID_HELP}: clients with one id take over its session")
    if not all(TEMPLATE.split(text)[2:-1:2]):
        raise ValueError("allowed is text between two placeholders: without it, ab and c would be the same as a and bc")
    return text


class ClientInfoOverride(Section):
    """Client id, user name and password of all clients, in place of their own, as for protocols that have none."""

    clientid: Annotated[str, AfterValidator(_check_id_template), Allowed(f"text with one of the placeholders {ID_HELP}")] = Field(
        "", max_length=1024, description="Client id; empty: the client's own."
    )

    username: Annotated[str, AfterValidator(_check_template), Allowed(f"text; placeholders: {TEMPLATE_HELP}")] = Field(
        "", max_length=65535, description="User name; empty: the client's own, if its protocol has one."
    )
    password: Annotated[Secret, AfterValidator(_check_template)] = Field(
        "", max_length=65535, description=f"Password, with the same placeholders, {TEMPLATE_HELP}; empty: the client's own."
    )


class Gateway(Section):
    """What all gateways have."""

    enable: bool = Field(False, description="Whether the gateway runs.")
    processes: Annotated[Whole, RESTART] = Field(
        1, ge=1, le=PROCESSES_MAX, description="Processes; the kernel spreads devices over them by their addresses. Each has an "
        "equal share of max_connections and max_unknown_rate."
    )  # fmt: skip
    mountpoint: Mountpoint = Field(
        "", description="Prefix of all topics of its clients, removed again on delivery; empty: none."
    )
    authentication: Annotated[Names, AfterValidator(chain_names), Allowed(f"inherit, or {CHAIN_HELP}")] = Field(
        ["inherit"], description="Replaces `auth.chain` for its clients."
    )
    idle_timeout: Duration = Field(
        30.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="Longest time until CONNECT is complete, and for the broker's answer "
        "to it."
    )  # fmt: skip
    session_expiry_interval: Duration = Field(
        7200.0, ge=0, le=2**32 - 2, description="Time for which the session of a client that keeps it outlives its connection."
    )
    clientinfo_override: ClientInfoOverride = ClientInfoOverride()


Listening = TypeVar("Listening", bound=AnyListener)


def _named(value: dict[str, Listening]) -> dict[str, Listening]:
    check_listener_names(value)
    if not 1 <= len(value) <= GATEWAY_LISTENERS_MAX:
        raise ValueError(f"allowed are 1 to {GATEWAY_LISTENERS_MAX} of them, not {len(value)}")
    return value


class StompFrame(Section):
    """Limits on frames of STOMP clients; a frame above one is answered by ERROR."""

    max_headers: Whole = Field(32, ge=4, le=1000, description="Most headers of a frame.")
    max_headers_length: Size = Field(1024, ge=64, le=65535, description="Longest header line: name, colon and value.")
    max_body_length: Size = Field(65536, ge=0, le=256 << 20, description="Longest body.")


class StompGateway(Gateway):
    """STOMP 1.0, 1.1 and 1.2."""

    max_inflight: Whole = Field(
        100, ge=1, le=65535, description="Messages sent to a client that it has not acknowledged; further ones wait in its session."
    )
    max_subscriptions: Whole = Field(100, ge=1, le=10000, description="Subscriptions of one connection.")
    max_transactions: Whole = Field(10, ge=0, le=1000, description="Transactions of one connection that are open.")
    max_transaction_frames: Whole = Field(100, ge=1, le=65535, description="Frames in all open transactions of one connection.")
    frame: StompFrame = StompFrame()
    listeners: Annotated[dict[str, GatewayListener], AfterValidator(_named)] = Field({"default": GatewayListener()})


class PredefinedTopic(Section):
    """A topic that devices and the gateway know by its id without REGISTER."""

    id: Whole = Field(ge=1, le=TOPIC_ID_MAX)
    topic: str = Field(min_length=1)

    @field_validator("topic")
    @classmethod
    def _topic(cls, value: str) -> str:
        try:
            check_topic_name(value.encode(), LEVELS_MAX)
        except MqttError as error:
            raise ValueError(f"topic {value!r}: {error}") from None
        return value


def _distinct(value: list[PredefinedTopic]) -> list[PredefinedTopic]:
    if len({one.id for one in value}) < len(value):
        raise ValueError("allowed is each id once")
    return value


class MqttSnGateway(Gateway):
    """MQTT-SN 1.2."""

    gateway_id: Whole = Field(1, ge=0, le=255, description="Id of the gateway in GWINFO and ADVERTISE.")
    advertise_interval: Duration = Field(
        0.0, ge=0, le=65535, description="Time between two ADVERTISE messages, in seconds; 900 s is usual. 0: none are sent."
    )
    advertise_to: Annotated[Bind, AfterValidator(_address)] = Field(
        "255.255.255.255:1884", description="HOST:PORT that ADVERTISE is sent to, a broadcast or multicast address."
    )
    enable_qos3: bool = Field(False, description="Whether PUBLISH with QoS -1 is accepted, which needs no CONNECT.")
    predefined: Annotated[
        list[PredefinedTopic], AfterValidator(_distinct), Allowed("a list of tables with id (1 to 65534) and topic")
    ] = Field([], max_length=10000, description="Predefined topic ids.")
    retry_interval: Duration = Field(
        10.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="Time after which a message without an answer is sent again (T_retry)."
    )
    max_retries: Whole = Field(
        3, ge=0, le=10, description="How often it is sent again (N_retry) before its device counts as lost, or sleeps again."
    )
    max_inflight: Whole = Field(
        16, ge=1, le=1000, description="Messages of a device that the broker has not acknowledged; further ones get congestion."
    )
    max_topics: Whole = Field(
        256, ge=1, le=TOPIC_ID_MAX, description="Topics of a device that have an id; above it, the oldest is forgotten."
    )
    max_datagram_size: Size = Field(1400, ge=64, le=65507, description="Longest datagram in both directions.")
    listeners: Annotated[dict[str, DatagramListener], AfterValidator(_named)] = Field({"default": DatagramListener()})

    @field_validator("clientinfo_override")
    @classmethod
    def _without_user_names(cls, value: ClientInfoOverride) -> ClientInfoOverride:
        if "username" in TEMPLATE.findall(value.clientid):
            raise ValueError("allowed is clientid with the placeholder ${clientid} alone: devices have no user names")
        return value


QosOf = Literal["qos0", "qos1", "qos2", "coap"]


class CoapGateway(Gateway):
    """CoAP: publish and subscribe by the API of EMQX."""

    connection_required: bool = Field(
        False, description="Whether a device needs a connection, made by POST /mqtt/connection, to publish and observe."
    )
    heartbeat: Duration = Field(
        30.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="A connection without a request for 1.5 times this has ended. Without "
        "a connection, an observer is pinged after it, and the session of another device ends."
    )  # fmt: skip
    notify_type: Literal["non", "con", "qos"] = Field(
        "qos", description="Type of notifications; qos: Non-confirmable for messages with QoS 0, Confirmable for others."
    )
    subscribe_qos: QosOf = Field(
        "coap", description="QoS of an observation that names none; coap: 0 for a Non-confirmable request, 1 for a Confirmable one."
    )
    publish_qos: QosOf = Field("coap", description="QoS of a message that names none; coap: likewise.")
    max_inflight: Whole = Field(
        16, ge=1, le=1000, description="Requests of a device without a response; further ones get 5.03 Service Unavailable."
    )
    max_observations: Whole = Field(100, ge=1, le=10000, description="Topic filters that a device observes.")
    max_body_size: Size = Field(65536, ge=64, le=16 << 20, description="Longest message of a device, in blocks.")
    max_datagram_size: Size = Field(1400, ge=64, le=65507, description="Longest datagram of a device.")
    listeners: Annotated[dict[str, CoapListener], AfterValidator(_named)] = Field({"default": CoapListener()})


class ExProtoListener(GatewayListener):
    """One listening address of the ExProto gateway."""

    bind: Annotated[Bind, AfterValidator(_address)] = Field("127.0.0.1:7993", description="HOST:PORT; IPv6 as [::1]:7993.")
    type: Literal["tcp", "ssl", "udp", "dtls"] = Field(  # type: ignore[assignment]
        "tcp", description="Transport; dtls needs the extra shardbroker[dtls]."
    )
    max_unknown_rate: Rate = Field(
        1000.0, gt=0, description="Datagrams of unknown senders per second that are handled; further ones are dropped."
    )

    @model_validator(mode="after")
    def _datagrams(self) -> "ExProtoListener":
        if self.type == "dtls":
            _check_dtls(self.tls)
        return self

    @property
    def secure(self) -> bool:
        return self.type in ("ssl", "dtls")

    @property
    def for_datagrams(self) -> bool:
        return self.type in ("udp", "dtls")


class ExProtoTls(Section):
    """TLS between the gateway and the program."""

    enable: bool = Field(False, description="Whether TLS is used.")
    cacertfile: str = Field(
        "", description="Issuers that are trusted, PEM. Of the server: programs must show a certificate of them; empty: they need "
        "none. Of the handler: empty: those that gRPC has."
    )  # fmt: skip
    certfile: str = Field("", description="Certificate, PEM.")
    keyfile: str = Field("", description="Its key, PEM.")

    @model_validator(mode="after")
    def _whole(self) -> "ExProtoTls":
        if bool(self.certfile) != bool(self.keyfile):
            raise ValueError("allowed are certfile and keyfile together")
        return self


class ExProtoServer(Section):
    """The service ConnectionAdapter, which the program calls. Who can reach it can act as any device."""

    bind: Annotated[Bind, AfterValidator(_address)] = Field("127.0.0.1:9100", description="HOST:PORT; IPv6 as [::1]:9100.")
    ssl_options: ExProtoTls = ExProtoTls()

    @model_validator(mode="after")
    def _certificate(self) -> "ExProtoServer":
        if self.ssl_options.enable and not self.ssl_options.certfile:
            raise ValueError("allowed is ssl_options.enable only with ssl_options.certfile and keyfile")
        return self

    @property
    def knows_programs(self) -> bool:
        """Whether programs have to show a certificate."""
        return self.ssl_options.enable and bool(self.ssl_options.cacertfile)


class ExProtoHandler(Section):
    """The program."""

    address: str = Field("http://127.0.0.1:9001", description="http://HOST:PORT, or https://HOST:PORT with ssl_options.enable.")
    service_name: Literal["ConnectionUnaryHandler", "ConnectionHandler"] = Field(
        "ConnectionUnaryHandler", description="Its service. Only ConnectionUnaryHandler keeps events in order."
    )
    request_timeout: Duration = Field(
        5.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="Longest time until it answers to an event; then the connection ends."
    )
    ssl_options: ExProtoTls = ExProtoTls()

    @model_validator(mode="after")
    def _reachable(self) -> "ExProtoHandler":
        if not is_grpc_url(self.address):
            raise ValueError(f"address {self.address!r}: allowed is http://HOST:PORT, or https://HOST:PORT with ssl_options.enable")
        if (urlsplit(self.address).scheme == "https") != self.ssl_options.enable:
            raise ValueError(f"address {self.address!r}: allowed is https:// with ssl_options.enable, http:// without")
        return self


class ExProtoGateway(Gateway):
    """Protocols of one's own, which a program speaks over gRPC."""

    session_expiry_interval: Duration = Field(
        0.0, ge=0, le=2**32 - 2, description="Time for which a session outlives its connection. 0: it ends with it, as in EMQX."
    )
    processes: Annotated[Whole, RESTART] = Field(1, description="Always 1: a program reaches all devices at one address.")
    max_inflight: Whole = Field(
        32, ge=1, le=65535, description="Messages for a client that the program has not taken; further ones wait in its session."
    )
    server: ExProtoServer = ExProtoServer()
    handler: ExProtoHandler = ExProtoHandler()
    listeners: Annotated[dict[str, ExProtoListener], AfterValidator(_named)] = Field({"default": ExProtoListener()})

    @field_validator("processes")
    @classmethod
    def _one_process(cls, value: int) -> int:
        if value != 1:
            raise ValueError("allowed is 1: a program reaches all devices at one address, server.bind")
        return value

    @property
    def missing(self) -> str | None:
        """An error message that names missing packages; None if the gateway can be used."""
        return missing_packages("gateways.exproto", PACKAGES, "exhook") if self.enable else None


class Gateways(Section):
    """Gateways for other protocols, in processes of their own."""

    coap: CoapGateway = CoapGateway()
    exproto: ExProtoGateway = ExProtoGateway()
    mqttsn: MqttSnGateway = MqttSnGateway()
    stomp: StompGateway = StompGateway()

    @property
    def enabled(self) -> dict[str, CoapGateway | ExProtoGateway | MqttSnGateway | StompGateway]:
        """The gateways that run, by kind."""
        return {kind: gateway for kind, gateway in self if gateway.enable}


def outer_listeners(settings: Any) -> Iterator[tuple[str, str, str, GatewayListener | DatagramListener]]:
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


def needs_coap(settings: Any, listeners: Sequence[Any]) -> bool:
    """Returns whether the CoAP gateway runs."""
    return bool(settings.gateways.coap.enable)


def needs_exproto(settings: Any, listeners: Sequence[Any]) -> bool:
    """Returns whether the ExProto gateway runs."""
    return bool(settings.gateways.exproto.enable)


def needs_mqttsn(settings: Any, listeners: Sequence[Any]) -> bool:
    """Returns whether the MQTT-SN gateway runs."""
    return bool(settings.gateways.mqttsn.enable)


def needs_stomp(settings: Any, listeners: Sequence[Any]) -> bool:
    """Returns whether the STOMP gateway runs."""
    return bool(settings.gateways.stomp.enable)


def handoff_path(runtime_dir: Path, kind: str, number: int) -> Path:
    """Returns the unix socket at which process `number` of a gateway awaits the process that replaces it."""
    return runtime_dir / f"gateway-{kind}-{number}.handoff"


def state_file(runtime_dir: Path, kind: str, number: int) -> Path:
    """Returns the file in which process `number` of a gateway records the state of its listeners and its counts, as JSON."""
    return runtime_dir / f"gateway-{kind}-{number}.json"
