"""Builds a Debian package from the environment that runs this script: `make deb`, or `python scripts/deb.py --out DIR`.

The package has what `shardbroker install` puts on a machine, in the places of packages. Spark and its export units are left out:
they are larger than the rest, and need Java. Nothing is downloaded or compiled, and no rights are needed.
"""

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from email.utils import formatdate
from hashlib import md5
from importlib.metadata import version
from pathlib import Path

from shardbroker.cli.main import main as program
from shardbroker.cli.manual import manual
from shardbroker.deploy.environment import MANIFEST, CopyError, build, plan
from shardbroker.deploy.install_layout import CONFIGURATION, MANUAL, placed_files

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "deploy" / "debian"
"""Maintainer scripts."""
PREFIX = "/usr/lib/shardbroker"
PYTHON = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
"""Debian's own: compiled modules fit one version."""
PLACES = {
    "/etc/systemd/system/": "/lib/systemd/system/",
    "/etc/sysusers.d/": "/usr/lib/sysusers.d/",
    "/etc/tmpfiles.d/": "/usr/lib/tmpfiles.d/",
    "/etc/sysctl.d/": "/usr/lib/sysctl.d/",
    MANUAL: "/usr/share/man/",
}
"""Directories of the administrator, and those of packages."""
EXPORT = "shardbroker-export"
MAINTAINER = "shardbroker maintainers <root@localhost>"
CONTROL = """\
Package: shardbroker
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer}
Section: net
Priority: optional
Installed-Size: {size}
Depends: {python}, libc6 (>= {libc}), systemd | systemd-standalone-sysusers
Recommends: procps, systemd
Description: sharded MQTT 3.1, 3.1.1 and 5.0 broker
 One worker process per core owns the sessions of its clients. Dashboard, REST
 API, rules, sinks, sources, bridges and access control by databases are part
 of the package.
 .
 The broker and the libraries that it needs are in {prefix}.
"""
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: shardbroker

Files: *
Copyright: shardbroker contributors
License: Apache-2.0
 On Debian systems, the text of the license is in
 /usr/share/common-licenses/Apache-2.0.
Comment:
 Licenses of the libraries are in {prefix}/lib/{python}/site-packages,
 in the directory *.dist-info of each.
"""
CHANGELOG = """\
shardbroker ({version}) unstable; urgency=medium

  * Release {version}: see CHANGELOG.md.gz.

 -- {maintainer}  {date}
"""


def main() -> int:
    """Builds the package and prints its path."""
    parser = argparse.ArgumentParser(description="Build a Debian package from this environment.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR", help="default: dist")
    parser.add_argument("--compression", default="zstd", choices=("zstd", "xz", "gzip", "none"), help="none is the fastest")
    arguments = parser.parse_args()
    if shutil.which("dpkg-deb") is None:
        print("make deb: dpkg-deb not found; it is part of Debian's package dpkg", file=sys.stderr)
        return 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.out, prefix=".deb-") as directory:
        tree = Path(directory, "tree")
        try:
            new_directory(tree)
            lay(tree)
        except CopyError as error:
            print(f"make deb: {error}", file=sys.stderr)
            return 1
        file = arguments.out / f"shardbroker_{version('shardbroker')}_{architecture()}.deb"
        command = ("dpkg-deb", "--root-owner-group", f"-Z{arguments.compression}", "--build", str(tree), str(file))
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(file)
    return 0


def lay(tree: Path) -> None:
    """Lays out the files of the package in an empty directory. Raises CopyError."""
    if not PYTHON.exists():
        raise CopyError(f"{PYTHON} not found; must be an environment of Debian's own version of Python")
    prefix = tree / PREFIX.lstrip("/")
    new_directory(prefix.parent)
    build(plan(export=False), PYTHON, prefix, PREFIX)
    (prefix / MANIFEST).unlink()  # `shardbroker install` neither replaces nor removes what belongs to the package
    for file in placed_files(PREFIX, manual(program)):
        if EXPORT not in file.path:
            write(tree / packaged(file.path).lstrip("/"), file.content, file.mode)
    new_directory(tree / "usr/bin")
    (tree / "usr/bin/shardbroker").symlink_to(f"../lib/{Path(PREFIX).name}/bin/shardbroker")
    fields = {
        "version": version("shardbroker"), "architecture": architecture(), "maintainer": MAINTAINER, "prefix": PREFIX,
        "python": PYTHON.name, "libc": os.confstr("CS_GNU_LIBC_VERSION").split()[1],  # type: ignore[union-attr]
        "date": formatdate(int(os.environ.get("SOURCE_DATE_EPOCH", (ROOT / "CHANGELOG.md").stat().st_mtime))),
    }  # fmt: skip
    documents = tree / "usr/share/doc/shardbroker"
    write(documents / "copyright", COPYRIGHT.format(**fields).encode(), 0o644)
    write(documents / "changelog.gz", compressed(CHANGELOG.format(**fields).encode()), 0o644)
    write(documents / "CHANGELOG.md.gz", compressed((ROOT / "CHANGELOG.md").read_bytes()), 0o644)
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    fields["size"] = str(sum(path.stat().st_size for path in files) >> 10)
    sums = [f"{md5(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n" for path in files]
    control = tree / "DEBIAN"
    write(control / "control", CONTROL.format(**fields).encode(), 0o644)
    write(control / "conffiles", f"{CONFIGURATION}\n".encode(), 0o644)
    write(control / "md5sums", "".join(one for one in sums if not one.endswith(f" {CONFIGURATION[1:]}\n")).encode(), 0o644)
    for script in sorted(SCRIPTS.iterdir()):
        write(control / script.name, script.read_bytes(), 0o755)


def packaged(path: str) -> str:
    """Returns the place of an installed file in the package."""
    for own, place in PLACES.items():
        if path.startswith(own):
            return place + path.removeprefix(own)
    return path


def new_directory(path: Path) -> None:
    """Makes a directory and its parents, which all users can read, whatever the umask."""
    for one in (*reversed(path.parents), path):
        if not one.exists():
            one.mkdir()
            one.chmod(0o755)


def write(path: Path, content: bytes, mode: int) -> None:
    """Writes a file of the package."""
    new_directory(path.parent)
    path.write_bytes(content)
    path.chmod(mode)


def compressed(content: bytes) -> bytes:
    """Returns the same bytes for the same content: without a time."""
    return gzip.compress(content, 9, mtime=0)


def architecture() -> str:
    """Returns Debian's name of this architecture."""
    return subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip()


if __name__ == "__main__":
    sys.exit(main())
