"""The installed service under a real systemd: start, death of a worker, a hanging one, reload, upgrade, stop, uninstall."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.machine import Machine, why_not

pytestmark = [pytest.mark.own_broker, pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(300)]

PROGRAM = str(Path(sys.executable).with_name("shardbroker"))
CONFIGURATION = "/etc/shardbroker/shardbroker.toml"
CLIENT = """
import socket, sys, time
counts = {}
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    try:
        with socket.create_connection(("127.0.0.1", 1883), 20) as end:
            end.sendall(bytes([16, 12, 0, 4]) + b"MQTT" + bytes([4, 2, 0, 0, 0, 0]))
            what = "in" if end.recv(4) == bytes([32, 2, 0, 0]) else "closed"
    except OSError as error:
        what = repr(error)
    counts[what] = counts.get(what, 0) + 1
    time.sleep(0.02)
print(counts)
"""
"""Connects again and again, and counts what came of it."""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with Machine() as booted:
        booted.run(PROGRAM, "install", timeout_s=120)
        booted.run("systemctl", "enable", "--now", "shardbroker")
        yield booted


def show(machine: Machine, name: str) -> str:
    return machine.run("systemctl", "show", "--value", "-p", name, "shardbroker").stdout.strip()


def until(condition: Callable[[], bool], machine: Machine, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, machine.run("journalctl", "-u", "shardbroker", "--no-pager", "-n", "40").stdout
        time.sleep(0.2)


def worker(machine: Machine) -> str:
    """Pid of a worker, as the machine sees it."""
    return machine.run("pgrep", "-x", "sb-worker-0", check=False).stdout.strip()


def test_where_selinux_is_on_files_get_their_labels(machine: Machine) -> None:
    """With stand-ins for its programs: this kernel has none of it."""
    for name, does in (("selinuxenabled", "exit 0"), ("restorecon", "echo $* > /run/labelled")):
        machine.run("sh", "-c", f"printf '#!/bin/sh\\n{does}\\n' > /usr/bin/{name}; chmod 755 /usr/bin/{name}")
    try:
        assert "now        restorecon -R /opt/shardbroker" in machine.run(PROGRAM, "install", timeout_s=120).stdout
        assert machine.run("cat", "/run/labelled").stdout.split()[:2] == ["-R", "/opt/shardbroker"]
    finally:
        machine.run("rm", "/usr/bin/selinuxenabled", "/usr/bin/restorecon")


def test_it_serves_as_its_own_user_without_capabilities(machine: Machine) -> None:
    assert machine.run(sys.executable, "-c", CLIENT, "0.3").stdout.startswith("{'in': ")
    status = machine.run("cat", f"/proc/{show(machine, 'MainPID')}/status").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert fields["CapBnd"].strip("0") == ""
    assert fields["NoNewPrivs"] == "1"
    assert fields["Uid"].split()[0] == machine.run("id", "-u", "shardbroker").stdout.strip()
    assert show(machine, "StatusText").startswith("all processes ready")
    answer = machine.run("/usr/local/bin/shardbroker", "ctl", "--config", CONFIGURATION, "status").stdout
    assert "0.1.0" in answer


def test_a_killed_worker_is_started_again_and_the_service_goes_on(machine: Machine) -> None:
    main, victim = show(machine, "MainPID"), worker(machine)
    machine.run("kill", "-9", victim)
    until(lambda: worker(machine) not in ("", victim), machine)
    assert show(machine, "MainPID") == main
    assert machine.run(sys.executable, "-c", CLIENT, "0.3").stdout.startswith("{'in': ")


def test_reload_applies_what_can_change(machine: Machine) -> None:
    machine.run("sed", "-i", "s/^# max_mqueue_len = 1000/max_mqueue_len = 77/", CONFIGURATION)
    machine.run("systemctl", "reload", "shardbroker")
    until(lambda: "mqtt.max_mqueue_len" in machine.run("journalctl", "-u", "shardbroker", "--no-pager").stdout, machine)
    ask = ("/usr/local/bin/shardbroker", "ctl", "--config", CONFIGURATION, "config", "get", "mqtt.max_mqueue_len")
    shown = machine.run(*ask).stdout
    assert "77" in shown
    assert show(machine, "ActiveState") == "active"


def test_an_upgrade_refuses_nobody(machine: Machine) -> None:
    main = show(machine, "MainPID")
    knocking = machine.start(sys.executable, "-c", CLIENT, "12")
    time.sleep(1)
    # Another installation over the first: the next process is the new one's.
    machine.run("rm", "/opt/shardbroker/manifest.json")
    refused = machine.run(PROGRAM, "install", check=False)
    assert "not of shardbroker install" in refused.stderr
    machine.run("sh", "-c", "echo '{}' > /opt/shardbroker/manifest.json")
    assert "now        environment" in machine.run(PROGRAM, "install", timeout_s=120).stdout
    machine.run("systemctl", "restart", "shardbroker")
    assert show(machine, "MainPID") != main
    output, _ = knocking.communicate(timeout=60)
    counts = eval(output)
    assert set(counts) == {"in"}, counts


def test_a_hanging_worker_is_noticed_and_the_broker_started_again(machine: Machine) -> None:
    machine.run("mkdir", "-p", "/etc/systemd/system/shardbroker.service.d")
    machine.run("sh", "-c", "printf '[Service]\\nWatchdogSec=15\\n' > /etc/systemd/system/shardbroker.service.d/test.conf")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "shardbroker")
    main = show(machine, "MainPID")
    machine.run("kill", "-STOP", worker(machine))
    until(lambda: show(machine, "MainPID") not in ("0", main) and show(machine, "ActiveState") == "active", machine, 120)
    journal = machine.run("journalctl", "-u", "shardbroker", "--no-pager").stdout
    assert "processes hang" in journal
    assert show(machine, "NRestarts") == "1"


def test_a_socket_unit_holds_the_port(machine: Machine) -> None:
    machine.run("systemctl", "stop", "shardbroker")
    machine.run("systemctl", "start", "shardbroker.socket")
    assert machine.run(sys.executable, "-c", CLIENT, "1").stdout.startswith("{'in': "), "the first connection starts the service"
    assert show(machine, "ActiveState") == "active"
    machine.run("systemctl", "stop", "shardbroker.socket", "shardbroker")


def test_an_instance_beside_it(machine: Machine) -> None:
    machine.run("sh", "-c", f"sed 's/127.0.0.1:1883/127.0.0.1:2883/' {CONFIGURATION} > /etc/shardbroker/edge.toml")
    machine.run("chgrp", "shardbroker", "/etc/shardbroker/edge.toml")
    machine.run("systemctl", "start", "shardbroker", "shardbroker@edge")
    assert machine.run("systemctl", "show", "--value", "-p", "ControlGroup", "shardbroker@edge").stdout.strip() == (
        "/shardbroker.slice/shardbroker-edge.slice/shardbroker@edge.service"
    )
    machine.run("systemctl", "stop", "shardbroker@edge")
    assert show(machine, "ActiveState") == "active", "what one instance leaves behind is not the other's"
    assert machine.run(sys.executable, "-c", CLIENT, "0.3").stdout.startswith("{'in': ")


def test_uninstall_leaves_configuration_and_data(machine: Machine) -> None:
    said = machine.run("/opt/shardbroker/bin/shardbroker", "uninstall").stdout
    assert "Kept: /etc/shardbroker, /var/lib/shardbroker" in said
    left = machine.run("find", "/opt", "/etc/systemd/system", "/etc/sysctl.d", "/usr/local/bin", "-name", "*shardbroker*").stdout
    assert set(left.split()) <= {"/etc/systemd/system/shardbroker.service.d"}, "a drop-in is its owner's"
    assert machine.run("systemctl", "list-units", "--no-legend", "--state=active", "shardbroker*").stdout == ""
    for path in (CONFIGURATION, "/var/lib/shardbroker/journal"):
        machine.run("test", "-e", path)
