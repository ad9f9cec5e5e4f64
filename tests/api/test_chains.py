"""Authenticators, sources of rules, ExHook servers, rewritten topics and subscriptions by themselves: changed as in EMQX."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tests.api.rest import ApiBroker, Rest
from tests.harness import Client, Publish, until

pytestmark = pytest.mark.own_broker
BUILT_IN, HTTP, JWT = "password_based:built_in_database", "password_based:http", "jwt"


@pytest.fixture(scope="module")
def broker() -> Iterator[ApiBroker]:
    """Without chain and sources: they come from files and may change."""
    made = ApiBroker(2)
    file = made.data_dir / "given.toml"
    file.write_text('[auth.jwt]\nsecret = "of the file"\n')
    made._arguments = (f"--config={file}",)
    with made as broker:
        yield broker


@pytest.fixture
def own(broker: ApiBroker) -> Iterator[Rest]:
    rest = Rest.logged_in(broker)
    yield rest
    for key in ("auth", "acl", "exhook", "rewrite", "auto_subscribe"):
        rest("POST", f"/configs_reset/{key}")


class Answers(BaseHTTPRequestHandler):
    """A service that admits `anna` and lets her publish to a/#."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        allowed = asked["topic"].startswith("a/") if "topic" in asked else asked["username"] == "anna"
        body = json.dumps({"result": "allow" if allowed else "deny"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def code(broker: ApiBroker, name: str, password: str | None = None) -> int:
    """The reason code of a CONNECT with this user name."""
    with Client(broker.address, 5, f"chains-{name}", username=name, password=password, connect=False) as client:
        return client.connect(None).code


def chain(rest: Rest) -> list[str]:
    return [one["id"] for one in rest.good("GET", "/authentication")]


def source_types(rest: Rest) -> list[str]:
    return [one["type"] for one in rest.good("GET", "/authorization/sources")["sources"]]


def test_authenticators_come_change_and_go(broker: ApiBroker, own: Rest, service: str) -> None:
    assert chain(own) == [] and code(broker, "eve") == 0
    added = own.good("POST", "/authentication", {"mechanism": "password_based", "backend": "http", "enable": True, "url": service})
    assert (added["id"], added["mechanism"], added["backend"], added["url"]) == (HTTP, "password_based", "http", service)
    assert code(broker, "anna", "x") == 0 and code(broker, "eve", "x") == 0x86
    assert own.refused("POST", "/authentication", {"mechanism": "password_based", "backend": "http"}) == (409, "ALREADY_EXISTS")
    own.good("POST", "/authentication", {"mechanism": "password_based", "backend": "built_in_database", "user_id_type": "clientid"})
    assert chain(own) == [HTTP, BUILT_IN] and own.good("GET", f"/authentication/{BUILT_IN}")["user_id_type"] == "clientid"
    shown = own.good("GET", f"/authentication/{HTTP}")
    changed = own.good("PUT", f"/authentication/{HTTP}", {**shown, "method": "get"})
    assert changed["method"] == "get", "what is read can be sent back"
    own.good("PUT", f"/authentication/{HTTP}", {"method": "post"})
    own.good("DELETE", f"/authentication/{HTTP}")
    assert chain(own) == [BUILT_IN] and own.refused("GET", f"/authentication/{HTTP}") == (404, "NOT_FOUND")
    for method, body in (("DELETE", None), ("PUT", {})):
        assert own.refused(method, f"/authentication/{HTTP}", body) == (404, "NOT_FOUND")
    assert code(broker, "anna", "x") == 0x86, "the other one does not know her"
    again = own.good("POST", "/authentication", {"mechanism": "password_based", "backend": "http"})
    assert again["url"] == service, "settings of a removed one are kept"


def test_authenticators_are_ordered(own: Rest, service: str) -> None:
    own.good("POST", "/authentication", {"mechanism": "password_based", "backend": "built_in_database"})
    own.good("POST", "/authentication", {"mechanism": "password_based", "backend": "http", "url": service})
    own.good("POST", "/authentication", {"mechanism": "scram", "backend": "built_in_database", "algorithm": "sha512"})
    scram = "scram:built_in_database"
    assert chain(own) == [BUILT_IN, HTTP, scram]
    for id, position, after in (
        (scram, "front", [scram, BUILT_IN, HTTP]),
        (scram, "rear", [BUILT_IN, HTTP, scram]),
        (scram, f"before:{HTTP}", [BUILT_IN, scram, HTTP]),
        (BUILT_IN, f"after:{HTTP}", [scram, HTTP, BUILT_IN]),
    ):
        assert own("PUT", f"/authentication/{id}/position/{position}")[0] == 204
        assert chain(own) == after
    for position in ("middle", "before:jwt", f"after:{HTTP}x", "before:", f"before:{scram}"):
        status, _ = own.refused("PUT", f"/authentication/{scram}/position/{position}")
        assert status in (400, 404), position
    assert own("PUT", "/authentication/order", [{"id": HTTP}, {"id": BUILT_IN}, {"id": scram}])[0] == 204
    assert chain(own) == [HTTP, BUILT_IN, scram]
    for names in ([HTTP, BUILT_IN], [HTTP, HTTP, BUILT_IN, scram], [HTTP, BUILT_IN, JWT]):
        assert own.refused("PUT", "/authentication/order", [{"id": id} for id in names])[0] == 400
    assert chain(own) == [HTTP, BUILT_IN, scram]


def test_hashes_have_the_names_of_emqx(own: Rest) -> None:
    body = {"mechanism": "password_based", "backend": "redis", "server": "127.0.0.1:1"}
    hashes = {"name": "pbkdf2", "mac_fun": "sha512", "iterations": 5000, "dk_length": 32}
    shown = own.good("POST", "/authentication", {**body, "password_hash_algorithm": hashes})
    assert [shown[name] for name in ("hash", "pbkdf2_mac", "pbkdf2_iterations", "pbkdf2_length")] == ["pbkdf2", "sha512", 5000, 32]
    assert own.refused("PUT", "/authentication/password_based:redis", {"password_hash_algorithm": {"salt": 1}})[0] == 400


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"mechanism": "password_based"},
        {"mechanism": "password_based", "backend": "nonsense"},
        {"mechanism": "password_based", "backend": "../x"},
        {"mechanism": "magic", "backend": "http"},
        {"mechanism": "password_based", "backend": "http", "url": "no url"},
        {"mechanism": "password_based", "backend": "http", "unknown": 1},
        {"mechanism": "password_based", "backend": "http", "enable": False},
        {"mechanism": "password_based", "backend": "http", "id": "jwt"},
        {"mechanism": "password_based", "backend": "http", "url": None},
        {"mechanism": "password_based", "backend": "redis", "server": "127.0.0.1:1", "password": "not for the log"},
        {"mechanism": "jwt", "secret": "not for the log"},
    ],
)
def test_a_wrong_authenticator_is_refused_and_changes_nothing(broker: ApiBroker, own: Rest, body: dict[str, Any]) -> None:
    before = own.good("GET", "/configs/auth")
    assert own.refused("POST", "/authentication", body)[0] == 400
    assert own.good("GET", "/configs/auth") == before
    assert "not for the log" not in broker.log + str(own.good("GET", "/audit", limit=100))


