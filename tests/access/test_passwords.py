"""Hashes, SCRAM and placeholders."""

import base64
import hashlib
import hmac

import bcrypt
import pytest

from shardbroker.access.contract import BackendError, Client
from shardbroker.access.hashing import Scheme, hash_password, is_quick, verify, verify_unknown_user
from shardbroker.access.placeholders import PlaceholderError, Template, values_of
from shardbroker.access.scram import ScramError, ScramServer, scram_user
from tests.access.scram_client import ScramClient
from tests.harness.needed import needed_module

PASSWORD = "pässword".encode()


def digest(name: str, data: bytes) -> str:
    return hashlib.new(name, data).hexdigest()


@pytest.mark.parametrize(
    ("scheme", "stored", "salt"),
    [
        (Scheme("plain", "disable"), PASSWORD.decode(), ""),
        (Scheme("md5", "prefix"), digest("md5", b"salt" + PASSWORD), "salt"),
        (Scheme("sha", "suffix"), digest("sha1", PASSWORD + b"salt"), "salt"),
        (Scheme("sha256", "prefix"), digest("sha256", b"salt" + PASSWORD), "salt"),
        (Scheme("sha256", "suffix"), digest("sha256", PASSWORD + b"salt").upper(), "salt"),
        (Scheme("sha512", "disable"), digest("sha512", PASSWORD), "salt"),
        (Scheme("pbkdf2"), hashlib.pbkdf2_hmac("sha256", PASSWORD, b"salt", 4096).hex(), "salt"),
        (Scheme("pbkdf2", "prefix", "sha512", 10, 20), hashlib.pbkdf2_hmac("sha512", PASSWORD, b"salt", 10, 20).hex(), "salt"),
        (Scheme("sha256"), bcrypt.hashpw(PASSWORD, bcrypt.gensalt(4)).decode(), "ignored"),
        (Scheme("bcrypt"), bcrypt.hashpw(PASSWORD, bcrypt.gensalt(4)).decode().replace("$2b$", "$2a$"), ""),
        (Scheme("sha256"), hash_password(PASSWORD), ""),
        (Scheme(), "{SSHA}" + base64.b64encode(hashlib.sha1(PASSWORD + b"salt").digest() + b"salt").decode(), ""),
        (Scheme(), "{SHA256}" + base64.b64encode(hashlib.sha256(PASSWORD).digest()).decode(), ""),
    ],
    ids=lambda value: value.name if isinstance(value, Scheme) else value[:7],
)  # fmt: skip
def test_every_form_of_hash_is_verified(scheme: Scheme, stored: str, salt: str) -> None:
    assert verify(scheme, stored, salt, PASSWORD)
    assert not verify(scheme, stored, salt, PASSWORD + b"x")
    assert not verify(scheme, stored, salt, b"")


@pytest.mark.parametrize("stored", ["$argon2id$broken", "$2b$10$short", "{SSHA}!!!", "{SHA}aa=="])
def test_a_hash_that_cannot_be_read_is_a_failure_and_no_verdict(stored: str) -> None:
    with pytest.raises(BackendError) as caught:
        verify(Scheme(), stored, "", PASSWORD)
    assert stored not in str(caught.value)


def test_hashes_that_need_no_thread() -> None:
    stored = digest("sha256", PASSWORD)
    for name in ("plain", "md5", "sha", "sha256", "sha512"):
        assert is_quick(Scheme(name), stored, "salt", PASSWORD) and is_quick(Scheme(name), "", "", PASSWORD)
        for slow in (hash_password(PASSWORD), "$2b$10$short", "$7$10000000$aa$aa"):  # whatever the scheme is
            assert not is_quick(Scheme(name), slow, "", PASSWORD)
    for name in ("argon2id", "bcrypt", "pbkdf2"):
        assert not is_quick(Scheme(name), stored, "salt", PASSWORD)
    for long in ((stored, "salt", b"x" * 1025), (stored, "x" * 1025, PASSWORD), ("x" * 1025, "salt", PASSWORD)):
        assert not is_quick(Scheme("sha256"), *long)


