"""Back ends against the real servers: PostgreSQL, MariaDB, Redis, OpenLDAP, HTTP, and JWT with a JWKS endpoint."""

import base64
import hashlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from shardbroker.access.hashing import hash_password
from tests.access import servers
from tests.access.guarded import Answers, Guarded, http_server
from tests.harness.needed import needed_module
from tests.harness.wire import Publish
from tests.servers.mongodb import mongodb
from tests.servers.redis import redis

pytestmark = pytest.mark.own_broker

BAD, NOT_AUTHORIZED, UNAVAILABLE = 0x86, 0x87, 0x88
SALTED = hashlib.sha256(b"salt" + b"secret").hexdigest()
ARGON = hash_password(b"secret")
EVIL = [
    "ada' OR '1'='1", "x' UNION SELECT password_hash, salt, 1 FROM mqtt_user WHERE 'a'='a", "ada\\",
    "ada'; DROP TABLE mqtt_user; --",
    'ada" OR ""="', "ada%", "*", "ada)(uid=*", "ada*", "a\\2a", "ada,ou=users", "\u02bc OR 1=1", "${clientid}", "ada\nFLUSHALL",
    "ada FLUSHALL",
]  # fmt: skip
"""User names that would be somebody else's, or do harm, if they were put into a question as they are."""

SQL = f"""
CREATE TABLE mqtt_user (username VARCHAR(100), password_hash VARCHAR(200), salt VARCHAR(50), is_superuser BOOLEAN);
INSERT INTO mqtt_user VALUES ('ada', '{SALTED}', 'salt', false), ('root', '{ARGON}', NULL, true);
CREATE TABLE mqtt_acl (username VARCHAR(100), permission VARCHAR(10), action VARCHAR(10), topic VARCHAR(100));
INSERT INTO mqtt_acl VALUES ('ada', 'allow', 'all', 'own/${{clientid}}/#'), ('ada', 'deny', 'publish', 'shut'),
    ('ada', 'allow', 'all', 'shut'), ('ada', 'allow', 'subscribe', 'eq lit/+');
"""


def check_users(broker: Guarded) -> None:
    """ada and root are known, each with `secret`; root is a superuser."""
    with broker.client("b1", username="ada", password="secret"):
        pass
    broker.refused("b2", BAD, username="ada", password="wrong")
    broker.refused("b3", BAD, username="eve", password="secret")
    broker.refused("b4", NOT_AUTHORIZED)
    for name in EVIL:
        broker.refused("b5", BAD, username=name, password="secret")
    with broker.client("b6", username="root", password="secret") as root:
        root.subscribe("anything/#", 1)
        root.publish("anything/x", b"1", 1)
        root.expect(Publish, payload=b"1")
    assert "ERROR integrations" not in "".join(broker.output)


def check_rules(broker: Guarded) -> None:
    """What the table of rules above says about ada."""
    with broker.client("r1", username="ada", password="secret") as ada:
        assert ada.subscribe([("own/r1/x", 1), ("own/r2/x", 1), ("lit/+", 0), ("lit/a", 0)], check=False).codes == (1, 135, 0, 135)
        for _ in range(2):  # from the back end, and from what the connection remembers
            assert ada.publish("own/r1/x", b"1", 1).code == 0  # type: ignore[union-attr]
            ada.expect(Publish, payload=b"1")
            assert ada.publish("shut", b"1", 1).code == NOT_AUTHORIZED  # type: ignore[union-attr]
            assert ada.publish("own/r2/x", b"1", 1).code == NOT_AUTHORIZED  # type: ignore[union-attr]
        for qos in (0, 1, 2):
            ada.publish("own/r1/x", b"%d" % qos, qos, wait=False)
        for qos in (0, 1, 2):
            ada._wait(lambda packet, payload=b"%d" % qos: isinstance(packet, Publish) and packet.payload == payload, "message")
    with broker.client("+", username="ada", password="secret") as odd:
        assert odd.subscribe([("own/+/#", 1), ("own/r1/x", 1)], check=False).codes == (NOT_AUTHORIZED, NOT_AUTHORIZED)
    for name in EVIL[:4]:
        with broker.client(f"{name}/#", username="ada", password="secret") as odd:
            assert odd.publish("own/r1/x", b"1", 1).code == NOT_AUTHORIZED  # type: ignore[union-attr]


