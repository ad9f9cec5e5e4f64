"""Blocking client of the control channel."""

import itertools
import socket
from collections.abc import Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from shardbroker.control.errors import ControlError
from shardbroker.control.protocol import SOCKET_NAME, Frames, encode_frame, short_path

__all__ = ["Control"]

TIMEOUT_S = 30.0
"""Longest wait for a response; all timeouts of the manager are shorter."""


class Control:
    """One connection to the broker of a data directory; one request at a time. A context manager.

    Raises ControlError: BROKER_DOWN if the broker does not respond, otherwise with the code of the response.
    """

    def __init__(
        self,
        data_dir: Path,
        by: str = "ctl",
        timeout_s: float | None = TIMEOUT_S,
        at_node: str = "",
        of_all_nodes: bool = False,
    ) -> None:
        """by: the author for the audit log. at_node: the node of the cluster that carries out the verbs; empty: this one.
        of_all_nodes: lists have the rows of all nodes."""
        self.of_all_nodes = of_all_nodes
        self.missing: dict[str, dict[str, str]] = {}
        """Nodes whose rows are in no list so far: name -> `node` and `reason`."""
        self._where: dict[str, Any] = {"node": at_node} if at_node else {"all_nodes": True} if of_all_nodes else {}
        self._path = data_dir / SOCKET_NAME
        self._by = by
        self._frames = Frames()
        self._ids = itertools.count(1)
        self._waiting: list[dict[str, Any]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            with short_path(self._path) as name:
                self._socket.connect(name)
        except OSError as error:
            self._socket.close()
            raise ControlError("BROKER_DOWN", f"no broker runs with data directory {data_dir}: {error.strerror or error}") from None

    def __enter__(self) -> "Control":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and cancels the request under way."""
        self._socket.close()

    def call(self, verb: str, **params: Any) -> Any:
        """Returns the result of a verb."""
        result = self._call(verb, params)
        if self.of_all_nodes:
            self.missing |= {one["node"]: one for one in result["missing"]}
        return result

    def _call(self, verb: str, params: dict[str, Any]) -> Any:
        items = self.stream(verb, **params)
        while True:
            try:
                next(items)
            except StopIteration as end:
                return end.value

    def stream(self, verb: str, **params: Any) -> Generator[Any, None, Any]:
        """Yields the items of a verb that streams; its result is the value of StopIteration."""
        number = next(self._ids)
        self._send(encode_frame({"id": number, "verb": verb, "params": params, "by": self._by, **self._where}))
        while True:
            answer = self._next()
            if answer.get("id") != number:
                continue  # of a stream that is no longer read
            if "error" in answer:
                raise ControlError(*answer["error"])
            if "item" not in answer:
                return answer.get("result")
            yield answer["item"]

    def pages(self, verb: str, **params: Any) -> Iterator[dict[str, Any]]:
        """Yields all rows of a list, page by page."""
        while True:
            page = self.call(verb, **params)
            yield from page["data"]
            if page.get("cursor") is None:
                return
            params["cursor"] = page["cursor"]

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ControlError("BROKER_DOWN", f"connection to the broker lost: {error.strerror or error}") from None

    def _next(self) -> dict[str, Any]:
        while not self._waiting:
            try:
                data = self._socket.recv(1 << 20)
            except TimeoutError:
                raise ControlError("BROKER_DOWN", "the broker did not respond in time") from None
            except OSError as error:
                raise ControlError("BROKER_DOWN", f"connection to the broker lost: {error.strerror or error}") from None
            if not data:
                raise ControlError("BROKER_DOWN", "the broker has closed the connection")
            self._waiting.extend(self._frames.feed(data))
        return self._waiting.pop(0)
