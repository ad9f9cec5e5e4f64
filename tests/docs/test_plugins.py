"""docs/plugins.md, word by word: the files it shows are written, its commands are run, and print what it says.

All but the port is as it stands there. What `pip install` installs goes into the test's own directory.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import free_port
from tests.harness.waiting import until

pytestmark = [
    pytest.mark.own_broker,
    pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="needs mosquitto_sub"),
]
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/plugins.md").read_text()
PORT = "18830"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
END = "-- done --"


class Shell:
    """One shell for all commands of the page, as a reader has."""

    def __init__(self, folder: Path) -> None:
        site = folder / "site"
        site.mkdir()
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(site),
            "PIP_TARGET": str(site),
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_NO_DEPS": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            ["bash"], cwd=folder, env=self.environment, text=True, start_new_session=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, command: str) -> str:
        """What it prints."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{command}\necho; echo '{END}'\n")
        printed = ""
        while END not in printed:
            line = self.process.stdout.readline()
            assert line, f"the shell has ended: {printed}"
            printed += line
        return printed.partition(END)[0].strip()

    def close(self) -> None:
        """The broker and whatever else was started ends."""
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()
        self.log.close()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    made = Shell(tmp_path)
    yield made
    made.close()


def test_the_page_works_word_by_word(shell: Shell, tmp_path: Path) -> None:
    port = str(free_port())
    commands = 0
    for kind, title, text in BLOCK.findall(PAGE):
        if title:
            (tmp_path / title).parent.mkdir(exist_ok=True)
            (tmp_path / title).write_text(text)
        if kind != "console":
            continue
        for command, expected in COMMAND.findall(text.replace(PORT, port)):
            commands += 1
            if command.startswith("shardbroker serve"):
                shell.run(command.replace(" &", f" > {shell.log.name} 2>&1 &"))
                until(lambda: " ready: " in Path(shell.log.name).read_text())
                continue
            printed = shell.run(command)
            assert printed == expected.strip(), command
    assert commands > 10
