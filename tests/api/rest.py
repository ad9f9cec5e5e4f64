"""A broker with its REST API, and a client of it that notes which routes it has asked."""

import base64
import http.client
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tests.harness import Broker, free_port, until

PASSWORD = re.compile(r"name=admin password=(\S+)")
asked: set[tuple[str, str]] = set()
"""(method, path) of every request of this run that was carried out."""
RULE: dict[str, Any] = {
    "id": "hot",
    "name": "hot",
    "sql": 'SELECT payload FROM "rest/in" WHERE payload.t > 10',
    "actions": [{"function": "republish", "args": {"topic": "rest/out", "qos": 1}}],
}
"""Body of a rule."""


class ApiBroker(Broker):
    """With api.bind at a free port; `password` is that of admin."""

    def __init__(self, workers: int = 3, settings: dict[str, object] | None = None, data_dir: Path | None = None) -> None:
        self.api_port = free_port()
        super().__init__(workers, {"api.bind": f"127.0.0.1:{self.api_port}", **(settings or {})}, data_dir)

    @property
    def log(self) -> str:
        return "".join(self.output)

    @property
    def password(self) -> str:
        """Of the first account, as the log tells it."""
        (found,) = until(lambda: PASSWORD.findall(self.log), lambda: self.log)
        return str(found)


def segment(text: str) -> str:
    """A text as one part of a path."""
    return quote(text, safe="")


class Rest:
    """rest("GET", "/clients", limit=3): (status, JSON or text)."""

    def __init__(self, port: int, authorization: str = "") -> None:
        self.port = port
        self.authorization = authorization

    @classmethod
    def logged_in(cls, broker: ApiBroker, name: str = "admin", password: str = "") -> "Rest":
        status, answer = cls(broker.api_port)("POST", "/login", {"username": name, "password": password or broker.password})
        assert status == 200, answer
        return cls(broker.api_port, f"Bearer {answer['token']}")

    @classmethod
    def with_key(cls, broker: ApiBroker, key: str, secret: str) -> "Rest":
        return cls(broker.api_port, "Basic " + base64.b64encode(f"{key}:{secret}".encode()).decode())

    def __call__(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        address = f"/api/v5{path}" if not path.startswith("/api-docs") else path
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            headers = {"Content-Type": "application/json"} | ({"Authorization": self.authorization} if self.authorization else {})
            connection.request(method, f"{address}?{urlencode(query)}" if query else address, data, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status < 300:
                asked.add((method, address))
            is_json = (answer.getheader("Content-Type") or "").startswith("application/json")
            return answer.status, json.loads(text) if is_json and text else text
        finally:
            connection.close()

    def good(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The answer, which must be a good one."""
        status, answer = self(method, path, body, **query)
        assert status < 300, (status, answer)
        return answer

    def refused(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, str]:
        """Status and code of an answer that must be an error with a code and a message."""
        status, answer = self(method, path, body, **query)
        assert status >= 400 and set(answer) == {"code", "message"} and answer["message"], (status, answer)
        return status, answer["code"]
