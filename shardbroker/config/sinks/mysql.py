"""Keys of the type `mysql`."""

from shardbroker.config.connectors import MysqlConnection
from shardbroker.config.sinks.base import ActionSection, ConnectorSection
from shardbroker.config.sinks.sql import SqlParameters

__all__ = ["MysqlAction", "MysqlConnector"]


class MysqlConnector(ConnectorSection, MysqlConnection):
    """A MySQL or MariaDB server."""


class MysqlAction(ActionSection):
    """Rows in tables of MySQL or MariaDB."""

    parameters: SqlParameters = SqlParameters()
