"""Keys of authentication, authorization and flapping detection. Names and defaults are EMQX's unless said otherwise."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from shardbroker.config.section import LIMIT_MAX, LONGEST_WAIT_S, SHORTEST_S, Section
from shardbroker.config.units import Allowed, Duration, Secret, Size, Whole

__all__ = ["AUTHENTICATORS", "SOURCES", "Acl", "Auth", "FlappingDetect", "Hashed", "Names", "chain_names"]

AUTHENTICATORS = (
    "builtin", "file", "http", "jwt", "redis", "postgresql", "mysql", "mongodb", "ldap", "scram", "certificate",
)  # fmt: skip
"""What auth.chain may name, beside `modules` and the names of modules that are installed."""

SOURCES = ("file", "builtin", "http", "redis", "postgresql", "mysql", "mongodb")
"""What acl.sources may name, beside `modules` and the names of modules that are installed."""

TIMEOUT_S = 5.0
"""Default of how long a back end may take, seconds, as EMQX's query_timeout."""

CHAIN_HELP = "a list of " + ", ".join(AUTHENTICATORS) + ", modules, or names of installed modules"
SOURCES_HELP = "a list of " + ", ".join(SOURCES) + ", modules, or names of installed modules"

Names = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
Texts = Annotated[dict[str, str], Allowed("a table of text = text")]
Secrets = Annotated[dict[str, Secret], Allowed("a table of text = text")]
HashName = Literal["argon2id", "bcrypt", "pbkdf2", "plain", "md5", "sha", "sha256", "sha512"]


def chain_names(value: list[str]) -> list[str]:
    """A chain that names nobody twice. Raises ValueError."""
    if len(set(value)) != len(value):
        raise ValueError(f"allowed is each name once, not {', '.join(value)}")
    return value


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


Url = Annotated[str, AfterValidator(_url), Allowed("http://HOST/PATH or https://HOST/PATH")]
Server = Annotated[str, AfterValidator(_server), Allowed("HOST:PORT")]
File = Annotated[str, Allowed("a path")]
BackendTimeout = Annotated[Duration, Field(ge=SHORTEST_S, le=LONGEST_WAIT_S)]
PoolSize = Annotated[Whole, Field(ge=1, le=1024)]


class Hashed(Section):
    """How stored passwords are hashed, where the stored text does not say so itself."""

    hash: HashName = Field("sha256", description="Of the stored password. Text that begins with $argon2 or $2b$ says so itself.")
    salt_position: Literal["prefix", "suffix", "disable"] = Field("prefix", description="Of md5, sha, sha256, sha512 and plain.")
    pbkdf2_mac: Literal["md5", "sha1", "sha256", "sha512"] = Field("sha256", description="MAC of pbkdf2.")
    pbkdf2_iterations: Whole = Field(4096, ge=1, le=10_000_000, description="Of pbkdf2.")
    pbkdf2_length: Whole = Field(0, ge=0, le=1024, description="Bytes of a pbkdf2 hash; 0: as many as the MAC has.")


class Builtin(Section):
    """Users of the broker's own store, kept with `shardbroker ctl users`."""

    user_id_type: Literal["username", "clientid"] = Field("username", description="What a user is known by.")


class PasswordFile(Hashed):
    """Users in a file of `name:hash` lines, read again at a reload."""

    path: File = Field("", description="The file; `name:hash[:salt[:superuser]]` a line.")
    hash: HashName = Field("argon2id", description="Of hashes that do not begin with $argon2 or $2b$.")


class HttpBackend(Section):
    """A service that is asked by HTTP."""

    method: Literal["get", "post"] = Field("post", description="GET puts the body's fields into the query.")
    url: Url = Field("", description="Placeholders in it are encoded.")
    headers: Secrets = Field({}, description="Sent with each request.")
    pool_size: PoolSize = Field(8, description="Connections at a time.")
    timeout: BackendTimeout = Field(TIMEOUT_S, description="For an answer; later it is a failure.")
    max_answer_size: Size = Field(65536, ge=256, le=16 << 20, description="A longer answer is a failure.")


class HttpAuth(HttpBackend):
    """A service that is asked by HTTP."""

    body: Texts = Field(
        {"username": "${username}", "password": "${password}", "clientid": "${clientid}"}, description="Fields of the JSON body."
    )


class HttpAcl(HttpBackend):
    """A service that is asked by HTTP."""

    body: Texts = Field(
        {"username": "${username}", "clientid": "${clientid}", "topic": "${topic}", "action": "${action}"},
        description="Fields of the JSON body.",
    )


