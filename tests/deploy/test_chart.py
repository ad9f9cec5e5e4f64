"""The Helm chart, as Helm has rendered it (`python -m tests.deploy.chart`): no Kubernetes is started here."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardbroker.config import load
from tests.deploy.chart import CHART, RENDERED, VARIANTS, render, sources

Manifest = dict[str, Any]


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def manifests(variant: str) -> dict[tuple[str, str], Manifest]:
    """By kind and name."""
    found = [one for one in yaml.safe_load_all((RENDERED / f"{variant}.yaml").read_text()) if one]
    named = {(one["kind"], one["metadata"]["name"]): one for one in found}
    assert len(named) == len(found)
    return named


@pytest.fixture
def pod(manifests: dict[tuple[str, str], Manifest]) -> Manifest:
    spec: Manifest = manifests["StatefulSet", "mqtt-shardbroker"]["spec"]["template"]["spec"]
    return spec


def test_the_rendered_files_are_those_of_the_chart(variant: str) -> None:
    text = (RENDERED / f"{variant}.yaml").read_text()
    assert text.startswith(sources()), "after a change of the chart: python -m tests.deploy.chart"
    if helm := shutil.which("helm"):
        assert text == sources() + render(variant, helm)


def test_the_broker_accepts_the_configuration(manifests: dict[tuple[str, str], Manifest], pod: Manifest, tmp_path: Path) -> None:
    file = tmp_path / "shardbroker.toml"
    file.write_text(manifests["ConfigMap", "mqtt-shardbroker"]["data"]["shardbroker.toml"])
    known = {"POD_NAME": "mqtt-shardbroker-1", "POD_IP": "10.1.0.5"}
    environment = {}
    for one in pod["containers"][0]["env"]:
        if one["name"] in known:
            assert one["valueFrom"]["fieldRef"]["fieldPath"] == {"POD_NAME": "metadata.name", "POD_IP": "status.podIP"}[one["name"]]
            continue
        environment[one["name"]] = one["value"].replace("$(POD_NAME)", known["POD_NAME"]).replace("$(POD_IP)", known["POD_IP"])
    settings = load(file, environment, [], {}).settings
    assert settings.auth.chain == ["builtin"]
    if settings.cluster.enable:
        assert settings.node.name in settings.cluster.core.members and settings.cluster.advertise == "10.1.0.5:5370"
        service = manifests["Service", settings.cluster.k8s.service_name]
        assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
        (rule,) = manifests["Role", "mqtt-shardbroker"]["rules"]
        assert rule == {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]}
        assert manifests["StatefulSet", "mqtt-shardbroker"]["spec"]["podManagementPolicy"] == "Parallel"


def test_what_is_written_is_on_a_volume(pod: Manifest) -> None:
    """The root file system is read-only, and nothing runs as root."""
    volumes = {one["name"] for one in pod["volumes"]} | {"data"}
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    writable = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/var/lib/shardbroker", "/dev/shm", "/tmp"}
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 1883


def test_ports_and_probes_are_those_of_the_configuration(manifests: dict[tuple[str, str], Manifest], pod: Manifest) -> None:
    (container,) = pod["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/api/v5/status", "port": "dashboard"}
    assert ports["dashboard"] == 18083 and ports["mqtt"] == 1883
    labels = manifests["StatefulSet", "mqtt-shardbroker"]["spec"]["template"]["metadata"]["labels"]
    for (kind, _), service in manifests.items():
        if kind == "Service":
            assert service["spec"]["selector"].items() <= labels.items()
            for port in service["spec"]["ports"]:
                assert port["targetPort"] in ports or port["targetPort"] in ports.values()
    allowed = {one["port"] for rule in manifests["NetworkPolicy", "mqtt-shardbroker"]["spec"]["ingress"] for one in rule["ports"]}
    assert allowed == set(ports.values())


def test_the_image_has_what_a_cluster_needs() -> None:
    dockerfile = (CHART.parents[2] / "Dockerfile").read_text()
    assert "etcd-server" in dockerfile and 'ENTRYPOINT ["shardbroker"]' in dockerfile
    assert os.path.exists(CHART / "templates" / "NOTES.txt")
