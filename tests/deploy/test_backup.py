"""`ctl backup` while the broker runs, and `restore` into another data directory for another number of workers."""

import json
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control
from shardbroker.deploy import BackupError, backup, restore
from tests.harness import Broker, Client, Publish, Will, client_id_on

KEPT = {"session_expiry_interval": 3600}
SETTINGS = {"acl.sources": '["builtin"]', "acl.no_match": "allow", "journal.cycle_bytes": "1MB", "journal.segment_bytes": "1MB"}


def lists(data_dir: Path) -> dict[str, Any]:
    """What is to be the same: sessions with their options, subscriptions, retained messages, users, rules, bans."""
    with Control(data_dir) as control:
        asked = {
            "sessions": control.call("sessions list", limit=1000)["data"],
            "subscriptions": control.call("subscriptions list", limit=1000)["data"],
            "retained": control.call("retained list", limit=1000, payload=True)["data"],
            "users": control.call("users list")["data"],
            "rules": control.call("acl list")["data"],
            "banned": control.call("banned list")["data"],
        }
    # Of the connection, which is over; and a session that was written anew counts as created then.
    moving = {"worker", "node", "connected_at", "disconnected_at", "since_ms", "ip_address", "port", "created_at"}
    return {
        name: sorted(({key: value for key, value in row.items() if key not in moving} for row in rows), key=json.dumps)
        for name, rows in asked.items()
    }


def test_a_backup_under_traffic_is_the_same_broker_elsewhere(tmp_path: Path) -> None:
    with Broker(3, SETTINGS) as broker:
        names = [client_id_on(worker, 3, f"kept{worker}x") for worker in range(3)]
        for number, name in enumerate(names):
            will = Will("gone", b"%d" % number, 1, properties={"will_delay_interval": 3000})
            with Client(broker.address, client_id=name, clean=True, properties=KEPT, will=will) as client:
                client.subscribe(f"q/{number}/#", number % 3, properties={"subscription_identifier": number + 1})
                client.subscribe("$share/g/s/#", 1)
                client.cut()
        with Control(broker.data_dir) as control:
            control.call("users add", name="ada", password="correct horse")
            control.call("acl add", kind="username", name="ada", permission="deny", topic="secret/#")
            control.call("banned add", kind="clientid", value="bad", reason="test")
        with Client(broker.address, client_id="publisher") as publisher:
            for number in range(300):
                publisher.publish(f"q/{number % 3}/{number}", b"%d" % number, 1)
                publisher.publish(f"r/{number}", b"x" * 300, 1, retain=True)
        stop = threading.Event()

        def talk() -> None:
            with Client(broker.address, client_id="talker") as talker:
                while not stop.is_set():
                    talker.publish("noise", b"y" * 2000, 1)

        noise = threading.Thread(target=talk)
        with Client(broker.address, client_id="listener", properties=KEPT) as listener:
            listener.subscribe("noise", 1)  # a session that stays: its journal has cycles meanwhile
            noise.start()
            try:
                file = tmp_path / "backup.tar"
                program = Path(sys.executable).with_name("shardbroker")
                done = subprocess.run(
                    [program, "ctl", "--data-dir", broker.data_dir, "backup", file], capture_output=True, text=True, timeout=120
                )
            finally:
                stop.set()
                noise.join()
        assert done.returncode == 0 and "bytes" in done.stdout, done.stderr
        assert file.stat().st_mode & 0o777 == 0o600
        before = lists(broker.data_dir)
    target = tmp_path / "elsewhere"
    restore(file, target)
    with Broker(2, SETTINGS, data_dir=target) as again:
        after = lists(target)
        for name in ("users", "rules", "banned", "retained"):
            assert after[name] == before[name], name
        for name, count in (("subscriptions", 6), ("sessions", 3)):
            own = [row for row in before[name] if row["clientid"] in names]
            assert [row for row in after[name] if row["clientid"] in names] == own and len(own) == count
        for number, name in enumerate(names):
            with Client(again.address, client_id=name, clean=False, properties=KEPT) as client:
                assert client.connack is not None and client.connack.session_present
                wanted = [b"%d" % one for one in range(300) if one % 3 == number] if number % 3 else []
                got = []
                while isinstance(message := client.recv(1 if len(got) >= len(wanted) else 10), Publish):
                    if message.topic.startswith("q/"):
                        got.append(message.payload)
                if number % 3:
                    assert got == wanted


def small(tmp_path: Path) -> Path:
    with Broker(2) as broker:
        file = tmp_path / "small.tar"
        backup(broker.data_dir, file)
    return file


def test_what_is_no_whole_backup_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    file = small(tmp_path)
    whole = file.read_bytes()
    target = tmp_path / "target"
    with tarfile.open(file) as tar:
        manifest = tar.getmember("manifest.json")
    for content, said in (
        (whole[: manifest.offset], "truncated"),
        (whole[: manifest.offset // 2], "small.tar"),
        (b"no tar at all", "small.tar"),
        (b"", "small.tar"),
        (whole[:700] + bytes([whole[700] ^ 1]) + whole[701:], "damaged"),
    ):
        file.write_bytes(content)
        with pytest.raises(BackupError, match=said):
            restore(file, target)
        assert not target.exists() and {path.name for path in tmp_path.iterdir()} == {"small.tar"}


def test_a_directory_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    file = small(tmp_path)
    target = tmp_path / "target"
    target.mkdir()
    (target / "precious").write_text("x")
    with pytest.raises(BackupError, match="not empty"):
        restore(file, target)
    assert (target / "precious").read_text() == "x"


def test_what_is_no_data_directory_has_no_backup(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="no journals"):
        backup(tmp_path, tmp_path / "b.tar")
    assert not (tmp_path / "b.tar").exists()