class Jwt(Section):
    """JSON web tokens."""

    source: Literal["password", "username"] = Field("password", description="Where in CONNECT the token is.")
    algorithm: Literal["hmac-based", "public-key"] = Field("hmac-based", description="HS256/384/512, or RS, PS and ES.")
    secret: Secret = Field("", description="Of hmac-based.")
    secret_base64_encoded: bool = Field(False, description="Whether the secret is written in base64.")
    public_key: File = Field("", description="PEM file of public-key, if there is no JWKS endpoint.")
    endpoint: Url = Field("", description="JWKS, in place of public_key.")
    refresh_interval: Duration = Field(300.0, ge=1, le=LONGEST_WAIT_S, description="Between two reads of the JWKS.")
    timeout: BackendTimeout = Field(TIMEOUT_S, description="For the JWKS endpoint.")
    verify_claims: Texts = Field({}, description="Claim = value that it must have, such as sub = ${username}.")
    acl_claim_name: str = Field("acl", description="Claim with the client's rules.")
    disconnect_after_expire: bool = Field(True, description="Whether a connection ends with its token (0xA0).")


class Connected(Section):
    """A server that is asked over connections of a pool."""

    server: Server = Field("", description="HOST:PORT.")
    username: str = Field("", description="To log in there.")
    password: Secret = Field("", description="To log in there; not with --set. `file:PATH` reads it from a file.")
    pool_size: PoolSize = Field(8, description="Connections at a time.")
    timeout: BackendTimeout = Field(TIMEOUT_S, description="For an answer; later it is a failure.")
    tls: bool = Field(False, description="Whether the connection is encrypted and the server's certificate checked.")
    tls_ca: File = Field("", description="CA certificates for that; the system's if empty.")


class RedisAuth(Connected, Hashed):
    """Users in Redis."""

    database: Whole = Field(0, ge=0, le=65535, description="Its number.")
    cmd: str = Field("HMGET mqtt_user:${username} password_hash salt is_superuser", description="HGET or HMGET.")


class PostgresqlAuth(Connected, Hashed):
    """Users in PostgreSQL."""

    database: str = Field("mqtt", description="Its name.")
    query: str = Field(
        "SELECT password_hash, salt, is_superuser FROM mqtt_user WHERE username = ${username} LIMIT 1",
        description="Columns by name: password_hash, salt, is_superuser. Placeholders are bound as parameters.",
    )


class MysqlAuth(PostgresqlAuth):
    """Users in MySQL or MariaDB."""


class MongodbAuth(Connected, Hashed):
    """Users in MongoDB."""

    database: str = Field("mqtt", description="Its name.")
    collection: str = Field("users", description="Its name.")
    filter: Texts = Field({"username": "${username}"}, description="Field = value that a user's document has.")
    password_hash_field: str = Field("password_hash", description="Name of a field.")
    salt_field: str = Field("salt", description="Name of a field.")
    is_superuser_field: str = Field("is_superuser", description="Name of a field.")


class Ldap(Connected, Hashed):
    """Users in an LDAP directory. `username` and `password` are those that searches are done with."""

    mode: Literal["hash", "bind"] = Field("hash", description="hash: compare userPassword here; bind: let the server do it.")
    base_dn: str = Field("uid=${username},ou=users,dc=example,dc=org", description="Where to search; placeholders are escaped.")
    filter: str = Field("(objectClass=*)", description="What to search; placeholders are escaped.")
    password_attribute: str = Field("userPassword", description="A {SSHA256} and its like, or a hash.")
    is_superuser_attribute: str = Field("isSuperuser", description="TRUE makes a superuser.")


class Scram(Section):
    """SCRAM by the AUTH packets of MQTT 5.0, for users kept with `shardbroker ctl users add --scram`."""

    algorithm: Literal["sha256", "sha512"] = Field("sha256", description="Of the method SCRAM-SHA-256 or SCRAM-SHA-512.")
    iteration_count: Whole = Field(4096, ge=4096, le=10_000_000, description="For new users.")


class Certificate(Section):
    """Clients that have shown a certificate which the listener has verified."""

    identity: Literal["cn", "dn", "any"] = Field("cn", description="What of it must be the user name; any: it need only be there.")


