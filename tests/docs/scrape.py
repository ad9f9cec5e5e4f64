"""python -m tests.docs.scrape FILE

Scrapes what a configuration of Prometheus names, as Prometheus would.
"""

import sys
from pathlib import Path
from urllib.request import urlopen

import yaml
from prometheus_client.parser import text_string_to_metric_families

if __name__ == "__main__":
    for job in yaml.safe_load(Path(sys.argv[1]).read_text())["scrape_configs"]:
        for given in job["static_configs"]:
            for target in given["targets"]:
                with urlopen(f"http://{target}{job.get('metrics_path', '/metrics')}", timeout=60) as answer:
                    assert [*text_string_to_metric_families(answer.read().decode())], target
