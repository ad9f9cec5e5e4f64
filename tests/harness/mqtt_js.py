"""MQTT.js, installed beside the pages and programs that use it."""

from pathlib import Path

from tests.harness.npm import installed

__all__ = ["DIRECTORY", "install"]

DIRECTORY = Path(__file__).parents[1] / "edge" / "js"


def install() -> None:
    """Installs it once for this clone; needs npm."""
    installed(DIRECTORY, "mqtt")
