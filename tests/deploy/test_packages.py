"""scripts/packages on machines that lack something: what it installs, what it leaves out, and what it refuses."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "dirname", "env", "flock", "mkdir", "sort", "tr", "cc", "gcc")
SUDO = '#!/bin/sh\necho "$@" >>{log}\n'
REFUSED = "#!/bin/sh\nexit 1\n"


def machine(path: Path, *tools: str, **commands: str) -> None:
    """A directory for PATH with only these commands; whoever runs them is not root."""
    for name in tools:
        (path / name).symlink_to(subprocess.check_output(["which", name], text=True).strip())
    for name, text in {"id": "#!/bin/sh\necho 1000\n", **commands}.items():
        (path / name).write_text(text)
        (path / name).chmod(0o755)


def packages(path: Path, level: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    environment |= {"PATH": str(path), "PYTHON": str(Path(sys.executable).resolve())}
    return subprocess.run([ROOT / "scripts/packages", level, *arguments], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("commands", [{}, {"apt-get": SUDO, "sudo": REFUSED}])
def test_what_may_not_be_installed_is_left_out_by_name(tmp_path: Path, commands: dict[str, str]) -> None:
    """Without apt, and without the right to use it; `make serve` wants none of that."""
    machine(tmp_path, *TOOLS, **commands)
    done = packages(tmp_path, "serve")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = packages(tmp_path, "test", str(tmp_path / "out"))
    assert done.returncode == 0
    assert "make test: left out: browsers; to add it: sudo apt-get install chromium\n" in done.stderr
    assert "browsers: chromium\n" in (tmp_path / "out").read_text()
    assert packages(tmp_path, "test", CI="true").returncode == 1


def test_a_required_package_is_missing(tmp_path: Path) -> None:
    machine(tmp_path, *(name for name in TOOLS if name not in ("cc", "gcc")))
    done = packages(tmp_path, "serve")
    assert done.returncode == 1
    assert done.stderr == "make serve: missing, and required; to add it: sudo apt-get install gcc libc6-dev\n"


def test_fuzzing_requires_clang_and_nothing_of_the_tests(tmp_path: Path) -> None:
    machine(tmp_path, *TOOLS)
    done = packages(tmp_path, "fuzz")
    assert done.returncode == 1
    assert "make fuzz: missing, and required; to add it: sudo apt-get install clang libclang-rt-dev\n" in done.stderr
    assert "chromium" not in done.stderr
    assert "clang" not in packages(tmp_path, "test").stderr


def test_sudo_without_a_password_is_used_and_said(tmp_path: Path) -> None:
    log = tmp_path / "log"
    machine(tmp_path, *TOOLS, **{"apt-get": REFUSED, "sudo": SUDO.format(log=log)})
    done = packages(tmp_path, "test", SYSTEM_PACKAGES="no")
    assert "installing" not in done.stderr and not log.exists()
    done = packages(tmp_path, "test")
    said = re.search("installing system packages for make test: (.*)", done.stderr)
    assert said and "chromium" in said[1].split()
    (installed,) = re.findall(r"apt-get install -y -qq --no-remove (.*)", log.read_text())
    assert installed.split() == said[1].split()
    assert log.read_text().splitlines()[-1].endswith("rm -f /usr/sbin/policy-rc.d") or Path("/usr/sbin/policy-rc.d").exists()


def test_the_file_is_written_only_when_it_changes(tmp_path: Path) -> None:
    """make builds again when it is newer."""
    machine(tmp_path, *TOOLS)
    file = tmp_path / "out"
    packages(tmp_path, "test", str(file))
    os.utime(file, (1, 1))
    packages(tmp_path, "test", str(file))
    assert file.stat().st_mtime == 1
    packages(tmp_path, "serve", str(file))
    assert file.stat().st_mtime > 1 and file.read_text() == "\n"


def test_ci_calls_nothing_but_make() -> None:
    lines = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.match(r"(set -euo|cd |export CI=true |make )", line) for line in lines), lines
