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
    assert extras == set(packages()) - {"api", "cluster", "dashboard", "dtls", "exhook", "rules"}


def test_extras_are_those_that_install_the_package() -> None:
    """Those that are named elsewhere: api and dashboard, cluster, dtls, exhook, rules."""
    of_extras = packages()
    for library, extra in EXTRAS.items():
        if of_extras[extra]:  # ldap is not installed everywhere
            assert library in of_extras[extra] or library in ("hiredis", "botocore"), library
    assert of_extras["api"] >= set(OF_API)
    assert of_extras["exhook"] >= {name.partition(".")[0] for name in OF_EXHOOK}


@pytest.mark.parametrize("arguments", [("config", "check"), ("serve",)])
def test_a_configuration_that_needs_them_is_refused_with_the_commands(arguments: tuple[str, ...], tmp_path: Path) -> None:
    values = SETTINGS | {"process.data_dir": str(tmp_path)}
    done = run(COMMAND, *arguments, *(f"--set={key}={value}" for key, value in values.items()))
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for extra in ("auth", "redis", "postgresql", "mysql", "mongodb", "ldap", "api"):
        assert f"pip install 'shardbroker[{extra}]'" in done.stderr, extra


def test_a_function_of_rules_that_lacks_a_library_names_the_extra() -> None:
    done = run(COMMAND, "ctl", "rules", "test", "SELECT jq('.', payload) AS x FROM 't'", "--topic", "t")
    assert "Traceback" not in done.stderr
    assert "pip install 'shardbroker[rules]'" in done.stdout + done.stderr
