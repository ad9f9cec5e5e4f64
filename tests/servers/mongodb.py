"""mongo-java-server, which speaks the protocol of MongoDB; Debian has no MongoDB. It keeps its data in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymongo

from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers.maven import classpath
from tests.servers.processes import answers, folder
from tests.servers.service import Service, service

__all__ = ["mongodb", "mongodb_server"]

MONGO = Path(__file__).parent / "mongo"


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
        command = ["java", "-XX:TieredStopAtLevel=1", "-cp", classpath(MONGO / "pom.xml"), str(MONGO / "Main.java"), str(port)]
        with service(command, port, lambda: answers(port), where, as_nobody=False) as one:
            yield one
