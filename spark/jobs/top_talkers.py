"""spark-submit spark/jobs/top_talkers.py <data_dir>: see pyspark_shardbroker.jobs."""

import sys

from pyspark_shardbroker.jobs import main

sys.exit(main(["top-talkers", *sys.argv[1:]]))
