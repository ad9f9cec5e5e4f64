"""spark-submit spark/jobs/delivery_latency.py <data_dir>: see pyspark_shardbroker.jobs."""

import sys

from pyspark_shardbroker.jobs import main

sys.exit(main(["delivery-latency", *sys.argv[1:]]))