def section(kind: str, port: int, **keys: object) -> str:
    lines = [f'server = "127.0.0.1:{port}"', *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    return "".join(f"[{part}.{kind}]\n" + "\n".join(lines) + "\n" for part in ("auth", "acl"))


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_sql(kind: str) -> None:
    server, keys = (servers.postgresql, {}) if kind == "postgresql" else (servers.mariadb, {"password": "dbsecret"})
    with server(SQL) as port:
        secrets = section(kind, port, username="mqtt", timeout="5s", **keys)
        with Guarded({"auth.chain": [kind], "acl.sources": [kind]}, secrets=secrets) as broker:
            check_users(broker)
            check_rules(broker)


def test_redis() -> None:
    users = [
        ["HSET", "mqtt_user:ada", "password_hash", SALTED, "salt", "salt", "is_superuser", "0"],
        ["HSET", "mqtt_user:root", "password_hash", ARGON, "is_superuser", "1"],
        ["HSET", "mqtt_acl:ada", "own/${clientid}/#", "all", "eq lit/+", "subscribe", "weak", '{"action": "publish", "qos": [0]}'],
    ]
    with redis(*users) as port:
        secrets = section("redis", port, password="dbsecret")
        with Guarded({"auth.chain": ["redis"], "acl.sources": ["redis"]}, secrets=secrets) as broker:
            check_users(broker)
            check_rules(broker)
            with broker.client("r9", username="ada", password="secret") as ada:
                assert ada.publish("weak", b"", 1).code == NOT_AUTHORIZED  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["hash", "bind"])
def test_ldap(mode: str) -> None:
    needed_module("bonsai")
    ssha = base64.b64encode(hashlib.sha1(b"secretsalt").digest() + b"salt").decode()
    people = "".join(
        f"dn: uid={name},ou=users,dc=example,dc=org\nobjectClass: inetOrgPerson\nobjectClass: mqttUser\ncn: {name}\nsn: {name}\n"
        f"uid: {name}\nisSuperuser: {flag}\nuserPassword: {{SSHA}}{ssha}\n\n"
        for name, flag in (("ada", "FALSE"), ("root", "TRUE"), ("eve2", "FALSE"))
    )
    ldif = f"""dn: dc=example,dc=org
objectClass: dcObject
objectClass: organization
dc: example
o: example

dn: ou=users,dc=example,dc=org
objectClass: organizationalUnit
ou: users

{people}"""
    with servers.slapd(ldif) as port:
        for base, found_by in (
            ("uid=${username},ou=users,dc=example,dc=org", "(objectClass=*)"),
            ("ou=users,dc=example,dc=org", "(&(objectClass=inetOrgPerson)(uid=${username}))"),
        ):
            secrets = (
                f'[auth.ldap]\nserver = "127.0.0.1:{port}"\nusername = "cn=admin,dc=example,dc=org"\npassword = "dbsecret"\n'
                f'mode = "{mode}"\nbase_dn = "{base}"\nfilter = "{found_by}"\n'
            )
            with Guarded({"auth.chain": ["ldap"]}, secrets=secrets) as broker:
                check_users(broker)
                broker.refused("b7", BAD, username="ada", password="")


def test_mongodb() -> None:
    users = [
        {"username": "ada", "password_hash": SALTED, "salt": "salt", "is_superuser": False},
        {"username": "root", "password_hash": ARGON, "is_superuser": True},
        {"username": {"$gt": ""}, "password_hash": SALTED, "salt": "salt"},
    ]
    rules = [
        {"username": "ada", "permission": "allow", "action": "all", "topics": ["own/${clientid}/#"]},
        {"username": "ada", "permission": "allow", "action": "subscribe", "topics": ["eq lit/+"]},
    ]
    settings = {"auth.chain": ["mongodb"], "acl.sources": ["mongodb"]}
    with mongodb(users, rules) as port, Guarded(settings, secrets=section("mongodb", port)) as broker:
        check_users(broker)
        check_rules(broker)
        broker.refused("m1", BAD, username='{"$gt": ""}', password="secret")


# --- HTTP -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def service() -> Iterator[Answers]:
    with http_server() as answers:
        yield answers


def result(**fields: Any) -> tuple[int, bytes]:
    return 200, json.dumps(fields).encode()


