"""Journals of shardbroker as DataFrames (docs/spark.md).

Spark registers the source automatically, as with every package named pyspark_* that has a `DefaultSource`.
"""

from pyspark_shardbroker.source import DefaultSource, ShardbrokerSource

__all__ = ["DefaultSource", "ShardbrokerSource"]
