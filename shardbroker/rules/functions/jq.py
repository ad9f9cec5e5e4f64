"""`jq`: programs of jq over values, in a child process.

The library has neither a timeout nor a bound of memory, and a program of jq may run without end; a child can be killed. It starts
at the first call, takes about 160 µs a call, and starts again after a program that was stopped.
"""

import os
import select
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from shardbroker.rules.functions.arguments import MAX_RESULT_BYTES, integer, octets, refusal
from shardbroker.rules.functions.libraries import library
from shardbroker.rules.functions.table import Function
from shardbroker.rules.functions.texts import json_text, json_value
from shardbroker.rules.values import EvaluationError, Value

__all__ = ["FUNCTIONS", "set_timeout", "stop"]

MAX_TIMEOUT_MILLISECONDS = 1_000
"""Longest time of a program, and the default, until set_timeout(). Messages wait meanwhile, so it is shorter than EMQX's 10 s."""

START_SECONDS = 5.0
"""Time in which a child must be ready: the interpreter and the library, on a machine that is busy."""

_MAX_PROGRAM_BYTES = 16_384
"""Bytes of a program."""

_ENVIRONMENT = ("PYTHONPATH", "LD_LIBRARY_PATH")
"""Variables of the environment that the child needs to find its library."""

_HEADER = struct.Struct(">II")
"""Bytes of program and input before a request; status and bytes of output before a response."""


class _Child:
    """The process that runs programs."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def _started(self) -> None:
        # A fork of the owner must not share the pipes.
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self._process = subprocess.Popen(
                # Without the directory of the program, whose modules are named like some of Python's.
                [sys.executable, "-P", str(Path(__file__).with_name("jq_child.py"))],
                # Programs read the environment, which may hold secrets of the broker.
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            self._owner = os.getpid()
            self._read(1, time.monotonic() + START_SECONDS)

    def run(self, program: bytes, data: bytes, seconds: float) -> bytes:
        """Returns the results of a program, as a JSON array."""
        self._started()
        deadline = time.monotonic() + seconds
        try:
            self._write(_HEADER.pack(len(program), len(data)) + program + data, deadline)
            failed, size = _HEADER.unpack(self._read(_HEADER.size, deadline))
            output = self._read(size, deadline)
        except (OSError, EvaluationError) as error:
            self.stop()
            raise EvaluationError(f"jq: must end within {seconds:g} s and its memory, got {error}") from None
        if failed:
            raise EvaluationError(f"jq: {output.decode(errors='replace')}")
        return output

    def _write(self, data: bytes, deadline: float) -> None:
        assert self._process is not None and self._process.stdin is not None
        pipe = self._process.stdin.fileno()
        os.set_blocking(pipe, False)
        rest = memoryview(data)
        while rest:
            self._wait(pipe, select.POLLOUT, deadline)
            rest = rest[os.write(pipe, rest) :]

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        found = bytearray()
        while len(found) < size:
            self._wait(pipe, select.POLLIN, deadline)
            part = os.read(pipe, size - len(found))
            if not part:
                raise EvaluationError("the end of its process")
            found += part
        return bytes(found)

    @staticmethod
    def _wait(pipe: int, event: int, deadline: float) -> None:
        # Not select(), which refuses descriptors from 1024 on.
        waiting = select.poll()
        waiting.register(pipe, event)
        if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1_000):
            raise EvaluationError("no result in time")

    def stop(self) -> None:
        """Ends the process, if it runs."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            process.wait()


_CHILD = _Child()
_longest = MAX_TIMEOUT_MILLISECONDS


def stop() -> None:
    """Ends the child process, if one runs."""
    _CHILD.stop()


def set_timeout(milliseconds: int) -> None:
    """Sets the longest time of a program, which is the default as well."""
    global _longest
    _longest = milliseconds


def _jq(program: Value, value: Value, timeout: Value | None = None) -> list[Value]:
    """Returns all results of a program; text as input is JSON, any other value is made JSON."""
    library("jq")
    source = octets(program, "program")
    if len(source) > _MAX_PROGRAM_BYTES:
        raise refusal("program", f"at most {_MAX_PROGRAM_BYTES} bytes long", program)
    data = octets(value if isinstance(value, str | bytes) else json_text(value))
    if len(data) > MAX_RESULT_BYTES:
        raise refusal("value", f"at most {MAX_RESULT_BYTES} bytes of JSON", len(data))
    if timeout is not None and integer(timeout, "timeout") < 0:
        raise refusal("timeout", "0 or more milliseconds", timeout)
    found: list[Value] = json_value(_CHILD.run(source, data, (_longest if timeout is None else min(timeout, _longest)) / 1_000))
    return found


FUNCTIONS: dict[str, Function] = {
    # Not pure, so that no program runs while a rule is compiled.
    "jq": Function(_jq, (2, 3), is_pure=False),
}