def test_http(service: Answers) -> None:
    def answer(path: str, fields: dict[str, Any]) -> tuple[int, bytes]:
        if path == "/auth":
            known = fields.get("password") == "secret"
            if fields.get("username") == "limited":
                mine = {"permission": "allow", "action": "all", "topic": "mine/#"}
                return result(result="allow", acl=[mine, {"permission": "deny"}])
            if fields.get("username") == "brief":
                return result(result="allow", expire_at=int(time.time()) + 2)
            return result(result="allow", is_superuser=fields["username"] == "root") if known else result(result="deny")
        return result(result="allow") if fields["topic"].startswith("own/") else result(result="ignore")

    service.answer = answer
    secrets = (
        f'[auth.http]\nurl = "{service.url}/auth"\nheaders = {{ "X-Token" = "t0ken", "X-Client" = "${{clientid}}" }}\n'
        f'[acl.http]\nurl = "{service.url}/acl/${{clientid}}"\nmethod = "get"\n'
    )
    with Guarded({"auth.chain": ["http"], "acl.sources": ["http"]}, secrets=secrets) as broker:
        with broker.client("h1", username="ada", password="secret") as ada:
            assert ada.publish("own/x", b"", 1).code == 0x10  # type: ignore[union-attr]
            assert ada.publish("other", b"", 1).code == NOT_AUTHORIZED  # type: ignore[union-attr]
            many = [(f"{'own' if i % 2 else 'other'}/{i}", 1) for i in range(200)]
            assert ada.subscribe(many, check=False).codes == tuple(1 if i % 2 else 135 for i in range(200))
        broker.refused("h2", BAD, username="ada", password="wrong")
        with broker.client("h3", username="limited", password="x") as limited:
            assert limited.subscribe([("mine/a", 0), ("own/a", 0)], check=False).codes == (0, 135), "its own rules come first"
        with broker.client("h4", username="root", password="secret") as root:
            root.subscribe("#", 0)
        with broker.client("h5", username="brief", password="x") as brief:
            ended = brief.expect_close(5)
            assert ended is not None and ended.code == 0xA0
        odd = "h/../x?y=1&z#f\u00e9\r"[:-1]
        with broker.client(odd, username="ada", password="secret") as client:
            client.publish("own/x", b"", 1)
        paths = [path for path, _, _ in service.asked]
        assert any(path.startswith("/acl/h%2F..%2Fx%3Fy%3D1%26z%23f%C3%A9?") for path in paths), paths
        for dots in (".", ".."):
            with broker.client(dots, username="ada", password="secret") as client:
                assert client.publish("own/x", b"", 1).code == NOT_AUTHORIZED  # type: ignore[union-attr]
        assert not [path for path, _, _ in service.asked if path.startswith(("/acl/.", "/?", "/acl?"))]
        asked = [headers for path, headers, _ in service.asked if path == "/auth"]
        assert asked[0]["X-Token"] == "t0ken" and asked[0]["X-Client"] == "h1"


def test_a_server_that_compresses_for_those_who_take_it(service: Answers) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = {**jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "k0"}
    service.answer = lambda path, fields: result(keys=[public]) if path == "/jwks" else result(result="allow")
    service.compresses = True
    secrets = (
        f'[auth.http]\nurl = "{service.url}"\n[acl.http]\nurl = "{service.url}"\n'
        f'[auth.jwt]\nalgorithm = "public-key"\nendpoint = "{service.url}/jwks"\n'
    )
    with Guarded({"auth.chain": ["jwt", "http"], "acl.sources": ["http"]}, secrets=secrets, workers=1) as broker:
        with broker.client("c1", username="ada", password="secret") as ada:
            assert ada.publish("x", b"", 1).code == 0x10  # type: ignore[union-attr]
        broker.client("c2", username="ada", password=jwt.encode({}, key, "ES256", headers={"kid": "k0"})).close()
    assert {path for path, _, _ in service.asked} == {"/", "/jwks"}
    assert {headers.get("Accept-Encoding") for _, headers, _ in service.asked} == {"identity"}


@pytest.mark.parametrize(
    "nonsense",
    [(200, b"{"), (200, b"[]"), (200, b'{"result": "perhaps"}'), (302, b""), (200, b'"' + b"x" * 100_000), None],
    ids=["broken", "list", "word", "redirect", "huge", "silence"],
)
def test_nonsense_is_a_failure_and_the_configuration_decides(service: Answers, nonsense: tuple[int, bytes] | None) -> None:
    service.answer = lambda path, fields: nonsense
    secrets = f'[auth.http]\nurl = "{service.url}"\ntimeout = "500ms"\n[acl.http]\nurl = "{service.url}"\ntimeout = "500ms"\n'
    settings = {"auth.chain": ["http", "builtin"], "acl.sources": ["http", "builtin"]}
    with Guarded(settings, secrets=secrets, users={"ada": "secret"}, workers=1) as broker:
        start = time.monotonic()
        with broker.client("n1", username="ada", password="secret") as ada:
            assert ada.publish("x", b"", 1).code == NOT_AUTHORIZED  # type: ignore[union-attr]
        broker.refused("n2", UNAVAILABLE, username="eve", password="secret")
        assert time.monotonic() - start < 5
        broker.logged("ERROR integrations: backend failed backend=http ")


