"""The load tool over TLS and WebSocket, against this broker."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.edge.certificates import Authority
from tests.edge.conftest import Edge

pytestmark = pytest.mark.own_broker


@pytest.mark.parametrize(
    ("listener", "options"), [("ssl", ["--tls"]), ("ws", ["--ws"]), ("wss", ["--tls", "--ws"])], ids=["ssl", "ws", "wss"]
)
@pytest.mark.parametrize("size", ["64", "100000"])
def test_load_over(edge: Edge, authority: Authority, listener: str, options: list[str], size: str) -> None:
    if "--tls" in options:
        options = [*options, "--cafile", str(authority.cafile)]
    command = [str(Path(sys.executable).with_name("shardbroker")), "perf", "p2p", "-p", str(edge.ports[listener]), *options]
    command += ["--messages", "2000" if size == "64" else "100", "-q", "1", "--size", size, "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["delivered"] == int(command[command.index("--messages") + 1])
    assert (result["lost"], result["duplicates"]) == (0, 0)


def test_transports_that_do_not_go_together(edge: Edge) -> None:
    program = str(Path(sys.executable).with_name("shardbroker"))
    for arguments, words in (
        (["reconnect", "--tls"], "reconnect takes tcp"),
        (["conn", "--cafile", "x"], "only for the transports"),
    ):
        done = subprocess.run([program, "perf", *arguments], capture_output=True, text=True, timeout=20)
        assert done.returncode == 2
        assert words in done.stderr
