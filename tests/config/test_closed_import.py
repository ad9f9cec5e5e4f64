"""A closed configuration of another broker becomes a closed broker: nothing is let in because it could not be taken over."""

import base64
import hashlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbroker.access.hashing import Scheme, verify
from shardbroker.config import ConfigError, Settings, load
from shardbroker.config.foreign import to_toml
from shardbroker.config.foreign_emqx import read_emqx
from shardbroker.config.foreign_mosquitto import read_mosquitto
from tests.harness import Broker, Client
from tests.harness.wire import Connack

PROGRAM = Path(sys.executable).with_name("shardbroker")


def hashed(password: bytes, kind: str = "7") -> str:
    """As mosquitto_passwd makes them."""
    salt = b"0123456789ab"
    if kind == "7":
        middle, found = "$101", hashlib.pbkdf2_hmac("sha512", password, salt, 101)
    else:
        middle, found = "", hashlib.sha512(password + salt).digest()
    return f"${kind}{middle}${base64.b64encode(salt).decode()}${base64.b64encode(found).decode()}"


MOSQUITTO = {
    "no anonymous clients": "listener 1883\nallow_anonymous false\n",
    "2.0: none where there is a listener": "listener 1883\n",
    "a port is a listener": "port 1883\n",
    "0 is false": "listener 1883\nallow_anonymous 0\n",
    "without a listener": "allow_anonymous false\n",
    "a plugin": "listener 1883\nallow_anonymous true\nplugin /usr/lib/auth.so\n",
    "an old plugin": "listener 1883\nallow_anonymous true\nauth_plugin /usr/lib/auth.so\n",
    "keys": "listener 8883\nallow_anonymous true\npsk_file /etc/psk\npsk_hint here\n",
    "settings by listener": "per_listener_settings true\nlistener 1883\nallow_anonymous true\n",
    "client ids": "listener 1883\nallow_anonymous true\nclientid_prefixes secure-\n",
    "other files": "listener 1883\nallow_anonymous true\ninclude_dir /etc/mosquitto/conf.d\n",
    "something unknown": "listener 1883\nallow_anonymous true\nlock_everything true\n",
    "a tab": "listener 1883\nallow_anonymous\tfalse\n",
    "no TLS listener left": "listener 8883\nallow_anonymous true\nrequire_certificate true\n"
    "capath /etc/ca\ncertfile /c\nkeyfile /k\n",
}
EMQX = {
    "users": 'authentication = [{ mechanism = password_based, backend = built_in_database }]',
    "one, not in a list": "authentication { mechanism = password_based, backend = built_in_database }",
    "a web service": 'authentication = [{ mechanism = password_based, backend = http, url = "http://a/" }]',
    "something new": "authentication = [{ mechanism = quantum }]",
    "keys": "psk_authentication.enable = true",
    "names of certificates": "mqtt.peer_cert_as_username = cn",
    "hooks": 'exhook.servers = [{ name = a, url = "http://127.0.0.1:1" }]',
    "4: nobody unnamed": "listener.tcp.external = 0.0.0.0:1883\nallow_anonymous = false\n",
    "4: not said": "listener.tcp.external = 1883\n",
}


@pytest.mark.parametrize("text", MOSQUITTO.values(), ids=MOSQUITTO)
def test_mosquitto_stays_closed(text: str) -> None:
    imported = read_mosquitto(text)
    assert imported.settings["auth", "chain"] == ["builtin"] and imported.remarks


@pytest.mark.parametrize("text", EMQX.values(), ids=EMQX)
def test_emqx_stays_closed(text: str) -> None:
    imported = read_emqx(text)
    assert imported.settings["auth", "chain"] == ["builtin"] and imported.remarks


def test_what_is_open_stays_open() -> None:
    for imported in (
        read_mosquitto("listener 1883\nallow_anonymous true\n"),
        read_mosquitto("max_inflight_messages 5\n"),
        read_emqx("mqtt { max_inflight = 5 }\nauthentication = []\n"),
        read_emqx("listener.tcp.external = 1883\nallow_anonymous = true\n"),
    ):
        assert ("auth", "chain") not in imported.settings and imported.remarks == []


