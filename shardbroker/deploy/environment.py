"""A copy of the current environment: the same Python, the same distributions, file by file.

Nothing is downloaded or compiled, so the installed files are those that were tested. Compiled modules fit one version of Python
only, so the interpreter of the copy has the version of this one. A service must be able to reach the interpreter, so those in home
directories are not used.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from hashlib import sha256
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from shardbroker import PARTS

__all__ = ["CopyError", "Plan", "build", "choose_python", "manifest_of", "plan"]

MANIFEST = "manifest.json"
"""In the environment: the sources that it was built from. Its presence marks the directory as ours."""
PARTS_AT = Path("shardbroker", "parts")
"""Where a wheel has the packages beside `shardbroker`, and a copy too."""
EXPORT = "pyspark-shardbroker"
"""The distribution that `shardbroker export` needs; copied if it is installed."""
NOT_COPIED = {".c", ".pyx", ".pyc", ".h"}
"""Suffixes of files needed only to build."""
HOMES = ("/root", "/home", "/run/user")
"""Directories hidden from the service by ProtectHome=."""
PROGRAM = "shardbroker"
EXECUTABLE = 0o100
"""Mode bit. Spark includes programs that it starts."""
DEVELOPMENT = ("test", "dev", "fuzz")
"""Our extras that a service does not need."""
PROGRAM_TEXT = """\
import sys

from shardbroker.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
"""
_NAME = re.compile(r"[A-Za-z0-9._-]+")

Plan = dict[str, tuple[Path, str]]
"""Path below site-packages -> (source, digest)."""


class CopyError(Exception):
    """The environment cannot be copied; the text has the reason."""


def choose_python(wanted: str | None) -> Path:
    """Returns the interpreter for the copy. Raises CopyError."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if wanted is not None:
        candidates = [Path(wanted)]
    else:
        own = Path(sys.base_prefix) / "bin" / f"python{version}"
        candidates = [own, Path(f"/usr/bin/python{version}"), Path(f"/usr/local/bin/python{version}")]
    reasons = []
    for path in candidates:
        real = path.resolve()
        if any(real.is_relative_to(home) for home in HOMES):
            reasons.append(f"{path} lies in a home directory, which the service does not see")
        elif not os.access(real, os.X_OK):
            reasons.append(f"{path} is not there")
        elif (found := _version(path)) != version:
            reasons.append(f"{path} is Python {found}")
        else:
            return path
    raise CopyError(f"no Python {version} that a service can use: {'; '.join(reasons)}. Name one with --python")


def _version(python: Path) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or f"that prints {done.stderr.strip().splitlines()[-1:] or 'nothing'}"


def plan(export: bool = True) -> Plan:
    """Returns the files to copy: the broker and all its requirements, those of `shardbroker export` too if they are wanted. Raises
    CopyError."""
    found: Plan = {}
    own = Path(__file__).parents[2]
    needed = _needed([PROGRAM, EXPORT] if export else [PROGRAM])
    folders = {own / PROGRAM: Path(PROGRAM)} | {own / part: PARTS_AT / part for part in PARTS}
    if any(one.name == EXPORT for one in needed):
        package = EXPORT.replace("-", "_")
        folders[own / "spark" / package] = Path(package)
    for folder, place in folders.items():
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix not in NOT_COPIED and "__pycache__" not in path.parts:
                found[str(place / path.relative_to(folder))] = path, _digest(path)
    for one in needed:
        for file in one.files or ():
            source = Path(str(file.locate()))
            wanted = ".." not in file.parts and not file.name.startswith("__editable__") and source.suffix not in NOT_COPIED
            if wanted and source.is_file():
                found[str(file)] = source, _digest(source)
    return found


def _needed(pending: list[str]) -> list[Distribution]:
    """Returns the distribution itself (for its version) and all its installed requirements, including those of installed extras."""
    seen: dict[str, Distribution] = {}
    while pending:
        name = pending.pop()
        key = name.lower().replace("_", "-")
        if key in seen:
            continue
        try:
            seen[key] = found = distribution(name)
        except PackageNotFoundError:
            continue
        for requirement in _declared() if name == PROGRAM and _declared() else found.requires or ():
            extra = re.search(r"extra == ['\"](\w+)['\"]", requirement)
            if extra and (name != PROGRAM or extra[1] in DEVELOPMENT):
                continue
            match = _NAME.match(requirement)
            if match:
                pending.append(match[0])
    if PROGRAM not in seen:
        raise CopyError(f"{PROGRAM} is not installed in the environment of {sys.executable}: run its own bin/shardbroker")
    own = seen.pop(PROGRAM)
    return [*seen.values(), _Metadata(own)]