@pytest.mark.parametrize("name", ["argon2id", "bcrypt", "pbkdf2", "sha256", "plain"])
def test_an_unknown_user_is_nobody_in_every_scheme(name: str) -> None:
    verify_unknown_user(Scheme(name), PASSWORD)


# --- SCRAM --------------------------------------------------------


def test_the_example_of_rfc_7677() -> None:
    """The proof of its client is accepted, and the signature is the one it expects, with its nonces and salt."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    made = scram_user("user", "pencil", "sha256", 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    user = type(made)("user", salt, hashlib.sha256(client_key).digest(), hmac.digest(salted, b"Server Key", "sha256"), 4096)
    server = ScramServer("sha256", 4096, {"user": user}.get)
    first = server.start(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first.startswith(b"r=rOprNGfwEbeRWgbNEkqO") and b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096" in first
    server._nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    server._server_first = f"r={server._nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = f"c=biws,r={server._nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert server.finish(final.encode()) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_scram_lets_in_who_knows_the_password(algorithm: str) -> None:
    user = scram_user("a,b=c", "secret", algorithm, 4096)
    for password, right in (("secret", True), ("wrong", False)):
        server, client = ScramServer(algorithm, 4096, {"a,b=c": user}.get), ScramClient(algorithm, "a,b=c", password)
        answer = client.final(server.start(client.first()))
        if right:
            assert client.believes(server.finish(answer))
        else:
            with pytest.raises(ScramError, match="wrong password"):
                server.finish(answer)


def test_scram_tells_an_unknown_user_from_a_known_one_at_no_step() -> None:
    def run(name: str) -> tuple[bytes, str]:
        user = scram_user("ada", "secret", "sha256", 4096)
        server, client = ScramServer("sha256", 4096, {"ada": user}.get), ScramClient("sha256", name, "wrong")
        first = server.start(client.first())
        with pytest.raises(ScramError) as caught:
            server.finish(client.final(first))
        return first.partition(b",s=")[2], str(caught.value)

    (known, said), (unknown, also_said), (again, _) = run("ada"), run("eve"), run("eve")
    assert said == also_said and len(known) == len(unknown)
    assert unknown == again, "a salt that changes would say that there is no such user"


@pytest.mark.parametrize(
    "message", [b"", b"\xff", b"p=tls-unique,,n=a,r=b", b"n,,r=b,n=a", b"n,,n=,r=b", b"n,,n=a", b"n,a=x,n=a,r=b"]
)
def test_scram_refuses_what_is_no_first_message(message: bytes) -> None:
    with pytest.raises(ScramError):
        ScramServer("sha256", 4096, lambda _: None).start(message)


# --- placeholders --------------------------------------------------------

EVIL = "x'; DROP TABLE mqtt_user; -- *)(uid=*),\\ \" \r\nSET a b"


def test_placeholders_become_parameters() -> None:
    template = Template.parse("SELECT h FROM u WHERE n = '${username}' AND c = ${clientid} AND d = '${$}'")
    text, names = template.bind(lambda n: f"${n}")
    assert text == "SELECT h FROM u WHERE n = $1 AND c = $2 AND d = '$'"
    assert names == ("username", "clientid")


def test_a_value_stays_one_word_of_a_command() -> None:
    words = Template.parse("HMGET mqtt:${username}:x password_hash").words()
    values = values_of(Client("c1", EVIL))
    assert [word(values) for word in words] == ["HMGET", f"mqtt:{EVIL}:x", "password_hash"]
    assert [word(values_of(Client("c1"))) for word in words][1] is None


def test_ldap_values_cannot_leave_their_place() -> None:
    ldap = needed_module("shardbroker.integrations.auth.ldap")
    for escape in (ldap.escape_filter, ldap.escape_dn):
        assert not set(escape(EVIL)) & set("*()=,;\"'+<> \r\n\0#")
        assert escape("ada1") == "ada1"


def test_an_unknown_placeholder_is_refused() -> None:
    with pytest.raises(PlaceholderError, match=r"must be one of \$\{username\}.*, got \$\{user\}"):
        Template.parse("${user}")
