"""moto_server, a stand-in for S3 with its data in memory, from PyPI in an environment of its own.

Its botocore is another one than that of the driver. It accepts any account until `reject_accounts()`.
"""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config

from tests.harness.broker import free_port
from tests.harness.locked import locked
from tests.servers.processes import answers, folder
from tests.servers.service import Service, service

__all__ = ["ACCOUNT", "BUCKET", "installed", "objects", "own_client", "reject_accounts", "s3_server"]

PACKAGE = "moto[server,s3]==5.2.5"
ENVIRONMENT = Path(__file__).parents[2] / "build" / "moto-5.2.5"
ACCOUNT = {"access_key_id": "broker", "secret_access_key": "dbsecret"}
BUCKET = "readings"

PROGRAM = f"""
import sys
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import main
s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket({BUCKET!r}, "us-east-1")
main(sys.argv[1:])
"""
"""The server, which has the bucket before it listens."""


@contextmanager
def s3_server() -> Iterator[Service]:
    """A server with an empty bucket; also after a kill."""
    with folder() as where:
        port = free_port()
        command = [str(installed() / "bin" / "python"), "-c", PROGRAM, "-H", "127.0.0.1", "-p", str(port)]
        with service(command, port, lambda: answers(port), where, as_nobody=False) as one:
            yield one


@cache
def installed() -> Path:
    """Returns the environment, which is installed once for this clone."""
    with locked(ENVIRONMENT):
        done = ENVIRONMENT / "installed"
        if not done.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
            command = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet", PACKAGE]
            found = subprocess.run(command, capture_output=True, text=True)
            assert found.returncode == 0, found.stderr
            done.touch()
    return ENVIRONMENT


def own_client(port: int) -> Any:
    """Amazon's own client."""
    return botocore.session.get_session().create_client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="broker",
        aws_secret_access_key="dbsecret",
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )


def objects(client: Any) -> dict[str, bytes]:
    """Returns all objects by key, in the order of keys."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    keys = [one["Key"] for page in pages for one in page.get("Contents", [])]
    return {key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}


def reject_accounts(port: int) -> None:
    """From now on the server looks at accounts, of which it has none."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/moto-api/reset-auth", data=b"0", headers={"Content-Type": "text/plain"}
    )
    with urllib.request.urlopen(request, timeout=10):
        pass
