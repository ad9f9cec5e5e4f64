"""Keys of connections to other systems, shared by authenticators, sources of rules and sinks."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from shardbroker.config.base import LONGEST_WAIT_S, SHORTEST_S, Section
from shardbroker.config.units import Allowed, Duration, Secret, Size, Whole

__all__ = [
    "TIMEOUT_S",
    "BackendTimeout",
    "CassandraConnection",
    "Connection",
    "DynamodbConnection",
    "File",
    "HttpConnection",
    "KafkaConnection",
    "LdapConnection",
    "MongodbConnection",
    "MqttConnection",
    "MysqlConnection",
    "PoolSize",
    "PostgresqlConnection",
    "PulsarConnection",
    "RabbitmqConnection",
    "RedisConnection",
    "S3Connection",
    "Secrets",
    "Server",
    "Servers",
    "ShardbrokerConnection",
    "StaticIds",
    "Texts",
    "Url",
]

TIMEOUT_S = 5.0
"""Default time limit of a back end, seconds, as query_timeout of EMQX."""
SESSION_S, SESSION_MAX_S = 7 * 86400.0, 0xFFFFFFFF
"""Session Expiry Interval by default, and the longest one, seconds (MQTT 5.0 §3.1.2.11.2)."""
CASSANDRA_PORT = 9042
"""Port of Cassandra's own protocol where none is given."""
PULSAR, PULSAR_TLS = "pulsar://", "pulsar+ssl://"
PULSAR_PORTS = {PULSAR: 6650, PULSAR_TLS: 6651}
"""Start of the URL of a broker -> port where none is given."""
KAFKA_PORT = 9092
"""Port of Kafka where none is given."""