def test_a_listener_that_would_be_another_one_is_left_out() -> None:
    imported = read_mosquitto(
        "listener 1883 127.0.0.1\nallow_anonymous true\nlistener 8883\npsk_hint x\nlistener 8884\nbind_interface eth1\n"
        "listener 8885\nuse_identity_as_username true\ncertfile /c\nkeyfile /k\ncafile /a\n"
        "listener 8886\ncafile /a\nrequire_certificate true\n"
    )
    assert {path[1] for path in imported.settings if path[0] == "listeners"} == {"default"}
    assert len([one for one in imported.remarks if "left out" in one]) == 4
    imported = read_emqx(
        "listeners.tcp.default { bind = 1883, enable = false }\nlisteners.ssl.default { bind = 8883, ssl_options { certfile = c,"
        " enable_crl_check = true } }\nlisteners.tcp.b { bind = 1884, authentication = [{ mechanism = jwt }] }\n"
        "listeners.tcp.c { bind = 1885 }\n"
    )
    assert {path[1] for path in imported.settings if path[0] == "listeners"} == {"c"}


def test_emqx_authorization() -> None:
    def acl(text: str) -> tuple[object, object, object]:
        imported = read_emqx(text)
        return tuple(imported.settings.get(("acl", *key)) for key in (("sources",), ("no_match",), ("file", "path")))  # type: ignore[return-value]

    file = '{ type = file, enable = true, path = "/etc/acl.conf" }'
    assert acl(f"authorization {{ no_match = deny, sources = [{file}] }}") == (["file"], "deny", "/etc/acl.conf")
    assert acl(f"authorization {{ sources = [{file}] }}") == (["file"], "allow", "/etc/acl.conf"), "EMQX's default"
    closed = (["builtin"], "deny", None)
    assert acl("authorization { no_match = deny }") == closed
    assert acl(f"authorization {{ no_match = allow, sources = [{{ type = http }}, {file}] }}") == closed
    assert acl(f"authorization {{ sources = [{file}, {{ type = redis }}] }}") == closed
    assert acl("authorization { no_match = perhaps }") == closed
    assert acl('authorization { sources = [{ type = file, path = "${EMQX_ETC_DIR}/acl.conf" }] }') == closed
    assert acl("allow_anonymous = true\nacl_nomatch = deny\nacl_file = /etc/acl.conf") == (["file"], "deny", "/etc/acl.conf")
    assert acl("allow_anonymous = true\nacl_nomatch = deny\n") == closed


def test_emqx_sections_that_are_here() -> None:
    text = """
rewrite = [{ action = all, source_topic = "a/#", re = "^a/(.+)$", dest_topic = "b/$1" }]
auto_subscribe { topics = [{ topic = "c/${clientid}", qos = 1 }] }
dashboard { listeners { http { bind = 18083 } } }
authorization { no_match = deny, deny_action = disconnect, sources = [{ type = file, path = "/etc/acl.conf" }] }
"""
    imported = read_emqx(text)
    assert imported.remarks == []
    assert imported.settings["api", "bind"] == "0.0.0.0:18083"
    settings = Settings.model_validate(tomllib.loads(to_toml(imported, "x")))
    assert settings.rewrite.rules[0].dest_topic == "b/$1" and settings.auto_subscribe.topics[0].qos == 1
    assert (settings.acl.no_match, settings.acl.deny_action) == ("deny", "disconnect")
    secure = read_emqx('dashboard.listeners.https { bind = 18084, ssl_options { certfile = "/c", keyfile = "/k" } }')
    assert secure.settings["api", "certfile"] == "/c"
    assert ("api", "bind") not in read_emqx("dashboard.listeners.https { bind = 18084 }").settings
    assert ("api", "bind") not in read_emqx("dashboard.listeners.http { bind = 0 }").settings


@pytest.mark.parametrize(
    "text",
    ['include "other.conf"', "a = ${b}", 'a = """x""', "a = 1\na.b = 2", "a { b = 1 } }", "a = {\n  b = @\"\x00"],
    ids=["include", "reference", "quotes", "a value with keys", "one brace too many", "a quote that does not end"],
)
def test_what_would_be_misread_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_emqx(text)


EMQX_4 = """
## EMQX 4.4
node.name = emqx@127.0.0.1
listener.tcp.external = 0.0.0.0:1883
listener.tcp.external.acceptors = 8
listener.tcp.external.max_connections = 1024000
listener.tcp.external.access.1 = allow all
listener.ssl.external = 8883
listener.ssl.external.keyfile = etc/certs/key.pem
listener.ssl.external.certfile = etc/certs/cert.pem
listener.ssl.external.handshake_timeout = 15s
allow_anonymous = false
acl_nomatch = deny
acl_file = etc/acl.conf
mqtt.max_packet_size = 1MB
zone.external.idle_timeout = 15s
broker.session_locking_strategy = quorum
"""


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(PROGRAM), "config", "import", *words], capture_output=True, text=True, check=False)


