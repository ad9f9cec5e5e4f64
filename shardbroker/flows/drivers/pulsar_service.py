"""The server of actions and sources of Pulsar: what its errors mean for them."""

import _pulsar

from shardbroker.connectors.errors import ConnectorError
from shardbroker.connectors.pulsar import Pulsar, PulsarError
from shardbroker.flows.sinks.driver import Unusable

__all__ = ["WRONG_TOPIC", "PulsarService"]

Result = _pulsar.Result
WRONG_TOPIC = frozenset(
    {
        Result.TopicNotFound, Result.InvalidTopicName, Result.AuthorizationError, Result.NotAllowedError, Result.TopicTerminated,
        Result.IncompatibleSchema,
    }
)  # fmt: skip
"""Results of a topic that another attempt does not change by itself."""


class PulsarService(Pulsar):
    """Raises Unusable or ConnectorError in place of other errors."""

    async def probe(self) -> None:
        try:
            await super().probe()
        except (OSError, ConnectorError) as error:
            explained = self.unusable(error)
            self.health.last_error = str(explained)
            raise explained from error

    async def check_topic(self, topic: str) -> None:
        """Checks that a topic is there, or would be made. Raises Unusable, ConnectorError."""
        try:
            client = await self.opened()
            await self.request(client.get_topic_partitions_async, topic)
        except (OSError, ConnectorError) as error:
            raise self.unusable(error) from error

    def unusable(self, error: Exception) -> ConnectorError:
        """Returns an error that says what is wrong; Unusable for one that the configuration has to end, here or at the server."""
        if isinstance(error, PulsarError) and (error.result in WRONG_TOPIC or error.result == Result.AuthenticationError):
            return Unusable(str(error))
        return self.explained(error)
