"""What the REST API answers to those who may not, and to what makes no sense; nothing changes then."""

import asyncio
import base64
import contextlib
import json
import os
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shardbroker.access.accounts import Accounts
from shardbroker.access.hashing import hash_password, verify
from shardbroker.api import guard
from shardbroker.api.guard import Logins
from shardbroker.control import ControlError
from tests.api.rest import ApiBroker, Rest, segment
from tests.harness import client_id_on, until
from tests.harness.waiting import stopped

pytestmark = pytest.mark.own_broker
GUESSES = 100
CONNECTIONS_MAX = 500
"""As api/main.py has it."""


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        ("", "UNAUTHORIZED"),
        ("Digest x", "UNAUTHORIZED"),
        ("Bearer rubbish", "BAD_TOKEN"),
        ("Bearer", "BAD_TOKEN"),
        ("Basic ???", "BAD_API_KEY_OR_SECRET"),
        ("Basic YWRtaW46cHVibGlj", "BAD_API_KEY_OR_SECRET"),
    ],
)
def test_nobody_comes_in_without_credentials(served: ApiBroker, authorization: str, code: str) -> None:
    stranger = Rest(served.api_port, authorization)
    for method, path in (("GET", "/clients"), ("POST", "/publish"), ("GET", "/no/such/path"), ("DELETE", "/clients/x")):
        assert stranger.refused(method, path) == (401, code)


def test_a_viewer_looks_and_touches_nothing(rest: Rest, viewer: Rest) -> None:
    document = rest.good("GET", "/api-docs/swagger.json")
    for path, methods in document["paths"].items():
        address = path.removeprefix("/api/v5").replace("{", "").replace("}", "")
        for method in methods:
            if method != "get" and address not in ("/login", "/logout"):
                assert viewer.refused(method.upper(), address, {}) == (403, "FORBIDDEN"), path
    assert viewer.good("GET", "/clients")["data"] is not None


def test_a_viewer_is_refused_before_its_body_is_read(served: ApiBroker, viewer: Rest) -> None:
    """Nothing of the body is sent: an answer that waited for it would never come."""
    with socket.create_connection(("127.0.0.1", served.api_port), timeout=20) as one:
        head = f"POST /api/v5/publish HTTP/1.1\r\nHost: x\r\nAuthorization: {viewer.authorization}\r\nContent-Length: 1000\r\n\r\n"
        one.sendall(head.encode())
        assert one.recv(1000).startswith(b"HTTP/1.1 403 ")


def test_a_token_expires(tmp_path: Path) -> None:
    with ApiBroker(2, {"api.token_expired_time": "1s"}, tmp_path) as broker:
        rest = Rest.logged_in(broker)
        rest.good("GET", "/clients")
        until(lambda: rest("GET", "/clients")[0] == 401)
        assert rest.refused("GET", "/clients") == (401, "TOKEN_TIME_OUT")


