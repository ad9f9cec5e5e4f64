"""The types of connectors, actions and sources, by EMQX's names."""

from typing import NamedTuple

from shardbroker.config.sinks.base import ActionSection, ConnectorSection, SourceSection
from shardbroker.config.sinks.cassandra import CassandraAction, CassandraConnector
from shardbroker.config.sinks.disk_log import DiskLogAction, DiskLogConnector
from shardbroker.config.sinks.dynamo import DynamoAction, DynamoConnector
from shardbroker.config.sinks.http import HttpAction, HttpConnector
from shardbroker.config.sinks.influxdb import InfluxdbAction, InfluxdbConnector
from shardbroker.config.sinks.kafka import KafkaAction, KafkaConnector, KafkaSource
from shardbroker.config.sinks.mongodb import MongodbAction, MongodbConnector
from shardbroker.config.sinks.mqtt import MqttAction, MqttConnector, MqttSource
from shardbroker.config.sinks.mysql import MysqlAction, MysqlConnector
from shardbroker.config.sinks.opents import OpentsAction, OpentsConnector
from shardbroker.config.sinks.pgsql import PgsqlAction, PgsqlConnector, TimescaleAction, TimescaleConnector
from shardbroker.config.sinks.pulsar import PulsarAction, PulsarConnector, PulsarSource
from shardbroker.config.sinks.rabbitmq import RabbitmqAction, RabbitmqConnector, RabbitmqSource
from shardbroker.config.sinks.redis import RedisAction, RedisConnector
from shardbroker.config.sinks.s3 import S3Action, S3Connector
from shardbroker.config.sinks.shardbroker import ShardbrokerAction, ShardbrokerConnector, ShardbrokerSource

__all__ = ["ALIASES", "SINK_TYPES", "SinkType", "source_types"]


class SinkType(NamedTuple):
    """title: for people. The driver is `shardbroker/flows/drivers/<type>.py`."""

    title: str
    connector: type[ConnectorSection]
    action: type[ActionSection]
    source: type[SourceSection] | None = None
    """None: nothing can be received from it."""


SINK_TYPES: dict[str, SinkType] = {
    "cassandra": SinkType("Cassandra", CassandraConnector, CassandraAction),
    "disk_log": SinkType("Disk log", DiskLogConnector, DiskLogAction),
    "dynamo": SinkType("DynamoDB", DynamoConnector, DynamoAction),
    "http": SinkType("HTTP", HttpConnector, HttpAction),
    "influxdb": SinkType("InfluxDB", InfluxdbConnector, InfluxdbAction),
    "kafka": SinkType("Kafka", KafkaConnector, KafkaAction, KafkaSource),
    "mongodb": SinkType("MongoDB", MongodbConnector, MongodbAction),
    "mqtt": SinkType("MQTT", MqttConnector, MqttAction, MqttSource),
    "mysql": SinkType("MySQL", MysqlConnector, MysqlAction),
    "opents": SinkType("OpenTSDB", OpentsConnector, OpentsAction),
    "pgsql": SinkType("PostgreSQL", PgsqlConnector, PgsqlAction),
    "pulsar": SinkType("Pulsar", PulsarConnector, PulsarAction, PulsarSource),
    "rabbitmq": SinkType("RabbitMQ", RabbitmqConnector, RabbitmqAction, RabbitmqSource),
    "redis": SinkType("Redis", RedisConnector, RedisAction),
    "s3": SinkType("S3", S3Connector, S3Action),
    "shardbroker": SinkType("Another shardbroker", ShardbrokerConnector, ShardbrokerAction, ShardbrokerSource),
    "timescale": SinkType("TimescaleDB", TimescaleConnector, TimescaleAction),
}
ALIASES = {
    "postgresql": "pgsql",
    "webhook": "http",
    "mariadb": "mysql",
    "mongo": "mongodb",
    "file": "disk_log",
    "dynamodb": "dynamo",
    "opentsdb": "opents",
    "timescaledb": "timescale",
    "pulsar_producer": "pulsar",
    "pulsar_consumer": "pulsar",
    "kafka_producer": "kafka",
    "kafka_consumer": "kafka",
}
"""Other names of types; ids, REST and metrics have the type's own."""


def source_types() -> list[str]:
    """Returns the types of sources."""
    return [type for type, row in SINK_TYPES.items() if row.source is not None]
