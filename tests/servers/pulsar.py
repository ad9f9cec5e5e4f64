"""Pulsar 4, by Maven: a standalone server with logins by token and by password, which keeps its data over kills."""

import base64
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jwt
import pulsar

from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers.maven import unpacked
from tests.servers.processes import answers, folder, quietly
from tests.servers.service import Service

__all__ = ["MESSAGE_MAX", "NAMESPACE", "PASSWORD", "PulsarServer", "distribution", "pulsar_server", "token_of"]

DISTRIBUTION = "org.apache.pulsar:pulsar-server-distribution:4.0.6:tar.gz:bin"
HOME = "apache-pulsar-4.0.6"
NAMESPACE = "persistent://public/default"
SECRET = b"shardbroker tests: signs tokens."
"""32 bytes, as HS256 wants them."""
PASSWORD = "dbsecret"
"""Of the user `mqtt`."""
MESSAGE_MAX = 256 << 10
"""Most bytes of a message."""
CLIENT_S = 30
"""Longest wait of the test's own client for an answer: the machine may be busy."""
OPENED = (
    "java.base/java.io", "java.base/java.nio", "java.base/java.util.zip", "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform", "java.management/sun.management", "jdk.management/com.sun.management.internal",
)  # fmt: skip
JVM = (
    "-Xms128m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
    "-Djava.net.preferIPv4Stack=true", "-Dio.netty.tryReflectionSetAccessible=true", "-Dlog4j.configurationFile=log4j2.yaml",
    "-Dlog4j2.is.webapp=false", "-Dpulsar.log.appender=Console", "-Dpulsar.routing.appender.default=Console",
    "-Dpulsar.log.level=warn", "-Dpulsar.log.root.level=warn", "-Dpulsar.log.dir=.", "-Dpulsar.log.file=pulsar.log",
    *(f"--add-opens={one}=ALL-UNNAMED" for one in OPENED),
)  # fmt: skip
PROVIDERS = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
CLIENTS = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


def distribution() -> Path:
    """Returns the directory of the server, which Maven downloads once for this clone."""
    return unpacked(DISTRIBUTION, "**/conf/**,**/lib/**") / HOME


def token_of(subject: str) -> str:
    """Returns the token of an account."""
    return jwt.encode({"sub": subject}, SECRET, "HS256")


class PulsarServer(Service):
    """A server, its admin API, and the library's own client. The account `admin` may do all."""

    start_s = 180.0
    """It needs some 10 s of CPU."""
    admin_port = 0

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """Returns the answer of the admin API to a request of the account `admin`."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token_of('admin')}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin_port}/admin/v2/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=CLIENT_S) as response:
            text = response.read()
        return json.loads(text) if text else None

    def is_ready(self) -> bool:
        """Returns whether the first namespace is there; it is made after the ports are open."""
        if not answers(self.port):
            return False
        try:
            return "public/default" in self.admin("GET", "namespaces/public")
        except (OSError, ValueError):
            return False

    @contextmanager
    def client(self) -> Iterator[Any]:
        client = pulsar.Client(
            self.url,
            authentication=pulsar.AuthenticationToken(token_of("admin")),
            operation_timeout_seconds=CLIENT_S,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
        )
        try:
            yield client
        finally:
            client.close()

    def messages(self, topic: str, behind: Any = None) -> list[Any]:
        """Returns the messages of a topic or a partition in their order: all, or those behind one."""
        found = []
        start = pulsar.MessageId.earliest if behind is None else behind.message_id()
        with self.client() as client:
            reader = _reader(client, topic if "://" in topic else f"{NAMESPACE}/{topic}", start)
            while reader.has_message_available():
                found.append(reader.read_next(CLIENT_S * 1000))
        return found


def _reader(client: Any, topic: str, start: Any) -> Any:
    """A server that has just started now and then leaves a first request for a topic without an answer."""
    with suppress(pulsar.Timeout):
        return client.create_reader(topic, start)
    return client.create_reader(topic, start)


def _configuration(directory: Path, ports: dict[str, int], more: dict[str, Any]) -> str:
    hashed = quietly(["openssl", "passwd", "-apr1", PASSWORD]).strip()
    users = base64.b64encode(f"mqtt:{hashed}\n".encode()).decode()
    settings = {
        **ports,
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "maxMessageSize": MESSAGE_MAX,
        "authenticationEnabled": "true",
        "authenticationProviders": f"{PROVIDERS}Token,{PROVIDERS}Basic",
        "tokenSecretKey": "data:;base64," + base64.b64encode(SECRET).decode(),
        "basicAuthConf": "data:;base64," + users,
        "authorizationEnabled": "true",
        "superUserRoles": "admin,mqtt",
        "brokerClientAuthenticationPlugin": CLIENTS,
        "brokerClientAuthenticationParameters": "token:" + token_of("admin"),
        "brokerDeduplicationEnabled": "true",
        "defaultRetentionSizeInMB": -1,  # else a server that starts again removes messages without a subscription
        "defaultRetentionTimeInMinutes": -1,
        "loadBalancerEnabled": "false",
        "systemTopicEnabled": "false",
        "topicLevelPoliciesEnabled": "false",
        "transactionCoordinatorEnabled": "false",
        "webSocketServiceEnabled": "false",
        **more,
    }
    lines = (directory / "conf" / "standalone.conf").read_text().splitlines()
    kept = [one for one in lines if re.sub(r"^#?\s*", "", one.partition("=")[0]) not in settings]
    return "\n".join([*kept, *(f"{name}={value}" for name, value in settings.items())]) + "\n"


@contextmanager
def pulsar_server(**more: Any) -> Iterator[PulsarServer]:
    """more: keys of standalone.conf."""
    needed("java", "mvn")
    needed("openssl")
    home = distribution()
    with folder() as where:
        ports = {"brokerServicePort": free_port(), "webServicePort": free_port()}
        file = where / "standalone.conf"
        file.write_text(_configuration(home, ports, more))
        command = [
            "env", "PULSAR_STANDALONE_USE_ZOOKEEPER=0", "java", *JVM, f"-Dpulsar.config.file={file}",
            "-cp", f"{home}/conf:{home}/lib/*", "org.apache.pulsar.PulsarStandaloneStarter", "--config", str(file),
            "--no-functions-worker", "--no-stream-storage", "--advertised-address", "127.0.0.1",
            "--metadata-dir", str(where / "metadata"), "--bookkeeper-dir", str(where / "bookkeeper"),
        ]  # fmt: skip
        server = PulsarServer(command, ports["brokerServicePort"], lambda: server.is_ready(), where, as_nobody=False)
        server.admin_port = ports["webServicePort"]
        try:
            server.start()
            yield server
        finally:
            server.stop()
