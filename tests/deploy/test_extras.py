"""What needs a package of an extra that is not installed says which command installs it. All packages of all extras are hidden."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from shardbroker.config.api import PACKAGES as OF_API
from shardbroker.config.exhook import PACKAGES as OF_EXHOOK
from shardbroker.config.opentelemetry import PACKAGES as OF_OPENTELEMETRY
from shardbroker.connectors.errors import EXTRAS

ROOT = Path(__file__).parents[2]
DEVELOPMENT = ("test", "dev", "fuzz")
HIDDEN = """
import sys

class Hidden:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in NAMES else self.finder.find_spec(name, path, target)

NAMES = set(sys.argv.pop(1).split(","))
sys.meta_path[:] = [Hidden(finder) for finder in sys.meta_path if hasattr(finder, "find_spec")]
"""
"""As if the packages that are named by the first argument were not there."""
MODULES = (
    HIDDEN
    + """
import json
from importlib import import_module
from pathlib import Path

from shardbroker.connectors.errors import missing_library

said = {}
for package in ("shardbroker.flows.drivers", "shardbroker.integrations.auth", "shardbroker.connectors"):
    for path in sorted(Path(import_module(package).__path__[0]).glob("*.py")):
        try:
            import_module(f"{package}.{path.stem}")
        except ImportError as error:
            said[f"{package}.{path.stem}"] = missing_library(error)
