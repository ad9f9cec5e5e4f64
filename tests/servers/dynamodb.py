"""DynamoDBLocal, Amazon's own server for tests.

It listens on all addresses, and has no setting for that; any access key of letters and digits is right.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config

from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers.maven import classpath
from tests.servers.processes import answers, folder
from tests.servers.service import Service, service

__all__ = ["ACCOUNT", "dynamodb_server", "own_client", "scanned"]

POM = Path(__file__).parent / "dynamo" / "pom.xml"
NATIVE = "libsqlite4java-linux-amd64"
MAIN = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"
ACCOUNT = {"aws_access_key_id": "broker", "aws_secret_access_key": "dbsecret"}


@contextmanager
def dynamodb_server(*, on_disk: bool = False) -> Iterator[Service]:
    """on_disk: the data outlives a kill; each item is a sync then, some 80 a second."""
    needed("java", "mvn")
    with folder() as where:
        port, jars = free_port(), classpath(POM)
        native = next(Path(one).parent for one in jars.split(":") if NATIVE in one)
        command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", f"-Dsqlite4java.library.path={native}", "-DDDB_LOCAL_TELEMETRY=0"]
        command += ["-cp", jars, MAIN, *(("-sharedDb", "-dbPath", str(where)) if on_disk else ("-inMemory",)), "-port", str(port)]
        with service(command, port, lambda: answers(port), where, as_nobody=False) as one:
            yield one


def own_client(port: int) -> Any:
    """Amazon's own client."""
    return botocore.session.get_session().create_client(
        "dynamodb",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="eu-central-1",
        config=Config(retries={"total_max_attempts": 1}),
        **ACCOUNT,
    )


def scanned(client: Any, table: str) -> list[dict[str, Any]]:
    """Returns all items, as the API has them."""
    return [item for page in client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True) for item in page["Items"]]
