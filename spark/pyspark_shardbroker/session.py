"""A Spark session with the settings of the data source."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

__all__ = ["SETTINGS", "make_session"]

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # Off by default in Spark: with it, filters on time, type, worker and topic reach segments and blocks.
    "spark.sql.python.filterPushdown.enabled": "true",
}


def make_session(name: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Returns the running session, or a new one. Executors on this machine use this Python."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    root = str(Path(__file__).parent.parent)
    if root not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        # For Python workers on this machine, if the package is not installed but found by a path.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    builder = SparkSession.builder.appName(name)
    if master:
        builder = builder.master(master)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