@pytest.mark.parametrize(
    ("method", "path", "body", "query", "code"),
    [
        ("GET", "/clients/nobody-has-this-id", None, {}, "CLIENTID_NOT_FOUND"),
        ("DELETE", "/clients/nobody-has-this-id", None, {}, "CLIENTID_NOT_FOUND"),
        ("GET", "/clients", None, {"limit": 10001}, "BAD_REQUEST"),
        ("GET", "/clients", None, {"limit": 0}, "BAD_REQUEST"),
        ("GET", "/clients", None, {"page": 99999, "limit": 100}, "BAD_REQUEST"),
        ("GET", "/clients", None, {"no_such_filter": 1}, "BAD_REQUEST"),
        ("GET", "/clients", None, {"node": "somewhere@else"}, "NOT_FOUND"),
        ("GET", "/clients", None, {"gte_connected_at": "yesterday"}, "BAD_REQUEST"),
        ("GET", "/clients_v2", None, {"cursor": "rubbish"}, "BAD_REQUEST"),
        ("GET", "/banned", None, {"cursor": "x"}, "BAD_REQUEST"),
        ("GET", "/nodes/somewhere@else", None, {}, "NOT_FOUND"),
        ("GET", "/metrics", None, {"worker": 99}, "NOT_FOUND"),
        ("GET", "/subscriptions", None, {"clientid": "nobody-has-this-id"}, "CLIENTID_NOT_FOUND"),
        ("GET", "/topics/not%2Fthere", None, {}, "NOT_FOUND"),
        ("POST", "/clients/nobody/subscribe", {"topic": "a"}, {}, "CLIENTID_NOT_FOUND"),
        ("POST", "/clients/nobody/subscribe", {"topic": "a", "qos": 3}, {}, "BAD_REQUEST"),
        ("POST", "/clients/kickout/bulk", ["x"] * 10001, {}, "BAD_REQUEST"),
        ("POST", "/publish", b"{", {}, "BAD_REQUEST"),
        ("POST", "/publish", {"topic": "a/#"}, {}, "BAD_REQUEST"),
        ("POST", "/publish", {"topic": "a", "payload": "\x80", "payload_encoding": "base64"}, {}, "BAD_REQUEST"),
        ("POST", "/publish", b'{"topic": "\\ud800"}', {}, "BAD_REQUEST"),
        ("POST", "/publish", {"topic": "a", "payload": "x" * (2 << 20)}, {}, "BAD_REQUEST"),
        ("POST", "/publish", {"topic": "a", "unknown": 1}, {}, "BAD_REQUEST"),
        ("GET", "/mqtt/retainer/messages", None, {"topic": "a/#/b"}, "BAD_REQUEST"),
        ("DELETE", "/mqtt/retainer/message/not/there", None, {}, "NOT_FOUND"),
        ("GET", "/configs/nowhere", None, {}, "NOT_FOUND"),
        ("PUT", "/configs/mqtt", {"max_inflight": "many"}, {}, "BAD_REQUEST"),
        ("PUT", "/configs/mqtt", {"max_inflight": None}, {}, "BAD_REQUEST"),
        ("PUT", "/configs/mqtt", {}, {}, "BAD_REQUEST"),
        ("PUT", "/configs/process", {"data_dir": "/tmp"}, {}, "BAD_REQUEST"),
        ("POST", "/configs_reset/mqtt.max_inflight", None, {}, "NOT_FOUND"),
        ("PUT", "/log/level", {"level": "loud"}, {}, "BAD_REQUEST"),
        ("GET", "/listeners/tcp:nowhere", None, {}, "NOT_FOUND"),
        ("POST", "/listeners", {"id": "tcp:default", "bind": "127.0.0.1:0"}, {}, "ALREADY_EXISTS"),
        ("POST", "/listeners", {"id": "udp:x"}, {}, "BAD_REQUEST"),
        ("POST", "/banned", {"as": "clientid", "who": "x", "until": "2001-01-01T00:00:00Z"}, {}, "BAD_REQUEST"),
        ("DELETE", "/banned/clientid/nobody", None, {}, "NOT_FOUND"),
        ("DELETE", "/banned/nonsense/nobody", None, {}, "BAD_REQUEST"),
        ("GET", "/authentication/nonsense/users", None, {}, "BAD_REQUEST"),
        ("POST", "/users", {"username": "x y", "password": "long enough"}, {}, "BAD_REQUEST"),
        ("POST", "/users", {"username": "short", "password": "short"}, {}, "BAD_REQUEST"),
        ("DELETE", "/users/admin", None, {}, "NOT_AVAILABLE"),
        ("PUT", "/users/admin", {"role": "viewer"}, {}, "NOT_AVAILABLE"),
        ("PUT", "/users/nobody", {"role": "viewer"}, {}, "NOT_FOUND"),
        ("POST", "/users/admin/change_pwd", {"old_pwd": "no", "new_pwd": "long enough"}, {}, "BAD_USERNAME_OR_PWD"),
        ("GET", "/api_key/nobody", None, {}, "NOT_FOUND"),
        ("POST", "/workers/99/restart", None, {}, "NOT_FOUND"),
        ("GET", "/clients/%00", None, {}, "BAD_REQUEST"),
        ("GET", "/no/such/path", None, {}, "NOT_FOUND"),
        ("PATCH", "/clients", None, {}, "METHOD_NOT_ALLOWED"),
    ],
)
def test_bad_input_is_refused_with_a_code_and_changes_nothing(
    rest: Rest, method: str, path: str, body: Any, query: dict[str, Any], code: str
) -> None:
    before = rest.good("GET", "/configs"), rest.good("GET", "/users"), rest.good("GET", "/banned"), rest.good("GET", "/listeners")
    assert rest.refused(method, path, body, **query)[1] == code
    after = rest.good("GET", "/configs"), rest.good("GET", "/users"), rest.good("GET", "/banned"), rest.good("GET", "/listeners")
    assert after == before


