"""Servers in Java, downloaded by Maven: class paths, and archives of a whole server."""

import fcntl
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.servers.processes import folder

__all__ = ["classpath", "unpacked"]

CLASSPATH_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
UNPACK_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:unpack"
BUILD = Path(__file__).parents[2] / "build" / "servers"


@cache
def classpath(pom: Path) -> str:
    """Returns the class path of the dependencies of a pom.xml."""
    with folder() as where:
        file = where / "classpath"
        maven = ["mvn", "-q", "-f", str(pom), CLASSPATH_PLUGIN, f"-Dmdep.outputFile={file}"]
        found = subprocess.run(maven, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout
        return file.read_text().strip()


@cache
def unpacked(artifact: str, includes: str) -> Path:
    """Returns the directory with the contents of an artifact `group:name:version:type:classifier`, unpacked once for this clone.

    includes: patterns of the files that are wanted, with commas between them.
    """
    place = BUILD / artifact.replace(":", "-")
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            made = place.with_suffix(".new")
            shutil.rmtree(made, ignore_errors=True)
            maven = ["mvn", "-q", UNPACK_PLUGIN, f"-Dartifact={artifact}", f"-DoutputDirectory={made}"]
            found = subprocess.run([*maven, f"-Dmdep.unpack.includes={includes}"], capture_output=True, text=True, cwd=BUILD)
            assert found.returncode == 0, found.stdout
            made.rename(place)
    return place
