"""Alert rules for Prometheus: each fires on the figures that it is for, and on no others. By promtool."""

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.harness.needed import needed

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/alerts.yaml"
MINUTES = 30
QUIET = {
    'up{job="shardbroker"}': "1", 'shardbroker_process_up{process="worker-0"}': "1",
    'shardbroker_process_starts{process="worker-0"}': "1",
    'shardbroker_messages_lost{reason="queue_full"}': "7", 'shardbroker_journal_failing{worker="0"}': "0",
    "shardbroker_overload_level_count": "0", 'shardbroker_ring_fill_bytes{worker="0",producer="1"}': "4096",
    "shardbroker_ring_size_bytes": "1048576", "shardbroker_authentication_failure": "0+30x30",
    "shardbroker_authentication_unavailable": "3", "shardbroker_connections_count": "1000",
    'shardbroker_pass_seconds_bucket{le="0.065536"}': "0+60x30", 'shardbroker_pass_seconds_bucket{le="+Inf"}': "0+60x30",
    'shardbroker_connector_status{id="pgsql:main"}': "1", 'shardbroker_connector_enable{id="pgsql:main"}': "1",
    'shardbroker_connector_status{id="pgsql:off"}': "0", 'shardbroker_connector_enable{id="pgsql:off"}': "0",
    'shardbroker_action_lag_seconds{id="pgsql:rows"}': "2", "shardbroker_cluster_isolated": "0",
    'shardbroker_cluster_link_up{peer="n2"}': "1", 'shardbroker_cluster_clock_skew_seconds{peer="n2"}': "-0.5",
    'shardbroker_gateway_up{gateway="coap"}': "1",
}  # fmt: skip
"""Series of a broker that is well: a number, or what promtool expands."""
TROUBLE = {
    "ShardbrokerDown": {'up{job="shardbroker"}': "0"},
    "ShardbrokerProcessDown": {'shardbroker_process_up{process="worker-0"}': "0"},
    "ShardbrokerProcessRestarts": {'shardbroker_process_starts{process="worker-0"}': "1+1x30"},
    "ShardbrokerMessagesLost": {'shardbroker_messages_lost{reason="queue_full"}': "7+1x30"},
    "ShardbrokerDiskFailing": {'shardbroker_journal_failing{worker="0"}': "1"},
    "ShardbrokerOverloaded": {"shardbroker_overload_level_count": "1"},
    "ShardbrokerSlow": {
        'shardbroker_pass_seconds_bucket{le="0.065536"}': "0+50x30",
        'shardbroker_pass_seconds_bucket{le="0.262144"}': "0+60x30",
    },
    "ShardbrokerRingFull": {'shardbroker_ring_fill_bytes{worker="0",producer="1"}': "1000000"},
    "ShardbrokerLoginsRefused": {"shardbroker_authentication_failure": "0+120x30"},
    "ShardbrokerAuthenticationUnavailable": {"shardbroker_authentication_unavailable": "3+1x30"},
    "ShardbrokerConnectionsFell": {"shardbroker_connections_count": "1000x24 600x6"},
    "ShardbrokerConnectorDown": {'shardbroker_connector_status{id="pgsql:main"}': "0"},
    "ShardbrokerActionBehind": {'shardbroker_action_lag_seconds{id="pgsql:rows"}': "61"},
    "ShardbrokerClusterIsolated": {"shardbroker_cluster_isolated": "1"},
    "ShardbrokerClusterLinkDown": {'shardbroker_cluster_link_up{peer="n2"}': "0"},
    "ShardbrokerClockSkew": {'shardbroker_cluster_clock_skew_seconds{peer="n2"}': "-1.5"},
    "ShardbrokerGatewayDown": {'shardbroker_gateway_up{gateway="coap"}': "0"},
}
"""Series that differ when an alert is due."""


def rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    return found


def promtool(*arguments: str) -> None:
    done = subprocess.run([needed("promtool"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_for_its_trouble_and_for_nothing_else(tmp_path: Path) -> None:
    """With the labels of the series; the alert of a broker that does not answer has the label job as well."""
    assert [rule["alert"] for rule in rules()] == list(TROUBLE)
    cases = []
    for trouble in ({}, *TROUBLE.values()):
        series = [
            {"series": with_instance(name), "values": values if re.search("[x ]", values) else f"{values}x{MINUTES}"}
            for name, values in (QUIET | trouble).items()
        ]
        checks = [
            {"eval_time": f"{MINUTES}m", "expr": f'count(ALERTS{{alertname="{rule["alert"]}", alertstate="firing"}})',
             "exp_samples": [{"labels": "{}", "value": 1}] if TROUBLE[rule["alert"]] is trouble else []}
            for rule in rules()
        ]  # fmt: skip
        cases.append({"interval": "1m", "input_series": series, "promql_expr_test": checks})
    file = tmp_path / "cases.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    promtool("test", "rules", str(file))


def with_instance(series: str) -> str:
    name, _, labels = series.partition("{")
    return f'{name}{{instance="broker:18084"{"," + labels if labels else "}"}'


def test_pages_that_alerts_name_are_there() -> None:
    for page, anchor in re.findall(r"(docs/[\w-]+\.md)(?:#([\w-]+))?", RULES.read_text()):
        headings = {re.sub(r"[^\w -]", "", line.lstrip("# ")).strip().lower().replace(" ", "-")
                    for line in (ROOT / page).read_text().splitlines() if line.startswith("#")}  # fmt: skip
        assert not anchor or anchor in headings, f"{page}#{anchor}"


def test_prometheus_of_the_compose_file_loads_them() -> None:
    promtool("check", "rules", str(RULES))
    mounted = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["prometheus"]["volumes"]
    inside = dict(volume.split(":")[:2] for volume in mounted)["./deploy/prometheus/alerts.yaml"]
    assert yaml.safe_load((ROOT / "deploy/compose/prometheus.yaml").read_text())["rule_files"] == [inside]


def test_the_page_has_all_alerts() -> None:
    page = (ROOT / "docs/howto-alerts.md").read_text().partition("## The alerts")[2]
    assert re.findall(r"`(Shardbroker\w+)`", page.partition("\n\nThe thresholds")[0]) == [rule["alert"] for rule in rules()]
