"""What a release has: a wheel that needs no compiler and takes one name in site-packages, sources, a bill of materials, checksums.

The wheel is built once, of the modules that are compiled in this tree, and installed from a directory of wheels, without a network.
"""

import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import tarfile
import time
import tomllib
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from scripts import release
from tests.harness import wheelhouse
from tests.harness.broker import free_port
from tests.harness.client import Client

ROOT = Path(__file__).parents[2]
FIRST_LOOK_S = 60.0
"""From an empty environment to a page of the dashboard."""
START_S = 60.0
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOREIGN = 'NAME = "of another distribution"\n'

pytestmark = [pytest.mark.own_broker, pytest.mark.timeout(600)]  # a wheel is built and installed, on a machine that does other work


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return release.raw_wheel(tmp_path_factory.mktemp("wheel"))


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def run(environment: Path, *command: object) -> "subprocess.CompletedProcess[str]":
    """Runs a command that finds neither this source tree nor a compiler."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    return subprocess.run(
        [str(one) for one in command], cwd=environment, env=variables | {"PATH": str(environment / "bin")}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def install(environment: Path, *what: object) -> None:
    """Installs wheels alone: neither a compiler nor an index is there."""
    done = run(environment, sys.executable, "-m", "pip", "--python", python_of(environment), "install", "--quiet", "--no-index",
               "--only-binary=:all:", "--find-links", wheelhouse.filled(), *what)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """An environment with the wheel and its extra `dashboard`, and the seconds of CPU that it took: other work does not lengthen
    these."""
    wheelhouse.filled()
    environment = tmp_path_factory.mktemp("environment")
    before_s = cpu_s()
    venv.create(environment, with_pip=False, symlinks=True)
    install(environment, f"{wheel}[dashboard]")
    return environment, cpu_s() - before_s


@contextmanager
def served(environment: Path, data_dir: Path) -> Iterator[tuple[int, int]]:
    """A broker of the environment: its ports of MQTT and of the dashboard."""
    port, api_port = free_port(), free_port()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = subprocess.Popen(
        [environment / "bin/shardbroker", "serve", "--listen", f"tcp://127.0.0.1:{port}", "--data-dir", data_dir, "--workers", "2",
         "--set", f"api.bind=127.0.0.1:{api_port}", "--set", "process.drain_time=0s"],
        stdout=subprocess.PIPE, text=True, env=variables | {"PATH": str(environment / "bin")}, cwd=environment,
    )  # fmt: skip
    try:
        assert process.stdout is not None and " ready: " in process.stdout.readline()
        yield port, api_port
    finally:
        process.terminate()
        process.communicate(timeout=START_S)


def test_a_first_look_takes_less_than_a_minute(installed: tuple[Path, float], tmp_path: Path) -> None:
    environment, spent_s = installed
    began = time.monotonic()
    with served(environment, tmp_path) as (port, api_port):
        with Client(("127.0.0.1", port)) as subscriber, Client(("127.0.0.1", port)) as publisher:
            subscriber.subscribe("first/#")
            publisher.publish("first/look", b"21.5", qos=1)
            subscriber.expect_messages(b"21.5")
        with urllib.request.urlopen(f"http://127.0.0.1:{api_port}/", timeout=START_S) as answer:
            assert answer.status == 200 and b"<title>" in answer.read()
        spent_s += time.monotonic() - began
        # Also the load test, of whose modules compiled ones are installed below the package.
        done = run(environment, environment / "bin/shardbroker", "perf", "p2p", "-p", port, "--seconds", "1", "--json", "--quiet")
        assert done.returncode == 0 and json.loads(done.stdout)["lost"] == 0, done.stderr
    assert spent_s < FIRST_LOOK_S


def test_one_name_in_site_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (listed,) = [one for one in names if one.endswith("/top_level.txt")]
        assert archive.read(listed).decode().split() == ["shardbroker"]
    assert {one.partition("/")[0] for one in names} == {"shardbroker", listed.partition("/")[0]}
    libraries = [one.removeprefix("shardbroker/parts/") for one in names if one.endswith(".so")]
    assert {re.sub(r"\.cpython-.*", ".pyx", one) for one in libraries} == {str(one) for one in tracked() if one.suffix == ".pyx"}
    assert not [one for one in names if one.endswith((".c", ".pyx"))]


def tracked() -> list[Path]:
    """Sources of the package and of the folders beside it."""
    folders = ("shardbroker", "acceptor", "perf", "shm")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".pyx", ".pxd")]
    return sorted(path.relative_to(ROOT) for path in found)


def test_a_foreign_package_of_a_name_that_is_ours_stays(installed: tuple[Path, float]) -> None:
    """Its files are not overwritten, and it is what is imported where the broker is not."""
    environment, _ = installed
    (packages,) = environment.glob("lib/python*/site-packages")
    foreign = packages / "perf"
    foreign.mkdir()
    try:
        (foreign / "__init__.py").write_text(FOREIGN)
        done = run(environment, python_of(environment), "-c", "import perf; print(perf.NAME)")
        assert done.stdout == "of another distribution\n", done.stderr
        code = "import shardbroker, perf, shm.ring, acceptor.peek; print(perf.Plan.__module__, shm.__name__, shm.ring.__name__)"
        assert run(environment, python_of(environment), "-c", code).stdout == "perf.plan shm shm.ring\n"
        assert run(environment, environment / "bin/shardbroker", "perf", "--help").returncode == 0
    finally:
        (foreign / "__init__.py").unlink()
        for one in foreign.rglob("*.pyc"):
            one.unlink()
        for one in (*foreign.iterdir(), foreign):
            one.rmdir()


def test_a_copy_is_made_of_an_installed_wheel(installed: tuple[Path, float]) -> None:
    """`shardbroker install` takes the files where the wheel has them."""
    code = "from shardbroker.deploy.environment import plan; print(*sorted(plan()))"
    done = run(installed[0], python_of(installed[0]), "-c", code)
    names = done.stdout.split()
    assert "shardbroker/parts/shm/roles.py" in names, done.stderr
    assert {"shardbroker", "nicegui", "lmdb"} <= {one.partition("/")[0] for one in names}
    assert not {"acceptor", "perf", "shm"} & {one.partition("/")[0] for one in names}


def test_the_source_distribution_is_whole(tmp_path: Path) -> None:
    file = release.sdist(tmp_path)
    with tarfile.open(file) as archive:
        names = {Path(*Path(one).parts[1:]) for one in archive.getnames()}
    assert set(tracked()) <= names
    assert {Path(one) for one in ("LICENSE", "Makefile", "README.md", "pyproject.toml", "setup.py", "scripts/packages")} <= names
    for place, patterns in PROJECT["tool"]["setuptools"]["package-data"].items():
        for pattern in patterns if place != "*" else ():
            data = {path.relative_to(ROOT) for path in (ROOT / place.replace(".", "/")).glob(pattern)}
            assert data and data <= names, place
    assert not [one for one in names if one.suffix in (".c", ".so")]


def test_the_bill_of_materials_has_what_is_installed(installed: tuple[Path, float], tmp_path: Path) -> None:
    environment, _ = installed
    file = tmp_path / "bill.cdx.json"
    release.list_components(python_of(environment), file)
    bill = json.loads(file.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", release.SPEC)
    root = bill["metadata"]["component"]
    assert (root["name"], root["version"], root["type"]) == ("shardbroker", PROJECT["project"]["version"], "application")
    found = {one["name"].lower().replace("_", "-"): one for one in bill["components"]}
    assert {"nicegui", "fastapi", "lmdb", "pydantic", "uvloop"} <= set(found)
    assert all(one["version"] for one in found.values())
    assert {"pytest", "cython", "auditwheel", "pip"}.isdisjoint(found)


def test_checksums_are_those_of_the_files(tmp_path: Path) -> None:
    for name in ("b.whl", "a.tar.gz"):
        (tmp_path / name).write_bytes(name.encode())
    assert release.main(["--out", str(tmp_path), "--only", "sums"]) == 0
    lines = [f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n" for name in ("a.tar.gz", "b.whl")]
    assert (tmp_path / "SHA256SUMS").read_text() == "".join(lines)
    assert subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=tmp_path, check=False).returncode == 0


def test_a_release_of_wheels_that_are_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wheels").mkdir()
    assert release.main(["--out", str(tmp_path / "out"), "--wheels", str(tmp_path / "wheels")]) == 1
    assert "--wheels: must be a directory with wheels" in capsys.readouterr().err


def test_the_workflow_is_one_and_builds_all_wheels() -> None:
    """Checked against the schema of workflows; cibuildwheel says what it would build."""
    file = ROOT / ".github/workflows/release.yml"
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", file],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = yaml.safe_load(file.read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert 'make release RELEASE="--wheels wheels"' in commands
    machines = {"ubuntu-24.04": "x86_64", "ubuntu-24.04-arm": "aarch64"}
    assert set(jobs["wheels"]["strategy"]["matrix"]["runner"]) == set(machines)
    for machine in machines.values():
        done = subprocess.run(
            [sys.executable, "-m", "cibuildwheel", "--platform", "linux", "--archs", machine, "--print-build-identifiers", ROOT],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout.split() == [f"cp3{minor}-manylinux_{machine}" for minor in (11, 12, 13)], done.stderr
