"""Keys of authentication, authorization and flapping detection. Names and defaults are those of EMQX unless noted."""

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
    str, Field(description="Query with the columns password_hash, salt and is_superuser. Placeholders are bound as parameters.")
]
RuleQuery = Annotated[
    str,
    Field(description="Query with the columns permission, action, topic, optionally qos, retain, username, clientid, ipaddress."),
]
USER_QUERY = "SELECT password_hash, salt, is_superuser FROM mqtt_user WHERE username = ${username} LIMIT 1"
RULE_QUERY = "SELECT permission, action, topic FROM mqtt_acl WHERE username = ${username}"


def chain_names(value: list[str]) -> list[str]:
    """Returns the chain. Raises ValueError if a name appears twice."""
    if len(set(value)) != len(value):
        raise ValueError(f"allowed is each name once, not {', '.join(value)}")
    return value


class Hashed(Section):
    """Hashes of stored passwords whose text does not name the algorithm itself."""

    hash: HashName = Field(
        "sha256", description="Algorithm of the stored password. Text that begins with $argon2 or $2b$ names it itself."
    )
    salt_position: Literal["prefix", "suffix", "disable"] = Field(
        "prefix", description="Position of the salt with md5, sha, sha256, sha512 and plain."
    )
    pbkdf2_mac: Literal["md5", "sha1", "sha256", "sha512"] = Field("sha256", description="Hash function of pbkdf2.")
    pbkdf2_iterations: Whole = Field(4096, ge=1, le=10_000_000, description="Iterations of pbkdf2.")
    pbkdf2_length: Whole = Field(0, ge=0, le=1024, description="Bytes of a pbkdf2 hash; 0: the size of the hash function.")


class Builtin(Section):
    """Users in the store of the broker, managed with `shardbroker ctl users`."""

    user_id_type: Literal["username", "clientid"] = Field("username", description="Name by which a user is looked up.")


class PasswordFile(Hashed):
    """Users in a file of `name:hash` lines; a reload reads the file again."""

    path: File = Field("", description="Path of the file, with a line `name:hash[:salt[:superuser]]` per user.")
    hash: HashName = Field("argon2id", description="Algorithm of hashes that do not begin with $argon2 or $2b$.")


class HttpBackend(HttpConnection):
    """A service that is queried by HTTP."""

    method: Literal["get", "post"] = Field(
        "post", description="Method of the request; GET puts the fields of the body into the query."
    )


class HttpAuth(HttpBackend):
    """A service that is queried by HTTP."""

    body: Texts = Field(
        {"username": "${username}", "password": "${password}", "clientid": "${clientid}"}, description="Fields of the JSON body."
    )


class HttpAcl(HttpBackend):
    """A service that is queried by HTTP."""

    body: Texts = Field(
        {"username": "${username}", "clientid": "${clientid}", "topic": "${topic}", "action": "${action}"},
        description="Fields of the JSON body.",
    )


class Jwt(Section):
    """JSON web tokens."""

    source: Literal["password", "username"] = Field("password", description="Field of CONNECT that contains the token.")
    algorithm: Literal["hmac-based", "public-key"] = Field(
        "hmac-based", description="hmac-based: HS256/384/512; public-key: RS, PS and ES."
    )
    secret: Secret = Field("", description="Secret of hmac-based.")
    secret_base64_encoded: bool = Field(False, description="Whether the secret is encoded in base64.")
    public_key: File = Field("", description="PEM file of the public key, if there is no JWKS endpoint.")
    endpoint: Url = Field("", description="URL of the JWKS, instead of `public_key`.")
    refresh_interval: Duration = Field(300.0, ge=1, le=LONGEST_WAIT_S, description="Time between two reads of the JWKS.")
    timeout: BackendTimeout = Field(TIMEOUT_S, description="Longest wait for the JWKS endpoint.")
    verify_claims: Texts = Field({}, description="Claim = required value, such as sub = ${username}.")
    acl_claim_name: str = Field("acl", description="Claim that contains the rules of the client.")
    disconnect_after_expire: bool = Field(True, description="Whether a connection is closed when its token expires (0xA0).")