def _url(value: str) -> str:
    parts = urlsplit(value)
    if value and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError(f"allowed is http://HOST/PATH or https://HOST/PATH, not {value!r}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("allowed is a URL without user name and password; put those into headers")
    if "${" in parts.netloc:
        raise ValueError("allowed is a URL whose host has no placeholder: a client must not choose who is asked")
    return value


def _server(value: str) -> str:
    host, _, port = value.rpartition(":")
    if value and (not host or not port.isdecimal() or not 0 < int(port) < 65536):
        raise ValueError(f"allowed is HOST:PORT, not {value!r}")
    return value


def _servers(value: Any) -> Any:
    return [one.strip() for one in value.split(",") if one.strip()] if isinstance(value, str) else value


def _with_port(port: int) -> Callable[[Any], Any]:
    """Returns what reads servers of which some have no port."""

    def read(value: Any) -> Any:
        found = _servers(value)
        if not isinstance(found, list):
            return found
        return [f"{one}:{port}" if isinstance(one, str) and re.fullmatch(r"[^:]+|\[.*\]", one) else one for one in found]

    return read


def _pulsar_servers(value: Any) -> Any:
    """Returns URLs with their ports; HOST and HOST:PORT are those of servers without TLS, as in EMQX."""
    found = _servers(value)
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        return found
    urls = []
    for one in found:
        scheme, _, rest = one.rpartition("://")
        scheme = f"{scheme or PULSAR.removesuffix('://')}://"
        rest = rest.rstrip("/")
        if re.fullmatch(r"[^:]+|\[.*\]", rest):
            rest = f"{rest}:{PULSAR_PORTS.get(scheme, 0)}"
        urls.append(scheme + rest)
    return urls


def _pulsar_checked(value: list[str]) -> list[str]:
    for one in value:
        scheme, _, rest = one.rpartition("://")
        if f"{scheme}://" not in PULSAR_PORTS or not re.fullmatch(r"[A-Za-z0-9._-]+:\d+|\[[0-9A-Fa-f:.]+\]:\d+", rest, re.ASCII):
            raise ValueError(f"allowed is {PULSAR}HOST:PORT or {PULSAR_TLS}HOST:PORT, not {one!r:.200}")
        _server(rest)
    if len({one.partition("://")[0] for one in value}) > 1:
        raise ValueError(f"allowed are servers that all have {PULSAR}, or all {PULSAR_TLS}")
    return value


Texts = Annotated[dict[str, str], Allowed("a table of text = text")]
Secrets = Annotated[dict[str, Secret], Allowed("a table of text = text")]
Url = Annotated[str, AfterValidator(_url), Allowed("http://HOST/PATH or https://HOST/PATH")]
Server = Annotated[str, AfterValidator(_server), Allowed("HOST:PORT")]
Servers = Annotated[list[Server], BeforeValidator(_servers), Allowed('a list of HOST:PORT, such as ["a:6379", "b:6379"]')]
"""Servers of which any answers; text with commas is allowed too."""
CassandraServers = Annotated[
    list[Server], BeforeValidator(_with_port(CASSANDRA_PORT)), Allowed('a list of HOST:PORT, such as ["a:9042", "b:9042"]')
]
"""As Servers; the port may be left out."""
PulsarServers = Annotated[
    list[str],
    BeforeValidator(_pulsar_servers),
    AfterValidator(_pulsar_checked),
    Allowed('a list of pulsar://HOST:PORT or pulsar+ssl://HOST:PORT, such as ["pulsar://a:6650", "pulsar://b:6650"]'),
]
"""As Servers; scheme and port may be left out."""
KafkaServers = Annotated[
    list[Server], BeforeValidator(_with_port(KAFKA_PORT)), Allowed('a list of HOST:PORT, such as ["a:9092", "b:9092"]')
]
"""Likewise."""
File = Annotated[str, Allowed("a path")]
BackendTimeout = Annotated[Duration, Field(ge=SHORTEST_S, le=LONGEST_WAIT_S)]
PoolSize = Annotated[Whole, Field(ge=1, le=1024)]


_TLS_CA = Field("", description="PEM file of CA certificates; empty: those of the system.")
_TLS_CERT = Field("", description="PEM file of the client certificate, with those that sign it, for servers that ask for one.")
_TLS_KEY = Field("", description="PEM file of its private key, without a passphrase; empty: it is in `tls_cert`.")
_TLS_VERIFY = Field(True, description="Whether the certificate of the server is verified; else anyone in between can read along.")


class Connection(Section):
    """A server that is queried over a pool of connections."""

    server: Server = Field("", description="HOST:PORT.")
    username: str = Field("", description="User name of the login.")
    password: Secret = Field("", description="Password of the login; not allowed with --set. `file:PATH` reads it from a file.")
    pool_size: PoolSize = Field(8, description="Most connections at a time.")
    timeout: BackendTimeout = Field(TIMEOUT_S, description="Longest wait for an answer; after it the request has failed.")
    tls: bool = Field(False, description="Whether the connection uses TLS.")
    tls_ca: File = _TLS_CA
    tls_cert: File = _TLS_CERT
    tls_key: File = _TLS_KEY
    tls_verify: bool = _TLS_VERIFY


class RedisConnection(Connection):
    """A Redis server, a master that sentinels watch, or a cluster."""

    redis_type: Literal["single", "sentinel", "cluster"] = Field(
        "single", description="`single` is at `server`; `sentinel` and `cluster` are found by `servers`."
    )
    servers: Servers = Field([], max_length=64, description="Sentinels, or some nodes of the cluster.")
    sentinel: str = Field("", max_length=256, description="Name of the master that the sentinels watch.")
    database: Whole = Field(0, ge=0, le=65535, description="Number of the database; 0 in a cluster.")


class DatabaseConnection(Connection):
    """A server with named databases."""

    database: str = Field("mqtt", description="Name of the database.")


class PostgresqlConnection(DatabaseConnection):
    """A PostgreSQL server."""


class MysqlConnection(DatabaseConnection):
    """A MySQL or MariaDB server."""


class MongodbConnection(DatabaseConnection):
    """A MongoDB server, a replica set or a sharded cluster."""

    mongo_type: Literal["single", "rs", "sharded"] = Field(
        "single", description="`single` is at `server`; `rs` (a replica set) and `sharded` are found by `servers`."
    )
    servers: Servers = Field([], max_length=64, description="Some members of the replica set, or routers (mongos).")
    replica_set_name: str = Field("", max_length=256, description="Name of the replica set.")
    auth_source: str = Field("admin", max_length=63, description="Database that has the account.")


class CassandraConnection(Section):
    """A cluster of Cassandra."""

    servers: CassandraServers = Field([], max_length=64, description="Some nodes of the cluster; the others are found by them.")
    keyspace: str = Field("mqtt", min_length=1, max_length=48, description="Keyspace of tables that a statement names without one.")
    datacenter: str = Field(
        "", max_length=256, description="Name of the data center whose nodes are used; empty: that of the first node that answers."
    )
    username: str = Field("", description="User name of the login.")
    password: Secret = Field("", description="Password of the login; not allowed with --set. `file:PATH` reads it from a file.")
    timeout: BackendTimeout = Field(TIMEOUT_S, description="Longest wait for an answer; after it the request has failed.")
    tls: bool = Field(False, description="Whether the connection uses TLS.")
    tls_ca: File = _TLS_CA
    tls_cert: File = _TLS_CERT
    tls_key: File = _TLS_KEY
    tls_verify: bool = _TLS_VERIFY


class PulsarConnection(Section):
    """A cluster of Pulsar."""

    servers: PulsarServers = Field(
        [], max_length=64, description="Brokers or proxies of the cluster, all with `pulsar+ssl://` or none; any one is used."
    )
    username: str = Field("", max_length=1024, description="User name of a login by name and password.")
    password: Secret = Field("", description="Password of the login; not allowed with --set. `file:PATH` reads it from a file.")
    token: Secret = Field(
        "", description="Token (JWT) of a login without a name; not allowed with --set. `file:PATH` reads it from a file."
    )
    timeout: BackendTimeout = Field(TIMEOUT_S, description="Longest wait for an answer; after it the request has failed.")
    tls_ca: File = _TLS_CA
    tls_cert: File = _TLS_CERT
    tls_key: File = _TLS_KEY
    tls_verify: bool = _TLS_VERIFY


class KafkaConnection(Section):
    """A cluster of Kafka."""

    bootstrap_hosts: KafkaServers = Field([], max_length=64, description="Some brokers of the cluster, which know the others.")
    mechanism: Literal["none", "plain", "scram_sha_256", "scram_sha_512", "oauthbearer"] = Field(
        "none", description="How the login is made, by SASL."
    )
    username: str = Field("", max_length=1024, description="User name of the login; with `oauthbearer` the id of the OAuth client.")
    password: Secret = Field(
        "",
        description="Password of the login, or secret of the client; not allowed with --set. `file:PATH` reads it from a file.",
    )
    token_url: Url = Field("", description="With `oauthbearer`: URL of the service that issues tokens (grant client_credentials).")
    scope: str = Field("", max_length=1024, description="With `oauthbearer`: scope of the token.")
    timeout: BackendTimeout = Field(TIMEOUT_S, description="Longest wait for an answer; after it the request has failed.")
    tls: bool = Field(False, description="Whether the connection uses TLS.")
    tls_ca: File = _TLS_CA
    tls_cert: File = _TLS_CERT
    tls_key: File = _TLS_KEY
    tls_verify: bool = _TLS_VERIFY


class RabbitmqConnection(Connection):
    """A RabbitMQ server."""

    virtual_host: str = Field("/", min_length=1, max_length=255, description="Virtual host.")
    heartbeat: Duration = Field(
        30.0, ge=0, le=3600, description="Longest time without a byte of either side, whole seconds; the server may want less."
    )


class LdapConnection(Connection):
    """An LDAP directory."""


class DynamodbConnection(Section):
    """DynamoDB of a region of AWS, or a server with its API."""

    url: Url = Field("", description="URL of the server; empty: that of the region.")
    region: str = Field("", max_length=64, pattern=r"^[a-z0-9-]*$", description="Region; empty: the one in the URL.")
    aws_access_key_id: str = Field("", max_length=256, description="Id of the access key.")
    aws_secret_access_key: Secret = Field(
        "", description="Secret of the access key; not allowed with --set. `file:PATH` reads it from a file."
    )
    pool_size: PoolSize = Field(8, description="Most connections at a time.")
    timeout: BackendTimeout = Field(TIMEOUT_S, description="Longest wait for an answer; after it the request has failed.")
    tls_ca: File = _TLS_CA
    tls_cert: File = _TLS_CERT
    tls_key: File = _TLS_KEY
    tls_verify: bool = _TLS_VERIFY


class S3Connection(Section):
    """S3 of a region of AWS, or a server with its API."""

    host: str = Field("", max_length=253, pattern=r"^[A-Za-z0-9.:_-]*$", description="Server; empty: that of the region.")
    port: Whole = Field(443, ge=1, le=65535, description="Its port.")
    region: str = Field("us-east-1", max_length=64, pattern=r"^[a-z0-9-]+$", description="Region of the bucket.")
    access_key_id: str = Field("", max_length=256, description="Id of the access key.")
    secret_access_key: Secret = Field(
        "", description="Secret of the access key; not allowed with --set. `file:PATH` reads it from a file."
    )
    access_method: Literal["path", "vhost"] = Field(
        "path", description="Whether the bucket is in the path, or in the name of the server."
    )
    pool_size: PoolSize = Field(8, description="Most connections at a time.")
    timeout: BackendTimeout = Field(30.0, description="Longest wait for an answer; after it the request has failed.")
    tls: bool = Field(True, description="Whether the connection uses TLS.")
    tls_ca: File = _TLS_CA
    tls_cert: File = _TLS_CERT
    tls_key: File = _TLS_KEY
    tls_verify: bool = _TLS_VERIFY


class StaticIds(Section):
    """Client ids of a node."""

    node: str = Field("", max_length=256, description="Name of the node; empty: any.")
    ids: Annotated[list[str], Allowed('a list of text, such as ["bridge-1"]')] = Field(
        [], max_length=1024, description="Client ids, one for each connection."
    )


class MqttConnection(Connection):
    """Another MQTT broker."""

    proto_ver: Literal["v3", "v4", "v5"] = Field("v4", description="MQTT 3.1, 3.1.1 or 5.0.")
    bridge_mode: bool = Field(
        False, description="Whether the client says that it is a bridge, so that its own messages do not return; not with MQTT 5.0."
    )
    clientid_prefix: str = Field("", max_length=256, description="Begin of client ids; empty: `shardbroker`.")
    static_clientids: list[StaticIds] = Field(
        [], max_length=256, description="Client ids by node in place of made ones; their number is that of connections."
    )
    clean_start: bool = Field(False, description="Whether the server forgets the session with each connection.")
    session_expiry_interval: Duration = Field(
        SESSION_S, ge=0, le=SESSION_MAX_S, description="How long the server keeps the session without a connection; MQTT 5.0 only."
    )
    keepalive: Duration = Field(60.0, ge=0, le=65535, description="Longest time without a packet; 0s: none.")
    max_inflight: Whole = Field(
        1000, ge=1, le=65535, description="Most messages on their way to the server; its Receive Maximum may be less."
    )
    max_awaiting_rel: Whole = Field(
        20,
        ge=1,
        le=65535,
        description="Those of QoS 2 in MQTT 3.1 and 3.1.1, whose servers do not tell their limit; that of mosquitto is 20.",
    )
    receive_maximum: Whole = Field(1000, ge=1, le=65535, description="Most messages on their way from the server; MQTT 5.0 only.")
    reconnect_interval: Duration = Field(
        1.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="First delay between attempts to connect; it doubles up to 60s."
    )
    pool_size: PoolSize = Field(1, description="Connections of each process flows.")
    timeout: BackendTimeout = Field(15.0, description="Longest wait for an answer; after it the connection is opened again.")


class ShardbrokerConnection(Section):
    """Another broker of this kind, or those that connect to this one."""

    server: Server = Field("", description="HOST:PORT of an action; a source has its own address in `listen`.")
    secret: Secret = Field(
        "", description="Secret that both brokers have, of at least 16 characters; `file:PATH` reads it from a file."
    )
    timeout: BackendTimeout = Field(TIMEOUT_S, description="Longest wait for a connection.")
    tls: bool = Field(False, description="Whether the connection uses TLS.")
    tls_ca: File = Field(
        "", description="PEM file of CA certificates; empty: those of the system. With it, a source needs certificates of brokers."
    )
    tls_cert: File = Field("", description="PEM file of the own certificate, which a source with `tls` needs.")
    tls_key: File = _TLS_KEY
    tls_verify: bool = _TLS_VERIFY


class HttpConnection(Section):
    """A service that is queried by HTTP."""

    url: Url = Field("", description="URL of the service; values of placeholders are encoded.")
    headers: Secrets = Field({}, description="Headers of each request.")
    pool_size: PoolSize = Field(8, description="Most connections at a time.")
    timeout: BackendTimeout = Field(TIMEOUT_S, description="Longest wait for an answer; after it the request has failed.")
    tls_ca: File = _TLS_CA
    tls_cert: File = _TLS_CERT
    tls_key: File = _TLS_KEY
    tls_verify: bool = _TLS_VERIFY
    max_answer_size: Size = Field(65536, ge=256, le=16 << 20, description="A longer answer is a failure.")
