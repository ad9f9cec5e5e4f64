"""The programs of docs/howto-clients.md, as they stand there but for the broker's port and the name of the topic."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Example, parts_of
from tests.harness import AnyBroker, mqtt_js
from tests.harness.needed import needed
from tests.servers.maven import classpath

PAGE = ROOT / "docs" / "howto-clients.md"
PROGRAMS = {part.kind: part.text for part in parts_of(PAGE) if isinstance(part, Example)}
TIMEOUT_S = 60.0


def javascript(program: Path) -> list[str]:
    needed("npm")
    mqtt_js.install()
    return [needed("node"), "-e", program.read_text()]


def c(program: Path) -> list[str]:
    if not Path("/usr/include/MQTTClient.h").exists():
        pytest.skip("needs MQTTClient.h")
    compiled = program.with_suffix("")
    subprocess.run([needed("cc"), "-Wall", "-Werror", str(program), "-o", str(compiled), "-lpaho-mqtt3cs"], check=True)
    return [str(compiled)]


def java(program: Path) -> list[str]:
    needed("mvn")
    path = classpath(ROOT / "tests/servers/paho_java/pom.xml")
    return [needed("java"), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", path, str(program)]


def python(program: Path) -> list[str]:
    return [sys.executable, str(program)]


@pytest.mark.parametrize("run", [javascript, c, java, python], ids=lambda run: str(run.__name__))
def test_a_program_receives_what_it_publishes(broker: AnyBroker, run: Callable[[Path], list[str]], tmp_path: Path) -> None:
    host, port = broker.address
    language = run.__name__
    text = PROGRAMS[language].replace("localhost:1883", f"{host}:{port}").replace('"localhost", 1883', f'"{host}", {port}')
    assert text != PROGRAMS[language]
    file = tmp_path / f"Kitchen.{language}"
    file.write_text(text.replace("sensors/", f"{language}/"))
    done = subprocess.run(
        run(file), cwd=mqtt_js.DIRECTORY if run is javascript else tmp_path,
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{language}/kitchen 21.5\n"), done.stderr