def test_errors_of_http_are_ignored_as_in_emqx(service: Answers) -> None:
    service.answer = lambda path, fields: (500, b"") if fields["username"] == "a" else (404, b"")
    secrets = f'[auth.http]\nurl = "{service.url}"\n'
    settings = {"auth.chain": ["http", "builtin"], "auth.on_error": "deny"}
    with Guarded(settings, secrets=secrets, users={"a": "s", "b": "s"}) as broker:
        for name in "ab":
            broker.client("e1", username=name, password="s").close()


def test_on_error_deny(service: Answers) -> None:
    secrets = f'[auth.http]\nurl = "{service.url}"\n'
    service.answer = lambda path, fields: (200, b"nonsense")
    with Guarded({"auth.chain": ["http", "builtin"], "auth.on_error": "deny"}, secrets=secrets, users={"a": "s"}) as broker:
        broker.refused("e2", UNAVAILABLE, username="a", password="s")
        broker.refused("e2", 3, 4, username="a", password="s")


def test_a_thousand_logins_that_wait_for_a_dead_back_end_do_not_stop_others(service: Answers) -> None:
    service.answer = lambda path, fields: None
    secrets = f'[auth.http]\nurl = "{service.url}"\ntimeout = "3s"\n'
    with ExitStack() as stack, Guarded({"auth.chain": ["builtin", "http"]}, secrets=secrets, users={"a": "s"}) as broker:
        inside = stack.enter_context(broker.client("inside", username="a", password="s"))
        inside.subscribe("x", 1)
        from tests.harness.client import Client

        waiting = [Client(broker.address, 4, f"w{i}", username=f"u{i}", password="x", connect=False) for i in range(1000)]
        for client in waiting:
            stack.enter_context(client)
        for client in waiting:
            client.send_raw(client._connect_packet)
        for i in range(200):
            inside.publish("x", b"%d" % i, 1)
            inside.expect(Publish, payload=b"%d" % i)
        for client in waiting[::100]:
            client.timeout = 60
            client.expect(type(inside.connack), code=3)


# --- JWT ------------------------------------------------------------------------------------------------------------------------


