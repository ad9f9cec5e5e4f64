"""The jobs over a journal whose answers are known."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_shardbroker import jobs
from shardbroker.journal import open_journal
from shardbroker.journal.schema import Kind, encode
from tests.spark.samples import START_US, message_id

pytestmark = pytest.mark.timeout(400)

SECOND = 1_000_000


@pytest.fixture(scope="module")
def journal(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    directory = tmp_path_factory.mktemp("jobs") / "journal" / "0"
    writer = open_journal(directory)

    def log(at_s: float, kind: Kind, **fields: object) -> None:
        writer.append(encode(kind, **fields))  # type: ignore[arg-type]
        writer.seal(START_US + round(at_s * SECOND))

    def message(at_s: float, number: int, topic: bytes, flags: int = 0x10, payload: bytes = b"12345") -> bytes:
        id = message_id(START_US + round(at_s * SECOND), number)
        log(at_s, Kind.MESSAGE, id=id, topic=topic, payload=payload, flags=flags, expires_ms=0, properties=b"", publisher=b"pump")
        return id

    for session, name in ((1, b"reader"), (2, b"storm")):
        log(0, Kind.SESSION_CREATED, session=session, client_id=name, version=5, expiry_ms=None, details=None)
    for topic_filter in (b"a/+", b"$share/g/b/#", b"never/#", b"gone"):
        log(0, Kind.SUBSCRIBED, session=1, filter=topic_filter, options=1, identifier=0)
    log(1, Kind.UNSUBSCRIBED, session=1, filter=b"gone")
    for _ in range(12):
        log(2, Kind.SESSION_RESUMED, session=2, client_id=b"storm", version=5, expiry_ms=None, details=None)
        log(2, Kind.DISCONNECTED, session=2, reason=0x80, expires_at_ms=None)
    first = message(3, 1, b"a/x")
    message(4, 2, b"b/y/z")
    message(5, 3, b"a/x", flags=0)  # another worker's: not captured here
    message(6, 4, b"kept/1", flags=0x14)
    message(7, 5, b"kept/2", flags=0x14)
    message(8, 6, b"kept/1", flags=0x14, payload=b"")
    log(8.001, Kind.DELIVERED, session=1, packet_id=9, id=first, flags=1)
    log(8.003, Kind.ACKNOWLEDGED, session=1, packet_id=9, packet=4, reason=0)
    log(9, Kind.DELIVERED, session=1, packet_id=9, id=first, flags=2)
    log(10, Kind.ACKNOWLEDGED, session=1, packet_id=9, packet=5, reason=0)
    log(11, Kind.RECEIVED, session=2, packet_id=1, id=first)
    log(12, Kind.RECEIVED, session=2, packet_id=2, id=first)
    log(13, Kind.RELEASED, session=2, packet_id=2, reason=0)
    writer.close()
    return spark.read.format("shardbroker").load(str(directory.parent)).cache()


def test_each_job_answers_its_question(journal: DataFrame, tmp_path: Path) -> None:
    assert {(row.topic_root, row.client_id): (row.messages, row.bytes) for row in jobs.traffic(journal).collect()} == {
        ("a", "pump"): (1, 5), ("b", "pump"): (1, 5), ("kept", "pump"): (3, 10),
    }  # fmt: skip
    (talker,) = jobs.top_talkers(journal).collect()
    assert (talker.client_id, talker.messages, talker.topics) == ("pump", 5, 4)
    latency = {(row.step, row.qos): row.most for row in jobs.delivery_latency(journal).collect()}
    assert (latency[("sent", 1)], latency[("acknowledged", 1)]) == (5_001_000, 5_003_000)
    (storm,) = (row for row in jobs.churn(journal).collect() if row.storming)
    assert (storm.session_created, storm.session_resumed, storm.disconnected) == (2, 12, 12)
    dead = [(row.client_id, row.topic_filter) for row in jobs.dead_subscriptions(journal).collect()]
    assert dead == [("reader", "never/#")]
    (growth,) = jobs.retained_growth(journal).collect()
    assert (growth.set, growth.cleared, growth.topics) == (2, 1, 1)
    waiting = {(row.direction, row.client_id, row.packet_id, row.waits_for) for row in jobs.qos2_incompletes(journal).collect()}
    assert waiting == {("out", "reader", 9, "pubcomp"), ("in", "storm", 1, "pubrel")}
    jobs.plot(jobs.traffic(journal), jobs.JOBS["traffic"].plot, str(tmp_path / "plot.png"), "traffic")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_each_job_has_a_script() -> None:
    scripts = Path(__file__).parents[2] / "spark" / "jobs"
    assert {path.stem.replace("_", "-") for path in scripts.glob("*.py")} == {*jobs.JOBS}
    done = subprocess.run([sys.executable, scripts / "traffic.py", "--help"], capture_output=True, text=True, check=True)
    assert "--plot" in done.stdout
