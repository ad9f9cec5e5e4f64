"""The units as systemd judges them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from shardbroker.cli.main import main
from shardbroker.cli.manual import manual
from shardbroker.deploy.install_layout import CONFIGURATION, DEFAULT_PREFIX, DIRECTORIES, UNITS, placed_files

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")

FILES = Path(__file__).parents[2] / "systemd"
EXPOSURE_MAX = 2.0
INSTANCE = {
    "Description=shardbroker MQTT broker": "Description=shardbroker MQTT broker, instance %i",
    CONFIGURATION: "/etc/shardbroker/%i.toml",
    "--data-dir /var/lib/shardbroker": "--data-dir /var/lib/shardbroker/%i",
    "Slice=shardbroker.slice": "Slice=shardbroker-%i.slice",
    "StateDirectory=shardbroker\n": "StateDirectory=shardbroker/%i\n",
    "RuntimeDirectory=shardbroker\n": "RuntimeDirectory=shardbroker/%i\n",
}
"""All that an instance has of its own."""


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_finds_nothing_wrong(unit: str, tmp_path: Path) -> None:
    program = tmp_path / "opt" / "bin" / "shardbroker"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for file in placed_files(str(tmp_path / "opt"), {}):
        if Path(file.path).name in UNITS:
            (tmp_path / Path(file.path).name).write_bytes(file.content)
    name = unit.replace("@.", "@edge.")
    if name != unit:
        (tmp_path / unit).rename(tmp_path / name)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
        capture_output=True, text=True, check=False, env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if "shardbroker" in line]
    assert not ours
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.endswith(".service")])
def test_exposure(unit: str, tmp_path: Path) -> None:
    place = tmp_path / unit.replace("@.", "@edge.")
    place.write_bytes((FILES / "system" / unit).read_bytes())
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) <= EXPOSURE_MAX, done.stdout


def test_an_instance_differs_in_its_places_only() -> None:
    text = (FILES / "system" / "shardbroker.service").read_text()
    for one, other in INSTANCE.items():
        assert one in text
        text = text.replace(one, other)
    assert text == (FILES / "system" / "shardbroker@.service").read_text()


def test_another_prefix_is_in_every_unit() -> None:
    for file in placed_files("/srv/mqtt", manual(main)):
        assert DEFAULT_PREFIX.encode() not in file.content, file.path


def test_directories_are_those_of_tmpfiles() -> None:
    lines = (FILES / "tmpfiles.d" / "shardbroker.conf").read_text().split("\n")
    assert [line.split() for line in lines if line] == [
        ["d", one.path, f"{one.mode:04o}", one.owner, one.group] for one in DIRECTORIES
    ]
