"""Dockerfile and compose.yaml. No image is built and no container is started here, for want of a registry of images and a daemon.

Both files are checked by parsers of their formats. The broker is started as the image starts it, with a root file system that it
cannot write and the 64 MB of shared memory that a container has by default."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import compose_spec
import pytest
import yaml

from shardbroker.config import load
from tests.harness.broker import free_port
from tests.harness.client import Client

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent
CONFIGURATION = ROOT / "deploy/docker/shardbroker.toml"
SHARED_BYTES = 64 << 20
"""Of /dev/shm in a container of Docker or Kubernetes."""
CONTAINED = f"""
mount --make-rprivate / && mount -t tmpfs -o size={SHARED_BYTES} tmpfs /dev/shm && mount -t tmpfs tmpfs /var/tmp &&
mount --bind "$0" "$0" && mount -o bind,remount,ro / && exec "$@"
"""
START_S = 60.0

pytestmark = pytest.mark.own_broker


def lines(name: str) -> list[str]:
    """Instructions of the Dockerfile with this name."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
    return re.findall(rf"^\s*{name} (.*)$", text, re.MULTILINE)


def command(name: str, number: int = -1) -> list[str]:
    """Arguments of an instruction in the form of a list."""
    found: list[str] = yaml.safe_load(lines(name)[number][lines(name)[number].index("[") :])
    return found


def test_the_dockerfile_has_no_findings() -> None:
    done = subprocess.run([PROGRAMS / "hadolint", "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_image_is_not_roots_and_copies_what_is_there() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", lines("USER")[-1])
    assert lines("VOLUME") == [str(load(CONFIGURATION, {}, [], {}).settings.process.data_dir)]
    for copied in lines("COPY"):
        source = copied.split()[0]
        assert source.startswith("--from=") or (ROOT / source).exists(), copied


def test_compose_names_files_and_ports_that_are_there() -> None:
    text = (ROOT / "compose.yaml").read_text()
    compose_spec.PyCompose.from_yaml(text).validate()
    services = yaml.safe_load(text)["services"]
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (ROOT / source).is_file() if source.startswith(".") else source in yaml.safe_load(text)["volumes"], volume
    broker, settings = services["broker"], load(CONFIGURATION, {}, [], {}).settings
    published = {port.rsplit(":", 1)[1] for port in broker["ports"]}
    assert published == {settings.listeners["default"].bind.split(":")[1], settings.api.bind.split(":")[1]}
    (job,) = yaml.safe_load((ROOT / "deploy/compose/prometheus.yaml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"broker:{settings.prometheus.bind.split(':')[1]}"]}]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """The command of the image, and the port of its listener."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root: makes mounts of its own")
    port = free_port()
    settings = {
        "SHARDBROKER__PROCESS__DATA_DIR": str(tmp_path), "SHARDBROKER__PROCESS__WORKERS": "3", "SHARDBROKER__API__BIND": "disabled",
        "SHARDBROKER__PROMETHEUS__BIND": "disabled", "SHARDBROKER__PROCESS__DRAIN_TIME": "0s",
        "SHARDBROKER__LISTENERS__DEFAULT__BIND": f"127.0.0.1:{port}", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    serve = [str(CONFIGURATION) if part.endswith(".toml") else part for part in command("CMD")]
    program = str(PROGRAMS / command("ENTRYPOINT")[0])
    process = subprocess.Popen(
        ["unshare", "--mount", "bash", "-c", CONTAINED, str(tmp_path), program, *serve],
        stdout=subprocess.PIPE, text=True, env=os.environ | settings,
    )  # fmt: skip
    try:
        yield process, port
    finally:
        process.terminate()
        process.communicate(timeout=START_S)


def health(data_dir: Path) -> int:
    """Exit code of the health check."""
    program, *arguments = command("HEALTHCHECK")
    arguments = [str(data_dir) if part.startswith("/var/lib/") else part for part in arguments]
    return subprocess.run([PROGRAMS / program, *arguments], capture_output=True, check=False).returncode


def test_it_serves_with_a_read_only_root_and_little_shared_memory(
    started: tuple["subprocess.Popen[str]", int], tmp_path: Path
) -> None:
    process, port = started
    assert process.stdout is not None and " ready: " in process.stdout.readline()
    shared = Path(f"/proc/{process.pid}/root/dev/shm")
    assert sum(path.stat().st_size for path in shared.glob("shardbroker-*/rings/*")) < SHARED_BYTES / 2 + (1 << 20)
    assert not os.access(f"/proc/{process.pid}/root/usr", os.W_OK)
    client = Client(("127.0.0.1", port))
    client.close()
    assert health(tmp_path) == 0
    process.terminate()
    process.wait(START_S)
    assert health(tmp_path) != 0
