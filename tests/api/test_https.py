"""The REST API over TLS (`api.certfile`)."""

import http.client
import json
import ssl
import time
from pathlib import Path

import pytest

from tests.api.rest import ApiBroker
from tests.edge.certificates import Authority
from tests.harness import Client


def test_with_a_certificate_it_answers_over_tls_and_nobody_else(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("api", "localhost", ("localhost", "127.0.0.1"))
    with ApiBroker(2, {"api.certfile": str(certificate)}) as broker:
        connection = http.client.HTTPSConnection("127.0.0.1", broker.api_port, context=authority.client(), timeout=30)
        login = json.dumps({"username": "admin", "password": broker.password})
        connection.request("POST", "/api/v5/login", login, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200 and json.loads(answer.read())["token"]
        connection.close()
        stranger = Authority(tmp_path, "stranger").client()
        with pytest.raises(ssl.SSLCertVerificationError):
            http.client.HTTPSConnection("127.0.0.1", broker.api_port, context=stranger, timeout=30).connect()
        plain = http.client.HTTPConnection("127.0.0.1", broker.api_port, timeout=30)
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.request("GET", "/api/v5/status")
            plain.getresponse()
        plain.close()


@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "not PEM"])
def test_a_certificate_that_cannot_be_used_is_told_and_keeps_mqtt_from_nothing(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "api.pem"
    if content is not None:
        file.write_text(content)
    with ApiBroker(2, {"api.certfile": str(file)}) as broker:
        with Client(broker.address, client_id="https") as client:
            client.ping()
        deadline = time.monotonic() + 30
        while "settings=api.certfile,api.keyfile" not in broker.log:
            assert time.monotonic() < deadline, broker.log
            time.sleep(0.05)