class RedisAuth(RedisConnection, Hashed):
    """Users in Redis."""

    cmd: str = Field("HMGET mqtt_user:${username} password_hash salt is_superuser", description="HGET or HMGET command.")


class PostgresqlAuth(PostgresqlConnection, Hashed):
    """Users in PostgreSQL."""

    query: UserQuery = USER_QUERY


class MysqlAuth(MysqlConnection, Hashed):
    """Users in MySQL or MariaDB."""

    query: UserQuery = USER_QUERY


class MongodbAuth(MongodbConnection, Hashed):
    """Users in MongoDB."""

    collection: str = Field("users", description="Name of the collection.")
    filter: Texts = Field({"username": "${username}"}, description="Field = value of the document of a user.")
    password_hash_field: str = Field("password_hash", description="Field that contains the password hash.")
    salt_field: str = Field("salt", description="Field that contains the salt.")
    is_superuser_field: str = Field("is_superuser", description="Field that marks a superuser.")


class Ldap(LdapConnection, Hashed):
    """Users in an LDAP directory. Searches bind with `username` and `password`."""

    mode: Literal["hash", "bind"] = Field(
        "hash", description="hash: the broker compares userPassword; bind: the server verifies the password."
    )
    base_dn: str = Field(
        "uid=${username},ou=users,dc=example,dc=org", description="Base of the search; values of placeholders are escaped."
    )
    filter: str = Field("(objectClass=*)", description="Filter of the search; values of placeholders are escaped.")
    password_attribute: str = Field("userPassword", description="Attribute with the password: {SSHA256} and similar, or a hash.")
    is_superuser_attribute: str = Field("isSuperuser", description="Attribute that is TRUE for superusers.")


class Scram(Section):
    """SCRAM with AUTH packets of MQTT 5.0, for users added with `shardbroker ctl users add --scram`."""

    algorithm: Literal["sha256", "sha512"] = Field(
        "sha256", description="Hash function of the method: SCRAM-SHA-256 or SCRAM-SHA-512."
    )
    iteration_count: Whole = Field(4096, ge=4096, le=10_000_000, description="Iterations for new users.")


class Certificate(Section):
    """Clients with a certificate that the listener has verified."""

    identity: Literal["cn", "dn", "any"] = Field(
        "cn", description="Name in the certificate that must equal the user name; any: a certificate is sufficient."
    )


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
"""Names allowed in auth.chain, beside `modules` and names of installed modules."""

CHAIN_HELP = "a list of " + ", ".join(AUTHENTICATORS) + ", modules, or names of installed modules"


class AuthKeys(Section):
    """Keys of the chain as a whole."""

    # The supervisor starts the process integrations once a chain, a source or a hook server needs it.
    chain: Annotated[
        Names, AfterValidator(chain_names), Allowed(CHAIN_HELP), Live(WORKER, MANAGER, INTEGRATIONS, SUPERVISOR)
    ] = Field(
        [], description="Authenticators in order; empty: all clients may connect."
    )
    timeout: Duration = Field(10.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="Longest wait for the result of the whole chain.")
    on_error: Literal["ignore", "deny"] = Field(
        "ignore", description="Effect of a failed back end: it is skipped, or the client is denied."
    )
    on_timeout: Literal["deny", "allow"] = Field("deny", description="Result of a login without an answer in time (0x88).")
    max_waiting: Whole = Field(
        10_000, ge=1, le=LIMIT_MAX, description="Most logins of a worker that wait for a result; further ones get 0x89."
    )
    quick_deny_anonymous: bool = Field(False, description="Whether clients without a user name are rejected before the chain.")
    hash_threads: Whole = Field(2, ge=1, le=64, description="Threads that verify password hashes.")
    module_settings: Secrets = Field({}, description="Settings of modules: `name.key` = text.")


