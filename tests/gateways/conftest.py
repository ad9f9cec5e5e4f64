"""Brokers with three workers and a gateway."""

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from shardbroker.control import Control
from tests.gateways.coap_client import CoapClient
from tests.gateways.mqttsn_client import MqttSnClient
from tests.gateways.stomp_client import StompClient
from tests.harness import Broker, free_port, until


class GatewayBroker(Broker):
    """`gateway`: settings below `gateways.<kind>`; None: not set."""

    def __init__(self, workers: int = 3, gateway: dict[str, Any] | None = None, kind: str = "stomp", **settings: Any) -> None:
        self.at = "127.0.0.1", free_port()
        own = {"enable": "true", "listeners.default.bind": f"127.0.0.1:{self.at[1]}"} | (gateway or {})
        named = {name.replace("__", "."): value for name, value in settings.items()}
        super().__init__(workers, {**{f"gateways.{kind}.{key}": value for key, value in own.items() if value is not None}, **named})

    def stomp(self) -> StompClient:
        """A connection, as soon as the gateway listens."""
        deadline_s = time.monotonic() + 30
        while True:
            try:
                return StompClient(self.at)
            except ConnectionRefusedError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.02)

    def mqttsn(self, head: bytes = b"", source: str = "") -> MqttSnClient:
        """A device, which is not connected yet."""
        return MqttSnClient(self.at, head, source)

    def coap(self, source: str = "") -> CoapClient:
        """An endpoint, which has no session yet."""
        return CoapClient(self.at, source)

    def figures(self, kind: str) -> dict[str, int]:
        found: dict[str, int] = self.ctl("gateways show", name=kind)["figures"]
        return found

    def ctl(self, verb: str, **params: Any) -> Any:
        with Control(self.data_dir) as control:
            return control.call(verb, **params)

    def log(self) -> str:
        return "".join(self.output)

    def wait_for_log(self, *words: str) -> str:
        return until(lambda: next((line for line in list(self.output) if all(word in line for word in words)), None), self.log)


@pytest.fixture(scope="session")
def gateway() -> Iterator[GatewayBroker]:
    with GatewayBroker(gateway={"idle_timeout": "6s"}) as broker:
        yield broker


@pytest.fixture(scope="session")
def sn() -> Iterator[GatewayBroker]:
    predefined = '[{ id = 7, topic = "pre/seven" }]'
    settings = {"enable_qos3": "true", "predefined": predefined, "gateway_id": 9}
    with GatewayBroker(3, settings, "mqttsn") as broker:
        yield broker


@pytest.fixture(scope="session")
def coap() -> Iterator[GatewayBroker]:
    """Without a need for connections."""
    with GatewayBroker(3, {"idle_timeout": "3s"}, "coap") as broker:
        broker.wait_for_log("gateway listener opened")
        yield broker


numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    """A name for client ids and topics that no other test uses."""
    return f"gw{next(numbers)}"
