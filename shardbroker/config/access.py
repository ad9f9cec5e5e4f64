"""Keys of authentication, authorization and flapping detection. Names and defaults are EMQX's unless said otherwise."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from shardbroker.config.base import LIMIT_MAX, LONGEST_WAIT_S, SHORTEST_S, Live, Section
from shardbroker.config.connectors import (
    TIMEOUT_S,
    BackendTimeout,
    File,
    HttpConnection,
    LdapConnection,
    MongodbConnection,
    MysqlConnection,
    PostgresqlConnection,
    RedisConnection,
    Secrets,
    Texts,
    Url,
)
from shardbroker.config.units import Allowed, Duration, Secret, Whole
from shm.channels import SUPERVISOR
from shm.roles import INTEGRATIONS, MANAGER, WORKER

__all__ = ["AUTHENTICATORS", "CHAIN_HELP", "SOURCES", "Acl", "Auth", "FlappingDetect", "Hashed", "Names", "chain_names"]

Names = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
HashName = Literal["argon2id", "bcrypt", "pbkdf2", "plain", "md5", "sha", "sha256", "sha512"]
UserQuery = Annotated[
    str, Field(description="Columns by name: password_hash, salt, is_superuser. Placeholders are bound as parameters.")
]
RuleQuery = Annotated[
    str,
    Field(description="Columns by name: permission, action, topic and, if there are, qos, retain, username, clientid, ipaddress."),
]
USER_QUERY = "SELECT password_hash, salt, is_superuser FROM mqtt_user WHERE username = ${username} LIMIT 1"
RULE_QUERY = "SELECT permission, action, topic FROM mqtt_acl WHERE username = ${username}"


def chain_names(value: list[str]) -> list[str]:
    """A chain that names nobody twice. Raises ValueError."""
    if len(set(value)) != len(value):
        raise ValueError(f"allowed is each name once, not {', '.join(value)}")
    return value


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


class HttpBackend(HttpConnection):
    """A service that is asked by HTTP."""

    method: Literal["get", "post"] = Field("post", description="GET puts the body's fields into the query.")


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


class RedisAuth(RedisConnection, Hashed):
    """Users in Redis."""

    cmd: str = Field("HMGET mqtt_user:${username} password_hash salt is_superuser", description="HGET or HMGET.")


class PostgresqlAuth(PostgresqlConnection, Hashed):
    """Users in PostgreSQL."""

    query: UserQuery = USER_QUERY


class MysqlAuth(MysqlConnection, Hashed):
    """Users in MySQL or MariaDB."""

    query: UserQuery = USER_QUERY


class MongodbAuth(MongodbConnection, Hashed):
    """Users in MongoDB."""

    collection: str = Field("users", description="Its name.")
    filter: Texts = Field({"username": "${username}"}, description="Field = value that a user's document has.")
    password_hash_field: str = Field("password_hash", description="Name of a field.")
    salt_field: str = Field("salt", description="Name of a field.")
    is_superuser_field: str = Field("is_superuser", description="Name of a field.")


class Ldap(LdapConnection, Hashed):
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


class Authenticators(Section):
    """The table of authenticators: NAME in `auth.chain` and its keys, `auth.NAME`. Its code is `integrations/auth/NAME.py`."""

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


AUTHENTICATORS = tuple(Authenticators.model_fields)
"""What auth.chain may name, beside `modules` and the names of modules that are installed."""

CHAIN_HELP = "a list of " + ", ".join(AUTHENTICATORS) + ", modules, or names of installed modules"


class AuthKeys(Section):
    """Keys of the chain as a whole."""

    # The supervisor starts the process integrations once a chain, a source or a hook server needs it.
    chain: Annotated[
        Names, AfterValidator(chain_names), Allowed(CHAIN_HELP), Live(WORKER, MANAGER, INTEGRATIONS, SUPERVISOR)
    ] = Field(
        [], description="Who is asked, in this order; empty: everybody may connect."
    )
    timeout: Duration = Field(10.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="For the verdict of the whole chain.")
    on_error: Literal["ignore", "deny"] = Field("ignore", description="A back end that fails is passed over, or denies.")
    on_timeout: Literal["deny", "allow"] = Field("deny", description="What a login gets that had no verdict in time (0x88).")
    max_waiting: Whole = Field(10_000, ge=1, le=LIMIT_MAX, description="Verdicts that a worker waits for; further logins get 0x89.")
    quick_deny_anonymous: bool = Field(False, description="Refuse clients without a user name before anybody is asked.")
    hash_threads: Whole = Field(2, ge=1, le=64, description="Threads that verify passwords.")
    module_settings: Secrets = Field({}, description="Given to modules: `name.key` = text.")


class Auth(Authenticators, AuthKeys):
    """Who may connect."""


class AclFile(Section):
    """Rules in a file: EMQX's acl.conf, or the same in TOML if its name ends with .toml."""

    path: File = Field("", description="The file.")


