"""A bridge over TLS to mosquitto, both ways; a server or a client that is not trusted is named in status, probe and log."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control
from shardbroker.control.errors import ControlError
from tests.edge.certificates import Authority
from tests.flows.bridges.far import Far
from tests.flows.sinks.publishing import publish_all
from tests.harness import until
from tests.harness.needed import needed
from tests.servers.mosquitto import mosquitto_server
from tests.servers.processes import account

pytestmark = pytest.mark.own_broker
needed("mosquitto", "mosquitto_pub", "mosquitto_sub")
COUNT = 50


class Certificates:
    """Those of the server and a client, and an authority that has issued neither."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        directory.chmod(0o755)
        self.authority, self.other = Authority(directory), Authority(directory, "another authority")
        self.server = self.authority.issue("server", "server", ("localhost",))
        self.client = self.authority.issue("client", "client")
        self.stranger = self.other.issue("stranger", "stranger")
        if account():
            shutil.chown(self.server, "nobody")

    @contextmanager
    def mosquitto(self, *lines: str) -> Iterator[Any]:
        tls = [f"cafile {self.authority.cafile}", f"certfile {self.server}", f"keyfile {self.server}"]
        with mosquitto_server(*tls, *lines) as one:
            yield one

    def tool(self, name: str, port: int, *options: str) -> list[str]:
        identity = ["--cert", str(self.client), "--key", str(self.client)]
        return [name, "-h", "localhost", "-p", str(port), "--cafile", str(self.authority.cafile), *identity, "-q", "1", *options]


@pytest.fixture
def certificates(place: Path) -> Certificates:
    place.chmod(0o755)
    return Certificates(place / "tls")


def sections(connector: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        "connectors.mqtt.far": {"timeout": "3s", "tls": True, **connector},
        "actions.mqtt.far": {"connector": "far", "parameters": {"topic": "there/${topic}", "qos": 1}},
        "rules.out": {"sql": 'SELECT * FROM "out/#"', "actions": ["mqtt:far"]},
        "sources.mqtt.far": {"connector": "far", "parameters": {"topic": "in/#", "local": {"topic": "far/${topic}"}}},
    }


@pytest.mark.parametrize("version", ["v4", "v5"])
def test_both_ways(place: Path, certificates: Certificates, version: str) -> None:
    """mosquitto requires a certificate of the bridge."""
    with certificates.mosquitto("require_certificate true") as server:
        tls = {"tls_ca": str(certificates.authority.cafile), "tls_cert": str(certificates.client)}
        connector = {"server": f"localhost:{server.port}", "proto_ver": version, **tls}
        command = certificates.tool("mosquitto_sub", server.port, "-t", "there/#", "-C", str(COUNT), "-W", "60")
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader,
            Far(place / "near", sections=sections(connector)) as near,
        ):
            sent = certificates.tool("mosquitto_pub", server.port, "-t", "in/a", "-l")
            near.await_source(lambda payload: subprocess.run(sent, input=payload + b"\n", check=True))
            payloads = [b'{"w": 0, "n": %d}' % number for number in range(COUNT)]
            publish_all(near.address, 0, 1, payloads, b"out/a")
            subprocess.run(sent, input=b"".join([one + b"\n" for one in payloads]), check=True)
            until(lambda: len(near.seen().rows) >= COUNT, lambda: f"{near.source('mqtt:far')} {near.output[-5:]}", 30)
            assert near.seen().rows == [(0, number) for number in range(COUNT)]
            found, _ = reader.communicate(timeout=60)
            assert found.splitlines() == [one.decode() for one in payloads], near.action("mqtt:far")


REFUSED = {
    "wrong CA": "the certificate of the server is not accepted: self-signed certificate in certificate chain",
    "wrong host name": "the certificate of the server is not accepted: IP address mismatch, certificate is not valid for '127.+",
    # The reset of a server that has not read CONNECT may precede its alert.
    "no certificate": "TLS fails: tlsv13 alert certificate required|connection reset by peer",
    "wrong certificate": "TLS fails: tlsv1 alert unknown ca|connection reset by peer",
    "no TLS": "(connection reset by peer|the connection was closed), as if the server expects TLS",
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_side_that_is_not_trusted_is_named(place: Path, certificates: Certificates, case: str) -> None:
    with certificates.mosquitto("require_certificate true") as server:
        connector: dict[str, Any] = {
            "server": f"localhost:{server.port}", "tls_ca": str(certificates.authority.cafile),
            "tls_cert": str(certificates.client),
        }  # fmt: skip
        changes: dict[str, dict[str, Any]] = {
            "wrong CA": {"tls_ca": str(certificates.other.cafile)},
            "wrong host name": {"server": f"127.0.0.1:{server.port}"},
            "no certificate": {"tls_cert": ""},
            "wrong certificate": {"tls_cert": str(certificates.stranger)},
            "no TLS": {"tls": False},
        }
        connector |= changes[case]
        with Far(place / "near", sections=sections(connector)) as near:
            for figures, line in ((near.action, "sink not available action"), (near.source, "source not available source")):
                until(lambda figures=figures: figures("mqtt:far").get("error"), lambda: f"{near.output[-5:]}", 30)
                assert figures("mqtt:far")["status"] == "disconnected"
                assert re.fullmatch(REFUSED[case], figures("mqtt:far")["error"])
                said = re.compile(f'WARNING flows-0: {line}=mqtt:far reason="({REFUSED[case]})"')
                until(lambda said=said: any(map(said.search, near.output)), lambda: f"{near.output[-5:]}", 10)
            with Control(near.data_dir) as control, pytest.raises(ControlError) as caught:
                control.call("connectors probe", id="mqtt:far", definition=json.dumps(sections(connector)["connectors.mqtt.far"]))
            assert re.search(REFUSED[case], str(caught.value))
