"""Keys of a cluster: which nodes are members, how they reach each other, and what waits for them."""

import os
import shutil
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Annotated, Any, Literal, NamedTuple

import psutil
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationInfo, field_validator, model_validator

from shardbroker.config.base import LONGEST_WAIT_S, SHORTEST_S, Live, Section
from shardbroker.config.exhook import is_grpc_url
from shardbroker.config.listeners import parse_address
from shardbroker.config.packages import missing_packages
from shardbroker.config.units import Allowed, Duration, Secret, Size, Whole
from shm.roles import WORKER

__all__ = [
    "COOKIE_BYTES_MIN", "CORES", "LINKS_MAX", "LINK_PORT", "NODE_ID_MAX",
    "Cluster", "ClusterTls", "CoreMember", "Etcd", "Kubernetes", "Links",
    "core_members", "core_url", "etcd_program", "missing_etcd", "needs_core", "own_address",
]  # fmt: skip

NODE_ID_MAX = 250
"""Largest `node.id` of a member."""
LINKS_MAX = 8
"""Most data processes of a node."""
SEEDS_MAX = 250
"""Most members: as many as there are node ids."""
NAME_BYTES_MAX = 255
"""Bytes of an address: a host name has at most 253."""
COOKIE_BYTES_MIN = 16
"""Least bytes of a cookie: 128 bits cannot be guessed."""
LINK_PORT = 5370
REGISTRY_DEFAULT: Literal["on", "off"] = "on"
"""Default of `cluster.registry`."""
LOST_WAIT_S = 1, 50
"""Shortest and longest `cluster.lost_session = wait`: the registrar locks a client id for 60 s."""
LOST_HELP = f"new, refuse, or wait:TIME with {LOST_WAIT_S[0]}s to {LOST_WAIT_S[1]}s, such as wait:30s"
DISCOVERY_HELP = (
    "static with core.mode = none, etcd, manual, dns or k8s with external, manual, dns or k8s with managed"
)
FOUND = "dns", "k8s"
"""Strategies that look for etcd elsewhere than in the configuration."""
CORES = 1, 3, 5
"""How many members a core can have: of an even number the last one adds no failure that the core outlives."""
CORES_HELP = (
    "a list of 1, 3 or 5 different names of nodes, each as NAME@HOST or NAME=HOST:PORT with a port from 1 to 65534, such as "
    '["n1@10.0.0.1", "n2@10.0.0.2", "n3@10.0.0.3"]'
)
CORE_BIND_HELP = "IP:PORT with a port from 1 to 65534, such as 10.0.0.1:12379"
ENDPOINTS_MAX = 16
ENDPOINTS_HELP = (
    f'a list of 1 to {ENDPOINTS_MAX} different addresses http://HOST:PORT or https://HOST:PORT, such as ["http://10.0.0.9:2379"]'
)
PACKAGES = ("grpc", "google.protobuf")
"""Packages of the extra `cluster`."""
SEEDS_HELP = f'a list of 1 to {SEEDS_MAX} different addresses HOST:PORT, such as ["10.0.0.1:5370", "10.0.0.2:5370"]'

Port = "HOST:PORT with a port from 1 to 65535, such as 10.0.0.1:5370 or [fd00::1]:5370"
Seeds = Annotated[
    list[str], BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value), Allowed(SEEDS_HELP)
]
Endpoints = Annotated[
    list[str], BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value), Allowed(ENDPOINTS_HELP)
]
Cores = Annotated[
    list[str], BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value), Allowed(CORES_HELP)
]
Wait = Annotated[Duration, Field(ge=SHORTEST_S, le=LONGEST_WAIT_S)]


def _lost_session(value: object) -> str:
    text = str(value).strip()
    if text not in ("new", "refuse") and not LOST_WAIT_S[0] <= _lost_wait_s(text) <= LOST_WAIT_S[1]:
        raise ValueError(f"allowed is {LOST_HELP}")
    return text


def _lost_wait_s(text: str) -> float:
    kind, colon, time = text.partition(":")
    if kind != "wait" or not colon:
        return 0.0
    return TypeAdapter(Duration).validate_python(time)


def _address(text: str) -> str:
    host, port = parse_address(text)
    if not port or len(text.encode()) > NAME_BYTES_MAX or host.startswith("/"):
        raise ValueError(f"allowed is {Port}")
    return text