def test_a_body_may_not_be_endless(served: ApiBroker, rest: Rest) -> None:
    assert rest.refused("POST", "/publish", b"[" * (17 << 20)) == (413, "PAYLOAD_TOO_LARGE")
    assert Rest(served.api_port).refused("POST", "/login", b"[" * 5000) == (413, "PAYLOAD_TOO_LARGE")


def test_after_many_wrong_passwords_one_has_to_wait(tmp_path: Path) -> None:
    with ApiBroker(2, data_dir=tmp_path) as broker:
        stranger = Rest(broker.api_port)
        wrong = {"username": "admin", "password": "wrong"}
        answers = [stranger.refused("POST", "/login", wrong) for _ in range(11)]
        assert answers == [(401, "BAD_USERNAME_OR_PWD")] * 10 + [(429, "TOO_MANY_REQUESTS")]
        assert stranger.refused("POST", "/login", {"username": "admin", "password": broker.password})[0] == 429


def test_guesses_at_the_same_time_count_one_by_one(tmp_path: Path) -> None:
    with ApiBroker(2, data_dir=tmp_path) as broker, ThreadPoolExecutor(GUESSES) as pool:
        stranger, wrong = Rest(broker.api_port), {"username": "admin", "password": "wrong"}
        answers = Counter(pool.map(lambda _: stranger.refused("POST", "/login", wrong), range(GUESSES)))
        assert answers == {(401, "BAD_USERNAME_OR_PWD"): 10, (429, "TOO_MANY_REQUESTS"): GUESSES - 10}
        assert stranger("GET", "/status")[0] == 200


def test_many_logins_at_the_same_time_are_no_guesses(served: ApiBroker) -> None:
    with ThreadPoolExecutor(50) as pool:
        assert len({one.authorization for one in pool.map(lambda _: Rest.logged_in(served), range(50))}) == 50


def test_a_right_password_does_not_excuse_wrong_ones_for_another_account(tmp_path: Path) -> None:
    with ApiBroker(2, data_dir=tmp_path) as broker:
        Rest.logged_in(broker).good("POST", "/users", {"username": "looker", "password": "look and see", "role": "viewer"})
        stranger, wrong = Rest(broker.api_port), {"username": "admin", "password": "wrong"}
        for _ in range(2):
            assert {stranger.refused("POST", "/login", wrong) for _ in range(5)} == {(401, "BAD_USERNAME_OR_PWD")}
            status, _ = stranger("POST", "/login", {"username": "looker", "password": "look and see"})
        assert status == 429
        assert stranger.refused("POST", "/login", wrong) == (429, "TOO_MANY_REQUESTS")


@pytest.mark.parametrize("name", ["ada", "nobody"])
def test_an_unknown_name_costs_a_hash_like_a_known_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    stored: list[str] = []
    with Accounts(tmp_path) as accounts:
        accounts.add("ada", hash_password(b"secret"), "administrator", "")
        monkeypatch.setattr(guard, "verify", lambda *of: stored.append(of[1]) or verify(*of))
        with pytest.raises(ControlError, match="wrong user name or password"):
            asyncio.run(Logins(accounts, 60).log_in(name, "wrong", "127.0.0.1"))
    assert len(stored) == 1 and stored[0].startswith("$argon2id$")


def test_a_password_that_changes_while_it_is_checked_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Accounts(tmp_path) as accounts:
        accounts.add("ada", hash_password(b"old"), "administrator", "")
        logins = Logins(accounts, 60)

        def check(*of: Any) -> bool:
            with Accounts(tmp_path) as manager:
                manager.set_password("ada", hash_password(b"new"))
            return verify(*of)

        monkeypatch.setattr(guard, "verify", check)
        with pytest.raises(ControlError, match="wrong user name or password"):
            asyncio.run(logins.log_in("ada", "old", "127.0.0.1"))


def test_a_worker_that_stands_still_is_an_error_in_bounded_time(served: ApiBroker, rest: Rest) -> None:
    pid = rest.good("GET", "/workers")["data"][1]["pid"]
    with stopped(pid):
        assert rest.refused("GET", f"/clients/{client_id_on(1, 3, 'still')}") == (504, "WORKER_TIMEOUT")
        assert "running" in rest.good("GET", "/status")


