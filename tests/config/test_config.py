"""Configuration: sources, refusals, and the page in docs."""

from pathlib import Path

import pytest

from shardbroker.cli.main import main
from shardbroker.config import ConfigError, load, reference, show
from shardbroker.config.cluster import Cluster
from shardbroker.config.listeners import LISTENERS_MAX


def test_later_sources_win_and_are_named(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('[mqtt]\nmax_inflight = 1\nmax_mqueue_len = 1\nidle_timeout = "1s"\nretry_interval = "2m"\n')
    environment = {"SHARDBROKER__MQTT__MAX_MQUEUE_LEN": "2", "SHARDBROKER__MQTT__IDLE_TIMEOUT": "2s", "HOME": "/"}
    loaded = load(file, environment, ["mqtt.idle_timeout=3s"], {"process.workers": 4})
    mqtt = loaded.settings.mqtt
    assert (mqtt.max_inflight, mqtt.max_mqueue_len, mqtt.idle_timeout, mqtt.retry_interval) == (1, 2, 3.0, 120.0)
    before = show(loaded).partition("[gateways.")[0]  # which have keys of the same names
    lines = {line.split(" = ")[0]: line for line in before.splitlines() if " = " in line}
    assert lines["max_inflight"].endswith(f"# file {file}")
    assert lines["max_mqueue_len"].endswith("# environment SHARDBROKER__MQTT__MAX_MQUEUE_LEN")
    assert lines["idle_timeout"].startswith('idle_timeout = "3s"')
    assert lines["idle_timeout"].endswith("# --set")
    assert lines["workers"].endswith("# command line")
    assert lines["max_packet_size"].startswith('max_packet_size = "1MB"')
    assert lines["max_packet_size"].endswith("# default")


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("mqtt.max_inflght=3", ["mqtt.max_inflght", "--set", "unknown key", "did you mean mqtt.max_inflight"]),
        ("mqtt.max_inflight=zero", ["mqtt.max_inflight", '"zero"', "integer"]),
        ("mqtt.max_packet_size=1GB", ["mqtt.max_packet_size", "1GB", "to 256MB"]),
        ("mqtt.idle_timeout=5 minutes", ["mqtt.idle_timeout", "500ms, 15s, 2h"]),
        ("mqtt.shared_subscription_strategy=best", ["'sticky'", "'best'"[1:-1]]),
        ("listeners.default.bind=1883", ["listeners.default.bind", "HOST:PORT"]),
        ("listeners.default.type=quic", ["listeners.default.type", "'tcp'"]),
        ("process.workers=0", ["process.workers", "auto or a number"]),
        ("tls.verify=1", ["tls", "unknown key"]),
        ("auth.users=1", ["auth", "unknown key"]),
        ("mqtt.mqueue_overflow=block", ["mqtt.mqueue_overflow", "'drop', 'push_back'"]),
        ("listeners.default.mqueue_overflow=none", ["listeners.default.mqueue_overflow", "'push_back'"]),
        ("mqtt.push_back_timeout=0s", ["mqtt.push_back_timeout", "1ms to 5m"]),
        ("mqtt.push_back_timeout=1h", ["mqtt.push_back_timeout", "1ms to 5m"]),
        ('mqtt.push_back_topics=["a/#/b"]', ["mqtt.push_back_topics", "a topic filter or a list of at most 100"]),
        (f"mqtt.push_back_topics={['a'] * 101}", ["mqtt.push_back_topics", "a topic filter or a list of at most 100"]),
        ("nonsense", ["key=value"]),
    ],
)
def test_refusals_name_key_value_source_and_what_is_allowed(assignment: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        load(None, {}, [assignment])
    for word in words:
        assert word in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--config", str(tmp_path / "none.toml")]) == 2
    assert "none.toml: No such file" in capsys.readouterr().err
    broken = tmp_path / "broken.toml"
    broken.write_text("[mqtt\n")
    assert main(["config", "check", "--config", str(broken)]) == 2
    assert "not valid TOML" in capsys.readouterr().err


def test_more_listeners_than_there_are_counters_for_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    binds = [f"--set=listeners.l{number}.bind=127.0.0.1:0" for number in range(LISTENERS_MAX + 1)]
    assert main(["config", "check", *binds[1:]]) == 0
    assert main(["config", "check", *binds]) == 2
    assert f"allowed is up to {LISTENERS_MAX} of them, not {LISTENERS_MAX + 1}" in capsys.readouterr().err


def test_check_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--listen", "tcp://[::1]:1999"]) == 0
    assert main(["config", "show", "--listen", "tcp://[::1]:1999"]) == 0
    assert 'bind = "[::1]:1999"' in capsys.readouterr().out


def test_the_reference_page_is_current() -> None:
    assert Path("docs/configuration.md").read_text() == reference()


@pytest.mark.parametrize(
    ("value", "policy"),
    [("new", ("new", 0)), ("refuse", ("refuse", 0)), ("wait:30s", ("wait", 30_000)), ("wait:1500ms", ("wait", 1_500))],
)
def test_lost_session(value: str, policy: tuple[str, int]) -> None:
    assert Cluster(lost_session=value).lost_policy == policy


@pytest.mark.parametrize(
    "value", ["", "wait", "wait:", "wait:60s", "wait:0", "wait:nan", "wait:infinity", "wait:disabled", "old", "new:1s"]
)
def test_a_policy_for_lost_sessions_that_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.lost_session.*new, refuse, or wait:TIME"):
        load(None, {}, [f"cluster.lost_session={value}"])
