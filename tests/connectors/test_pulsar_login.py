"""The login of Pulsar against a stand-in whose answers are bytes; tests/flows/drivers/test_pulsar.py has those of a server."""

import asyncio
import struct

import pytest

from shardbroker.config.connectors import PulsarConnection
from shardbroker.connectors.errors import ConnectorError, describe
from shardbroker.connectors.pulsar import Pulsar


def frame(command: bytes) -> bytes:
    return struct.pack(">II", 4 + len(command), len(command)) + command


def reason_of(answer: bytes, *, stays_silent: bool = False) -> str:
    """Returns why a client is not made with a server that answers so."""

    async def scenario() -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            (size,) = struct.unpack(">I", await reader.readexactly(4))
            sent = await reader.readexactly(size)
            assert b"token" in sent and b"s3cret" in sent
            if stays_silent:
                await reader.read()
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        settings = PulsarConnection.model_validate({"servers": [f"127.0.0.1:{port}"], "token": "s3cret", "timeout": "300ms"})
        connector = Pulsar(settings, "connectors.pulsar.x")
        try:
            with pytest.raises(ConnectorError) as caught:
                await connector.probe()
            return describe(caught.value).removeprefix(f"pulsar://127.0.0.1:{port}: ")
        finally:
            await connector.close()
            server.close()

    return asyncio.run(scenario())


@pytest.mark.parametrize(("answer", "reason"), [
    (frame(b"\x08\x0e\x72\x04\x08\x01\x10\x03"), "the server rejects username, password or token"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an answer of another protocol"),
    (struct.pack(">II", 1 << 30, 4), "an answer of another protocol"),
    (struct.pack(">II", 8, 200) + b"\x08\x03\0\0", "an answer of another protocol"),
    (frame(b"\x08\x63"), "an answer of another protocol"),
    (frame(b"\x0b" * 9), "an answer of another protocol"),
    (frame(b"\xff" * 12), "an answer of another protocol"),
    (frame(b"\x08\x03")[:9], "the connection was closed"),
    (b"", "the connection was closed"),
])  # fmt: skip
def test_why_there_is_no_connection(answer: bytes, reason: str) -> None:
    assert reason_of(answer) == reason


def test_a_silent_server() -> None:
    assert reason_of(b"", stays_silent=True) == "no response in time"
