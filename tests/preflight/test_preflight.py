"""Settings that fit the schema and cannot work: refused wherever they come from, all at once, and undone without a broker."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from shardbroker.config import Settings, load
from shardbroker.config.live import dump
from shardbroker.control import Control, ControlError
from shardbroker.management import preflight
from shardbroker.preflight import look
from tests.access.guarded import Guarded
from tests.api.rest import ApiBroker, Rest
from tests.harness import Broker, Client, until

pytestmark = pytest.mark.own_broker
PROGRAM = Path(sys.executable).with_name("shardbroker")

CASES = {
    "unknown member": ({"auth.chain": '["jtw"]'}, "auth.chain", "did you mean jwt?"),
    "unknown member of a listener": ({"listeners.default.auth_chain": '["buildin"]'}, "listeners.default.auth_chain", "builtin?"),
    "unknown source": ({"acl.sources": '["files"]'}, "acl.sources", "did you mean file?"),
    "http without a URL": ({"auth.chain": '["http"]'}, "auth.http.url", "must be http://HOST/PATH"),
    "a header that is none": (
        {"auth.chain": '["http"]', "auth.http.url": "http://127.0.0.1/"}, "auth.http.headers", "got 'a b'"
    ),
    "redis without a server": ({"acl.sources": '["redis"]'}, "acl.redis.server", "must be HOST:PORT, got ''"),
    "CA certificates that are not there": (
        {"auth.chain": '["mysql"]', "auth.mysql.server": "127.0.0.1:1", "auth.mysql.tls": "true", "auth.mysql.tls_ca": "/nope"},
        "auth.mysql.tls_ca", "No such file",
    ),
    "a placeholder that is not there": (
        {"auth.chain": '["mysql"]', "auth.mysql.server": "127.0.0.1:1", "auth.mysql.query": "SELECT ${foo}"},
        "auth.chain", "${foo}",
    ),
    "what a library refuses": (
        {"auth.chain": '["mongodb"]', "auth.mongodb.server": "127.0.0.1:1", "auth.mongodb.collection": "a..b"},
        "auth.chain", "mongodb not created",
    ),
    "jwt without a secret": ({"auth.chain": '["jwt"]'}, "auth.jwt.secret", "hmac-based"),
    "a public key that is none": (
        {"auth.chain": '["jwt"]', "auth.jwt.algorithm": "public-key", "auth.jwt.public_key": __file__},
        "auth.jwt.public_key", "a public key",
    ),
    "passwords without a path": ({"auth.chain": '["file"]'}, "auth.file.path", "got ''"),
    "no path of rules": ({"acl.sources": '["file"]'}, "acl.file.path", "got ''"),
    "no file of rules": ({"acl.sources": '["file"]', "acl.file.path": "/nope"}, "acl.file.path", "No such file"),
    "rules that are none": ({"acl.sources": '["file"]', "acl.file.path": __file__}, "acl.file.path", "is not an Erlang term"),
    "no certificate": (
        {"listeners.default.type": "ssl", "listeners.default.tls.certfile": "/nope"},
        "listeners.default.tls.certfile", "No such file",
    ),
    "a certificate that is none": (
        {"listeners.default.type": "ssl", "listeners.default.tls.certfile": __file__},
        "listeners.default.tls.certfile", "must be a PEM file",
    ),
    "two listeners on one address": (
        {"listeners.default.bind": "127.0.0.1:1883", "listeners.b.bind": "localhost:1883"},
        "listeners.b.bind", "which listeners.default.bind",
    ),
    "a listener on every address": (
        {"listeners.default.bind": "127.0.0.1:1883", "listeners.b.bind": "0.0.0.0:1883"},
        "listeners.b.bind", "which listeners.default.bind",
    ),
    "the dashboard on a listener's address": (
        {"listeners.default.bind": "127.0.0.1:1883", "api.bind": "127.0.0.1:1883"}, "api.bind", "which listeners.default.bind"
    ),
    "an address of another machine": ({"listeners.default.bind": "192.0.2.7:1883"}, "listeners.default.bind", "this machine"),
    "a unix socket nowhere": ({"listeners.default.bind": "unix:/nope/socket"}, "listeners.default.bind", "no such directory"),
    "no directory of plugins": ({"plugins.dir": "/nope"}, "plugins.dir", "No such file"),
    "a core that is not there": ({"process.worker_cores": "8191"}, "process.worker_cores", "no core 8191"),
    "weights for other workers": ({"process.worker_weights": "1,2,3,4,5,6,7"}, "process.worker_weights", "7 weights"),
    "a data directory below a file": ({"process.data_dir": f"{__file__}/data"}, "process.data_dir", "can be written to"),
    "certificates of a program": (
        {"exhook.servers": '[{name="a", url="https://127.0.0.1:9", ssl={enable=true, cacertfile="/nope"}}]'},
        "exhook.servers", "No such file",
    ),
    "certificates of a collector": (
        {
            "opentelemetry.metrics.enable": "true", "opentelemetry.exporter.endpoint": "https://127.0.0.1",
            "opentelemetry.exporter.tls_ca": "/nope",
        },
        "opentelemetry.exporter.tls_ca", "No such file",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "key", "text"), CASES.values(), ids=CASES)
def test_what_cannot_work_is_found(settings: dict[str, str], key: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('[auth.http.headers]\n"a b" = "c"\n' if "header" in text or key.endswith("headers") else "")
    found = look(load(file, {}, [f"{name}={value}" for name, value in settings.items()]).settings)
    assert [one.key for one in found] == [key]
    assert found[0].text.startswith(key) and text in found[0].text


def test_sound_settings_have_no_findings(tmp_path: Path) -> None:
    rules, users = tmp_path / "acl.conf", tmp_path / "users"
    rules.write_text("{allow, all}.\n")
    users.write_text("ada:$argon2id$x\n")
    settings = {
        "auth.chain": '["builtin", "file", "scram", "certificate", "modules", "postgresql"]', "auth.file.path": str(users),
        "auth.postgresql.server": "127.0.0.1:1", "acl.sources": '["file", "builtin"]', "acl.file.path": str(rules),
        "listeners.default.bind": "127.0.0.1:1883", "listeners.b.bind": "[::1]:1883", "listeners.c.bind": "127.0.0.1:0",
        "listeners.d.bind": "127.0.0.1:0", "process.data_dir": str(tmp_path / "not" / "there" / "yet"),
    }  # fmt: skip
    assert look(load(None, {}, [f"{name}={value}" for name, value in settings.items()]).settings) == []


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(PROGRAM), *words], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("verb", [("config", "check"), ("serve",)], ids=" ".join)
def test_all_that_is_wrong_is_told_at_once_with_its_source(verb: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('[auth]\nchain = ["jtw", "http"]\n[listeners.default]\nbind = "127.0.0.1:0"\n')
    ended = run(*verb, "--config", str(file), "--set", 'acl.sources=["file"]', "--data-dir", str(tmp_path / "data"))
    assert ended.returncode == 2
    lines = ended.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["auth.chain", "auth.http.url", "acl.file.path"]
    assert lines[0].endswith(f"did you mean jwt? (file {file})") and lines[2].endswith("(default)")


def test_a_running_broker_refuses_it_and_changes_nothing(tmp_path: Path) -> None:
    rules = tmp_path / "acl.conf"
    rules.write_text("{allow, all}.\n")
    with ApiBroker(1) as broker, Control(broker.data_dir) as control:
        for key, value, text in (
            ("auth.chain", '["jtw"]', "did you mean jwt"),
            ("auth.chain", '["http"]', "auth.http.url"),
            ("acl.sources", '["file"]', "acl.file.path"),
            ("prometheus.bind", f"127.0.0.1:{broker.address[1]}", "an address of its own"),
            ("plugins.dir", "/nope", "plugins.dir"),
        ):
            with pytest.raises(ControlError, match=text):
                control.call("config set", key=key, value=value)
        with pytest.raises(ControlError, match=r"auth\.http\.url(.|\n)*acl\.file\.path"):
            control.call("config update", values={"auth.chain": '["http"]', "acl.sources": '["file"]'})
        with pytest.raises(ControlError, match="did you mean jwt"):
            control.call("listeners add", name="b", settings=["bind=127.0.0.1:0", 'auth_chain=["jtw"]'])
        status, body = Rest.logged_in(broker)("PUT", "/configs/auth", {"chain": ["jtw"]})
        assert status == 400 and "did you mean jwt" in json.dumps(body)
        assert not (broker.data_dir / "runtime.toml").exists()
        Client(broker.address, 5, "still").close()
        done = control.call("config update", values={"acl.sources": '["file"]', "acl.file.path": f'"{rules}"'})
        assert sorted(done["applied"]) == ["acl.file.path", "acl.sources"]
        assert control.call("config set", key="auth.chain", value='["builtin"]')["applied"] == ["auth.chain"]


def test_what_was_wrong_before_keeps_no_other_setting_from_a_change(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("ada:$argon2id$x\n")
    settings = {"auth.chain": '["file"]', "auth.file.path": users}
    with Broker(1, settings, tmp_path / "data") as broker, Control(broker.data_dir) as control:
        users.unlink()
        assert control.call("config set", key="auth.hash_threads", value="3")["applied"] == ["auth.hash_threads"]


def test_a_value_that_was_set_is_reset_without_a_broker(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    kept = data / "runtime.toml"
    kept.write_text('auth.chain = ["jtw"]\nmqtt.max_inflight = 7\nmqtt.no_such_key = 1\n')
    where = ("--data-dir", str(data))
    assert run("config", "check", *where).returncode == 2
    ended = run("ctl", *where, "config", "reset", "auth.chain")
    assert ended.returncode == 0, ended.stderr
    assert run("ctl", *where, "config", "reset", "mqtt.no_such_key").returncode == 0
    assert "mqtt.max_inflight = 7" in kept.read_text() and "jtw" not in kept.read_text()
    assert run("config", "check", *where).returncode == 0
    again = run("ctl", *where, "config", "reset", "auth.chain")
    assert again.returncode == 1 and "auth.chain is not in" in again.stderr
    assert run("ctl", *where, "config", "set", "auth.chain", "[]").returncode == 3


def test_a_back_end_that_cannot_start_is_an_alarm_until_it_can(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("ada:$argon2id$x\n")
    with Guarded({"auth.chain": ["file"], "auth.file.path": str(users)}) as broker, Control(broker.data_dir) as control:

        def alarm() -> str:
            rows = control.call("alarms list")["data"]
            return next((str(row["message"]) for row in rows if row["name"] == "backend_unusable"), "")

        users.unlink()
        broker.expects('integrations .*cause="exit code 1" ')
        broker.kill_process(broker.child_pids("integrations")[0])
        assert "users: No such file" in until(alarm)
        users.write_text("ada:$argon2id$x\n")
        until(lambda: not alarm(), timeout_s=60)


def test_a_check_that_is_given_up_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        begun = asyncio.Event()

        def dumped(settings: Settings) -> object:
            begun.set()
            return dump(settings)

        monkeypatch.setattr(preflight, "dump", dumped)
        checked = asyncio.create_task(preflight.check(load(None, {}), None))
        await begun.wait()
        (process,) = [one for one in psutil.Process().children() if "shardbroker.preflight" in one.cmdline()]
        checked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await checked
        assert not process.is_running()

    asyncio.run(run())
