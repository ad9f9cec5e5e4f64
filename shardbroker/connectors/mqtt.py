"""Another broker: the clients of a connector, which its actions and sources share.

Messages that a connection publishes are not delivered to the same connection where the server is told so (No Local of MQTT 5.0, the
bridge bit of 3.x). So an action and a source of one connector use the same client.
"""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shardbroker.config.connectors import MqttConnection
from shardbroker.connectors.connector import Connector, Identity
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.connectors.mqtt_client import Login, MqttClient
from shardbroker.connectors.server import address_of, tls_of

__all__ = ["Mqtt"]

VERSIONS = {"v3": 3, "v4": 4, "v5": 5}
SHORT_ID = 23
"""Characters of a client id that MQTT 3.1 §3.1 allows."""
DIGEST = 16
PREFIX = "shardbroker"


class Mqtt(Connector[MqttClient]):
    """`identity` is set before the first use of a connector in service; without it, clients have random ids and clean sessions."""

    def __init__(self, settings: MqttConnection, key: str) -> None:
        super().__init__(settings.timeout)
        self.settings = settings
        self.identity: Identity | None = None
        self._host, self._port = address_of(settings, key)
        self._tls = tls_of(settings, key)
        self._key = key
        self._name = key.rpartition(".")[2]
        self._clients: dict[int, MqttClient] = {}
        self.of_sources = "$source:mqtt:"
        """Begin of the client ids of all sources of this type."""
        self.sources: set[str] = set()
        """Publishers in this broker of what comes from that server: sources of this connector."""
        if settings.password and not settings.username and settings.proto_ver != "v5":
            raise ConnectionSettingError(f"{key}.username", "a name, as there is a password", "")

    # --- clients --------------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return VERSIONS[self.settings.proto_ver]

    @property
    def is_synced(self) -> bool:
        """Whether messages of this broker are on the disk before they are acknowledged."""
        return self.identity is not None and self.identity.synced

    @property
    def origin(self) -> str:
        return self.identity.origin if self.identity is not None else ""

    @property
    def size(self) -> int:
        """Clients of this process. Raises ConnectorError before they exist."""
        if self.identity is None or not self.settings.static_clientids:
            return self.settings.pool_size
        return len(self._static_ids(self.identity))

    def _static_ids(self, identity: Identity) -> list[str]:
        """Returns the ids of this process out of those of its node."""
        ids = [id for entry in self.settings.static_clientids if entry.node in ("", identity.node) for id in entry.ids]
        own = ids[identity.number :: identity.processes]
        if not own:
            must = f"at least {identity.processes} ids for node {identity.node}, one for each process flows"
            raise ConnectorError(f"{self._key}.static_clientids: must have {must}, got {len(ids)}")
        return own

    def client_id(self, slot: int) -> str:
        """Returns the client id of a slot, the same after each start."""
        settings, identity = self.settings, self.identity
        prefix = settings.clientid_prefix or PREFIX
        if identity is None:
            return f"{prefix[: SHORT_ID - DIGEST - 1]}-{secrets.token_hex(DIGEST // 2)}"
        if settings.static_clientids:
            return self._static_ids(identity)[slot]
        whole = f"{prefix}:{identity.node}:{self._name}:{identity.number}:{slot}"
        if self.version == 3 and len(whole) > SHORT_ID:
            return prefix[: SHORT_ID - DIGEST] + hashlib.sha256(whole.encode()).hexdigest()[:DIGEST]
        return whole

    def client_of(self, slot: int) -> MqttClient:
        """Returns the client of a slot, which may not be connected. Raises ConnectorError."""
        slot %= self.size
        client = self._clients.get(slot)
        if client is None:
            settings = self.settings
            login = Login(
                self.client_id(slot).encode(),
                self.version,
                settings.clean_start or self.identity is None,
                round(settings.keepalive),
                settings.username.encode() if settings.username else None,
                settings.password.encode() if settings.password else None,
                settings.bridge_mode,
                settings.receive_maximum,
                round(settings.session_expiry_interval),
            )
            limits = settings.timeout, settings.max_inflight, settings.max_awaiting_rel
            client = MqttClient(self._host, self._port, self._tls, login, *limits)
            self._clients[slot] = client
        return client

    async def connected(self, slot: int) -> MqttClient:
        """Returns the client of a slot, connected. Raises ConnectorError, OSError, TimeoutError."""
        client = self.client_of(slot)
        try:
            await client.connect()
        except (ConnectorError, OSError) as error:
            self.health.lost(error)
            raise
        self.health.reached()
        return client

    # --- of all connectors ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[MqttClient]:
        client = self.client_of(0)
        await client.connect()
        yield client

    async def _ping(self, lent: MqttClient) -> None:
        await lent.ping()

    def _is_lost(self, error: Exception) -> bool:
        return True

    async def _close(self) -> None:
        for client in self._clients.values():
            client.close()
        await asyncio.sleep(0)
