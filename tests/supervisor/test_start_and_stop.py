"""Starting and stopping the real broker: what is in the way is said, and nothing is left behind."""

import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from shardbroker.cli.main import main
from shardbroker.config import load
from shardbroker.supervisor import StartError, Supervisor
from tests.harness import Broker, Client, Disconnect, until

pytestmark = pytest.mark.own_broker
WITHOUT_FASTAPI = """
import sys
from shardbroker.cli.main import main
from shardbroker.config import api
found = api.find_spec
api.find_spec = lambda name: None if name == "fastapi" else found(name)
sys.exit(main(sys.argv[1:]))
"""


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("shardbroker")
    return subprocess.run([str(program), "serve", *arguments], capture_output=True, text=True, timeout=30, check=False)


def test_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = serve("--listen", f"tcp://127.0.0.1:{port}", "--data-dir", str(tmp_path / "data"))
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in ended.stderr


def test_two_brokers_on_one_port_or_one_data_directory(tmp_path: Path) -> None:
    with Broker(1) as first:
        port = first.address[1]
        ended = serve("--listen", "tcp://127.0.0.1:0", "--data-dir", str(first.data_dir))
        assert ended.returncode == 1
        assert f"in use by the broker with pid {first.pid}" in ended.stderr
        ended = serve("--listen", f"tcp://127.0.0.1:{port}", "--data-dir", str(tmp_path / "data"))
        assert ended.returncode == 1
        assert "Address already in use" in ended.stderr
        Client(first.address, 5).close()


