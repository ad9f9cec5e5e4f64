"""How sources are laid over each other, and what is refused with which words."""

import tomllib
from pathlib import Path

import pytest

from shardbroker.cli.listen import parse_listen
from shardbroker.cli.main import main
from shardbroker.config import ConfigError, load, reference, show
from shardbroker.config.keys import dotted, known_keys
from shardbroker.config.listeners import Listener


def refused(*assignments: str, environment: dict[str, str] | None = None, file: Path | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        load(file, environment, assignments)
    return str(error.value)


def test_every_default_is_one_that_may_be_written() -> None:
    shown = show(load())
    again = load(None, None, [f"{section}={_inline(keys)}" for section, keys in tomllib.loads(shown).items()])
    assert again.settings == load().settings


def test_show_is_a_file_that_gives_the_same_settings(tmp_path: Path) -> None:
    first = load(
        None,
        {"SHARDBROKER__MQTT__RESPONSE_INFORMATION": 'a"b\\c\x7f\u00e9\U0001f600'},
        [
            'mqtt.mqueue_priorities={ "Plant/v1.0" = 9, "a \\"b\\"" = 1 }',
            "mqtt.server_keepalive=90",
            "mqtt.retry_interval=1500ms",
            "mqtt.keepalive_multiplier=1.25",
            "mqtt.max_packet_size=1025",
            "retainer.max_payload_size=0",
            "listeners.six.bind=[::1]:1999",
        ],
        {"process.data_dir": "/tmp/a b"},
    )
    file = tmp_path / "shown.toml"
    file.write_text(show(first), encoding="utf-8")
    assert load(file).settings == first.settings


def test_listen_takes_the_place_of_configured_listeners(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('[listeners.outside]\nbind = "0.0.0.0:1883"\n')
    assert set(load(file).settings.listeners) == {"outside"}
    listen = ["--listen", "tcp://127.0.0.1:1", "--listen", "tcp://[::1]:2"]
    assert main(["config", "show", "--config", str(file), *listen]) == 0
    listeners = tomllib.loads(capsys.readouterr().out)["listeners"]
    assert {name: listener["bind"] for name, listener in listeners.items()} == {"default": "127.0.0.1:1", "listen-2": "[::1]:2"}


def test_listen_leaves_a_listener_of_that_name_its_limits(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('[listeners.default]\nbind = "0.0.0.0:1"\nmax_connections = 5\n[listeners.other]\nmax_connections = 6\n')
    options = {"listeners.default.bind": "127.0.0.1:2", "listeners.default.type": "tcp"}
    settings = load(file, None, ["listeners.default.max_conn_rate=20/m"], options).settings
    assert set(settings.listeners) == {"default"}
    listener = settings.listeners["default"]
    assert (listener.bind, listener.max_connections, listener.max_conn_rate) == ("127.0.0.1:2", 5, 20 / 60)


def test_text_stays_text_where_text_is_wanted() -> None:
    settings = load(None, {"SHARDBROKER__NODE__NAME": "7"}, ["process.data_dir=2024", "mqtt.response_information=true"]).settings
    assert (settings.node.name, settings.process.data_dir, settings.mqtt.response_information) == ("7", Path("2024"), "true")


def test_priorities_are_merged_topic_by_topic(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('[mqtt.mqueue_priorities]\n"a/b" = 1\n"c.d" = 2\n')
    loaded = load(file, None, ["mqtt.mqueue_priorities.c.d=3", "mqtt.mqueue_priorities.E/f=4"])
    assert loaded.settings.mqtt.mqueue_priorities == {"a/b": 1, "c.d": 3, "E/f": 4}
    assert loaded.source("mqtt.mqueue_priorities") == f"file {file}, --set"
    assert load(file, None, ["mqtt.mqueue_priorities={}"]).settings.mqtt.mqueue_priorities == {}


def test_no_limit_is_written_as_infinity_or_0() -> None:
    for text in ("0", "infinity"):
        settings = load(None, None, [f"mqtt.max_mqueue_len={text}", f"mqtt.max_awaiting_rel={text}"]).settings
        assert (settings.mqtt.max_mqueue_len, settings.mqtt.max_awaiting_rel) == (0, 0)


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        (
            "max_inflight=3",
            "unknown key; did you mean mqtt.max_inflight or gateways.coap.max_inflight or gateways.exproto.max_inflight or "
            "gateways.mqttsn.max_inflight or "
            "gateways.stomp.max_inflight or connectors.mqtt.<name>.max_inflight?",
        ),
        ("mqtt.worker=3", "unknown key; did you mean process.workers?"),
        ("listeners.a.bnd=x", "unknown key; did you mean listeners.<name>.bind?"),
        (
            "qqq.www=1",
            "unknown key; allowed sections are process, node, listeners, mqtt, rewrite, auto_subscribe, delayed, event_message",
        ),
        ("retainer.zzz=1", "unknown key; allowed in retainer are max_messages, max_total_bytes, max_payload_size"),
        ("mqtt.max_inflight=true", "allowed is an integer from 1 to 65535"),
        ("mqtt.max_inflight=1\nmqtt=2", "allowed is an integer from 1 to 65535"),
        ("journal.capture=a/#/b", "journal.capture"),
        ("journal.capture=[3]", "allowed is a topic filter or a list of them"),
        ("mqtt.mqueue_priorities.a=256", "allowed is a table of topic = 1..255"),
        ("mqtt.idle_timeout=infinity", "allowed is a duration such as 500ms, 15s, 2h, from 1ms to 1d"),
        ("mqtt.idle_timeout=nan", "allowed is a duration such as 500ms, 15s, 2h, from 1ms to 1d"),
        ("mqtt.retry_interval=99999999d", "allowed is a duration such as 500ms, 15s, 2h, from 1ms on or infinity"),
        ("mqtt.retry_interval=1" + "0" * 400, "allowed is a duration such as 500ms, 15s, 2h, from 1ms on or infinity"),
        ("mqtt.server_keepalive=18h30m", "allowed is a duration such as 500ms, 15s, 2h, from 1s to 65535s or 'disabled'"),
        ("auth.http.url=http://${clientid}.example/", "allowed is a URL whose host has no placeholder"),
        ("mqtt=5", "mqtt = 5 (--set): allowed is a section of keys"),
        ("listeners={}", "allowed is one listener or more"),
        ("listeners.Big.bind=127.0.0.1:1", "allowed is a name of a-z, 0-9, _ and -, not 'Big'"),
        ("listeners.default.bind=::1:1883", "such as 0.0.0.0:1883 or [::1]:1883"),
        ("listeners.default.bind=h:65536", "HOST:PORT with a port from 0 to 65535"),
        ("node.name=a/b", "allowed is text without /, +, # and blanks"),
        ("process.workers=1025", "allowed is auto or a number from 1 to 1024"),
        ("process.ring_size=1KB", "allowed is 'auto' or a size such as 65536, 256KB, 1MB, from 64KB to 1GB"),
    ],
)
def test_words_of_refusals(assignment: str, line: str) -> None:
    text = refused(assignment)
    assert line in text
    assert len(text.splitlines()) == 1


def test_the_source_that_won_is_the_one_named(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[mqtt]\nmax_inflight = 0\nmax_qos_allowed = 5\n[sys]\nmsg = 1\n")
    lines = refused(environment={"SHARDBROKER__MQTT__MAX_INFLIGHT": "-1", "SHARDBROKER__NO_SUCH": "1"}, file=file).splitlines()
    assert len(lines) == 4
    assert any(line.startswith("mqtt.max_inflight = -1 (environment SHARDBROKER__MQTT__MAX_INFLIGHT): ") for line in lines)
    assert any(line.startswith(f"mqtt.max_qos_allowed = 5 (file {file}): allowed is 0, 1, 2") for line in lines)
    assert any(line.startswith(f"sys.msg = 1 (file {file}): unknown key; ") for line in lines)
    assert any(line.startswith("no_such = 1 (environment SHARDBROKER__NO_SUCH): unknown key; ") for line in lines)


def test_a_value_has_no_keys_below_it() -> None:
    text = refused("mqtt.max_inflight=3", "mqtt.max_inflight.x=1")
    assert text == "mqtt.max_inflight.x = 1 (--set): mqtt.max_inflight is given as a value (--set), so it has no keys"


@pytest.mark.parametrize(("content", "words"), [(b"[mqtt]\nx = \xff", "byte 11 is not UTF-8"), (b"= 1", "not valid TOML")])
def test_files_that_are_no_toml(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_bytes(content)
    assert f"{file}: " in refused(file=file)
    assert words in refused(file=file)
    assert "Is a directory" in refused(file=tmp_path)


def test_every_key_is_in_the_reference() -> None:
    page = reference()
    for path in known_keys():
        assert f"| `{dotted(path)}` |" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "127.0.0.1:1883"], "--listen: must be tcp://HOST:PORT"),
        (["--listen", "quic://127.0.0.1:1883"], "--listen: must be tcp://HOST:PORT"),
        (["--listen", "mqtt://"], "--listen: must be tcp://HOST:PORT"),
        (["--workers", "many"], 'process.workers = "many" (command line): allowed is auto or a number'),
    ],
)
def test_wrong_options_end_with_code_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", *arguments]) == 2
    assert words in capsys.readouterr().err