def test_a_secret_of_a_file_is_masked_and_stays(own: Rest) -> None:
    added = own.good("POST", "/authentication", {"mechanism": "jwt"})
    assert (added["id"], added["secret"]) == ("jwt", "******") and "backend" not in added
    assert own.good("PUT", "/authentication/jwt", {**added, "source": "username"})["source"] == "username"
    (row,) = own.good("GET", "/configs", key="auth.jwt.secret")["data"]
    assert row["source"].endswith("given.toml")


def test_sources_come_change_and_go(broker: ApiBroker, own: Rest, service: str) -> None:
    assert source_types(own) == []
    assert own("POST", "/authorization/sources", {"type": "built_in_database", "enable": True})[0] == 204
    assert own("POST", "/authorization/sources", {"type": "http", "url": service})[0] == 204
    assert source_types(own) == ["http", "built_in_database"], "a new one is in front, as in EMQX"
    assert own.good("GET", "/authorization/sources/http")["url"] == service
    with Client(broker.address, 5, "sourced", username="anna") as client:
        assert client.publish("a/1", b"", qos=1).code in (0, 0x10)  # type: ignore[union-attr]
        assert client.publish("b/1", b"", qos=1).code == 0x87  # type: ignore[union-attr]
    assert own("PUT", "/authorization/sources/http", {"type": "http", "method": "get"})[0] == 204
    assert own.good("GET", "/authorization/sources/http")["method"] == "get"
    assert own("POST", "/authorization/sources/http/move", {"position": "rear"})[0] == 204
    assert source_types(own) == ["built_in_database", "http"]
    assert own("POST", "/authorization/sources/http/move", {"position": "before:built_in_database"})[0] == 204
    assert own("PUT", "/authorization/sources/order", [{"type": "built_in_database"}, {"type": "http"}])[0] == 204
    assert source_types(own) == ["built_in_database", "http"]
    assert own("DELETE", "/authorization/sources/http")[0] == 204
    assert own.refused("GET", "/authorization/sources/http") == (404, "NOT_FOUND")
    for body in ({}, {"type": "builtin"}, {"type": "x"}, {"type": "http", "enable": False}, {"type": "http", "query": "x"}):
        assert own.refused("POST", "/authorization/sources", body)[0] == 400, body
    assert own.refused("PUT", "/authorization/sources/built_in_database", {"type": "http"})[0] == 400
    assert source_types(own) == ["built_in_database"]


