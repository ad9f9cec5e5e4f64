"""Builds what a release has: `make release`, or `python scripts/release.py --out DIR`.

    shardbroker-<version>-<python>-manylinux_*.whl    runs on any Linux with a libc no older than this machine's
    shardbroker-<version>.tar.gz                      the sources; compiled where they are installed
    shardbroker-<version>.cdx.json                    bill of materials, CycloneDX: the wheel with all its extras, as installed
    SHA256SUMS                                        for `sha256sum --check`

Modules that `make tools` has compiled are not compiled again. Requirements are installed once, in an environment that is removed.
Release workflows pass wheels of other Pythons and machines by --wheels: one bill and one list of sums are made for all.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUMS = "SHA256SUMS"
DEVELOPMENT = ("test", "dev", "fuzz")
"""Extras that are no part of a release."""
BUILT_ON_INSTALLATION = ("ldap",)
"""Extras with C that needs headers of the system: they are where those are, and are not in the bill."""
SPEC = "1.6"
"""Version of CycloneDX."""


class ReleaseError(Exception):
    """A part of a release cannot be made; the text has the output of the program that failed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Builds the parts and prints their paths."""
    parser = argparse.ArgumentParser(description="Build wheel, source distribution, bill of materials and checksums.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR", help="default: dist")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="take the wheels of this directory instead of building one")
    parser.add_argument("--only", choices=("wheel", "sdist", "sums"), help="this part alone")
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        for file in release(arguments.out.resolve(), arguments.wheels, arguments.only):
            print(file)
    except ReleaseError as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    return 0


def release(out: Path, wheels: Path | None, only: str | None) -> list[Path]:
    """Builds the parts into `out`, and returns them. Raises ReleaseError."""
    made = []
    if only in (None, "wheel"):
        found = [wheel(out)] if wheels is None else [Path(shutil.copy2(one, out)) for one in sorted(wheels.glob("*.whl"))]
        if not found:
            raise ReleaseError(f"--wheels: must be a directory with wheels, got {wheels}")
        made += found
    if only in (None, "sdist"):
        made.append(sdist(out))
    if only is None:
        made.append(bill(out, fitting(made)))
    if only in (None, "sums"):
        listed = made or sorted(one for one in out.iterdir() if one.is_file() and one.name != SUMS)
        made.append(sums(out, listed))
    return made


def wheel(out: Path) -> Path:
    """Builds the wheel of this Python."""
    with tempfile.TemporaryDirectory() as built, tempfile.TemporaryDirectory() as repaired:
        run("auditwheel", "repair", "--strip", "--wheel-dir", repaired, str(raw_wheel(Path(built))))
        (done,) = Path(repaired).glob("*.whl")
        return Path(shutil.copy2(done, out))


def raw_wheel(out: Path) -> Path:
    """Builds the wheel of this Python for this machine alone, in seconds where the modules are compiled."""
    for left in (*ROOT.glob("build/lib.*"), *ROOT.glob("build/bdist.*")):
        shutil.rmtree(left)  # has what earlier versions of the sources had
    run("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out), str(ROOT))
    (done,) = out.glob("*.whl")
    return done


def sdist(out: Path) -> Path:
    """Builds the source distribution."""
    with tempfile.TemporaryDirectory() as built:
        run("build", "--sdist", "--no-isolation", "--outdir", built, str(ROOT))
        (done,) = Path(built).glob("*.tar.gz")
        return Path(shutil.copy2(done, out))


def fitting(files: list[Path]) -> Path:
    """Returns the wheel for this Python."""
    tag = f"-cp{sys.version_info.major}{sys.version_info.minor}-"
    machine = f"_{os.uname().machine}.whl"
    for file in files:
        if tag in file.name and file.name.endswith(machine):
            return file
    raise ReleaseError(f"no wheel for this Python: must be one with {tag} and {machine}")


def extras() -> list[str]:
    """Returns the extras in the bill."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [one for one in project["optional-dependencies"] if one not in (*DEVELOPMENT, *BUILT_ON_INSTALLATION)]


def bill(out: Path, of: Path) -> Path:
    """Makes the bill of materials of a wheel with its extras: what an installation of today has."""
    file = out / f"{re.sub('-cp.*', '', of.name)}.cdx.json"
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory, with_pip=False)
        python = Path(directory, "bin", "python")
        run("pip", "--python", str(python), "install", "--quiet", f"{of}[{','.join(extras())}]")
        list_components(python, file)
    return file


def list_components(python: Path, file: Path) -> None:
    """Writes the bill of materials of an environment, which the program checks against the schema of CycloneDX."""
    written = ("--validate", "--spec-version", SPEC, "--output-reproducible", "--output-format", "JSON", "--output-file", str(file))
    root = ("--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "application")
    run("cyclonedx_py", "environment", *root, *written, str(python))


def sums(out: Path, files: list[Path]) -> Path:
    """Writes the checksums of files in `out`."""
    file = out / SUMS
    file.write_text("".join(f"{sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in sorted(files)))
    return file


def run(module: str, *arguments: str) -> None:
    """Runs a module of this environment."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{module} {arguments[0]} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