def test_jwt_with_a_secret() -> None:
    key = "0123456789abcdef0123456789abcdef"
    secrets = f'[auth.jwt]\nsecret = "{key}"\nverify_claims = {{ "sub" = "${{username}}", "cid" = "${{clientid}}" }}\n'

    def token(secret: str = key, algorithm: str = "HS256", **claims: Any) -> str:
        return jwt.encode({"sub": "ada", "cid": "j1"} | claims, secret, algorithm)

    with Guarded({"auth.chain": ["jwt"], "acl.sources": ["builtin"]}, secrets=secrets) as broker:
        now = int(time.time())
        acl = {"pub": ["out/${clientid}"], "sub": ["in/#"]}
        with broker.client("j1", username="ada", password=token(exp=now + 60, acl=acl)) as ada:
            assert ada.subscribe([("in/x", 0), ("out/j1", 0)], check=False).codes == (0, 135)
            assert ada.publish("out/j1", b"", 1).code == 0x10  # type: ignore[union-attr]
        for bad in (token(exp=now - 1), token(nbf=now + 60), token(sub="eve"), token(cid="j2"), token("x" * 32), "a.b.c", "nothing",
                    token(None, "none")):  # type: ignore[arg-type]  # fmt: skip
            broker.refused("j1", BAD, username="ada", password=bad)
        with broker.client("j1", username="ada", password=token(exp=now + 3)) as brief:
            ended = brief.expect_close(8)
            assert ended is not None and ended.code == 0xA0
        with broker.client("j1", 4, username="ada", password=token(exp=int(time.time()) + 2), keepalive=0) as old:
            assert old.expect_close(8) is None
        broker.logged("client_id=j1", "reason=0xa0", "credentials expired")


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_jwt_with_a_jwks(service: Answers, algorithm: str) -> None:
    rs = algorithm == "RS256"
    made = [rsa.generate_private_key(65537, 2048) if rs else ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    kind = jwt.algorithms.RSAAlgorithm if algorithm == "RS256" else jwt.algorithms.ECAlgorithm
    published = [{**kind.to_jwk(key.public_key(), as_dict=True), "kid": f"k{i}"} for i, key in enumerate(made)]  # type: ignore[arg-type]
    service.answer = lambda path, fields: (200, json.dumps({"keys": published[:1]}).encode())
    secrets = f'[auth.jwt]\nalgorithm = "public-key"\nendpoint = "{service.url}/jwks"\n'
    with Guarded({"auth.chain": ["jwt"]}, secrets=secrets) as broker:

        def token(number: int, name: str) -> str:
            return jwt.encode({"sub": "x"}, made[number], algorithm, headers={"kid": name})  # type: ignore[arg-type]

        broker.client("k1", username="ada", password=token(0, "k0")).close()
        broker.refused("k1", BAD, username="ada", password=token(1, "k0"))
        broker.refused("k1", BAD, username="ada", password=token(1, "k1"))
        confused = jwt.encode({"sub": "x"}, "x" * 32, "HS256", headers={"kid": "k0"})
        broker.refused("k1", BAD, username="ada", password=confused)
        service.answer = lambda path, fields: (200, json.dumps({"keys": published}).encode())
        time.sleep(5.1)  # RETRY_S: an unknown key leads to another look at the endpoint, but not to one for each token
        broker.client("k1", username="ada", password=token(1, "k1")).close()


def test_logins_share_one_read_of_a_jwks_that_hangs(service: Answers) -> None:
    """They fail together after auth.jwt.timeout, later ones at once until the endpoint is tried again; then all is well."""
    service.answer = lambda path, fields: None
    secrets = f'[auth.jwt]\nalgorithm = "public-key"\nendpoint = "{service.url}/jwks"\ntimeout = "1s"\n'
    key = ec.generate_private_key(ec.SECP256R1())
    token = jwt.encode({"sub": "x"}, key, "ES256", headers={"kid": "k0"})
    public = {**jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "k0"}  # type: ignore[arg-type]

    def refused(number: int) -> float:
        broker.refused(f"j{number}", UNAVAILABLE, username="ada", password=token, timeout=20)
        return time.monotonic() - began

    with Guarded({"auth.chain": ["jwt"]}, secrets=secrets) as broker, ThreadPoolExecutor(8) as pool:
        began = time.monotonic()
        assert max(pool.map(refused, range(8))) < 2.5
        began = time.monotonic()
        assert refused(8) < 0.5 and len(service.asked) == 1
        service.answer = lambda path, fields: (200, json.dumps({"keys": [public]}).encode())
        time.sleep(5.1)  # RETRY_S
        broker.client("j9", username="ada", password=token).close()


def test_a_known_key_does_not_wait_for_a_jwks_that_hangs(service: Answers) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    token = jwt.encode({"sub": "x"}, key, "ES256", headers={"kid": "k0"})
    public = {**jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "k0"}  # type: ignore[arg-type]
    service.answer = lambda path, fields: (200, json.dumps({"keys": [public], "x": "x" * 500_000}).encode())
    secrets = f'[auth.jwt]\nalgorithm = "public-key"\nendpoint = "{service.url}/jwks"\ntimeout = "1s"\nrefresh_interval = "1s"\n'
    with Guarded({"auth.chain": ["jwt"]}, secrets=secrets) as broker:
        broker.client("k1", username="ada", password=token).close()
        service.answer = lambda path, fields: None
        time.sleep(1.1)
        broker.client("k2", username="ada", password=token).close()  # the first one finds out that it hangs
        waits = []
        until_s = time.monotonic() + 7
        while time.monotonic() < until_s:
            began = time.monotonic()
            broker.client("k3", username="ada", password=token).close()
            waits.append(time.monotonic() - began)
        assert max(waits) < 0.5 and len(service.asked) >= 3


# --- servers that are not there ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["postgresql", "mysql", "redis", "mongodb", "ldap", "http"])
def test_a_server_that_is_not_there(kind: str) -> None:
    """Nobody listens; the next in the chain is asked, and what only this one might know is unavailable."""
    if kind == "ldap":
        needed_module("bonsai")
    port = servers.free_port()
    where = f'url = "http://127.0.0.1:{port}/"' if kind == "http" else f'server = "127.0.0.1:{port}"'
    sources = [] if kind == "ldap" else [kind]
    parts = ["auth"] if kind == "ldap" else ["auth", "acl"]
    secrets = "".join(f'[{part}.{kind}]\n{where}\ntimeout = "1s"\n' for part in parts)
    with Guarded({"auth.chain": [kind, "builtin"], "acl.sources": sources}, secrets=secrets, users={"a": "s"}, workers=1) as broker:
        start = time.monotonic()
        broker.refused("g1", UNAVAILABLE, username="eve", password="s")
        with broker.client("g2", username="a", password="s") as client:
            code = client.publish("x", b"", 1).code  # type: ignore[union-attr]
            assert code == (NOT_AUTHORIZED if sources else 0x10)
        assert time.monotonic() - start < 10
        broker.logged(f"ERROR integrations: backend failed backend={kind} ")