print(json.dumps(said))
"""
)
COMMAND = HIDDEN + "from shardbroker.cli.main import main\nsys.exit(main())\n"
CHAIN = ("http", "jwt", "redis", "postgresql", "mysql", "mongodb", "ldap")
SETTINGS = {
    "auth.chain": json.dumps(CHAIN), "auth.http.url": "http://127.0.0.1:1/", "api.bind": "127.0.0.1:18083",
}  # fmt: skip


CONNECTORS = {
    "cassandra": ("cassandra", "servers=127.0.0.1:1"), "dynamo": ("dynamodb", "url=http://127.0.0.1:1"),
    "http": ("auth", "url=http://127.0.0.1:1/"), "kafka_producer": ("kafka", "bootstrap_hosts=127.0.0.1:1"),
    "mongodb": ("mongodb", "server=127.0.0.1:1"), "mysql": ("mysql", "server=127.0.0.1:1"),
    "pgsql": ("postgresql", "server=127.0.0.1:1"), "pulsar": ("pulsar", "servers=pulsar://127.0.0.1:1"),
    "redis": ("redis", "server=127.0.0.1:1"), "s3": ("s3", "host=127.0.0.1"),
}  # fmt: skip
"""Type of a connector -> its extra and a setting."""


def packages() -> dict[str, set[str]]:
    """Names by which packages of each extra are imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names: dict[str, set[str]] = {}
    for name, distributions in packages_distributions().items():
        for one in distributions:
            names.setdefault(re.sub(r"[-_.]+", "-", one).lower(), set()).add(name)
    found = {}
    for extra, wanted in project["optional-dependencies"].items():
        own = [re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", one)[0]).lower() for one in wanted]  # type: ignore[index]
        if extra not in DEVELOPMENT:
            found[extra] = {name for one in own if one != "shardbroker" for name in names.get(one, ())} - {"shardbroker"}
    return found


def run(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    names = ",".join(sorted({name for own in packages().values() for name in own} | {"bonsai"}))
    return subprocess.run([sys.executable, "-c", code, names, *arguments], capture_output=True, text=True, check=False)


def test_every_module_that_lacks_a_package_names_the_extra() -> None:
    done = run(MODULES)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for module, text in said.items():
        assert re.fullmatch(r"the library \w+; pip install 'shardbroker\[\w+\]'", text), f"{module}: {text}"
    drivers = {module.rpartition(".")[2] for module in said if ".drivers." in module}
    assert {"cassandra", "dynamo", "kafka", "mongodb", "pulsar", "redis", "s3"} <= drivers
    extras = {re.search(r"\[(\w+)\]", text)[1] for text in said.values()}  # type: ignore[index]
    assert extras == set(packages()) - {"api", "cluster", "dashboard", "dtls", "exhook", "opentelemetry", "rules"}


def test_extras_are_those_that_install_the_package() -> None:
    """Those that are named elsewhere: api and dashboard, cluster, dtls, exhook, opentelemetry, rules."""
    of_extras = packages()
    for library, extra in EXTRAS.items():
        if of_extras[extra]:  # ldap is not installed everywhere
            assert library in of_extras[extra] or library in ("hiredis", "botocore"), library
    assert of_extras["api"] >= set(OF_API)
    assert of_extras["opentelemetry"] >= {name.partition(".")[0] for name in OF_OPENTELEMETRY}
    assert of_extras["exhook"] >= {name.partition(".")[0] for name in OF_EXHOOK}


@pytest.mark.parametrize("arguments", [("config", "check"), ("serve",)])
def test_a_configuration_that_needs_them_is_refused_with_the_commands(arguments: tuple[str, ...], tmp_path: Path) -> None:
    values = SETTINGS | {"process.data_dir": str(tmp_path)}
    done = run(COMMAND, *arguments, *(f"--set={key}={value}" for key, value in values.items()))
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for extra in ("auth", "redis", "postgresql", "mysql", "mongodb", "ldap", "api"):
        assert f"pip install 'shardbroker[{extra}]'" in done.stderr, extra


def test_each_connector_names_its_extra() -> None:
    done = run(COMMAND, "config", "check", *(f"--set=connectors.{kind}.a.{setting}" for kind, (_, setting) in CONNECTORS.items()))
    assert "Traceback" not in done.stderr and "No module" not in done.stderr
    for kind, (extra, _) in CONNECTORS.items():
        key = f"connectors.{kind.removesuffix('_producer')}.a: needs the library "
        (line,) = [one for one in done.stderr.splitlines() if one.startswith(key)]
        assert f"pip install 'shardbroker[{extra}]'" in line


def test_hooks_clusters_gateways_and_metrics_name_their_extras(tmp_path: Path) -> None:
    cookie = tmp_path / "cookie"
    cookie.write_text("0" * 32)
    cookie.chmod(0o600)
    of_cluster = (
        "cluster.enable=true", f"cluster.cookie_file={cookie}", "cluster.core.mode=managed",
        'cluster.core.members=["n1@10.0.0.1", "n2@10.0.0.2", "n3@10.0.0.3"]',
    )  # fmt: skip
    of_hooks = ("exhook.servers=[{name='a', url='http://127.0.0.1:1'}]",)
    own = "gateways.coap.listeners.secure"
    of_gateways = (
        "gateways.coap.enable=true", f"{own}.type=dtls", f"{own}.bind=127.0.0.1:5684", f"{own}.tls.certfile={cookie}",
    )  # fmt: skip
    of_metrics = ("opentelemetry.metrics.enable=true",)
    of_each = {"cluster": of_cluster, "exhook": of_hooks, "dtls": of_gateways, "opentelemetry": of_metrics}
    for extra, settings in of_each.items():
        done = run(COMMAND, "config", "check", *(f"--set={one}" for one in settings))
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert f"pip install 'shardbroker[{extra}]'" in done.stderr


def test_the_api_alone_names_the_extra_of_the_dashboard(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "nicegui", "serve", "--listen", "tcp://127.0.0.1:0", "--data-dir", str(tmp_path),
         "--workers", "1", "--set=api.bind=127.0.0.1:0", "--set=process.drain_time=0s"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        line = next(one for one in process.stderr if " available " in one)
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert "rest api available" in line and "pip install 'shardbroker[dashboard]'" in line


def test_a_function_of_rules_that_lacks_a_library_names_the_extra() -> None:
    done = run(COMMAND, "ctl", "rules", "test", "SELECT jq('.', payload) AS x FROM 't'", "--topic", "t")
    assert "Traceback" not in done.stderr
    assert "pip install 'shardbroker[rules]'" in done.stdout + done.stderr
