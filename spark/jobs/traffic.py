"""spark-submit spark/jobs/traffic.py <data_dir>: see pyspark_shardbroker.jobs."""

import sys

from pyspark_shardbroker.jobs import main

sys.exit(main(["traffic", *sys.argv[1:]]))
