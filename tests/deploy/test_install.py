"""`shardbroker install --root`: the tree, file by file."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbroker.deploy.environment import CopyError, choose_python, plan

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives files to other users"),
    pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="needs systemd-sysusers"),
]

PROGRAM = Path(sys.executable).with_name("shardbroker")
TREE = {
    "etc/shardbroker": "root:shardbroker 0750",
    "etc/shardbroker/shardbroker.toml": "root:shardbroker 0640",
    "etc/sysctl.d/60-shardbroker.conf": "root:root 0644",
    "etc/systemd/system/shardbroker-export.service": "root:root 0644",
    "etc/systemd/system/shardbroker-export.timer": "root:root 0644",
    "etc/systemd/system/shardbroker.service": "root:root 0644",
    "etc/systemd/system/shardbroker.slice": "root:root 0644",
    "etc/systemd/system/shardbroker.socket": "root:root 0644",
    "etc/systemd/system/shardbroker@.service": "root:root 0644",
    "etc/sysusers.d/shardbroker.conf": "root:root 0644",
    "etc/tmpfiles.d/shardbroker.conf": "root:root 0644",
    "opt/shardbroker": "root:root 0755",
    "opt/shardbroker/bin": "root:root 0755",
    "opt/shardbroker/bin/shardbroker": "root:root 0755",
    "opt/shardbroker/manifest.json": "root:root 0644",
    "opt/shardbroker/pyvenv.cfg": "root:root 0644",
    "usr/local/bin/shardbroker": "-> /opt/shardbroker/bin/shardbroker",
    "usr/local/share/man/man1/shardbroker-ctl.1.gz": "root:root 0644",
    "usr/local/share/man/man1/shardbroker.1.gz": "root:root 0644",
    "usr/local/share/man/man5/shardbroker.toml.5.gz": "root:root 0644",
    "var/lib/shardbroker": "shardbroker:shardbroker 0700",
    "var/lib/shardbroker-export": "shardbroker:shardbroker 0750",
}
"""All but the interpreter and the libraries, and what systemd-sysusers writes."""
NOT_OURS = ("etc/passwd", "etc/group", "etc/shadow", "etc/gshadow", "etc/.pwd.lock")


def run(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(PROGRAM), *arguments], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("image")
    (root / "etc").mkdir()
    os.umask(0o077)
    try:
        done = run("install", "--root", str(root))
    finally:
        os.umask(0o022)
    assert done.returncode == 0, done.stderr
    yield root


def names(root: Path) -> dict[int, str]:
    lines = (root / "etc/passwd").read_text().splitlines() + (root / "etc/group").read_text().splitlines()
    found = {int(line.split(":")[2]): "shardbroker" for line in lines if line.startswith("shardbroker:")}
    assert found, lines
    return found | {0: "root"}


def described(root: Path, path: Path) -> str:
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    status, known = path.stat(), names(root)
    return f"{known.get(status.st_uid, status.st_uid)}:{known.get(status.st_gid, status.st_gid)} {stat.S_IMODE(status.st_mode):04o}"


def test_every_file_has_its_place_owner_and_mode(image: Path) -> None:
    found = {}
    for path in image.rglob("*"):
        name = str(path.relative_to(image))
        empty_way = path.is_dir() and not path.is_symlink() and name not in TREE and any(path.iterdir())
        interpreter = name.startswith(("opt/shardbroker/lib", "opt/shardbroker/include", "opt/shardbroker/bin/python"))
        if name not in NOT_OURS and not empty_way and not interpreter:
            found[name] = described(image, path)
    assert found == TREE


def test_the_environment_can_be_read_by_everybody_and_written_by_root_only(image: Path) -> None:
    for path in (image / "opt/shardbroker").rglob("*"):
        if path.is_symlink():
            continue
        status = path.stat()
        assert (status.st_uid, status.st_gid) == (0, 0), path
        assert stat.S_IMODE(status.st_mode) in ((0o755,) if path.is_dir() else (0o644, 0o755)), path
    for text in ("opt/shardbroker/bin/shardbroker", "opt/shardbroker/pyvenv.cfg"):
        assert str(image) not in (image / text).read_text(), "the place where the image was made is not where it is used"


def test_what_can_be_run_can_be_run_in_the_copy(image: Path) -> None:
    """Such as Spark's own programs, without which the export timer could do nothing."""
    (packages,) = (image / "opt/shardbroker/lib").glob("python*/site-packages")
    programs = [name for name, (source, _) in plan().items() if source.stat().st_mode & 0o100]
    assert programs
    for name in programs:
        assert stat.S_IMODE((packages / name).stat().st_mode) == 0o755, name


