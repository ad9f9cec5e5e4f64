"""Presets over REST: what they expand to, and the tables that they need."""

import tempfile
from pathlib import Path

import pytest

from tests.api.rest import ApiBroker, Rest
from tests.flows.sinks.broker import toml
from tests.servers.redis import PASSWORD, redis_server


@pytest.mark.own_broker
def test_a_preset_is_shown_and_created() -> None:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, redis_server() as store:
        connection = {"server": f"127.0.0.1:{store.port}", "password": PASSWORD}
        file = Path(name) / "presets.toml"
        file.write_text(toml({"persistence.redis": {"clients": True, "connection": connection}}))
        broker = ApiBroker(1, data_dir=Path(name) / "data")
        broker._arguments = (f"--config={file}",)
        with broker:
            rest = Rest.logged_in(broker)
            (row,) = rest.good("GET", "/persistence")["data"]
            assert (row["database"], row["part"], row["rule"]) == ("redis", "clients", "persistence-redis-clients")
            rest.good("POST", "/persistence/create", {})
            (made,) = rest.good("POST", "/persistence/create")["data"]
            assert made["created"] is True
            assert rest.refused("POST", "/persistence/create", {"database": "mysql"}) == (400, "BAD_REQUEST")
            assert rest.refused("DELETE", "/rules/persistence-redis-clients")[0] == 400
