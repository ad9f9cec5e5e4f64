"""spark-submit spark/jobs/dead_subscriptions.py <data_dir>: see pyspark_shardbroker.jobs."""

import sys

from pyspark_shardbroker.jobs import main

sys.exit(main(["dead-subscriptions", *sys.argv[1:]]))
