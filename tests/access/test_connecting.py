"""Who may connect: users of the broker, password files, bans, flapping, anonymous clients; and what happens when nobody can say."""

import time
from collections.abc import Iterator

import pytest

from shardbroker.access import bans
from shardbroker.access.hashing import hash_password
from shardbroker.control import Control
from tests.access.guarded import Guarded
from tests.harness import until, wire
from tests.harness.waiting import stop, stopped
from tests.harness.wire import Will

pytestmark = pytest.mark.own_broker

BAD, NOT_AUTHORIZED, UNAVAILABLE, BUSY, BANNED = 0x86, 0x87, 0x88, 0x89, 0x8A


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    settings = {"auth.chain": ["file", "builtin"], "flapping_detect.enable": "true", "flapping_detect.max_count": 6}
    broker = Guarded(settings, users={"ada": "secret", "bob": "hidden"})
    passwords = broker.folder / "passwords"
    passwords.write_text(f"fred:{hash_password(b'filed')}::true\n")
    broker.settings["auth.file.path"] = str(passwords)
    with broker:
        yield broker


def test_a_user_of_the_store_is_let_in(guarded: Guarded) -> None:
    with guarded.client("s1", username="ada", password="secret") as client:
        client.subscribe("x", 1)
        client.publish("x", b"1", 1)
    with guarded.client("s2", 4, username="bob", password="hidden"):
        pass
    with guarded.client("s3", username="fred", password="filed"):
        pass


@pytest.mark.parametrize(("version", "codes"), [(5, (BAD, BAD, NOT_AUTHORIZED)), (4, (4, 4, 5)), (3, (4, 4, 5))])
def test_a_wrong_password_and_an_unknown_user_look_the_same(guarded: Guarded, version: int, codes: tuple[int, ...]) -> None:
    known = guarded.refused(f"w1{version}", codes[0], version, username="ada", password="wrong")
    unknown = guarded.refused(f"w2{version}", codes[1], version, username="eve", password="wrong")
    assert known == unknown
    guarded.refused(f"w3{version}", codes[2], version)
    assert "side=server" in guarded.logged(f"client_id=w1{version}", "reason=0x86", 'detail="denied by builtin"')
    guarded.logged(f"client_id=w2{version}", "reason=0x86", 'detail="no authenticator knows this client"')


def test_a_user_name_without_a_password_is_not_enough(guarded: Guarded) -> None:
    guarded.refused("np", BAD, username="ada")