class CoreMember(NamedTuple):
    """A node whose etcd is a member of the core. The port for the other members is the next one."""

    name: str
    host: str
    port: int


def _core_member(text: str, port: int) -> CoreMember:
    """Returns a member of `core.members`; `port`: of those without one. Raises ValueError."""
    name, equals, address = text.strip().rpartition("=")
    if not equals:
        name, host = address, address.rpartition("@")[2]
        if "@" not in address:
            raise ValueError(f"allowed is {CORES_HELP}, not {text!r}")
    else:
        host, port = parse_address(address)
    is_printable = name.isprintable() and not any(one in name for one in ' ,"')
    if not name or not host or host.startswith("/") or not is_printable or len(text.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"allowed is {CORES_HELP}, not {text!r}")
    if not 0 < port < 65535:
        raise ValueError(f"allowed is {CORES_HELP}, not {text!r}")
    return CoreMember(name, host, port)


class Core(Section):
    """What decides which nodes are members."""

    mode: Literal["managed", "external", "none"] = Field(
        "managed",
        description="none: every node of `static.seeds` is a member, and each node judges for itself which others it reaches. "
        "external: members have a lease in etcd, at `etcd.endpoints`. managed: the same, and the nodes of `core.members` run etcd.",
    )
    members: Cores = Field(
        [],
        description="With `mode = managed`: the nodes that run etcd, the same list on every node. Without an address it is the "
        "host behind @ in the name, and the port of `core.bind`. Read by the first start; later changes are `ctl cluster core "
        "add` and `remove`.",
    )
    bind: Annotated[str, Allowed(CORE_BIND_HELP)] = Field(
        "127.0.0.1:12379",
        description="With `mode = managed`: IP:PORT of this node's etcd for the nodes; the next port is for other etcds.",
    )

    @field_validator("members")
    @classmethod
    def _members(cls, value: list[str]) -> list[str]:
        found = [_core_member(one, 1) for one in value]
        if found and (len(found) not in CORES or len({one.name for one in found}) != len(found)):
            raise ValueError(f"allowed is {CORES_HELP}")
        return [one.strip() for one in value]

    @field_validator("bind")
    @classmethod
    def _bind(cls, value: str) -> str:
        host, port = parse_address(value)
        try:
            ip_address(host)
        except ValueError:
            port = 0
        if not 0 < port < 65535:
            raise ValueError(f"allowed is {CORE_BIND_HELP}")
        return value


class EtcdTls(Section):
    """TLS to endpoints with https: the certificate of etcd is verified, and has to have the host of the endpoint."""

    cacertfile: str = Field("", description="PEM file: issuers of etcd's certificate; empty: those of gRPC.")
    certfile: str = Field("", description="PEM file: certificate of this node, if etcd wants one.")
    keyfile: str = Field("", description="PEM file of its private key; empty: `certfile` contains the key.")

    @model_validator(mode="after")
    def _whole(self) -> "EtcdTls":
        if self.keyfile and not self.certfile:
            raise ValueError("allowed is keyfile only with certfile")
        return self


class Etcd(Section):
    """The etcd that has the members, with `core.mode = external`; of an etcd that nodes run only `prefix` counts."""

    endpoints: Endpoints = Field([], description="Addresses of its members; another one is used when one fails.")
    prefix: str = Field(
        "shardbroker",
        pattern=r"^/?[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*/?$",
        max_length=NAME_BYTES_MAX,
        description="All keys are below /`prefix`/`cluster.name`/.",
    )
    username: str = Field("", max_length=NAME_BYTES_MAX, description="Login; empty: none.")
    password: Secret = Field("", description="Password of the login; not allowed with --set. `file:PATH` reads it from a file.")
    tls: EtcdTls = EtcdTls()

    @field_validator("endpoints")
    @classmethod
    def _endpoints(cls, value: list[str]) -> list[str]:
        found = [one.strip().rstrip("/") for one in value]
        for one in found:
            if not is_grpc_url(one):
                raise ValueError(f"allowed is {ENDPOINTS_HELP}, not {one!r}")
        if len({*found}) != len(found) or len(found) > ENDPOINTS_MAX:
            raise ValueError(f"allowed is {ENDPOINTS_HELP}")
        return found