class Auth(Authenticators, AuthKeys):
    """Authentication: which clients may connect."""


class AclFile(Section):
    """Rules in a file: acl.conf of EMQX, or the same in TOML if its name ends with .toml."""

    path: File = Field("", description="Path of the file.")


class AclCache(Section):
    """Cached permissions of a connection."""

    enable: bool = Field(True, description="Whether results of back ends are cached; those of local rules always are.")
    max_size: Whole = Field(32, ge=1, le=65536, description="Most cached topics of one client.")
    ttl: Duration = Field(60.0, ge=SHORTEST_S, description="How long the result of a back end is cached.")


class RedisAcl(RedisConnection):
    """Rules in Redis, which allow: topic = publish, subscribe, all, or JSON with action, qos and retain."""

    cmd: str = Field("HGETALL mqtt_acl:${username}", description="HGETALL command.")


class PostgresqlAcl(PostgresqlConnection):
    """Rules in PostgreSQL."""

    query: RuleQuery = RULE_QUERY


class MysqlAcl(MysqlConnection):
    """Rules in MySQL or MariaDB."""

    query: RuleQuery = RULE_QUERY


class MongodbAcl(MongodbConnection):
    """Rules in MongoDB: documents with permission, action, topics."""

    collection: str = Field("acl", description="Name of the collection.")
    filter: Texts = Field({"username": "${username}"}, description="Field = value of the documents of a client.")


class Sources(Section):
    """The table of sources of rules: NAME in `acl.sources` and its keys, `acl.NAME`. Its code is `integrations/auth/NAME.py`."""

    file: AclFile = AclFile()
    http: HttpAcl = HttpAcl()
    redis: RedisAcl = RedisAcl()
    postgresql: PostgresqlAcl = PostgresqlAcl()
    mysql: MysqlAcl = MysqlAcl()
    mongodb: MongodbAcl = MongodbAcl()


SOURCES = ("builtin", *Sources.model_fields)
"""Names allowed in acl.sources, beside `modules` and names of installed modules. The store of the broker has no keys."""

SOURCES_HELP = "a list of " + ", ".join(SOURCES) + ", modules, or names of installed modules"


class AclKeys(Section):
    """Keys of the sources as a whole."""

    sources: Annotated[
        Names, AfterValidator(chain_names), Allowed(SOURCES_HELP), Live(WORKER, MANAGER, INTEGRATIONS, SUPERVISOR)
    ] = Field(
        [], description="Sources of rules in order; empty: all clients may publish and subscribe everywhere."
    )
    no_match: Literal["allow", "deny"] = Field("deny", description="Result when no source has a matching rule.")
    deny_action: Literal["ignore", "disconnect"] = Field("ignore", description="Reaction to a denied publish or subscribe.")
    timeout: Duration = Field(10.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="Longest wait for the result of all back ends.")
    on_error: Literal["ignore", "deny"] = Field(
        "ignore", description="Effect of a failed back end: it is skipped, or the client is denied."
    )
    on_timeout: Literal["deny", "allow"] = Field("deny", description="Result of a request without an answer in time.")
    module_settings: Secrets = Field({}, description="Settings of modules: `name.key` = text.")
    cache: AclCache = AclCache()


class Acl(Sources, AclKeys):
    """Authorization: which topics clients may publish and subscribe."""


class FlappingDetect(Section):
    """Clients that disconnect too often are banned for a while."""

    enable: bool = Field(False, description="Whether flapping clients are banned.")
    window_time: Duration = Field(60.0, ge=1, le=LONGEST_WAIT_S, description="Time window in which disconnects are counted.")
    max_count: Whole = Field(15, ge=1, le=LIMIT_MAX, description="Disconnects of one client id in the window that lead to a ban.")
    ban_time: Duration = Field(300.0, ge=1, le=36500 * 86400.0, description="Duration of the ban.")
