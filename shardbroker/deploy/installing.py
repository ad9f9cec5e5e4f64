"""The steps of an installation: each is printed, and run unless it is already done."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shardbroker.deploy.environment import CopyError, Plan, build, choose_python, manifest, manifest_of, plan
from shardbroker.deploy.install_layout import (
    CONFIGURATION,
    DEFAULT_PREFIX,
    DIRECTORIES,
    LINK,
    SYSCTL,
    SYSUSERS,
    UNITS,
    USER,
    placed_files,
)
from shardbroker.stores.files import replace_file

__all__ = ["InstallError", "Target", "install", "uninstall"]

PACKAGES = {
    "restorecon": "policycoreutils",
    "systemctl": "systemd",
    "systemd-sysusers": "systemd",
    "sysctl": "procps (Fedora: procps-ng)",
}
"""Packages of the required programs, as named by Debian and Fedora."""
STOPPED = (
    "shardbroker-export.timer",
    "shardbroker-export.service",
    "shardbroker.socket",
    "shardbroker.service",
    "shardbroker@*.service",
    "shardbroker.slice",
)
"""Stopped in this order by `uninstall`."""


class InstallError(Exception):
    """Not all steps were done, or none; the text has the obstacle."""


@dataclass(frozen=True)
class Target:
    """Target of the installation: the machine itself (`root` is /), or the root directory of an image."""

    root: Path = Path("/")
    prefix: str = DEFAULT_PREFIX
    dry_run: bool = False
    python: str | None = None
    manual: Mapping[str, str] = field(default_factory=dict)
    """Pages by file name."""

    @property
    def live(self) -> bool:
        """Returns whether the target is the running machine."""
        return self.root == Path("/")

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def check(self) -> None:
        """Checks the prefix. Raises InstallError."""
        if not self.prefix.startswith("/") or self.prefix.rstrip("/") == "":
            raise InstallError(f"--prefix: must be an absolute path below /, such as {DEFAULT_PREFIX}, got {self.prefix}")
        if any(character.isspace() or character in "%$\"'\\" for character in self.prefix):
            raise InstallError(f"--prefix: must be a path without blanks, quotes, % and $, for unit files, got {self.prefix}")
        if not self.root.is_dir():
            raise InstallError(f"--root {self.root}: no such directory")
        if os.geteuid() != 0 and not self.dry_run:
            raise InstallError("files get other owners, and units are root's: run it with sudo, or with --dry-run to see the steps")
        prefix = self.at(self.prefix)
        if prefix.exists() and manifest_of(prefix) is None and any(prefix.iterdir()):
            raise InstallError(f"{prefix} is there and is not of shardbroker install: choose another --prefix, or move it")


Step = tuple[str, Callable[[], None] | None]
"""Description of a step, and its action; None: already done."""


def install(target: Target, echo: Callable[[str], None]) -> None:
    """Installs the service. Raises InstallError."""
    target.check()
    for name in ("systemd-sysusers", *(("systemctl", "sysctl") if target.live else ())):
        if shutil.which(name) is None:
            raise InstallError(f"{name} is not there: it is part of the package {PACKAGES[name]}")
    _carry_out(_install_steps(target), target, echo)
    echo("")
    if target.live:
        echo(f"Next: look at {CONFIGURATION}, then")
        echo("    systemctl enable --now shardbroker      # or systemctl restart shardbroker after an upgrade")
        echo("    shardbroker ctl status")
    else:
        echo(f"The image at {target.root} has the service; enable it there: systemctl --root={target.root} enable shardbroker")


def uninstall(target: Target, echo: Callable[[str], None]) -> None:
    """Removes the service, but not configuration, data and user. Raises InstallError."""
    target.check()
    _carry_out(_uninstall_steps(target), target, echo)
    kept = [path for path in ("/etc/shardbroker", *(one.path for one in DIRECTORIES[1:])) if target.at(path).exists()]
    echo("")
    echo(f"Kept: {', '.join(kept) or 'nothing'}, and the user {USER}. To remove them too: rm -r {' '.join(kept)}; userdel {USER}")


def _carry_out(steps: Iterator[Step], target: Target, echo: Callable[[str], None]) -> None:
    for text, action in steps:
        if action is None:
            echo(f"  as it is   {text}")
        elif target.dry_run:
            echo(f"  would      {text}")
        else:
            echo(f"  now        {text}")
            try:
                action()
            except CopyError as error:
                raise InstallError(str(error)) from None
            except OSError as error:
                raise InstallError(f"{text}: {error.strerror or error}: {error.filename or ''}".rstrip(": ")) from None


def _install_steps(target: Target) -> Iterator[Step]:
    try:
        python, planned = choose_python(target.python), plan()
    except CopyError as error:
        raise InstallError(str(error)) from None
    prefix = target.at(target.prefix)
    same = manifest_of(prefix) == manifest(planned, python)
    text = f"environment {target.prefix}, {len(planned)} files, with {python}"
    yield text, None if same else lambda: _replace_environment(planned, python, prefix, target.prefix)
    yield _link_step(target)
    files = placed_files(target.prefix, target.manual)
    for file in files:
        if file.path != SYSUSERS:
            continue
        yield _file_step(target, file.path, file.content, file.mode, file.keep, lambda: (0, 0))
    yield _user_step(target)
    for directory in DIRECTORIES:
        path = target.at(directory.path)
        owner, group, mode = directory.owner, directory.group, directory.mode
        known = target.dry_run and _ids(target, USER) is None
        done = not known and path.is_dir() and _state(path) == (*_owner(target, owner, group), mode)
        yield (
            f"directory {directory.path}, {owner}:{group} {mode:04o}",
            None if done else lambda p=path, o=owner, g=group, m=mode: _make_directory(p, _owner(target, o, g), m),  # type: ignore[misc]
        )
    for file in files:
        if file.path != SYSUSERS:
            yield _file_step(
                target,
                file.path,
                file.content,
                file.mode,
                file.keep,
                lambda g=file.group: _owner(target, "root", g),  # type: ignore[misc]
            )
    if target.live:
        if _has_selinux():
            # Copies keep the label of their source; units may only run programs with the label of a program.
            labelled = (target.prefix, "/etc/shardbroker", *(one.path for one in DIRECTORIES[1:]))
            yield f"restorecon -R {' '.join(labelled)}", lambda: _run("restorecon", "-R", *labelled)
        yield "systemctl daemon-reload", lambda: _run("systemctl", "daemon-reload")
        yield f"sysctl -p {SYSCTL}", lambda: _run("sysctl", "-q", "-p", SYSCTL)


def _uninstall_steps(target: Target) -> Iterator[Step]:
    if target.live and target.at(f"/etc/systemd/system/{UNITS[0]}").exists():
        yield f"stop and disable {', '.join(STOPPED)}", _stop_units
    for file in placed_files(target.prefix, target.manual):
        path = target.at(file.path)
        if not file.keep:
            yield f"remove {file.path}", path.unlink if path.exists() else None
    link = target.at(LINK)
    ours = link.is_symlink() and os.readlink(link) == f"{target.prefix}/bin/shardbroker"
    yield f"remove {LINK}", link.unlink if ours else None
    prefix = target.at(target.prefix)
    yield f"remove {target.prefix}", (lambda: shutil.rmtree(prefix)) if manifest_of(prefix) is not None else None
    if target.live:
        yield "systemctl daemon-reload", lambda: _run("systemctl", "daemon-reload")


def _replace_environment(planned: Plan, python: Path, prefix: Path, shown: str) -> None:
    """Replaces the environment once the new one is complete: until then a running broker has its files, and afterwards the open
    ones."""
    new, old = prefix.with_name(prefix.name + ".new"), prefix.with_name(prefix.name + ".old")
    for left in (new, old):
        if left.exists():
            shutil.rmtree(left)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    build(planned, python, new, shown)
    if prefix.exists():
        prefix.rename(old)
    new.rename(prefix)
    if old.exists():
        shutil.rmtree(old)


def _link_step(target: Target) -> Step:
    link, program = target.at(LINK), f"{target.prefix}/bin/shardbroker"
    if link.is_symlink() and os.readlink(link) == program:
        return f"link {LINK} -> {program}", None
    if link.exists() and not link.is_symlink():
        raise InstallError(f"{LINK} is there and is no link: move it away")

    def make() -> None:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(program)

    return f"link {LINK} -> {program}", make


def _file_step(target: Target, shown: str, content: bytes, mode: int, keep: bool, owner: Callable[[], tuple[int, int]]) -> Step:
    path = target.at(shown)
    if path.exists():
        if keep or (path.read_bytes() == content and _state(path)[2] == mode):
            return f"{shown}{', which is kept' if keep else ''}", None
        text = f"replace {shown}"
    else:
        text = f"write {shown}, {mode:04o}"

    def write() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content, mode=mode, owner=owner())

    return text, write


def _user_step(target: Target) -> Step:
    def make() -> None:
        where = [] if target.live else [f"--root={target.root}"]
        _run("systemd-sysusers", *where, Path(SYSUSERS).name)
        if _ids(target, USER) is None:
            raise InstallError(f"systemd-sysusers made no user {USER}")

    return f"user and group {USER}", None if _ids(target, USER) is not None else make


def _ids(target: Target, name: str) -> tuple[int, int] | None:
    """Returns (user, group) of the target system, or None if there is no such user or group."""
    found = []
    for file in ("passwd", "group"):
        try:
            lines = target.at(f"/etc/{file}").read_text().splitlines()
        except OSError:
            return None
        ids = [int(line.split(":")[2]) for line in lines if line.split(":")[0] == name]
        if not ids:
            return None
        found.append(ids[0])
    return found[0], found[1]


def _owner(target: Target, owner: str, group: str) -> tuple[int, int]:
    ids = _ids(target, USER)
    if ids is None:
        raise InstallError(f"there is no user {USER} in {target.at('/etc/passwd')}")
    return 0 if owner == "root" else ids[0], 0 if group == "root" else ids[1]


def _state(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_uid, status.st_gid, status.st_mode & 0o7777


def _make_directory(path: Path, owner: tuple[int, int], mode: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, *owner)
    path.chmod(mode)


def _stop_units() -> None:
    for name in STOPPED:
        subprocess.run(["systemctl", "disable", "--now", name], capture_output=True, check=False)  # some were never enabled
        subprocess.run(["systemctl", "stop", name], capture_output=True, check=False)


def _has_selinux() -> bool:
    try:
        return subprocess.run(["selinuxenabled"], check=False).returncode == 0
    except FileNotFoundError:
        return False


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise InstallError(f"{command[0]} is not there: it is part of the package {PACKAGES[command[0]]}") from None
    if done.returncode:
        raise InstallError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
