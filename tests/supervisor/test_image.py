"""The supervisor's state passes through execve: the topology, descriptors, the lock, and children."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shardbroker.config import load
from shardbroker.supervisor.image import UpgradeError, UselessError, descriptors_of, look, read, save, undo_save, written
from shardbroker.supervisor.layout import lay_out, lock_data_dir, tear_down
from shm.layouts import LAYOUTS
from shm.roles import ROLES
from shm.topology import Topology

SECOND = """
import fcntl, json, os, signal, sys
from shardbroker.supervisor.image import AdoptedProcess, read
image = read(int(sys.argv[1]))
topology, (child,) = image.topology, [AdoptedProcess(pid) for pid in image.kept["children"].values()]
was_alive = child.is_alive()
child.kill()
child.join()
inheritable = [one for one in range(3, 1000) if os.path.exists(f"/proc/self/fd/{one}") and os.get_inheritable(one)]
other = os.open(topology.data_dir / "lock", os.O_RDWR)
try:
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    locked = False
except BlockingIOError:
    locked = True
os.eventfd_write(topology.doorbells[0], 7)
print(json.dumps({
    "pid": os.getpid(), "was_alive": was_alive, "exitcode": child.exitcode, "inheritable": inheritable, "locked": locked,
    "rung": os.eventfd_read(topology.doorbells[0]), "port": topology.listeners[0].port,
    "listens": os.stat(topology.listeners[0].descriptors[0]).st_ino,
}))
"""
FIRST = f"""
import os, sys, time
from pathlib import Path
from shardbroker.config import load
from shardbroker.supervisor.image import save
from shardbroker.supervisor.layout import lay_out, lock_data_dir
options = {{"process.data_dir": sys.argv[1], "listeners.default.bind": "127.0.0.1:0"}}
settings = load(None, {{}}, ["process.workers=2"], options).settings
lock = lock_data_dir(Path(sys.argv[1]))
topology = lay_out(settings, [0])
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
memory = save(topology, {{"children": {{0: child}}}}, lock)
print(os.getpid(), os.stat(topology.listeners[0].descriptors[0]).st_ino, topology.runtime_dir, flush=True)
os.execv(sys.executable, [sys.executable, "-c", {SECOND!r}, str(memory)])
"""


def made(data_dir: Path) -> Topology:
    options = {"process.data_dir": str(data_dir), "listeners.default.bind": "127.0.0.1:0"}
    return lay_out(load(None, {}, ["process.workers=2", "process.acceptors=2"], options).settings, [0])


def test_a_program_continues_the_process_of_another_one(tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-c", FIRST, str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert found.returncode == 0, found.stderr
    first, second = found.stdout.splitlines()
    pid, inode, runtime_dir = first.split()
    told = json.loads(second)
    assert told["pid"] == int(pid)
    assert told["was_alive"]
    assert told["exitcode"] == -9
    assert told["inheritable"] == []
    assert told["locked"]
    assert told["rung"] == 7
    assert told["listens"] == int(inode)
    subprocess.run(["rm", "-r", runtime_dir], check=True)


def test_the_topology_is_the_same(tmp_path: Path) -> None:
    topology = made(tmp_path)
    lock = lock_data_dir(tmp_path)
    try:
        memory = save(topology, {"children": {0: 7}}, lock)
        assert all(os.get_inheritable(one) for one in (*descriptors_of(topology), lock))
        image = read(memory)
        assert image.kept == {"children": {0: 7}}
        assert image.moves_workers
        assert image.topology == replace(
            topology, parse_listener=image.topology.parse_listener, parse_settings=image.topology.parse_settings
        )
        assert not any(os.get_inheritable(one) for one in (*descriptors_of(topology), lock))
        undo_save(topology, lock, save(topology, {}, lock))
        assert not any(os.get_inheritable(one) for one in (*descriptors_of(topology), lock))
        with socket.create_connection(("127.0.0.1", topology.listeners[0].port), 5):
            pass
    finally:
        os.close(lock)
        tear_down(topology)


def test_what_another_program_does_not_know_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = made(tmp_path)
    lock = lock_data_dir(tmp_path)
    try:
        with pytest.raises(UpgradeError, match="no role api"):
            read(save(topology, {}, lock), roles=[role for role in ROLES if role.name != "api"])
        with pytest.raises(UpgradeError, match="role manager has no inbox"):
            read(save(topology, {}, lock), roles=[replace(role, inbox=role.name == "worker") for role in ROLES])
        with pytest.raises(UpgradeError, match="the running broker has no place for a process another"):
            read(save(topology, {}, lock), roles=[*ROLES, replace(ROLES[0], name="another")])
        memory, other, newer = written(topology, {}, lock), written(topology, {}, lock), written(topology, {}, lock)
        monkeypatch.setattr("shardbroker.supervisor.image.HANDOFF", 0)
        assert not look(other).moves_workers
        monkeypatch.setattr("shardbroker.supervisor.image.SCHEMA_VERSION", 0)
        with pytest.raises(UselessError, match="records of the journal: version 1, this program reads 0"):
            look(newer)
        monkeypatch.undo()
        monkeypatch.setitem(LAYOUTS, "inbox", 2)
        with pytest.raises(UpgradeError, match="other layout in shared memory: inbox"):
            look(memory)
    finally:
        os.close(lock)
        tear_down(topology)
