"""Real servers for back ends, from Debian's packages: each on a free port, its data in a directory that goes away.

They run as `nobody` where the tests run as root, since PostgreSQL and MariaDB refuse root.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pymongo

from tests.harness.broker import free_port
from tests.harness.needed import needed

START_S, STOP_S = 60.0, 20.0


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="shardbroker-server-"))
    if os.geteuid() == 0:
        shutil.chown(path, "nobody")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def account() -> dict[str, Any]:
    return {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}


@contextmanager
def running(
    command: list[str], ready: Callable[[], bool], where: Path, *, as_nobody: bool = True
) -> Iterator[subprocess.Popen[bytes]]:
    """A server from its first answer to its end."""
    runs_as = account() if as_nobody else {}
    with (where / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=where, **runs_as)
    try:
        deadline = time.monotonic() + START_S
        while not ready():
            assert process.poll() is None and time.monotonic() < deadline, (where / "server.log").read_text(errors="replace")
            time.sleep(0.05)
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def quietly(command: list[str], text: str = "") -> None:
    done = subprocess.run(command, input=text, text=True, capture_output=True, cwd="/", **account())
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@contextmanager
def postgresql(sql: str) -> Iterator[int]:
    with folder() as where:
        port = free_port()
        quietly([needed("initdb"), "-D", str(where / "data"), "-U", "mqtt", "-A", "trust", "--no-sync"])
        command = [needed("postgres"), "-D", str(where / "data"), "-p", str(port), "-h", "127.0.0.1", "-k", str(where), "-F"]
        psql = [needed("psql"), "-h", "127.0.0.1", "-p", str(port), "-U", "mqtt", "-q", "-v", "ON_ERROR_STOP=1"]
        with running(command, lambda: subprocess.run([*psql, "-c", "", "postgres"], capture_output=True).returncode == 0, where):
            quietly([*psql, "-c", "CREATE DATABASE mqtt", "postgres"])
            quietly([*psql, "mqtt"], sql)
            yield port


@contextmanager
def mariadb(sql: str, *more: str) -> Iterator[int]:
    """`more`: options of the server."""
    with folder() as where:
        port = free_port()
        user = "nobody" if os.geteuid() == 0 else getpass.getuser()
        options = ["--no-defaults", f"--datadir={where / 'data'}"]
        options_once = ["--auth-root-authentication-method=normal", "--skip-test-db", f"--user={user}"]
        quietly([needed("mariadb-install-db"), *options, *options_once])
        command = [
            needed("mariadbd"), *options, f"--port={port}", "--bind-address=127.0.0.1", f"--socket={where / 's'}",
            f"--pid-file={where / 'pid'}", "--innodb-flush-log-at-trx-commit=0", *more,
        ]  # fmt: skip
        with running(command, lambda: answers(port), where):
            grant = (
                "CREATE DATABASE mqtt CHARACTER SET utf8mb4; CREATE USER mqtt@'%' IDENTIFIED BY 'dbsecret';"
                "GRANT ALL ON mqtt.* TO mqtt@'%'; USE mqtt;"
            )
            quietly([needed("mariadb"), "--no-defaults", f"--socket={where / 's'}", "-u", "root"], grant + sql)
            yield port


@contextmanager
def redis(*commands: list[str]) -> Iterator[int]:
    with folder() as where:
        port = free_port()
        command = [needed("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--requirepass", "dbsecret"]
        with running(command, lambda: answers(port), where):
            for words in commands:
                quietly([needed("redis-cli"), "-p", str(port), "-a", "dbsecret", "--no-auth-warning", *words])
            yield port


@contextmanager
def slapd(ldif: str) -> Iterator[int]:
    with folder() as where:
        port = free_port()
        (where / "data").mkdir()
        schema = Path("/etc/ldap/schema")
        includes = "".join(f"include {schema / name}.schema\n" for name in ("core", "cosine", "inetorgperson"))
        (where / "slapd.conf").write_text(f"""{includes}
pidfile {where}/slapd.pid
modulepath /usr/lib/ldap
moduleload back_mdb
attributetype ( 1.3.6.1.4.1.99999.1 NAME 'isSuperuser' EQUALITY booleanMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.7 SINGLE-VALUE )
objectclass ( 1.3.6.1.4.1.99999.2 NAME 'mqttUser' SUP top AUXILIARY MAY isSuperuser )
access to attrs=userPassword by dn="cn=admin,dc=example,dc=org" read by anonymous auth by * none
access to * by dn="cn=admin,dc=example,dc=org" read by * none
database mdb
suffix "dc=example,dc=org"
rootdn "cn=admin,dc=example,dc=org"
rootpw dbsecret
directory {where}/data
""")
        (where / "users.ldif").write_text(ldif)
        if os.geteuid() == 0:
            shutil.chown(where / "data", "nobody")
        quietly([needed("slapadd"), "-f", str(where / "slapd.conf"), "-l", str(where / "users.ldif")])
        command = [needed("slapd"), "-d", "0", "-f", str(where / "slapd.conf"), "-h", f"ldap://127.0.0.1:{port}"]
        with running(command, lambda: answers(port), where):
            yield port


MONGO = Path(__file__).parent / "mongo"
CLASSPATH_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"


@contextmanager
def mongodb(users: list[dict[str, Any]], rules: list[dict[str, Any]]) -> Iterator[int]:
    """mongo-java-server, which speaks the protocol of MongoDB; Debian has no MongoDB."""
    needed("java", "mvn")
    with folder() as where:
        port, classpath = free_port(), where / "classpath"
        maven = ["mvn", "-q", "-f", str(MONGO / "pom.xml"), CLASSPATH_PLUGIN, f"-Dmdep.outputFile={classpath}"]
        found = subprocess.run(maven, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout
        command = ["java", "-cp", classpath.read_text().strip(), str(MONGO / "Main.java"), str(port)]
        with running(command, lambda: answers(port), where, as_nobody=False):
            with pymongo.MongoClient("127.0.0.1", port) as client:
                client.mqtt.users.insert_many(users)
                client.mqtt.acl.insert_many(rules)
            yield port
