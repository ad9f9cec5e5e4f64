"""Example queries: each takes the table `journal` as a DataFrame, from the data source or from an export, and returns one.

    python -m pyspark_shardbroker.jobs traffic <data_dir>            or: spark-submit spark/jobs/traffic.py <data_dir>
    ... --format parquet <export>   --plot traffic.png

A message is counted once, at its publisher's worker, if `journal.capture` matches its topic (column `captured`).
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pyspark_shardbroker.errors import ShardbrokerSourceError
from pyspark_shardbroker.session import make_session

__all__ = [
    "JOBS", "churn", "dead_subscriptions", "delivery_latency", "main", "qos2_incompletes", "retained_growth", "top_talkers",
    "traffic",
]  # fmt: skip


def captured(journal: DataFrame) -> DataFrame:
    """Returns the captured messages, each once."""
    return journal.where("type = 'message' and captured")


def traffic(journal: DataFrame, interval: str = "1 minute") -> DataFrame:
    """Returns messages and bytes by time, first level of the topic, and client."""
    return (
        captured(journal)
        .groupBy(
            F.window("time", interval).start.alias("time"), F.element_at(F.split("topic", "/"), 1).alias("topic_root"), "client_id"
        )
        .agg(F.count("*").alias("messages"), F.sum(F.length("payload")).alias("bytes"))
        .orderBy("time", F.desc("messages"))
    )


def top_talkers(journal: DataFrame, count: int = 20) -> DataFrame:
    """Returns the clients that publish most."""
    return (
        captured(journal)
        .groupBy("client_id")
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.length("payload")).alias("bytes"),
            F.countDistinct("topic").alias("topics"),
            F.min("time").alias("first"),
            F.max("time").alias("last"),
        )
        .orderBy(F.desc("messages"))
        .limit(count)
    )


def delivery_latency(journal: DataFrame, interval: str = "1 minute") -> DataFrame:
    """Returns the time from publish to sending to persistent sessions, and to their acknowledgement: percentiles in µs by time."""
    sent = journal.where("type = 'delivered' and latency_us >= 0")
    done = journal.where("type = 'acknowledged' and packet in ('puback', 'pubcomp')").select(
        "worker", "session", "packet_id", F.col("sequence").alias("done"), F.col("time").alias("done_time")
    )
    # Packet ids are reused: a delivery is acknowledged by the first acknowledgement of its id after it.
    pairs = (
        sent.where("packet_id > 0")
        .join(done, ["worker", "session", "packet_id"])
        .where("done > sequence")
        .withColumn("place", F.row_number().over(Window.partitionBy("worker", "session", "packet_id", "sequence").orderBy("done")))
        .where("place = 1")
        .select(
            "time",
            "qos",
            F.lit("acknowledged").alias("step"),
            F.expr("timestampdiff(microsecond, published, done_time)").alias("us"),
        )
    )
    both = sent.select("time", "qos", F.lit("sent").alias("step"), F.col("latency_us").alias("us")).unionByName(pairs)
    return (
        both.groupBy(F.window("time", interval).start.alias("time"), "step", "qos")
        .agg(
            F.count("*").alias("deliveries"),
            *(F.percentile_approx("us", share).alias(name) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))),
            F.max("us").alias("most"),
        )
        .orderBy("time", "step", "qos")
    )


def churn(journal: DataFrame, interval: str = "1 minute", storm: int = 10) -> DataFrame:
    """Returns sessions created, resumed and ended, by time; `storming`: clients with `storm` or more resumptions per interval."""
    counted = (
        journal.where("type in ('session_created', 'session_resumed', 'disconnected', 'session_ended')")
        .groupBy(F.window("time", interval).start.alias("time"), "client_id")
        .agg(*(F.count_if(F.col("type") == name).alias(name) for name in _COMING_AND_GOING))
    )
    return (
        counted.groupBy("time")
        .agg(
            *(F.sum(name).alias(name) for name in _COMING_AND_GOING),
            F.count_if(F.col("session_resumed") >= storm).alias("storming"),
        )
        .orderBy("time")
    )


_COMING_AND_GOING = ("session_created", "session_resumed", "disconnected", "session_ended")


def dead_subscriptions(journal: DataFrame) -> DataFrame:
    """Returns the subscriptions of persistent sessions to which none of the captured messages was published."""
    last = Window.partitionBy("client_id", "topic_filter").orderBy(F.desc("time"), F.desc("worker"), F.desc("sequence"))
    filters = (
        journal.where("type in ('subscribed', 'unsubscribed')")
        .withColumn("place", F.row_number().over(last))
        .where("place = 1 and type = 'subscribed'")
        .select("client_id", "topic_filter", F.col("time").alias("since"))
    )
    ended = (
        journal.where("type = 'session_ended' and reason_text != 'moved'").groupBy("client_id").agg(F.max("time").alias("ended"))
    )
    filters = filters.join(ended, "client_id", "left").where("ended is null or ended < since").drop("ended")
    topics = captured(journal).select("topic").distinct()
    # $share/group/filter; then + and # as regular expressions, the rest literally.
    plain = F.regexp_replace("topic_filter", r"^\$share/[^/]+/", "")
    quoted = F.regexp_replace(plain, r"([.\\^$|()\[\]{}*?])", r"\\$1")
    pattern = F.concat(
        F.when(plain.rlike(r"^[+#]"), F.lit(r"^(?!\$)")).otherwise(F.lit("^")),
        F.regexp_replace(F.regexp_replace(F.regexp_replace(quoted, r"\+", "[^/]*"), "/#$", "(/.*)?"), "^#$", ".*"),
        F.lit("$"),
    )
    filters = filters.withColumn("pattern", pattern)
    dead = filters.join(topics, F.rlike(topics.topic, filters.pattern), "left_anti")
    return dead.drop("pattern").orderBy("client_id", "topic_filter")


def retained_growth(journal: DataFrame, interval: str = "1 hour") -> DataFrame:
    """Returns retained messages set and cleared by time, and the number of topics with one since the start of the journal."""
    messages = captured(journal).where("retain")
    before = F.lag(F.length("payload") > 0).over(Window.partitionBy("topic").orderBy("time", "worker", "sequence"))
    step = F.when(F.length("payload") > 0, F.when(F.coalesce(before, F.lit(False)), 0).otherwise(1)).otherwise(
        F.when(F.coalesce(before, F.lit(False)), -1).otherwise(0)
    )
    by_time = (
        messages.withColumn("step", step)
        .groupBy(F.window("time", interval).start.alias("time"))
        .agg(
            F.count_if(F.length("payload") > 0).alias("set"),
            F.count_if(F.length("payload") == 0).alias("cleared"),
            F.sum("step").alias("growth"),
        )
    )
    return by_time.withColumn("topics", F.sum("growth").over(Window.orderBy("time"))).orderBy("time")


def qos2_incompletes(journal: DataFrame) -> DataFrame:
    """Returns QoS 2 exchanges that began and did not end: `in` from publishers, `out` to subscribers."""
    key = ["worker", "session", "packet_id"]
    latest = Window.partitionBy("direction", *key).orderBy(F.desc("sequence"))
    steps = (
        journal.where(
            "type in ('received', 'released') or (type = 'delivered' and qos = 2) "
            "or (type = 'acknowledged' and packet in ('pubrec', 'pubcomp'))"
        )
        .withColumn("direction", F.when(F.col("type").isin("received", "released"), "in").otherwise("out"))
        .withColumn("place", F.row_number().over(latest))
        .where("place = 1")
    )
    ended = journal.where("type = 'session_ended'").groupBy("session").agg(F.max("time").alias("ended"))
    open_ = steps.where("type in ('received', 'delivered') or (packet = 'pubrec' and reason < 128)").join(ended, "session", "left")
    return (
        open_.where("ended is null or ended < time")
        .select(
            "direction", "client_id", "packet_id", "time", F.when(F.col("packet") == "pubrec", "pubcomp").otherwise(
                F.when(F.col("direction") == "in", "pubrel").otherwise("pubrec")
            ).alias("waits_for"),
        )
        .orderBy("time")
    )  # fmt: skip


@dataclass(frozen=True)
class Job:
    """plot: columns of the result for a plot: x, and those drawn over it, summed up."""

    run: Callable[[DataFrame], DataFrame]
    plot: tuple[str, ...] = ()


JOBS = {
    "traffic": Job(traffic, ("time", "messages")),
    "top-talkers": Job(top_talkers),
    "delivery-latency": Job(delivery_latency, ("time", "p50", "p95", "p99")),
    "churn": Job(churn, ("time", *_COMING_AND_GOING)),
    "dead-subscriptions": Job(dead_subscriptions),
    "retained-growth": Job(retained_growth, ("time", "topics")),
    "qos2-incompletes": Job(qos2_incompletes),
}
PLOTTED = 100_000
"""Most rows of a result in a plot."""


def plot(result: DataFrame, columns: tuple[str, ...], path: str, title: str) -> None:
    """Draws columns over the first one. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    x, *lines = columns
    rows = result.groupBy(x).agg(*(F.max(name).alias(name) if name.startswith("p") else F.sum(name).alias(name) for name in lines))
    found = rows.orderBy(x).limit(PLOTTED).collect()
    figure, axes = pyplot.subplots(figsize=(10, 4))
    for name in lines:
        axes.plot([row[x] for row in found], [row[name] for row in found], marker=".", label=name)
    axes.set_title(title)
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.autofmt_xdate()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> int:
    """Runs a job. Exit codes: 0 success, 1 not readable, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="pyspark_shardbroker.jobs", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("job", choices=list(JOBS))
    parser.add_argument("path", help="journals, or an export with --format parquet")
    parser.add_argument("--format", choices=("shardbroker", "parquet", "delta"), default="shardbroker")
    parser.add_argument("--since", help="only journals: a time, or an age such as 2h")
    parser.add_argument("--master", help="Spark master; default: that of spark-submit, or local[*]")
    parser.add_argument("--rows", type=int, default=50, help="number of rows printed")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the result")
    arguments = parser.parse_args(argv)
    job = JOBS[arguments.job]
    if arguments.plot and not job.plot:
        parser.error(f"{arguments.job} has no plot; those that have: {', '.join(name for name, one in JOBS.items() if one.plot)}")
    spark = make_session(arguments.job, arguments.master, {"spark.log.level": "ERROR"})
    reader = spark.read.format(arguments.format)
    if arguments.since:
        reader = reader.option("since", arguments.since)
    try:
        result = job.run(reader.load(arguments.path))
        result.show(arguments.rows, truncate=False)
        if arguments.plot:
            plot(result, job.plot, arguments.plot, arguments.job)
            print(f"drawn to {arguments.plot}")
    except (PySparkException, ShardbrokerSourceError, ImportError, OSError) as error:
        print("\n".join(str(error).splitlines()[:8]), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