def test_an_unknown_user_costs_what_a_known_one_does(guarded: Guarded) -> None:
    """Medians of logins in turn; hashing takes some 20 ms, the rest less than one."""

    def took(name: str) -> float:
        start = time.perf_counter()
        guarded.refused("timing", BAD, username=name, password="wrong")
        return time.perf_counter() - start

    pairs = [(took("ada"), took(f"eve{i}")) for i in range(9)]
    known, unknown = (sorted(times)[len(times) // 2] for times in zip(*pairs, strict=True))
    assert 0.5 < known / unknown < 2


def test_users_change_while_the_broker_runs(guarded: Guarded) -> None:
    guarded.refused("ch1", BAD, username="new", password="one")
    guarded.admin.add_user("new", "one")
    guarded.client("ch1", username="new", password="one").close()
    guarded.admin.add_user("new", "two")
    guarded.refused("ch1", BAD, username="new", password="one")
    assert guarded.admin.delete_user("new")
    guarded.refused("ch1", BAD, username="new", password="two")
    passwords = guarded.folder / "passwords"
    passwords.write_text(passwords.read_text() + f"late:{hash_password(b'late')}\n")
    assert guarded.admin.reload()

    def let_in() -> bool:
        with guarded.client("ch2", code=None, username="late", password="late") as client:
            return client.connack is not None and client.connack.code == 0

    until(let_in)


def test_what_follows_connect_waits_for_the_verdict(guarded: Guarded) -> None:
    """Packets sent along with CONNECT are handled behind CONNACK, in order."""
    with guarded.client("early", username="ada", password="secret") as sub:
        sub.subscribe("early/#", 1)
        raw = wire.connect("early2", 5, username="ada", password="secret")
        raw += b"".join(wire.publish("early/x", b"%d" % i, version=5, qos=1, packet_id=i + 1) for i in range(50))
        from tests.harness.client import Client

        with Client(guarded.address, 5, "early2", connect=False) as client:
            for at in range(0, len(raw), 7):
                client.send_raw(raw[at : at + 7])
            assert client.expect(wire.Connack).code == 0
            for i in range(50):
                assert client.expect(wire.Puback, packet_id=i + 1).code == 0
        for i in range(50):
            sub.expect(wire.Publish, payload=b"%d" % i)


def test_a_refused_client_takes_nobody_over_and_leaves_no_will(guarded: Guarded) -> None:
    with guarded.client("victim", username="ada", password="secret") as victim:
        victim.subscribe("wills", 1)
        guarded.refused("victim", BAD, username="ada", password="guess", will=Will("wills", b"boo"))
        victim.expect_nothing_from(victim)


# --- bans --------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("clientid", "banned1"), ("username", "bob"), ("clientid_re", "^banned"), ("username_re", "^b.b$"),
        ("peerhost_net", "127.0.0.0/8"), ("peerhost", "127.0.0.1"),
    ],
)  # fmt: skip
def test_bans(guarded: Guarded, kind: str, value: str) -> None:
    client_id = f"banned-{kind}" if kind != "clientid" else value
    inside = guarded.client(client_id, username="bob", password="hidden")
    guarded.admin.ban(kind, value, reason="a test")
    ended = inside.expect_close()
    assert ended is not None and ended.code == 0x98, "who is connected is sent away"
    assert guarded.refused(client_id, BANNED, username="bob", password="hidden") == "banned"
    guarded.logged(f"client_id={client_id}", "reason=0x8a banned", f'detail="banned by {kind}: a test"')
    guarded.refused(client_id, 5, 4, username="bob", password="hidden")
    assert guarded.admin.unban(kind, value)

    def let_in() -> bool:
        with guarded.client(client_id, code=None, username="bob", password="hidden") as client:
            return client.connack is not None and client.connack.code == 0

    until(let_in)


def test_a_ban_ends(guarded: Guarded) -> None:
    before = guarded.count("client.banned")
    guarded.admin.ban("clientid", "shortly", seconds=1)
    time.sleep(0.1)
    guarded.refused("shortly", BANNED, username="bob", password="hidden")
    assert guarded.count("client.banned") == before + 1
    time.sleep(1)
    guarded.client("shortly", username="bob", password="hidden").close()
    assert all(ban.value != "shortly" for ban in guarded.admin.bans())


def test_a_client_that_comes_and_goes_too_often_is_banned(guarded: Guarded) -> None:
    for _ in range(6):
        guarded.client("flapper", username="ada", password="secret").disconnect()
    guarded.refused("flapper", BANNED, username="ada", password="secret")
    guarded.logged("WARNING", "flapping", "client_id=flapper")
    assert guarded.count("client.flapping") == 1
    until(lambda: any(ban.value == "flapper" and ban.until is not None for ban in guarded.admin.bans()))
    guarded.client("steady", username="ada", password="secret").close()
    guarded.admin.unban("clientid", "flapper")


def test_windows_of_flapping_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bans, "FLAPPERS_MAX", 100)
    flapping = bans.Flapping(60.0, 2, 300.0)
    for number in range(1000):
        assert not flapping.disconnected(f"c{number}", 0.001 * number)
    assert len(flapping._windows) == 100 and flapping.disconnected("c99", 2.0)
    for client_id in ("later", "latest"):
        assert not flapping.disconnected(client_id, 100.0)
    assert list(flapping._windows) == ["later", "latest"], "windows that are over make room"


# --- when nobody can say --------------------------------------------------------


def test_integrations_is_killed_and_logins_go_on_with_the_next_one() -> None:
    with Guarded({"auth.chain": ["builtin"], "auth.timeout": "20s"}, users={"ada": "secret"}) as broker:
        inside = broker.client("inside", username="ada", password="secret")
        inside.subscribe("x", 1)
        (pid,) = broker.child_pids("integrations")
        stop(pid)
        raw = wire.connect("waits", 5, username="ada", password="secret")
        from tests.harness.client import Client

        with Client(broker.address, 5, "waits", connect=False, timeout=20) as client:
            client.send_raw(raw)
            inside.publish("x", b"served", 1)
            inside.expect(wire.Publish, payload=b"served")
            broker.kill_process(pid)
            assert client.expect(wire.Connack).code == 0, "the question waited for the successor"
        inside.close()