def test_a_file_of_emqx_4(tmp_path: Path) -> None:
    file = tmp_path / "emqx.conf"
    file.write_text(EMQX_4)
    done = run(str(file))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    (tmp_path / "own.toml").write_text(done.stdout)
    settings = load(tmp_path / "own.toml").settings
    assert (settings.auth.chain, settings.acl.sources, settings.acl.no_match) == (["builtin"], ["file"], "deny")
    assert settings.listeners["ssl-external"].tls.certfile == "etc/certs/cert.pem"
    assert settings.mqtt.max_packet_size == 1 << 20
    assert "zone.external.idle_timeout" in done.stderr


def test_files_of_an_include_dir_count(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    file = tmp_path / "mosquitto.conf"
    file.write_text(f"pid_file /run/mosquitto.pid\ninclude_dir {tmp_path}/conf.d\n")
    done = run(str(file))
    assert (done.returncode, done.stderr) == (0, "") and "chain" not in done.stdout
    (tmp_path / "conf.d" / "a.conf").write_text("listener 1883\nallow_anonymous false\n")
    done = run(str(file))
    assert done.returncode == 1 and 'chain = ["builtin"]' in done.stdout


def test_secrets_are_not_repeated() -> None:
    imported = read_emqx('node.cookie = "hush"\ndashboard { default_password = "hush" }\n')
    assert "hush" not in to_toml(imported, "x") and len(imported.remarks) == 2


def test_hashes_of_mosquitto() -> None:
    for kind in ("6", "7"):
        assert verify(Scheme(), hashed(b"secret", kind), "", b"secret")
        assert not verify(Scheme(), hashed(b"secret", kind), "", b"guess")


ACL = """
topic read public/#
user ada
topic readwrite home/#
topic deny home/safe/#
topic write alarms
user bob
topic read news/+
pattern write from/%c/%u
"""


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Broker]:
    """What `config import` made of a mosquitto.conf with passwords and rules."""
    (tmp_path / "passwords").write_text(f"ada:{hashed(b'secret')}\nbob:{hashed(b'old', '6')}\n")
    (tmp_path / "acl").write_text(ACL)
    file = tmp_path / "mosquitto.conf"
    file.write_text(f"listener 1883\npassword_file {tmp_path}/passwords\nacl_file {tmp_path}/acl\n")
    done = run(str(file), "--rules", str(tmp_path / "rules.toml"))
    assert done.returncode == 1 and "reading home/#: a deny lies within it" in done.stderr
    (tmp_path / "own.toml").write_text(done.stdout)
    with Broker(2, {}, tmp_path / "data", arguments=(f"--config={tmp_path / 'own.toml'}",)) as broker:
        yield broker


def code(broker: Broker, **options: str) -> int:
    with Client(broker.address, 5, "c", connect=False, **options) as client:  # type: ignore[arg-type]
        client.send_raw(client._connect_packet)
        return client.expect(Connack).code


@pytest.mark.own_broker
def test_passwords_and_rules_of_mosquitto_in_a_broker(closed: Broker) -> None:
    assert code(closed) == 0x87
    assert code(closed, username="eve", password="secret") == 0x86
    assert code(closed, username="ada", password="guess") == 0x86
    with Client(closed.address, 5, "a", username="ada", password="secret") as ada:
        assert ada.publish("home/lamp", b"", 1).code in (0, 0x10)  # type: ignore[union-attr]
        assert ada.publish("home/safe/door", b"", 1).code == 0x87  # type: ignore[union-attr]
        assert ada.publish("from/a/ada", b"", 1).code in (0, 0x10)  # type: ignore[union-attr]
        assert ada.publish("from/b/ada", b"", 1).code == 0x87  # type: ignore[union-attr]
        assert ada.subscribe([("home/#", 1), ("news/x", 1), ("#", 1)], check=False).codes == (0x87, 0x87, 0x87)
    with Client(closed.address, 5, "b", username="bob", password="old") as bob:
        assert bob.subscribe([("news/+", 1), ("public/x", 1)], check=False).codes == (1, 0x87)


def test_rules_without_a_place_for_them_close_the_broker(tmp_path: Path) -> None:
    (tmp_path / "acl").write_text(ACL)
    file = tmp_path / "mosquitto.conf"
    for rules, words in ((ACL, ()), ("topic ${x}\n", ("--rules", "r.toml")), ("nonsense\n", ("--rules", "r.toml"))):
        (tmp_path / "acl").write_text(rules)
        file.write_text(f"listener 1883\nallow_anonymous true\nacl_file {tmp_path}/acl\n")
        done = run(str(file), *words)
        assert done.returncode == 1 and "acl_file" in done.stderr
        assert f"sources = {json.dumps(['builtin'])}" in done.stdout and 'no_match = "deny"' in done.stdout
