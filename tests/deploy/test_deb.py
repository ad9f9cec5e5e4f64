"""The Debian package: its contents, and under a real systemd installation, upgrade, removal and purge."""

import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import deb
from shardbroker.cli.main import main
from shardbroker.cli.manual import manual
from tests.deploy.machine import ROOT, Machine, why_not

pytestmark = [
    pytest.mark.own_broker,
    pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg"),
    pytest.mark.skipif(not deb.PYTHON.exists(), reason=f"needs {deb.PYTHON}"),
    pytest.mark.timeout(600),
]

CONFIGURATION = "/etc/shardbroker/shardbroker.toml"
PUBLISH = """
import socket, sys
with socket.create_connection(("127.0.0.1", 1883), 20) as end:
    end.sendall(bytes([16, 12, 0, 4]) + b"MQTT" + bytes([4, 2, 0, 0, 0, 0]))
    assert end.recv(4) == bytes([32, 2, 0, 0])
    end.sendall(bytes([0x33, 8, 0, 3]) + b"t/r" + bytes([0, 1, 55]))    # QoS 1, retained
    print(end.recv(4))
"""

NEWER = """
cd /run/package
dpkg-deb -R shardbroker.deb new
sed -i 's/^Version: .*/Version: 9.0/' new/DEBIAN/control
echo '# new' >> new/lib/systemd/system/shardbroker.service
dpkg-deb -Znone -b new new.deb
rm -r new
"""
"""Makes a package of a later version."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("deb")
    os.umask(0o077)
    try:
        command = [sys.executable, ROOT / "scripts/deb.py", "--out", out, "--compression", "none"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        os.umask(0o022)
    assert done.returncode == 0, done.stderr
    (file,) = out.iterdir()
    assert done.stdout == f"{file}\n"
    return file


def test_files_are_where_packages_put_them(package: Path) -> None:
    reader = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE, check=True)
    with tarfile.open(fileobj=io.BytesIO(reader.stdout)) as archive:
        entries = {entry.name.removeprefix("./").rstrip("/"): entry for entry in archive}
    for name, entry in entries.items():
        assert (entry.uid, entry.gid) == (0, 0), name
        assert entry.issym() or not entry.mode & (stat.S_IWGRP | stat.S_IWOTH | stat.S_ISUID | stat.S_ISGID), name
        assert entry.issym() or entry.mode & 0o004 or name == CONFIGURATION[1:], name
    names = {name for name in entries if not name.startswith("usr/lib/shardbroker/lib")}
    assert {name for name in names if not entries[name].isdir()} == {
        "etc/shardbroker/shardbroker.toml",
        *(f"lib/systemd/system/shardbroker{unit}" for unit in (".service", "@.service", ".socket", ".slice")),
        "usr/bin/shardbroker",
        *(f"usr/lib/shardbroker/bin/{one}" for one in ("python", "python3", deb.PYTHON.name, "shardbroker")),
        "usr/lib/shardbroker/pyvenv.cfg",
        "usr/lib/sysctl.d/60-shardbroker.conf",
        "usr/lib/sysusers.d/shardbroker.conf",
        "usr/lib/tmpfiles.d/shardbroker.conf",
        *(f"usr/share/man/{name}.gz" for name in manual(main)),
        *(f"usr/share/doc/shardbroker/{one}" for one in ("CHANGELOG.md.gz", "changelog.gz", "copyright")),
    }
    assert not [name for name in entries if name.endswith((".pyx", ".c"))]
    fields = subprocess.check_output(["dpkg-deb", "--field", package], text=True)
    assert f"Depends: {deb.PYTHON.name}, libc6 (>= 2." in fields


@pytest.fixture(scope="module")
def machine(package: Path) -> Iterator[Machine]:
    if why_not():
        pytest.skip(f"no machine can be booted: {why_not()}")
    with Machine() as booted:
        # Container images forbid services; the packages are on this machine, not on that one.
        booted.run("rm", "-f", "/usr/sbin/policy-rc.d")
        booted.run("mkdir", "/run/package")
        with package.open("rb") as file:
            booted.run("sh", "-c", "cat > /run/package/shardbroker.deb", stdin=file)
        yield booted


def shown(machine: Machine, name: str) -> str:
    return machine.run("systemctl", "show", "--value", "-p", name, "shardbroker").stdout.strip()


def test_it_is_installed_upgraded_removed_and_purged(machine: Machine) -> None:
    machine.run("dpkg", "--install", "/run/package/shardbroker.deb", timeout_s=180)
    assert machine.run("systemctl", "is-enabled", "shardbroker").stdout == "enabled\n"
    assert shown(machine, "ActiveState") == "active"
    assert machine.run("stat", "-c", "%U:%G %a", CONFIGURATION).stdout == "root:shardbroker 640\n"
    assert machine.run("stat", "-c", "%U:%G %a", "/var/lib/shardbroker").stdout == "shardbroker:shardbroker 700\n"
    assert "bytes" not in machine.run("dpkg", "--verify", "shardbroker").stdout
    assert machine.run(sys.executable, "-c", PUBLISH).stdout == "b'@\\x02\\x00\\x01'\n"
    assert "0.1.0" in machine.run("/usr/bin/shardbroker", "ctl", "status").stdout

    # A new version keeps a changed configuration and its owner, data, and takes the place of the running broker.
    machine.run("sed", "-i", "s/^# max_mqueue_len = 1000/max_mqueue_len = 77/", CONFIGURATION)
    machine.run("sh", "-c", NEWER, timeout_s=180)
    main = shown(machine, "MainPID")
    machine.run("dpkg", "--install", "/run/package/new.deb", timeout_s=180)
    assert (shown(machine, "ActiveState"), shown(machine, "NeedDaemonReload")) == ("active", "no")
    assert shown(machine, "MainPID") != main
    assert "77" in machine.run("shardbroker", "ctl", "config", "get", "mqtt.max_mqueue_len").stdout
    assert machine.run("stat", "-c", "%U:%G %a", CONFIGURATION).stdout == "root:shardbroker 640\n"
    assert "t/r" in machine.run("shardbroker", "ctl", "retained", "list").stdout

    # A broker that was stopped stays so.
    machine.run("systemctl", "disable", "--now", "shardbroker")
    machine.run("dpkg", "--install", "/run/package/new.deb", timeout_s=180)
    assert (shown(machine, "ActiveState"), shown(machine, "UnitFileState")) == ("inactive", "disabled")

    machine.run("systemctl", "start", "shardbroker")
    machine.run("dpkg", "--remove", "shardbroker", timeout_s=120)
    assert shown(machine, "ActiveState") == "inactive"
    assert machine.run("ls", "/usr/lib/shardbroker", check=False).returncode
    assert "max_mqueue_len = 77" in machine.run("cat", CONFIGURATION).stdout
    purged = machine.run("dpkg", "--purge", "shardbroker").stdout
    assert "rm -r /var/lib/shardbroker" in purged
    assert machine.run("ls", "/etc/shardbroker", check=False).returncode
    assert machine.run("ls", "/var/lib/shardbroker/journal").stdout
    state = machine.run("find", "/etc/systemd", "/var/lib/systemd", "-name", "shardbroker*").stdout
    assert state == ""


def test_it_is_not_put_over_what_install_has_made(machine: Machine) -> None:
    machine.run("sh", "-c", "touch /etc/systemd/system/shardbroker.service")
    try:
        refused = machine.run("dpkg", "--install", "/run/package/shardbroker.deb", check=False, timeout_s=120)
    finally:
        machine.run("rm", "/etc/systemd/system/shardbroker.service")
    assert refused.returncode
    assert "remove it with\n`shardbroker uninstall`" in refused.stderr
    assert machine.run("ls", "/usr/lib/shardbroker", check=False).returncode