@pytest.mark.parametrize(("setting", "code"), [("deny", UNAVAILABLE), ("allow", 0)])
def test_without_a_verdict_in_time_the_configuration_decides(setting: str, code: int) -> None:
    settings = {"auth.chain": ["builtin"], "auth.timeout": "300ms", "auth.on_timeout": setting, "auth.max_waiting": 2}
    with Guarded(settings, users={"ada": "secret"}, workers=1) as broker:
        (pid,) = broker.child_pids("integrations")
        with stopped(pid):
            from tests.harness.client import Client

            waiting = [Client(broker.address, 5, f"t{i}", username="ada", password="secret", connect=False) for i in range(3)]
            for client in waiting[:2]:
                client.send_raw(client._connect_packet)
            time.sleep(0.1)
            waiting[2].connect(BUSY)
            for client in waiting[:2]:
                assert client.expect(wire.Connack).code == code
            assert broker.count("authentication.unavailable") == 3
            for client in waiting:
                client.close()


def test_anonymous_clients_are_refused_before_anybody_is_asked() -> None:
    with Guarded({"auth.chain": ["builtin"], "listeners.default.enable_authn": "quick_deny_anonymous"}) as broker:
        (pid,) = broker.child_pids("integrations")
        with stopped(pid):
            broker.refused("anon", NOT_AUTHORIZED)
            broker.refused("anon", 5, 4)
            broker.refused("anon", NOT_AUTHORIZED, username="")
        broker.logged("client_id=anon", "reason=0x87", "user name is required")


def test_a_listener_without_authentication() -> None:
    with Guarded({"auth.chain": ["builtin"], "listeners.default.enable_authn": "false"}) as broker:
        broker.client("free").close()


def test_nobody_is_asked_where_nothing_is_configured(broker: object) -> None:
    assert broker.child_pids("integrations") == []  # type: ignore[attr-defined]


def test_secrets_are_shown_nowhere() -> None:
    secrets = '[auth.redis]\npassword = "t0psecret"\n'
    with Guarded({"auth.chain": ["builtin"]}, users={"ada": "pa55w0rd"}, secrets=secrets) as broker:
        broker.client("s", username="ada", password="pa55w0rd").close()
        broker.refused("s", BAD, username="ada", password="wr0ngsecret")
        broker.logged("client_id=s", "0x86")
        everything = "".join(broker.output) + " ".join(" ".join(child.cmdline()) for child in broker.children())
        for secret in ("pa55w0rd", "t0psecret", "wr0ngsecret", "$argon2"):
            assert secret not in everything
        assert "hash" not in str(broker.admin.users())


def test_lines_name_the_user_and_tell_who_connects_at_a_level_that_is_set() -> None:
    guarded = Guarded({"auth.chain": ["builtin"], "mqtt.max_clientid_len": 30}, users={"ada": "secret"})
    with guarded as broker, Control(broker.data_dir) as control:
        broker.refused("wrong", 0x86, username="ada", password="wrong")
        assert "username=ada" in broker.logged("client disconnected", "client_id=wrong", "reason=0x86")
        broker.refused("x" * 31, 0x85, username="ada", password="secret")
        assert "username=ada" in broker.logged("client disconnected", "reason=0x85")
        broker.client("silent", username="ada", password="secret").close()
        broker.logged("client disconnected", "client_id=silent")
        assert not [line for line in broker.output if "client connected" in line]
        for key, value, level in (("log.client_connected", '"info"', " INFO "), ("log.level", '"debug"', " DEBUG ")):
            control.call("config set", key=key, value=value)
            name = level.strip().lower()
            until(lambda name=name: tell_apart(broker, name))  # type: ignore[misc]
            assert level in broker.logged("client connected", f"client_id={name}", "username=ada")
            control.call("config reset", key=key)
        assert "secret" not in "".join(broker.output)


def tell_apart(broker: Guarded, name: str) -> bool:
    """Whether a client that connects has a line; the manager takes note of the setting within a second."""
    broker.client(name, username="ada", password="secret").close()
    broker.logged("client disconnected", f"client_id={name}")
    return any("client connected" in line and f"client_id={name}" in line for line in broker.output)
