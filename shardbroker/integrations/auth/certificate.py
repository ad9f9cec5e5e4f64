"""Authentication by client certificate. The listener has verified it; here it is compared with the claimed identity."""

from shardbroker.access.contract import IGNORE, Answer, Client, allow, deny
from shardbroker.config.access import Certificate
from shardbroker.integrations.auth.services import Services

__all__ = ["authenticator"]


def authenticator(settings: Certificate, services: Services) -> "Certificates":
    return Certificates(settings.identity)


class Certificates:
    """The authenticator of auth.certificate."""

    priority = 0

    def __init__(self, identity: str) -> None:
        self._identity = identity

    async def authenticate(self, client: Client) -> Answer:
        if client.cert_subject is None and client.cert_common_name is None:
            return IGNORE
        if self._identity == "any":
            return allow()
        shown = client.cert_common_name if self._identity == "cn" else client.cert_subject
        return allow() if shown is not None and shown == client.username else deny()

    async def close(self) -> None:
        pass
