"""spark-submit spark/jobs/retained_growth.py <data_dir>: see pyspark_shardbroker.jobs."""

import sys

from pyspark_shardbroker.jobs import main

sys.exit(main(["retained-growth", *sys.argv[1:]]))
