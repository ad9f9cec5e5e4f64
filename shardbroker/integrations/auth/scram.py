"""Exchanges of enhanced authentication (MQTT 5.0 §4.12): SCRAM."""

from shardbroker.access.contract import Answer, allow, deny
from shardbroker.access.scram import ScramError, ScramServer
from shardbroker.access.stores import UserStore

__all__ = ["ScramExchange"]


class ScramExchange:
    """The exchange of one client."""

    def __init__(self, store: UserStore, algorithm: str, iterations: int) -> None:
        self._server = ScramServer(algorithm, iterations, lambda name: store.scram(algorithm, name))
        self._begun = False

    @property
    def username(self) -> str:
        """Returns the user name that the client claims."""
        return self._server.username

    async def step(self, data: bytes) -> bytes | Answer:
        """Returns the next data for the client, or the final answer."""
        try:
            if not self._begun:
                self._begun = True
                return self._server.start(data)
            signature = self._server.finish(data)
        except ScramError:
            return deny()
        assert self._server.user is not None
        return allow(is_superuser=self._server.user.is_superuser, data=signature)