def test_the_copy_runs(image: Path) -> None:
    programs, config = image / "opt/shardbroker/bin", image / "etc/shardbroker/shardbroker.toml"
    done = subprocess.run(
        [str(programs / "python"), str(programs / "shardbroker"), "config", "check", "--config", str(config)],
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "configuration is valid\n"), done.stderr


def test_a_second_time_changes_nothing_and_keeps_the_configuration(image: Path) -> None:
    own = image / "etc/shardbroker/shardbroker.toml"
    own.write_text("# mine\n")
    again = run("install", "--root", str(image))
    assert again.returncode == 0, again.stderr
    assert "  now  " not in again.stdout
    assert own.read_text() == "# mine\n"
    unit = image / "etc/systemd/system/shardbroker.service"
    unit.write_text("[Service]\n")
    dry = run("install", "--root", str(image), "--dry-run")
    assert "would      replace /etc/systemd/system/shardbroker.service" in dry.stdout
    assert unit.read_text() == "[Service]\n"
    assert "now        replace /etc/systemd/system/shardbroker.service" in run("install", "--root", str(image)).stdout
    assert "ExecStart=" in unit.read_text()


def test_a_dry_run_does_nothing(tmp_path: Path) -> None:
    done = run("install", "--root", str(tmp_path), "--dry-run", "--prefix", "/srv/mqtt")
    assert done.returncode == 0, done.stderr
    assert "would      environment /srv/mqtt" in done.stdout
    assert not any(tmp_path.iterdir())


def test_what_is_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "opt/shardbroker").mkdir(parents=True)
    (tmp_path / "opt/shardbroker/mine").touch()
    for arguments, text in (
        (("--root", str(tmp_path)), "is not of shardbroker install: choose another --prefix"),
        (("--root", str(tmp_path / "nowhere")), "no such directory"),
        (("--root", str(tmp_path), "--prefix", "here"), "--prefix: must be an absolute path"),
        (("--root", str(tmp_path), "--prefix", "/srv/my broker"), "without blanks"),
        (("--root", str(tmp_path), "--prefix", "/srv/mqtt", "--python", "/bin/true"), "Name one with --python"),
    ):
        done = run("install", *arguments)
        assert done.returncode == 1
        assert text in done.stderr
        assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["opt"]


def test_without_rights_it_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from shardbroker.deploy import InstallError, Target, install

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InstallError, match="run it with sudo"):
        install(Target(tmp_path), lambda text: None)


def test_a_python_in_a_home_directory_is_no_good_for_a_service() -> None:
    with pytest.raises(CopyError, match="lies in a home directory, which the service does not see"):
        choose_python("/root/bin/python3")


def test_what_it_needs_is_looked_for_before_anything_is_done(tmp_path: Path) -> None:
    done = run("install", "--root", str(tmp_path), env={"PATH": "/nonexistent"})
    assert done.returncode == 1
    assert "systemd-sysusers is not there: it is part of the package systemd" in done.stderr
    assert not any(tmp_path.iterdir())


def test_who_reads_its_first_line_only_sees_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{PROGRAM} install --dry-run --root {tmp_path} | head -n 1", shell=True, capture_output=True, text=True, check=False
    )
    assert "environment" in done.stdout
    assert done.stderr == ""


def test_uninstall_leaves_what_is_the_owners(image: Path) -> None:
    assert "would      remove /opt/shardbroker" in run("uninstall", "--root", str(image), "--dry-run").stdout
    done = run("uninstall", "--root", str(image))
    assert done.returncode == 0, done.stderr
    left = {str(path.relative_to(image)) for path in image.rglob("*") if path.is_file()}
    assert left - set(NOT_OURS) == {"etc/shardbroker/shardbroker.toml"}
    assert (image / "var/lib/shardbroker").is_dir()
    assert run("uninstall", "--root", str(image)).returncode == 0, "once more: there is nothing to do"
