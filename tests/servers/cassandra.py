"""Cassandra 5, by Maven: one node with the account cassandra/cassandra, which keeps its data over kills."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster, NoHostAvailable, Session

from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers.maven import classpath
from tests.servers.processes import answers, folder
from tests.servers.service import Service

__all__ = ["ACCOUNT", "CassandraServer", "cassandra"]

FILES = Path(__file__).parent / "cassandra_all"
ACCOUNT = "cassandra"
"""User name of the superuser, and its password."""
CLIENT_S = 60.0
"""Longest wait of the test's own client for an answer: the machine may be busy."""
SCHEMA = "CREATE KEYSPACE mqtt WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
QUICK = (
    "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dcassandra-foreground=yes",
    "-Dcassandra.skip_wait_for_gossip_to_settle=0", "-Dcassandra.ring_delay_ms=100", "-Dcassandra.superuser_setup_delay_ms=0",
)  # fmt: skip


class CassandraServer(Service):
    """A node and a session of the library's own client."""

    ssl_context: ssl.SSLContext | None = None

    @contextmanager
    def session(self, keyspace: str | None = "mqtt", **options: Any) -> Iterator[Session]:
        account = PlainTextAuthProvider(ACCOUNT, ACCOUNT)
        cluster = Cluster(
            ["127.0.0.1"], port=self.port, auth_provider=account, connect_timeout=CLIENT_S, control_connection_timeout=CLIENT_S,
            ssl_context=self.ssl_context, **options,
        )  # fmt: skip
        try:
            session = cluster.connect(keyspace)
            session.default_timeout = CLIENT_S
            yield session
        finally:
            cluster.shutdown()

    def is_ready(self) -> bool:
        """Returns whether the account can be used; it is created after the port is open."""
        if not answers(self.port):
            return False
        try:
            with self.session(None):
                return True
        except NoHostAvailable:
            return False


@contextmanager
def cassandra(*statements: str, more: str = "", ssl_context: ssl.SSLContext | None = None) -> Iterator[CassandraServer]:
    """A node with the keyspace mqtt. more: lines of cassandra.yaml. ssl_context: of the test's own client."""
    needed("java", "mvn")
    path = classpath(FILES / "pom.xml")
    agent = next(one for one in path.split(":") if Path(one).name.startswith("jamm-"))
    with folder() as where:
        ports = {name: str(free_port()) for name in ("CLIENT_PORT", "STORAGE_PORT", "SSL_PORT")}
        text = (FILES / "cassandra.yaml").read_text()
        for name, value in {"WHERE": str(where), **ports}.items():
            text = text.replace(name, value)
        (where / "cassandra.yaml").write_text(text + more)
        command = [
            "java", f"@{FILES / 'java.options'}", *QUICK, f"-javaagent:{agent}", f"-Dcassandra.config=file://{where}/cassandra.yaml",
            f"-Dcassandra.storagedir={where}", "-cp", path, "org.apache.cassandra.service.CassandraDaemon",
        ]  # fmt: skip
        server = CassandraServer(command, int(ports["CLIENT_PORT"]), lambda: server.is_ready(), where, as_nobody=False)
        server.ssl_context = ssl_context
        try:
            server.start()
            with server.session(None) as session:
                for one in (SCHEMA, *statements):
                    session.execute(one)
            yield server
        finally:
            server.stop()