def test_without_its_manager_it_says_so_and_comes_back(served: ApiBroker, rest: Rest) -> None:
    pid = rest.good("GET", "/workers")["data"][3]["pid"]
    served.kill_process(pid)
    until(lambda: rest("GET", "/clients")[0] == 200)
    assert rest.good("GET", "/workers")["data"][3]["pid"] != pid


def test_the_process_is_started_again_when_it_dies_and_logins_live_on(served: ApiBroker, rest: Rest) -> None:
    (pid,) = served.child_pids("sb-api")
    served.kill_process(pid)

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return rest("GET", "/clients")[0] == 200
        return False

    until(answers)
    assert len([line for line in served.output if "first account created" in line]) == 1


def test_the_first_password_is_told_once_and_kept_as_argon2id(tmp_path: Path) -> None:
    with ApiBroker(2, data_dir=tmp_path) as broker:
        password = broker.password
        stored = (tmp_path / "accounts.sqlite3").read_bytes() + (tmp_path / "accounts.sqlite3-wal").read_bytes()
        assert b"$argon2id$" in stored and password.encode() not in stored
        assert (tmp_path / "accounts.sqlite3").stat().st_mode & 0o777 == 0o600
    with ApiBroker(2, data_dir=tmp_path) as broker:
        assert "first account created" not in broker.log
        Rest.logged_in(broker, "admin", password)


def test_a_damaged_file_of_accounts_keeps_nobody_from_starting(tmp_path: Path) -> None:
    (tmp_path / "accounts.sqlite3").write_bytes(os.urandom(8192))
    with ApiBroker(2, data_dir=tmp_path) as broker:
        until(lambda: "accounts.sqlite3: damaged, set aside" in broker.log)
        Rest.logged_in(broker)
    assert len(list(tmp_path.glob("accounts.sqlite3.damaged-*"))) == 1


def test_an_address_that_is_taken_keeps_mqtt_from_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        broker = ApiBroker(2, data_dir=tmp_path)
        taken.bind(("127.0.0.1", broker.api_port))
        taken.listen()
        with broker:
            until(lambda: f"address not bound setting=api.bind address=127.0.0.1:{broker.api_port}" in broker.log)
            taken.close()
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    assert "running" in Rest(broker.api_port).good("GET", "/status")
                    return
                time.sleep(0.1)
            raise AssertionError("it never listened")


def test_errors_are_json_with_code_and_message_whoever_makes_them(served: ApiBroker, rest: Rest) -> None:
    with socket.create_connection(("127.0.0.1", served.api_port)) as raw:
        raw.sendall(b"GET /api/v5/clients HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b""
        while data := raw.recv(65536):
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"x-frame-options: deny" in head.lower()
    assert b"www-authenticate" in head.lower() and json.loads(body)["code"] == "UNAUTHORIZED"
    assert rest.refused("GET", f"/clients/{segment('<script>')}") == (404, "CLIENTID_NOT_FOUND")


def test_connections_at_a_time_are_bounded(tmp_path: Path) -> None:
    with ApiBroker(1, {}, tmp_path) as broker, contextlib.ExitStack() as stack:
        rest = Rest.logged_in(broker)
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", broker.api_port), 5)) for _ in range(CONNECTIONS_MAX)]
        until(lambda: rest("GET", "/clients")[0] == 503)
        for one in idle[:10]:
            one.close()
        until(lambda: rest("GET", "/clients")[0] == 200)


def test_addresses_with_failures_are_bounded(tmp_path: Path) -> None:
    """The oldest is forgotten: not the one that fails again and again."""
    with Accounts(tmp_path) as accounts:
        logins = Logins(accounts, 60)
        for number in range(guard.ADDRESSES_MAX + 10):
            logins._note_failure(f"10.0.{number >> 8}.{number & 255}")
            if number % 5000 == 0:
                logins._note_failure("guessing")
        assert len(logins._failures) == guard.ADDRESSES_MAX
        assert "10.0.0.0" not in logins._failures and len(logins._failures["guessing"]) == 3


def test_secrets_have_256_bits(tmp_path: Path) -> None:
    with Accounts(tmp_path) as accounts:
        accounts.add("ada", hash_password(b"secret"), "administrator", "")
        tokens = {accounts.log_in("ada", 60) for _ in range(3)}
        assert len(tokens) == 3
        for token in tokens:
            assert len(base64.urlsafe_b64decode(token + "=")) == 32