class AclCache(Section):
    """What a connection remembers of what it may do."""

    enable: bool = Field(True, description="Whether verdicts of back ends are remembered; those of local rules always are.")
    max_size: Whole = Field(32, ge=1, le=65536, description="Topics of one client.")
    ttl: Duration = Field(60.0, ge=SHORTEST_S, description="How long a back end's verdict is believed.")


class RedisAcl(RedisConnection):
    """Rules in Redis: they allow, topic -> publish, subscribe, all, or JSON with action, qos and retain."""

    cmd: str = Field("HGETALL mqtt_acl:${username}", description="HGETALL.")


class PostgresqlAcl(PostgresqlConnection):
    """Rules in PostgreSQL."""

    query: RuleQuery = RULE_QUERY


class MysqlAcl(MysqlConnection):
    """Rules in MySQL or MariaDB."""

    query: RuleQuery = RULE_QUERY


class MongodbAcl(MongodbConnection):
    """Rules in MongoDB: documents with permission, action, topics."""

    collection: str = Field("acl", description="Its name.")
    filter: Texts = Field({"username": "${username}"}, description="Field = value that a client's documents have.")


class Sources(Section):
    """The table of sources of rules: NAME in `acl.sources` and its keys, `acl.NAME`. Its code is `integrations/auth/NAME.py`."""

    file: AclFile = AclFile()
    http: HttpAcl = HttpAcl()
    redis: RedisAcl = RedisAcl()
    postgresql: PostgresqlAcl = PostgresqlAcl()
    mysql: MysqlAcl = MysqlAcl()
    mongodb: MongodbAcl = MongodbAcl()


SOURCES = ("builtin", *Sources.model_fields)
"""What acl.sources may name, beside `modules` and the names of modules that are installed. The broker's own store has no keys."""

SOURCES_HELP = "a list of " + ", ".join(SOURCES) + ", modules, or names of installed modules"


class AclKeys(Section):
    """Keys of the sources as a whole."""

    sources: Annotated[
        Names, AfterValidator(chain_names), Allowed(SOURCES_HELP), Live(WORKER, MANAGER, INTEGRATIONS, SUPERVISOR)
    ] = Field(
        [], description="Who is asked, in this order; empty: everybody may do everything."
    )
    no_match: Literal["allow", "deny"] = Field("deny", description="When no source has a rule that matches.")
    deny_action: Literal["ignore", "disconnect"] = Field("ignore", description="What follows a denied publish or subscribe.")
    timeout: Duration = Field(10.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="For the verdict of all back ends.")
    on_error: Literal["ignore", "deny"] = Field("ignore", description="A back end that fails is passed over, or denies.")
    on_timeout: Literal["deny", "allow"] = Field("deny", description="What a question gets that had no verdict in time.")
    module_settings: Secrets = Field({}, description="Given to modules: `name.key` = text.")
    cache: AclCache = AclCache()


class Acl(Sources, AclKeys):
    """Who may publish and subscribe what."""


class FlappingDetect(Section):
    """Clients that come and go too often are banned for a while."""

    enable: bool = Field(False, description="Whether anybody is.")
    window_time: Duration = Field(60.0, ge=1, le=LONGEST_WAIT_S, description="Time in which disconnects are counted.")
    max_count: Whole = Field(15, ge=1, le=LIMIT_MAX, description="Disconnects of one client id in it that lead to a ban.")
    ban_time: Duration = Field(300.0, ge=1, le=36500 * 86400.0, description="How long the ban lasts.")
