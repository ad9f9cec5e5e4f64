"""Settings of access control change while the broker runs: by `ctl config set`, by SIGHUP, and with listeners that come later."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.access.hashing import hash_password
from shardbroker.control import Control, ControlError
from tests.access.guarded import Guarded, http_server
from tests.harness import Client, free_port, until, wire

pytestmark = pytest.mark.own_broker
BAD, NOT_AUTHORIZED, UNAVAILABLE = 0x86, 0x87, 0x88


@pytest.fixture
def bare() -> Iterator[Guarded]:
    """A broker that checks nothing and has users all the same."""
    with Guarded({}, users={"ada": "secret"}) as broker:
        yield broker


@pytest.fixture
def control(bare: Guarded) -> Iterator[Control]:
    with Control(bare.data_dir) as made:
        yield made


def code_of(broker: Guarded, port: int = 0, **options: Any) -> int:
    """What CONNACK says."""
    address = ("127.0.0.1", port) if port else broker.address
    with Client(address, 5, "asks", connect=False, **options) as client:
        client.send_raw(client._connect_packet)
        return client.expect(wire.Connack).code


def put(control: Control, key: str, value: str) -> None:
    assert control.call("config set", key=key, value=value)["needs_restart"] == []


def test_a_chain_that_comes_and_goes(bare: Guarded, control: Control) -> None:
    """The process that is asked is started when somebody is to be asked."""
    assert bare.child_pids("integrations") == []
    assert code_of(bare) == 0
    with bare.client("stays") as stays:
        put(control, "auth.chain", '["builtin"]')
        until(lambda: code_of(bare) == NOT_AUTHORIZED)
        until(lambda: code_of(bare, username="ada", password="secret") == 0)
        assert code_of(bare, username="ada", password="guess") == BAD
        assert len(bare.child_pids("integrations")) == 1
        put(control, "auth.quick_deny_anonymous", "true")
        until(lambda: code_of(bare) == NOT_AUTHORIZED)
        control.call("config reset", key="auth.quick_deny_anonymous")
        control.call("config reset", key="auth.chain")
        until(lambda: code_of(bare) == 0)
        stays.ping()


def test_rules_hold_for_those_who_are_connected(bare: Guarded, control: Control) -> None:
    """Who came when nobody checked anything: subscriptions end, publishing is checked. And the way back."""
    rules = bare.folder / "acl.conf"
    rules.write_text('{deny, all, all, ["secret/#"]}.\n{allow, all}.\n')
    with bare.client("early") as early, bare.client("other") as other:
        early.subscribe([("secret/x", 1), ("open/x", 1)])
        with pytest.raises(ControlError, match=r"acl\.file\.path: must be a file of rules"):
            control.call("config set", key="acl.sources", value='["file"]')
        put(control, "acl.file.path", str(rules))
        put(control, "acl.sources", '["file"]')
        bare.logged("authorization denied", "client_id=early", '"subscription secret/x"')
        until(lambda: other.publish("secret/x", b"no", 1).code == NOT_AUTHORIZED)  # type: ignore[union-attr]
        assert other.publish("open/x", b"yes", 1).code == 0  # type: ignore[union-attr]
        early.expect(wire.Publish, payload=b"yes")
        assert early.subscribe("secret/y", check=False).codes == (NOT_AUTHORIZED,)

        rules.write_text("{deny, all, nonsense}.\n")
        with pytest.raises(ControlError, match=r"acl\.conf"):
            control.call("config reload")
        assert other.publish("secret/x", b"no", 1).code == NOT_AUTHORIZED, "what was there before holds"  # type: ignore[union-attr]
        rules.write_text("{allow, all}.\n")

        put(control, "acl.no_match", "allow")
        control.call("config reset", key="acl.sources")
        until(lambda: early.subscribe("secret/y", check=False).codes == (0,))


def test_another_file_of_rules_in_another_form(bare: Guarded, control: Control) -> None:
    conf, toml = bare.folder / "acl.conf", bare.folder / "acl.toml"
    conf.write_text('{allow, all, all, ["a"]}.\n')
    toml.write_text('[[rules]]\npermission = "allow"\nwho = "all"\naction = "all"\ntopics = ["b"]\n')
    put(control, "acl.file.path", str(conf))
    put(control, "acl.sources", '["file"]')
    with bare.client("c") as client:
        until(lambda: client.subscribe([("a", 0), ("b", 0)], check=False).codes == (0, NOT_AUTHORIZED))
        put(control, "acl.file.path", str(toml))
        until(lambda: client.subscribe([("a", 0), ("b", 0)], check=False).codes == (NOT_AUTHORIZED, 0))


def test_a_back_end_moves(bare: Guarded, control: Control) -> None:
    """Those who are asked are other ones; a worker and the process that asks, killed afterwards, know it too."""
    with http_server() as first, http_server() as second:
        first.answer = lambda path, fields: (200, b'{"result": "deny"}')
        second.answer = lambda path, fields: (200, b'{"result": "allow"}')
        put(control, "auth.http.url", first.url)
        put(control, "auth.chain", '["http"]')
        until(lambda: code_of(bare, username="u", password="p") == BAD)
        put(control, "auth.http.url", second.url)
        until(lambda: code_of(bare, username="u", password="p") == 0)
        for pid in (*bare.child_pids("integrations"), *bare.child_pids("worker")):
            bare.kill_process(pid)
        until(lambda: bool(bare.child_pids("integrations")))
        asked = len(first.asked)
        until(lambda: _tried(bare) == 0)
        assert len(first.asked) == asked


def _tried(broker: Guarded) -> int:
    """As code_of(), while a worker may be down."""
    try:
        return code_of(broker, username="u", password="p")
    except (AssertionError, OSError):
        return -1


def test_what_cannot_be_used_leaves_what_there_was(bare: Guarded, control: Control) -> None:
    put(control, "auth.chain", '["builtin"]')
    until(lambda: code_of(bare, username="ada", password="secret") == 0)
    passwords = bare.folder / "passwords"
    put(control, "auth.file.path", str(passwords))
    with pytest.raises(ControlError, match="passwords: No such file"):
        control.call("config set", key="auth.chain", value='["builtin", "file"]')
    assert code_of(bare, username="ada", password="secret") == 0
    assert code_of(bare, username="eve", password="x") == BAD, "builtin alone is asked, as before"

    passwords.write_text("fred:$argon2id$x\n")
    put(control, "auth.chain", '["builtin", "file"]')
    bare.logged("integrations: access settings changed")
    passwords.unlink()
    put(control, "auth.hash_threads", "3")  # the file was there when its path was checked
    bare.logged("ERROR integrations: access settings not changed", 'reason="file: ')
    assert code_of(bare, username="ada", password="secret") == 0
    alarm = until(lambda: [one for one in control.call("alarms list")["data"] if one["name"] == "backend_unusable"])
    assert "passwords: No such file" in alarm[0]["message"]
    passwords.write_text("fred:$argon2id$x\n")
    put(control, "auth.hash_threads", "2")
    until(lambda: not [one for one in control.call("alarms list")["data"] if one["name"] == "backend_unusable"])


def test_sighup_reads_the_file_again(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    port = free_port()
    listener = f'[listeners.default]\nbind = "127.0.0.1:{port}"\n'
    file.write_text(listener)
    passwords = tmp_path / "passwords"
    passwords.write_text(f"fred:{hash_password(b'filed')}\n")
    from tests.harness import Broker

    class Filed(Broker):
        def command(self) -> list[str]:
            return [*(part for part in super().command() if not part.startswith("--listen")), f"--config={file}"]

    with Filed(2, port=port) as broker:

        def code(**options: Any) -> int:
            with Client(broker.address, 5, "asks", connect=False, **options) as client:
                client.send_raw(client._connect_packet)
                return client.expect(wire.Connack).code

        assert code() == 0
        file.write_text(f'{listener}[auth]\nchain = ["file"]\n[auth.file]\npath = "{passwords}"\n')
        assert broker.process is not None
        broker.process.send_signal(signal.SIGHUP)
        until(lambda: code() == NOT_AUTHORIZED)
        until(lambda: code(username="fred", password="filed") == 0)


def test_a_listener_that_comes_later_has_its_own_chain(bare: Guarded, control: Control) -> None:
    port, free = free_port(), free_port()
    control.call("listeners add", name="late", settings=[f"bind=127.0.0.1:{port}", 'auth_chain=["builtin"]'])
    until(lambda: code_of(bare, port, username="ada", password="secret") == 0)
    assert code_of(bare, port, username="ada", password="guess") == BAD
    assert code_of(bare, port) == NOT_AUTHORIZED
    assert code_of(bare) == 0, "the others are as they were"

    put(control, "auth.chain", '["builtin"]')
    control.call("listeners add", name="free", settings=[f"bind=127.0.0.1:{free}", "enable_authn=false"])
    until(lambda: code_of(bare) == NOT_AUTHORIZED)
    assert code_of(bare, free) == 0
    control.call("listeners update", name="free", settings=["enable_authn=quick_deny_anonymous"])
    assert code_of(bare, free) == NOT_AUTHORIZED
    assert code_of(bare, free, username="ada", password="secret") == 0


def test_a_listener_that_comes_later_and_names_somebody_who_cannot_be_asked(bare: Guarded, control: Control) -> None:
    port = free_port()
    with pytest.raises(ControlError, match=r"auth\.redis\.server: must be HOST:PORT"):
        control.call("listeners add", name="late", settings=[f"bind=127.0.0.1:{port}", 'auth_chain=["redis"]'])
    assert [one["name"] for one in control.call("listeners list")["data"]] == ["default"]
