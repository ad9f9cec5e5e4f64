"""Class paths of servers in Java, downloaded by Maven."""

import subprocess
from functools import cache
from pathlib import Path

from tests.servers.processes import folder

__all__ = ["classpath"]

CLASSPATH_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"


@cache
def classpath(pom: Path) -> str:
    """Returns the class path of the dependencies of a pom.xml."""
    with folder() as where:
        file = where / "classpath"
        maven = ["mvn", "-q", "-f", str(pom), CLASSPATH_PLUGIN, f"-Dmdep.outputFile={file}"]
        found = subprocess.run(maven, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout
        return file.read_text().strip()
