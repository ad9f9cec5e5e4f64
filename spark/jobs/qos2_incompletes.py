"""spark-submit spark/jobs/qos2_incompletes.py <data_dir>: see pyspark_shardbroker.jobs."""

import sys

from pyspark_shardbroker.jobs import main

sys.exit(main(["qos2-incompletes", *sys.argv[1:]]))
