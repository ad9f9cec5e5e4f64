"""One Spark for all tests: it takes seconds to start."""

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pyspark_shardbroker.session import make_session
from tests.harness.needed import needed

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


@pytest.fixture(scope="session", autouse=True)
def _java() -> None:
    needed("java")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = make_session("tests", "local[2]", SETTINGS)
    yield session
    session.stop()
