"""Journals of shardbroker as DataFrames (docs/spark.md).

Spark registers the source by itself, as it does with every package called pyspark_* that has a `DefaultSource`.
"""

from pyspark_shardbroker.source import DefaultSource, ShardbrokerSource

__all__ = ["DefaultSource", "ShardbrokerSource"]