def _declared() -> list[str]:
    """Returns the requirements of a source tree, which its installed metadata may lag behind; empty outside of a source tree."""
    try:
        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    except (OSError, tomllib.TOMLDecodeError, KeyError):
        return []
    extras = [one for name, listed in project["optional-dependencies"].items() if name not in DEVELOPMENT for one in listed]
    return [*project["dependencies"], *extras]


class _Metadata(Distribution):
    """Our own distribution reduced to name and version: its packages are copied from their source directories."""

    def __init__(self, own: Distribution) -> None:
        self._own = own

    @property
    def files(self):  # type: ignore[no-untyped-def]
        kept = ("METADATA", "entry_points.txt", "WHEEL", "top_level.txt")
        return [file for file in self._own.files or () if file.name in kept and file.parent.name.endswith(".dist-info")]

    def read_text(self, filename: str) -> str | None:
        return self._own.read_text(filename)

    def locate_file(self, path):  # type: ignore[no-untyped-def]
        return self._own.locate_file(path)


def manifest_of(prefix: Path) -> dict[str, object] | None:
    """Returns the manifest of the environment, or None if it is not one of ours."""
    try:
        found: dict[str, object] = json.loads((prefix / MANIFEST).read_text())
    except (OSError, ValueError):
        return None
    return found


def manifest(planned: Plan, python: Path) -> dict[str, object]:
    return {"python": str(python), "files": {name: digest for name, (_, digest) in planned.items()}}


def build(planned: Plan, python: Path, at: Path, prefix: str) -> None:
    """Builds the environment in the new directory `at`, for later use at `prefix`. Raises CopyError."""
    command = [str(python), "-m", "venv", "--without-pip", "--symlinks", str(at)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CopyError(f"{python} -m venv: {(done.stderr or done.stdout).strip()}")
    for name in ("activate", "activate.csh", "activate.fish", "Activate.ps1"):
        (at / "bin" / name).unlink(missing_ok=True)  # they contain the path where they were made
    packages = at / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for name, (source, _) in planned.items():
        place = packages / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)
        if source.stat().st_mode & EXECUTABLE:
            place.chmod(EXECUTABLE)
    program = at / "bin" / PROGRAM
    program.write_text(f"#!{prefix}/bin/python\n{PROGRAM_TEXT}")
    config = at / "pyvenv.cfg"
    kept = [line for line in config.read_text().splitlines() if not line.startswith("command")]
    config.write_text("\n".join(kept) + "\n")
    compiled = [str(at / "bin" / "python"), "-I", "-m", "compileall", "-q", "-j", "1", "-s", str(at), "-p", prefix, str(packages)]
    subprocess.run(compiled, capture_output=True, check=False)  # without it a start is slower, with no other effect
    _try(at)
    _set_modes(at)
    (at / MANIFEST).write_text(json.dumps(manifest(planned, python)))
    (at / MANIFEST).chmod(0o644)


def _try(at: Path) -> None:
    """Checks that the whole broker can be loaded from the copy. Raises CopyError."""
    code = "import shardbroker; from shm.roles import ROLES, load; [load(role.entry) for role in ROLES if not role.loads_late]"
    done = subprocess.run([str(at / "bin" / "python"), "-I", "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it prints nothing"])[-1]
        raise CopyError(f"the copy does not run: {last}. Is everything installed here? In a source tree: make install")


def _set_modes(at: Path) -> None:
    """Lets all users read and run files, whatever the umask, and only root write them."""
    for path in (at, *at.rglob("*")):
        if path.is_symlink():
            continue
        runs = path.stat().st_mode & EXECUTABLE or path.parent == at / "bin" or ".so" in path.suffixes
        path.chmod(0o755 if path.is_dir() or runs else 0o644)


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:16]
