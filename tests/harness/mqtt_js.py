"""MQTT.js, installed beside the pages and programs that use it."""

import subprocess
from pathlib import Path

from tests.harness.locked import locked

__all__ = ["DIRECTORY", "install"]

DIRECTORY = Path(__file__).parents[1] / "edge" / "js"
BUILD = Path(__file__).parents[2] / "build"


def install() -> None:
    """Installs it once for this clone; needs npm."""
    with locked(BUILD / "mqtt-js"):
        if not (DIRECTORY / "node_modules" / "mqtt").is_dir():
            command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"]
            done = subprocess.run(command, cwd=DIRECTORY, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
