"""python -m tests.deploy.chart: renders the Helm chart into tests/deploy/rendered, after a change of it.

Helm is in no package of Debian, and its compilation takes minutes, so the tests read what it has rendered. To install it:
go install helm.sh/helm/v3/cmd/helm@v3.18.6
"""

import subprocess
from hashlib import sha256
from pathlib import Path

__all__ = ["CHART", "RENDERED", "VARIANTS", "render", "sources"]

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "shardbroker"
RENDERED = Path(__file__).with_name("rendered")
VARIANTS = {
    "cluster": ("cluster.cookieSecret=cookie", "secretFiles=files"),
    "single": ("replicas=1", "service.type=LoadBalancer", "service.ports.mqtts=8883"),
}
"""Values that differ from the defaults."""
KUBERNETES = "1.30"


def sources() -> str:
    """Returns the first line of a rendered file: the hash of the chart."""
    digest = sha256()
    for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(CHART)}\n".encode() + path.read_bytes())
    return f"# {digest.hexdigest()}\n"


def render(variant: str, helm: str = "helm") -> str:
    """Returns the manifests of a variant."""
    command = [helm, "template", "mqtt", str(CHART), "--namespace", "iot", "--kube-version", KUBERNETES]
    for value in VARIANTS[variant]:
        command += ["--set", value]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    subprocess.run(["helm", "lint", "--strict", "--kube-version", KUBERNETES, CHART], check=True)
    for name in VARIANTS:
        (RENDERED / f"{name}.yaml").write_text(sources() + render(name))
