"""mongo-java-server, which speaks the protocol of MongoDB; Debian has no MongoDB. It keeps its data in memory."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pymongo

from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers.processes import answers, folder
from tests.servers.service import Service, service

__all__ = ["mongodb", "mongodb_server"]

MONGO = Path(__file__).parent / "mongo"
CLASSPATH_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"


@contextmanager
def mongodb(users: list[dict[str, Any]], rules: list[dict[str, Any]]) -> Iterator[int]:
    """A server with documents in mqtt.users and mqtt.acl; yields its port."""
    with mongodb_server() as server:
        with pymongo.MongoClient("127.0.0.1", server.port) as client:
            client.mqtt.users.insert_many(users)
            client.mqtt.acl.insert_many(rules)
        yield server.port


@contextmanager
def mongodb_server() -> Iterator[Service]:
    needed("java", "mvn")
    with folder() as where:
        port = free_port()
        command = ["java", "-XX:TieredStopAtLevel=1", "-cp", _classpath(), str(MONGO / "Main.java"), str(port)]
        with service(command, port, lambda: answers(port), where, as_nobody=False) as one:
            yield one


@cache
def _classpath() -> str:
    with folder() as where:
        file = where / "classpath"
        maven = ["mvn", "-q", "-f", str(MONGO / "pom.xml"), CLASSPATH_PLUGIN, f"-Dmdep.outputFile={file}"]
        found = subprocess.run(maven, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout
        return file.read_text().strip()
