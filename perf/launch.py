"""Starts a broker on its own core for the length of a comparison."""

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from shardbroker.control import Control, ControlError

__all__ = ["OWN_PERF", "LaunchError", "Running", "controlled", "launched", "on_core"]

OWN_PERF = (str(Path(sys.executable).with_name("shardbroker")), "perf")
"""The command of a process of its own for a load."""
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
OUTPUT_SHOWN = 2000
"""Bytes of a broker's output that are shown if it does not start."""
MOSQUITTO_CONF = """\
listener {port} 127.0.0.1
allow_anonymous true
set_tcp_nodelay true
persistence false
max_inflight_messages 0
max_queued_messages 0
"""
SYSTEM_PATH = "/usr/sbin:/sbin:/usr/local/sbin"
"""Directories of brokers outside an ordinary user's PATH."""


class LaunchError(Exception):
    """The broker did not start; the text has its last output."""


@dataclass(frozen=True)
class Running:
    """A broker that accepts connections."""

    pid: int
    port: int


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Moves this process, and those it starts meanwhile, to one core; None changes nothing."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def launched(command: str, core: int | None, transport: str = "tcp") -> Iterator[Running]:
    """Runs `command` with {port}, {scheme}, {tls}, {dir} and {conf} filled in; ends it and all its processes. Raises LaunchError.

    {port} is a free port of 127.0.0.1, {scheme} the transport, {dir} an empty directory, {tls} options of shardbroker that name a
    certificate made for the run, where the transport needs one, and {conf} a configuration for mosquitto with all that. The broker
    leads a session of its own, so all its processes can be ended with it, even after a failure.
    """
    if "{port}" not in command and "{conf}" not in command:
        raise LaunchError(f"{command}: must contain {{port}} or {{conf}}, which set the broker's port")
    directory = Path(tempfile.mkdtemp(prefix="shardbroker-perf-"))
    try:
        port = _free_port()
        conf = directory / "mosquitto.conf"
        text = MOSQUITTO_CONF.format(port=port)
        tls = ""
        if transport in ("ssl", "wss"):
            certificate = _certificate(directory)
            tls = f"--set listeners.default.tls.certfile={certificate}"
            text += f"certfile {certificate}\nkeyfile {certificate}\n"
        if transport in ("ws", "wss"):
            # mosquitto 2.0.11 does not start with WebSockets alone.
            text += f"protocol websockets\nlistener {_free_port()} 127.0.0.1\n"
        conf.write_text(text)
        (directory / "data").mkdir()
        known = {"{port}": str(port), "{scheme}": transport, "{dir}": str(directory / "data"), "{conf}": str(conf)}
        words = [_filled(word, known) for word in shlex.split(command.replace("{tls}", tls))]
        program = shutil.which(words[0], path=os.pathsep.join([os.environ.get("PATH", ""), SYSTEM_PATH]))
        if program is None:
            raise LaunchError(f"{words[0]}: there is no such program")
        with open(directory / "output", "w+b") as output:
            with on_core(core):
                process = subprocess.Popen(
                    [program, *words[1:]], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
            try:
                _wait_until_open(process, port, directory / "output")
                yield Running(process.pid, port)
            finally:
                _end(process)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def controlled(data_dir: Path) -> Control:
    """Connects to a shardbroker that was launched: its manager may be ready later than its listeners. Raises ControlError."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return Control(data_dir)
        except ControlError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _filled(word: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        word = word.replace(name, value)
    return word


def _certificate(directory: Path) -> Path:
    """Makes a self-signed certificate and its key (P-256) in one file."""
    path = directory / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -keyout - -out -"
    try:
        done = subprocess.run(shlex.split(command), capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise LaunchError(f"openssl makes no certificate: {error}") from None
    path.write_bytes(done.stdout)
    path.chmod(0o644)  # mosquitto drops root's rights before it reads the file
    directory.chmod(0o755)
    return path


def _wait_until_open(process: "subprocess.Popen[bytes]", port: int, output: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            break
        if process.poll() is not None or time.monotonic() > deadline:
            text = output.read_bytes()[-OUTPUT_SHOWN:].decode(errors="replace")
            raise LaunchError(f"{process.args!r} did not open port {port}\n{text}")
        time.sleep(0.05)
    time.sleep(0.5)  # a broker of several processes listens before the last of them is ready


def _end(process: "subprocess.Popen[bytes]") -> None:
    children: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in psutil.wait_procs(children, timeout=1)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