def _inline(table: dict[str, object]) -> str:
    def value(item: object) -> str:
        if isinstance(item, dict):
            return _inline(item)
        return str(item).lower() if isinstance(item, bool) else repr(item).replace("'", '"')

    return "{ " + ", ".join(f'"{key}" = {value(item)}' for key, item in table.items()) + " }"


def test_a_file_that_says_nothing_goes_with_a_listener_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("# nothing\n")
    loaded = load(tmp_path / "empty.toml", {}, (), {"listeners.default.bind": "127.0.0.1:1999", "process.data_dir": str(tmp_path)})
    assert loaded.settings.listeners["default"].bind == "127.0.0.1:1999"


def test_secrets_are_neither_taken_from_a_command_line_nor_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('[auth.redis]\npassword = "t0psecret"\n')
    assert main(["config", "show", "--config", str(file)]) == 0
    shown = capsys.readouterr().out
    assert 'password = "******"' in shown and "t0psecret" not in shown
    text = refused("auth.redis.password=t0psecret")
    assert "auth.redis.password" in text and "t0psecret" not in text


@pytest.mark.parametrize(
    "address, kind, bind",
    [
        ("tcp://10.0.0.1", "tcp", "10.0.0.1:1883"),
        ("mqtt://broker.example", "tcp", "broker.example:1883"),
        ("mqtt://broker.example:1884/", "tcp", "broker.example:1884"),
        ("mqtts://[::1]", "ssl", "[::1]:8883"),
        ("ssl://[::1]:8884", "ssl", "[::1]:8884"),
        ("ws://0.0.0.0", "ws", "0.0.0.0:8083"),
        ("wss://0.0.0.0", "wss", "0.0.0.0:8084"),
        ("unix:///run/mqtt.sock", "tcp", "unix:/run/mqtt.sock"),
    ],
)
def test_addresses_of_listeners(address: str, kind: str, bind: str) -> None:
    assert parse_listen(address) == (kind, bind)
    tls = {"tls": {"certfile": "server.pem"}} if kind in ("ssl", "wss") else {}
    listener = Listener.model_validate({"bind": address, **tls})
    assert (listener.type, listener.bind) == (kind, bind)


@pytest.mark.parametrize(
    "bind, kind, allowed",
    [
        ("http://0.0.0.0", "tcp", "allowed is tcp://HOST:PORT (mqtt:// is the same)"),
        ("mqtt://", "tcp", "allowed is tcp://HOST:PORT"),
        ("mqtt://0.0.0.0:99999", "tcp", "a port from 0 to 65535"),
        ("mqtts://0.0.0.0", "ws", "allowed is type ssl with bind = mqtts://0.0.0.0, not ws"),
    ],
)
def test_urls_that_are_none_of_a_listener(bind: str, kind: str, allowed: str) -> None:
    with pytest.raises(ValueError) as refused:
        Listener.model_validate({"bind": bind, "type": kind})
    assert allowed in str(refused.value)


def test_a_url_in_the_file_sets_type_and_bind(tmp_path: Path) -> None:
    file = tmp_path / "shardbroker.toml"
    file.write_text('listeners.default.bind = "mqtt://0.0.0.0"\n')
    assert load(file).settings.listeners["default"].bind == "0.0.0.0:1883"