def test_a_start_and_a_stop_say_what_one_needs(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(f"u:{'0' * 64}\n")
    with Broker(1, {"auth.chain": "file", "auth.file.path": str(tmp_path / "users")}) as own:
        port, data = own.address[1], own.data_dir
    lines = [line.partition(" INFO supervisor: ")[2].rstrip() for line in own.output if " INFO supervisor: " in line]
    assert f"clients can connect listener=default address=tcp://127.0.0.1:{port} login=file" in lines
    assert "dashboard is disabled setting=api.bind" in lines
    assert f"sessions kept data_dir={data} durability=process" in lines
    assert any(line.startswith("documentation read=") for line in lines)
    assert any(line.startswith("broker stops pid=") for line in lines) and lines[-1].startswith("broker stopped duration=")


@pytest.mark.parametrize(
    "words, hint",
    [
        (["sevre"], "did you mean serve?"),
        (["config", "chek"], "did you mean check?"),
        (["journal", "verfy"], "did you mean verify?"),
        (["perf", "fanuot"], "did you mean fanout?"),
        (["serve", "--wrokers", "2"], "did you mean --workers?"),
        (["journal", "xyzzy"], "see shardbroker journal --help"),
    ],
)
def test_a_wrong_word_gets_the_one_that_was_meant(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2 and hint in capsys.readouterr().err


def test_a_wrong_verb_of_ctl_gets_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ctl", "clients", "kcik"]) == 2
    assert "Did you mean 'kick'" in capsys.readouterr().err


def test_the_command_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "run the broker in the foreground" in capsys.readouterr().out


def test_two_instances_side_by_side() -> None:
    with Broker(1) as first, Broker(2) as second:
        for broker in (first, second):
            with Client(broker.address, 5) as client:
                client.subscribe("t")
                client.publish("t", b"x")
                client.expect_messages(b"x")


def test_wrong_configuration_ends_with_code_2(tmp_path: Path) -> None:
    ended = serve("--set", "mqtt.max_inflight=-1", "--data-dir", str(tmp_path))
    assert ended.returncode == 2
    assert "mqtt.max_inflight" in ended.stderr


def test_drain_sends_clients_away_and_retained_messages_stay(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    first = Broker(2, data_dir=data_dir)
    first.start()
    assert first.process is not None
    with Client(first.address, 5, "drained") as client:
        client.publish("kept", b"here", 1, True)
        first.terminate()
        ended = client.expect_close(5)
        assert isinstance(ended, Disconnect)
        assert ended.code == 0x8B
    assert first.process.wait(10) == 0
    assert not first.leftovers()
    with Broker(3, data_dir=data_dir) as broker, Client(broker.address, 5) as client:
        client.subscribe("kept", 1)
        client.expect_messages(b"here")


def test_killed_supervisor_takes_all_down_and_the_next_start_cleans_up(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    broker = Broker(2, data_dir=data_dir)
    broker.start()
    children = broker.children()
    broker.process.kill()  # type: ignore[union-attr]
    deadline = time.monotonic() + 5
    while any(child.is_running() and child.status() != "zombie" for child in children) and time.monotonic() < deadline:
        time.sleep(0.02)
    broker.process.wait(5)  # type: ignore[union-attr]
    with Broker(2, data_dir=data_dir) as again, Client(again.address, 5) as client:
        client.ping()


def test_one_line_for_a_client_that_goes() -> None:
    with Broker(1) as broker:
        name = "gone\nforged"
        with Client(broker.address, 5, name) as client:
            client.send_raw(b"\xc1\0")
            client.expect_close()
        deadline = time.monotonic() + 5
        while not any("client disconnected" in line for line in broker.output) and time.monotonic() < deadline:
            time.sleep(0.02)
        (line,) = [line for line in broker.output if "client disconnected" in line]
        for word in ("gone\\nforged", "peer=127.0.0.1:", "reason=0x81", "malformed_packet", "side=server"):
            assert word in line


def test_sys_topics() -> None:
    with Broker(2, {"sys.msg_interval": "1s", "sys.heartbeat_interval": "1s"}) as broker, Client(broker.address, 5) as client:
        client.subscribe("$SYS/#")
        wanted = {"version", "uptime", "stats/connections/count", "metrics/messages/received", "metrics/bytes/sent"}
        deadline = time.monotonic() + 8
        while wanted and time.monotonic() < deadline:
            message = client.recv(2)
            if message is not None:
                name = getattr(message, "topic", "").split("/", 3)[-1]
                wanted.discard(name)
        assert not wanted


def said(broker: Broker, phrase: str) -> list[str]:
    return [line for line in broker.output if phrase in line]


def test_the_dashboard_is_there_by_default(tmp_path: Path) -> None:
    with Broker(1, {"api.bind": "auto"}) as own:
        until(lambda: said(own, "dashboard available"), lambda: str(own.output), 30)
        (line,) = said(own, "dashboard available")
        assert " INFO api: " in line and line.rstrip().endswith("url=http://127.0.0.1:18083")
        with urlopen("http://127.0.0.1:18083/api/v5/status", timeout=10) as answer:
            assert answer.status == 200


def test_without_its_port_there_is_one_warning_and_clients_are_served(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 18083)), Broker(1, {"api.bind": "auto"}) as own:
        until(lambda: said(own, "address not bound"), lambda: str(own.output), 30)
        with Client(own.address):
            time.sleep(1)
        (line,) = said(own, "address not bound")
        assert " WARNING api: " in line and "address=127.0.0.1:18083" in line
        assert not said(own, "dashboard available")


def test_without_its_packages_there_is_one_warning_and_clients_are_served() -> None:
    own = Broker(1, {"api.bind": "auto"})
    own.program = (sys.executable, "-c", WITHOUT_FASTAPI)
    with own, Client(own.address):
        (line,) = until(lambda: said(own, "dashboard"))
    assert " WARNING supervisor: dashboard left out" in line and "api.bind needs fastapi" in line and "pip install" in line


def test_a_rest_api_without_its_packages_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shardbroker.config.api.find_spec", lambda name: None if name == "fastapi" else object())
    asked = ["api.bind=127.0.0.1:0", "listeners.default.bind=127.0.0.1:0"]
    settings = load(None, None, asked, {"process.data_dir": tmp_path}).settings
    with pytest.raises(StartError, match=r"needs fastapi, .* pip install 'shardbroker\[api\]'"):
        Supervisor(settings).run()