class Dns(Section):
    """Where the core is, with `discovery = dns`. Read at the first start, and again while no member of etcd is reached."""

    name: str = Field("", max_length=NAME_BYTES_MAX, description="Name that is looked up, by the servers of /etc/resolv.conf.")
    record_type: Literal["a", "srv"] = Field(
        "a",
        description="a: A and AAAA records, with the port of `core.bind` (2379 with `core.mode = external`). srv: an SRV record, "
        "whose targets are host names, such as _etcd-client._tcp.example.org.",
    )


class Kubernetes(Section):
    """Where the core is, with `discovery = k8s`: the pods of a service, by its EndpointSlices. The pod's service account has to be
    allowed to list them. Read at the first start, and again while no member of etcd is reached."""

    apiserver: str = Field(
        "https://kubernetes.default.svc", max_length=NAME_BYTES_MAX, pattern=r"^https?://[^/\s]+/?$",
        description="URL of the API server. With https its certificate is verified by ca.crt of the service account.",
    )  # fmt: skip
    namespace: str = Field("", pattern=r"^[a-z0-9-]{0,63}$", description="Namespace of the service; empty: that of the pod.")
    service_name: str = Field("", pattern=r"^[a-z0-9-]{0,63}$", description="Name of the service, a headless one.")
    address_type: Literal["ip", "dns", "hostname"] = Field(
        "ip",
        description="ip: addresses of the pods. dns: names made of them, such as 10-1-0-4.NAMESPACE.SUFFIX. hostname: the pods of "
        "a StatefulSet, such as broker-0.SERVICE.NAMESPACE.SUFFIX. The port is that of `core.bind`, or 2379 with `core.mode = "
        "external`.",
    )
    suffix: str = Field(
        "svc.cluster.local", max_length=NAME_BYTES_MAX, pattern=r"^[a-z0-9.-]+$",
        description="End of these names; with dns such as pod.cluster.local.",
    )  # fmt: skip


class Static(Section):
    """Members by their addresses."""

    seeds: Seeds = Field([], description="Addresses of the links of all members, this node included; the same on every node.")

    @field_validator("seeds")
    @classmethod
    def _addresses(cls, value: list[str]) -> list[str]:
        seeds = [one.strip() for one in value]
        for one in seeds:
            try:
                _address(one)
            except ValueError:
                raise ValueError(f"allowed is {SEEDS_HELP}, not {one!r}") from None
        if len({*seeds}) != len(seeds) or len(seeds) > SEEDS_MAX:
            raise ValueError(f"allowed is {SEEDS_HELP}")
        return seeds


class Links(Section):
    """Connections between nodes. Signals and data of a peer each have one, on the same port."""

    bind: Annotated[str, Allowed(f"{Port}, or empty")] = Field(
        "", description=f"HOST:PORT for connections of other nodes; empty: the host of `cluster.bind` and port {LINK_PORT}."
    )
    compression: Annotated[Literal["none"], Allowed("'none' in this version; zstd is not available yet")] = Field(
        "none", description="Compression of data between nodes."
    )
    stall: Wait = Field(5.0, description="Without progress of a data link for so long, it counts as dead.")
    grace: Wait = Field(0.25, description="How long a data link may be dead before QoS 1 and 2 for the peer go to the spool.")
    connect_timeout: Wait = Field(5.0, description="Longest time to open a connection to a peer.")
    send_timeout: Wait = Field(5.0, description="Longest time in which a peer takes nothing of what was sent to it.")
    auth_timeout: Wait = Field(5.0, description="Longest time from an open connection to the proof of the cookie.")
    keepalive_idle: Annotated[Whole, Field(ge=1, le=32767)] = Field(
        900, description="Seconds without data before TCP keepalive probes are sent."
    )
    keepalive_interval: Annotated[Whole, Field(ge=1, le=32767)] = Field(75, description="Seconds between two TCP keepalive probes.")
    keepalive_count: Annotated[Whole, Field(ge=1, le=127)] = Field(9, description="Unanswered probes that end a connection.")

    @field_validator("bind")
    @classmethod
    def _bind(cls, value: str) -> str:
        return value and _address(value)


class ClusterTls(Section):
    """TLS between nodes, on which both sides show a certificate. Its common name or one of its alternative names has to be the
    `node.name` of its node."""

    enable: bool = Field(False, description="Whether connections between nodes use TLS: all nodes, or none.")
    cacertfile: str = Field("", description="PEM file: issuers of the nodes' certificates.")
    certfile: str = Field("", description="PEM file: the certificate of this node, followed by those of its issuers.")
    keyfile: str = Field("", description="PEM file of the private key; empty: `certfile` contains the key.")

    @model_validator(mode="after")
    def _whole(self) -> "ClusterTls":
        if self.enable and not (self.cacertfile and self.certfile):
            raise ValueError("allowed is enable = true only with cacertfile and certfile")
        return self


