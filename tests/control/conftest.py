"""Fixtures of tests that look into a running broker."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shardbroker.cli.ctl import main
from shardbroker.control import Control
from tests.harness import Broker

Run = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def control(broker: Broker) -> Iterator[Control]:
    """A connection to the shared broker."""
    with Control(broker.data_dir) as connection:
        yield connection


@pytest.fixture
def ctl(broker: Broker, capsys: pytest.CaptureFixture[str]) -> Run:
    """ctl("clients", "list", on=broker): exit code, what --json printed, and what went to standard error."""

    def run(*argv: str, on: Broker = broker, text: bool = False) -> tuple[int, Any, str]:
        capsys.readouterr()
        words = list(argv) if text else ["--json", *argv]
        code = main(["--data-dir", str(on.data_dir), *words])
        captured = capsys.readouterr()
        if text:
            return code, captured.out, captured.err
        lines = [json.loads(line) for line in captured.out.splitlines()]
        return code, lines[0] if len(lines) == 1 else lines, captured.err

    return run
