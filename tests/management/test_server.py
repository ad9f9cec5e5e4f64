"""Connections to the manager: each node has a number of them of its own."""

import asyncio
import socket
from pathlib import Path
from typing import Any

from shardbroker.control import AsyncControl
from shardbroker.control.protocol import Frames, encode_frame
from shardbroker.management.server import NODE_CONNECTIONS_MAX, ControlServer

REQUEST = encode_frame({"id": 1, "verb": "status"})


async def status(_params: Any) -> dict[str, str]:
    return {"node": "n1"}


def test_a_node_with_many_connections_leaves_room_for_programs_and_other_nodes(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = ControlServer(tmp_path, "n1", {"status": status}, lambda *_: None)
        server.nodes = _Nodes()  # type: ignore[assignment]
        await server.start()
        ends, serving = [], []

        async def asked(node: str) -> bytes:
            """Returns what a further connection of a node is answered."""
            here, there = socket.socketpair()
            serving.append(asyncio.create_task(server.serve_node(await asyncio.open_connection(sock=here), node)))
            reader, writer = await asyncio.open_connection(sock=there)
            ends.append(writer)
            try:
                writer.write(REQUEST)
                return await reader.read(4096)
            except ConnectionError:
                return b""

        for _ in range(NODE_CONNECTIONS_MAX):
            (answer,) = Frames().feed(await asked("n2"))
            assert answer["result"] == {"node": "n1"}
        assert await asked("n2") == b"", "one too many is closed"
        assert await asked("n3")
        control = AsyncControl(tmp_path)
        assert await control.call("status") == {"node": "n1"}
        ends[0].close()
        await serving[0]
        assert await asked("n2"), "there is room again"
        await control.close()
        await server.close()
        for end in ends:
            end.close()

    asyncio.run(scenario())


class _Nodes:
    """Lets each node ask everything."""

    def check(self, verb: Any) -> None:
        pass