class Auth(Section):
    """Who may connect."""

    chain: Annotated[Names, AfterValidator(chain_names), Allowed(CHAIN_HELP)] = Field(
        [], description="Who is asked, in this order; empty: everybody may connect."
    )
    timeout: Duration = Field(10.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="For the verdict of the whole chain.")
    on_error: Literal["ignore", "deny"] = Field("ignore", description="A back end that fails is passed over, or denies.")
    on_timeout: Literal["deny", "allow"] = Field("deny", description="What a login gets that had no verdict in time (0x88).")
    max_waiting: Whole = Field(10_000, ge=1, le=LIMIT_MAX, description="Verdicts that a worker waits for; further logins get 0x89.")
    quick_deny_anonymous: bool = Field(False, description="Refuse clients without a user name before anybody is asked.")
    hash_threads: Whole = Field(2, ge=1, le=64, description="Threads that verify passwords.")
    module_settings: Secrets = Field({}, description="Given to modules: `name.key` = text.")
    builtin: Builtin = Builtin()
    file: PasswordFile = PasswordFile()
    http: HttpAuth = HttpAuth()
    jwt: Jwt = Jwt()
    redis: RedisAuth = RedisAuth()
    postgresql: PostgresqlAuth = PostgresqlAuth()
    mysql: MysqlAuth = MysqlAuth()
    mongodb: MongodbAuth = MongodbAuth()
    ldap: Ldap = Ldap()
    scram: Scram = Scram()
    certificate: Certificate = Certificate()


class AclFile(Section):
    """Rules in a file: EMQX's acl.conf, or the same in TOML if its name ends with .toml."""

    path: File = Field("", description="The file.")


class AclCache(Section):
    """What a connection remembers of what it may do."""

    enable: bool = Field(True, description="Whether verdicts of back ends are remembered; those of local rules always are.")
    max_size: Whole = Field(32, ge=1, le=65536, description="Topics of one client.")
    ttl: Duration = Field(60.0, ge=SHORTEST_S, description="How long a back end's verdict is believed.")


class RedisAcl(Connected):
    """Rules in Redis: they allow, topic -> publish, subscribe, all, or JSON with action, qos and retain."""

    database: Whole = Field(0, ge=0, le=65535, description="Its number.")
    cmd: str = Field("HGETALL mqtt_acl:${username}", description="HGETALL.")


class PostgresqlAcl(Connected):
    """Rules in PostgreSQL."""

    database: str = Field("mqtt", description="Its name.")
    query: str = Field(
        "SELECT permission, action, topic FROM mqtt_acl WHERE username = ${username}",
        description="Columns by name: permission, action, topic and, if there are, qos, retain, username, clientid, ipaddress.",
    )


class MysqlAcl(PostgresqlAcl):
    """Rules in MySQL or MariaDB."""


class MongodbAcl(Connected):
    """Rules in MongoDB: documents with permission, action, topics."""

    database: str = Field("mqtt", description="Its name.")
    collection: str = Field("acl", description="Its name.")
    filter: Texts = Field({"username": "${username}"}, description="Field = value that a client's documents have.")


class Acl(Section):
    """Who may publish and subscribe what."""

    sources: Annotated[Names, AfterValidator(chain_names), Allowed(SOURCES_HELP)] = Field(
        [], description="Who is asked, in this order; empty: everybody may do everything."
    )
    no_match: Literal["allow", "deny"] = Field("deny", description="When no source has a rule that matches.")
    deny_action: Literal["ignore", "disconnect"] = Field("ignore", description="What follows a denied publish or subscribe.")
    timeout: Duration = Field(10.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="For the verdict of all back ends.")
    on_error: Literal["ignore", "deny"] = Field("ignore", description="A back end that fails is passed over, or denies.")
    on_timeout: Literal["deny", "allow"] = Field("deny", description="What a question gets that had no verdict in time.")
    module_settings: Secrets = Field({}, description="Given to modules: `name.key` = text.")
    cache: AclCache = AclCache()
    file: AclFile = AclFile()
    http: HttpAcl = HttpAcl()
    redis: RedisAcl = RedisAcl()
    postgresql: PostgresqlAcl = PostgresqlAcl()
    mysql: MysqlAcl = MysqlAcl()
    mongodb: MongodbAcl = MongodbAcl()


class FlappingDetect(Section):
    """Clients that come and go too often are banned for a while."""

    enable: bool = Field(False, description="Whether anybody is.")
    window_time: Duration = Field(60.0, ge=1, le=LONGEST_WAIT_S, description="Time in which disconnects are counted.")
    max_count: Whole = Field(15, ge=1, le=LIMIT_MAX, description="Disconnects of one client id in it that lead to a ban.")
    ban_time: Duration = Field(300.0, ge=1, le=36500 * 86400.0, description="How long the ban lasts.")
