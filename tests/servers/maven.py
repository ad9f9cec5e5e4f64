"""Servers in Java, downloaded by Maven: class paths, and archives of a whole server."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.harness.locked import locked

__all__ = ["classpath", "unpacked"]

CLASSPATH_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
UNPACK_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:unpack"
BUILD = Path(__file__).parents[2] / "build" / "servers"


@cache
def classpath(pom: Path) -> str:
    """Returns the class path of the dependencies of a pom.xml, which Maven finds once for this clone."""
    file = BUILD / f"{pom.parent.name}.classpath"
    with locked(file):
        if not (file.exists() and file.stat().st_mtime > pom.stat().st_mtime and _all_there(file.read_text())):
            made = file.with_suffix(".new")
            maven = ["mvn", "-q", "-f", str(pom), CLASSPATH_PLUGIN, f"-Dmdep.outputFile={made}"]
            found = subprocess.run(maven, capture_output=True, text=True)
            assert found.returncode == 0, found.stdout
            made.rename(file)
        return file.read_text().strip()


def _all_there(paths: str) -> bool:
    return all(Path(path).exists() for path in paths.strip().split(":"))


@cache
def unpacked(artifact: str, includes: str) -> Path:
    """Returns the directory with the contents of an artifact `group:name:version:type:classifier`, unpacked once for this clone.

    includes: patterns of the files that are wanted, with commas between them.
    """
    place = BUILD / artifact.replace(":", "-")
    with locked(place):
        if not place.exists():
            made = place.with_suffix(".new")
            shutil.rmtree(made, ignore_errors=True)
            maven = ["mvn", "-q", UNPACK_PLUGIN, f"-Dartifact={artifact}", f"-DoutputDirectory={made}"]
            found = subprocess.run([*maven, f"-Dmdep.unpack.includes={includes}"], capture_output=True, text=True, cwd=BUILD)
            assert found.returncode == 0, found.stdout
            made.rename(place)
    return place