class Spool(Section):
    """Messages on disk for a peer that is not reachable, below `data_dir`/spool."""

    bytes: Size = Field(
        1 << 30, ge=1 << 20, le=1 << 44, description="Most bytes for one peer; above it the oldest are dropped and counted."
    )


class Cluster(Section):
    """Several brokers as one; docs/cluster.md."""

    enable: bool = Field(False, description="Whether this broker is a node of a cluster. `node.id` has to be set on each node.")
    name: str = Field(
        "shardbroker", min_length=1, max_length=NAME_BYTES_MAX, description="Name of the cluster: nodes of another one are refused."
    )
    core: Core = Field(Core(), validate_default=True)
    role: Literal["auto", "core", "replicant", "witness"] = Field(
        "auto",
        description="With `core.mode = managed`. core: this node runs etcd, and has to be in `core.members`; replicant: it never "
        "does; auto: core if `core.members` has it, otherwise a replicant until `ctl cluster core add`; witness: it runs etcd "
        "and serves no client, so that two nodes and a witness have a majority.",
    )
    discovery: Annotated[Literal["manual", "static", "dns", "etcd", "k8s"], Allowed(DISCOVERY_HELP)] = Field(
        "manual",
        validate_default=True,
        description="How nodes find each other. static: by `static.seeds`, with `core.mode = none`. etcd or manual: by "
        "`etcd.endpoints`, with `core.mode = external`. manual: by `core.members`, with `core.mode = managed`. "
        "dns and k8s: etcd by `dns.name` or `k8s.service_name`, with a core.",
    )
    dns: Dns = Field(Dns(), validate_default=True)
    k8s: Kubernetes = Field(Kubernetes(), validate_default=True)
    static: Static = Field(Static(), validate_default=True)
    etcd: Etcd = Field(Etcd(), validate_default=True)
    advertise: Annotated[str, Allowed(f"an address of static.seeds, {Port}, or empty")] = Field(
        "",
        description="The address of this node for the others, one of `static.seeds` with `core.mode = none`; empty: `link.bind`, "
        "or else the only seed with its port whose host is an IP address of this machine.",
    )
    bind: Annotated[str, Allowed(Port)] = Field(
        "127.0.0.1:4370",
        description="HOST:PORT. The host is the default of `link.bind`; the port is not used: managers of other nodes connect to "
        "`link.bind`, too.",
    )
    link: Links = Links()
    cookie_file: str = Field(
        "",
        validate_default=True,
        description=f"File with a secret of {COOKIE_BYTES_MIN} bytes or more, the same on every node, mode 0600. Each side of a "
        "connection proves that it knows the secret, which is never sent.",
    )
    tls: ClusterTls = ClusterTls()
    links: Annotated[Whole, Field(ge=1, le=LINKS_MAX)] = Field(
        1, description="Processes for data of other nodes, each with connections of its own; workers are divided among them."
    )
    ring_size: Literal["auto"] | Annotated[Size, Field(ge=65536, le=1 << 30)] = Field(
        "auto", description="Size of the ring from one worker to one peer; auto: 1MB, less with many workers."
    )
    lease: Annotated[Duration, Field(ge=2, le=600)] = Field(
        6.0,
        description="With a core: a node that does not renew its lease for so long is no member any more. Whole seconds; renewed "
        "three times as often.",
    )
    autoclean: Annotated[Duration, Field(ge=1, le=365 * 86400)] = Field(
        86400.0,
        description="With a core: a node without a lease for so long is removed, with the routes and messages that others keep for "
        "it. Counted by the node that removes it, from when it started.",
    )
    suspect: Annotated[Duration, Field(ge=0.1, le=LONGEST_WAIT_S)] = Field(
        2.0, description="Without an answer of a peer for so long, its link is suspect; after as long again it is closed."
    )
    suback: Literal["cluster", "local"] = Field(
        "cluster",
        description="cluster: a SUBACK waits until all reachable nodes know the route, 100 ms at most; local: it does not wait.",
    )
    registry: Literal["on", "off"] = Field(
        REGISTRY_DEFAULT,
        description="on: a client finds its session at any node, and a client id has one session in the cluster; off: sessions are "
        "those of their node. The same on every node.",
    )
    lost_session: Annotated[str, BeforeValidator(_lost_session), Allowed(LOST_HELP), Live(WORKER)] = Field(
        "new",
        description="CONNECT whose session is at a node that is not reachable, with `registry = on`. new: it gets a new session, "
        "and the two are merged later; wait: it waits for the node, then gets a new session; refuse: CONNACK 0x88.",
    )
    spool: Spool = Spool()
    management: Literal["all", "read", "off"] = Field(
        "all",
        description="Verbs that other nodes may use here, as by `ctl --node`. all: as root of this machine may; read: those that "
        "change nothing; off: none.",
    )
    call_timeout: Annotated[Duration, Field(ge=0.1, le=600)] = Field(
        15.0, description="Longest wait for the answer of another node to a verb."
    )
    join_timeout: Wait = Field(
        30.0,
        description="A node that starts serves clients once it has the routes of all members, or after this time. Absent members "
        "then have the routes that they had sent before.",
    )

    @field_validator("discovery")
    @classmethod
    def _discovery(cls, value: str, info: ValidationInfo) -> str:
        core = info.data.get("core")
        if not isinstance(core, Core) or not info.data.get("enable"):
            return value
        if value not in {"none": ("static",), "external": ("etcd", "manual", *FOUND), "managed": ("manual", *FOUND)}[core.mode]:
            raise ValueError(f"allowed is {DISCOVERY_HELP}")
        if core.mode == "managed" and value == "manual" and not core.members:
            raise ValueError(f"allowed is cluster.core.members = {CORES_HELP} with core.mode = managed, discovery = manual")
        return value

    @field_validator("dns")
    @classmethod
    def _dns(cls, value: Dns, info: ValidationInfo) -> Dns:
        if info.data.get("enable") and info.data.get("discovery") == "dns" and not value.name:
            raise ValueError("allowed is cluster.dns.name = a name in DNS with cluster.discovery = dns")
        return value

    @field_validator("k8s")
    @classmethod
    def _k8s(cls, value: Kubernetes, info: ValidationInfo) -> Kubernetes:
        if info.data.get("enable") and info.data.get("discovery") == "k8s" and not value.service_name:
            raise ValueError("allowed is cluster.k8s.service_name = the name of a service with cluster.discovery = k8s")
        return value

    @field_validator("static")
    @classmethod
    def _members(cls, value: Static, info: ValidationInfo) -> Static:
        if _mode_of(info) == "none" and not value.seeds:
            raise ValueError(f"allowed is cluster.static.seeds = {SEEDS_HELP}, this node included")
        return value

    @field_validator("etcd")
    @classmethod
    def _core_endpoints(cls, value: Etcd, info: ValidationInfo) -> Etcd:
        if value.endpoints and _mode_of(info) == "managed":
            raise ValueError("allowed is cluster.etcd.endpoints only with cluster.core.mode = external")
        is_found = info.data.get("discovery") in FOUND
        if value.endpoints and is_found and _mode_of(info) == "external":
            raise ValueError(f"allowed is no cluster.etcd.endpoints with cluster.discovery = {info.data['discovery']}")
        if _mode_of(info) == "external" and not value.endpoints and not is_found:
            raise ValueError(f"allowed is cluster.etcd.endpoints = {ENDPOINTS_HELP} with cluster.core.mode = external")
        return value

    @field_validator("advertise")
    @classmethod
    def _advertise(cls, value: str, info: ValidationInfo) -> str:
        static = info.data.get("static")
        if value and isinstance(static, Static) and _mode_of(info) == "none" and value not in static.seeds:
            raise ValueError(f"allowed is one of cluster.static.seeds ({', '.join(static.seeds)}), or empty")
        return value and _address(value)

    @field_validator("bind")
    @classmethod
    def _bind(cls, value: str) -> str:
        return _address(value)

    @field_validator("cookie_file")
    @classmethod
    def _cookie(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("enable") and not value:
            raise ValueError(f"allowed is a file with {COOKIE_BYTES_MIN} bytes or more, mode 0600, if cluster.enable is true")
        return value

    @property
    def has_core(self) -> bool:
        """Whether members are decided by a core."""
        return self.enable and self.core.mode != "none"

    @property
    def place(self) -> str:
        """Returns the prefix of the keys of the cluster in its core."""
        return f"/{self.etcd.prefix.strip('/')}/{self.name}/"

    @property
    def is_managed(self) -> bool:
        """Whether nodes run the core themselves."""
        return self.enable and self.core.mode == "managed"

    @property
    def is_discovered(self) -> bool:
        """Whether DNS or Kubernetes knows where etcd is."""
        return self.has_core and self.discovery in FOUND

    @property
    def missing(self) -> str | None:
        """An error message that names missing packages; None if the core can be used."""
        if not self.has_core:
            return None
        wanted = (*PACKAGES, *{"dns": ("dns",), "k8s": ("dns", "aiohttp")}.get(self.discovery, ()))
        return missing_packages(f"cluster.core.mode = {self.core.mode}", wanted, "cluster")

    @property
    def lost_policy(self) -> tuple[str, int]:
        """`lost_session` as new, wait or refuse, and the ms of wait."""
        return self.lost_session.partition(":")[0], round(_lost_wait_s(self.lost_session) * 1000)

    @property
    def link_bind(self) -> str:
        """The address for connections of other nodes."""
        host = self.bind.rpartition(":")[0]
        return self.link.bind or f"{host}:{LINK_PORT}"


def _mode_of(info: ValidationInfo) -> str:
    """Returns the mode of an enabled cluster; empty without one, or if it is not valid."""
    core = info.data.get("core")
    return core.mode if isinstance(core, Core) and info.data.get("enable") else ""


def needs_core(settings: Any, listeners: Sequence[Any]) -> bool:
    """Returns whether the process `cluster` runs."""
    return bool(settings.cluster.has_core)


def core_members(cluster: Cluster) -> list[CoreMember]:
    """Returns the members of the core as the configuration has them."""
    port = parse_address(cluster.core.bind)[1]
    return [_core_member(one, port) for one in cluster.core.members]


def core_url(cluster: Cluster, host: str, port: int) -> str:
    """Returns the URL of an etcd that nodes run."""
    return f"{'https' if cluster.tls.enable else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def etcd_program() -> str | None:
    """Returns the path of the program etcd; None: it is not installed."""
    return shutil.which("etcd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/bin:/usr/local/bin")


def missing_etcd(cluster: Cluster, node_name: str) -> str | None:
    """Returns an error message if this node shall run etcd and cannot; None: it need not, or can."""
    if not cluster.is_managed:
        if cluster.role == "witness":
            return "cluster.role: witness needs cluster.enable = true and cluster.core.mode = managed"
        return None
    names = [one.name for one in core_members(cluster)]
    if cluster.role == "core" and node_name not in names:
        return f"cluster.role: must be auto or replicant, since cluster.core.members has no {node_name}, got core"
    if cluster.role == "replicant" and node_name in names:
        return f"cluster.role: must be auto or core, since cluster.core.members has {node_name}, got replicant"
    if (node_name not in names and cluster.role != "witness") or etcd_program() is not None:
        return None
    return (
        "cluster.core.mode = managed needs the program etcd, which is not installed: apt install etcd-server; or use an etcd "
        "elsewhere with cluster.core.mode = external"
    )


def own_address(cluster: Cluster) -> str:
    """Returns the address of this node for the others, in `static.seeds` without a core. Raises ValueError with what to set."""
    bind, seeds = cluster.link_bind, cluster.static.seeds
    if cluster.has_core:
        host = parse_address(bind)[0]
        if not cluster.advertise and _is_any(host):
            raise ValueError(f"must be the address by which other nodes reach this one, since cluster.link.bind is {bind}")
        return cluster.advertise or bind
    if cluster.advertise or bind in seeds:
        return cluster.advertise or bind
    port = parse_address(bind)[1]
    local = {address.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for address in addresses}
    found = [seed for seed in seeds if parse_address(seed)[1] == port and _is_local(parse_address(seed)[0], local)]
    if len(found) != 1:
        what = f"{len(found)} of them have" if found else "none of them has"
        raise ValueError(
            f"must be the address of this node, one of cluster.static.seeds ({', '.join(seeds)}): {what} port {port} and an "
            "IP address of this machine"
        )
    return found[0]


def _is_any(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return not host


def _is_local(host: str, local: set[str]) -> bool:
    try:
        return str(ip_address(host)) in local
    except ValueError:
        return False
