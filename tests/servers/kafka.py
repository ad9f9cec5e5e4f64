"""Kafka 4 in KRaft mode, by Maven: one broker with a listener for each way to log in, which keeps its data over kills."""

import asyncio
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers.maven import classpath
from tests.servers.processes import answers, folder
from tests.servers.service import Service

__all__ = ["ACCOUNT", "KafkaBroker", "kafka"]

FILES = Path(__file__).parent / "kafka_core"
ACCOUNT = {"username": "mqtt", "password": "dbsecret"}
JAVA = ("java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
OAUTH = "org.apache.kafka.common.security.oauthbearer.internals.unsecured"
PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAIN://127.0.0.1:{plain},LOGIN://127.0.0.1:{login},SECURE://127.0.0.1:{secure},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAIN://127.0.0.1:{plain},LOGIN://127.0.0.1:{login},SECURE://127.0.0.1:{secure}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAIN
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAIN:PLAINTEXT,LOGIN:SASL_PLAINTEXT,SECURE:{secure_protocol}
listener.name.login.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_mqtt="dbsecret";
listener.name.login.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.login.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.login.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
listener.name.login.oauthbearer.sasl.server.callback.handler.class={oauth}.OAuthBearerUnsecuredValidatorCallbackHandler
log.dirs={where}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
group.coordinator.rebalance.protocols=classic,consumer
num.partitions=4
log.retention.ms=-1
auto.create.topics.enable={auto_create}
log.initial.task.delay.ms=500
log.cleaner.backoff.ms=500
"""


class KafkaBroker(Service):
    """A broker. port: without a login; login_port: with SASL; secure_port: with TLS, where there is a certificate."""

    login_port = 0
    secure_port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        """Returns whether it answers; connections are accepted earlier."""
        if not answers(self.port):
            return False

        async def look() -> bool:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.address, request_timeout_ms=2000)
            try:
                await admin.start()
                await admin.list_topics()
                return True
            except Exception:
                return False
            finally:
                await admin.close()

        return asyncio.run(look())

    def create(self, *names: str, partitions: int = 4, **settings: str) -> None:
        """Creates topics."""

        async def scenario() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
            await admin.start()
            try:
                answer = await admin.create_topics([NewTopic(one, partitions, 1, topic_configs=settings) for one in names])
                assert all(code == 0 for _, code, *_ in answer.topic_errors), answer
                while any(one["error_code"] for one in await admin.describe_topics(list(names))):  # known to the controller first
                    await asyncio.sleep(0.02)
            finally:
                await admin.close()

        asyncio.run(scenario())

    def delete(self, *names: str) -> None:
        """Removes topics."""

        async def scenario() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
            await admin.start()
            try:
                await admin.delete_topics(list(names))
            finally:
                await admin.close()

        asyncio.run(scenario())

    def records(self, topic: str, isolation: str = "read_committed") -> list[Any]:
        """Returns all records of a topic by partition and offset, as the library's own consumer has them."""
        return asyncio.run(self.read(topic, isolation))

    async def read(self, topic: str, isolation: str = "read_committed") -> list[Any]:
        """The markers of a transaction follow its commit: records are read up to the end that transactions have."""
        async with _consumer(self.address, "read_uncommitted") as all_of:
            there = [TopicPartition(topic, one) for one in sorted(await all_of._client._wait_on_metadata(topic))]
            ends = await all_of.end_offsets(there)
        async with _consumer(self.address, isolation) as consumer:
            consumer.assign(there)
            await consumer.seek_to_beginning(*there)
            found: list[Any] = []
            while any([await consumer.position(one) < ends[one] for one in there]):
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    found += records
            return sorted(found, key=lambda one: (one.partition, one.offset))


def _consumer(address: str, isolation: str) -> Any:
    return AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest", isolation_level=isolation)


@contextmanager
def kafka(more: str = "", auto_create: bool = False) -> Iterator[KafkaBroker]:
    """more: lines of its properties, with WHERE for its directory; listener.name.secure.* for TLS."""
    needed("java", "mvn")
    path = classpath(FILES / "pom.xml")
    with folder() as where:
        ports = {name: free_port() for name in ("plain", "login", "secure", "controller")}
        secure = "SSL" if "ssl." in more else "PLAINTEXT"
        text = PROPERTIES.format(where=where, oauth=OAUTH, auto_create=str(auto_create).lower(), secure_protocol=secure, **ports)
        file = where / "server.properties"
        file.write_text(text + more.replace("WHERE", str(where)))
        users = [f"{one}=[name={ACCOUNT['username']},password={ACCOUNT['password']}]" for one in ("SCRAM-SHA-256", "SCRAM-SHA-512")]
        made = subprocess.run(
            [*JAVA, "-cp", path, "kafka.tools.StorageTool", "format", "-t", str(uuid.uuid4()), "-c", str(file)]
            + [part for user in users for part in ("--add-scram", user)],
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        command = [*JAVA, "-cp", path, "kafka.Kafka", str(file)]
        server = KafkaBroker(command, ports["plain"], lambda: server.is_ready(), where, as_nobody=False)
        server.login_port, server.secure_port = ports["login"], ports["secure"]
        try:
            server.start()
            yield server
        finally:
            server.stop()