def test_a_list_that_an_option_has_set_is_not_changed(served: ApiBroker, rest: Rest) -> None:
    """acl.sources is set by --set, which would hide the change."""
    assert rest.refused("POST", "/authorization/sources", {"type": "file"}) == (409, "NOT_AVAILABLE")
    assert source_types(rest) == ["built_in_database"]


def test_exhook_servers_come_change_and_go(own: Rest) -> None:
    off = {"url": "http://127.0.0.1:1", "enable": False}
    assert own.good("POST", "/exhooks", {"name": "one", **off})["request_timeout"] == "5s"
    own.good("POST", "/exhooks", {"name": "two", **off, "pool_size": 3})
    assert own.refused("POST", "/exhooks", {"name": "two", **off}) == (409, "ALREADY_EXISTS")
    changed = own.good("PUT", "/exhooks/two", {"failed_action": "ignore"})
    assert (changed["failed_action"], changed["pool_size"], changed["enable"]) == ("ignore", 3, False)

    def names() -> list[str]:
        return [row["name"] for row in own.good("GET", "/exhooks")]

    assert until(lambda: names() == ["one", "two"])
    own.good("POST", "/exhooks/two/move", {"position": "front"})
    assert until(lambda: names() == ["two", "one"])
    wrong: tuple[dict[str, Any], ...] = ({"name": "a b", **off}, {"name": "c"}, {"name": "c", "url": "ftp://x"}, {})
    for body in (*wrong, {"name": "c", **off, "x": 1}):
        assert own.refused("POST", "/exhooks", body)[0] == 400, body
    assert own.refused("PUT", "/exhooks/two", {"name": "one"})[0] == own.refused("PUT", "/exhooks/two", {"url": "x"})[0] == 400
    own.good("DELETE", "/exhooks/two")
    own.good("DELETE", "/exhooks/one")
    assert own.refused("DELETE", "/exhooks/one") == own.refused("PUT", "/exhooks/one", off) == (404, "NOT_FOUND")
    assert until(lambda: names() == [])


def test_topics_are_rewritten(broker: ApiBroker, own: Rest) -> None:
    assert own.good("GET", "/mqtt/topic_rewrite") == []
    rule = {"action": "all", "source_topic": "old/#", "re": "^old/(.+)$", "dest_topic": "new/$1"}
    assert own.good("PUT", "/mqtt/topic_rewrite", [rule]) == own.good("GET", "/mqtt/topic_rewrite") == [rule]
    with Client(broker.address, 5, "rewritten") as client:
        client.subscribe("new/+", 1)
        client.publish("old/a", b"x", qos=1)
        assert client.expect(Publish).topic == "new/a"
    for wrong in ({**rule, "re": "("}, {**rule, "x": 1}, {"action": "all"}, {**rule, "action": "none"}):
        assert own.refused("PUT", "/mqtt/topic_rewrite", [rule, wrong])[0] == 400
    assert own.good("GET", "/mqtt/topic_rewrite") == [rule]
    assert own.good("PUT", "/mqtt/topic_rewrite", []) == []


def test_clients_are_subscribed(broker: ApiBroker, own: Rest) -> None:
    topics = [{"topic": "auto/${clientid}", "qos": 1, "nl": 0, "rap": 0, "rh": 0}]
    assert own.good("PUT", "/mqtt/auto_subscribe", topics) == own.good("GET", "/mqtt/auto_subscribe") == topics
    with Client(broker.address, 5, "subscribed") as client:
        client.publish("auto/subscribed", b"x", qos=1)
        assert client.expect(Publish).topic == "auto/subscribed"
    assert own.refused("PUT", "/mqtt/auto_subscribe", [{"topic": "a/#/b"}])[0] == 400
    assert own.good("PUT", "/mqtt/auto_subscribe", []) == []


def test_a_viewer_changes_no_list(rest: Rest, viewer: Rest) -> None:
    for method, path, body in (
        ("POST", "/authentication", {}),
        ("PUT", "/authentication/jwt/position/front", None),
        ("DELETE", "/authorization/sources/file", None),
        ("POST", "/exhooks", {}),
        ("PUT", "/mqtt/topic_rewrite", []),
    ):
        assert viewer.refused(method, path, body)[0] == 403
    for path in ("/authentication", "/authorization/sources", "/mqtt/topic_rewrite", "/mqtt/auto_subscribe"):
        viewer.good("GET", path)
