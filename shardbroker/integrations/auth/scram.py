"""Conversations of enhanced authentication (MQTT 5.0 §4.12): SCRAM."""

from shardbroker.access.contract import Answer, allow, deny
from shardbroker.access.scram import ScramError, ScramServer
from shardbroker.access.stores import UserStore

__all__ = ["ScramExchange"]


class ScramExchange:
    """One client's conversation."""

    def __init__(self, store: UserStore, algorithm: str, iterations: int) -> None:
        self._server = ScramServer(algorithm, iterations, lambda name: store.scram(algorithm, name))
        self._begun = False

    @property
    def username(self) -> str:
        """Whom the client says it is."""
        return self._server.username

    async def step(self, data: bytes) -> bytes | Answer:
        """What is to be sent to the client, or the end."""
        try:
            if not self._begun:
                self._begun = True
                return self._server.start(data)
            signature = self._server.finish(data)
        except ScramError:
            return deny()
        assert self._server.user is not None
        return allow(is_superuser=self._server.user.is_superuser, data=signature)
