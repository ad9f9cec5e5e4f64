"""spark-submit spark/jobs/churn.py <data_dir>: see pyspark_shardbroker.jobs."""

import sys

from pyspark_shardbroker.jobs import main

sys.exit(main(["churn", *sys.argv[1:]]))
