"""The process of `jq.py`: reads programs and inputs from its standard input, and writes what they give."""

import resource
import struct
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any, BinaryIO

import jq

__all__ = ["main"]

_MEMORY_BYTES = 512 << 20
"""Address space of the process; a program that needs more ends it."""

_MAX_OUTPUT_BYTES = 1 << 20
"""Bytes of all results of a program."""

_HEADER = struct.Struct(">II")


@lru_cache(64)
def _compiled(program: str) -> Any:
    return jq.compile(program)


def _results(program: bytes, data: bytes) -> str:
    made = []
    size = 0
    for result in _compiled(program.decode()).input_text(data.decode()).text().split("\n"):
        made.append(result)
        size += len(result)
        if size > _MAX_OUTPUT_BYTES:
            raise ValueError(f"results must be at most {_MAX_OUTPUT_BYTES} bytes")
    return "[" + ",".join(made) + "]"


def main(requests: BinaryIO, responses: BinaryIO) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Before the descriptors end, what is imported lazily: the first program, and the first error.
    for program in (b".", b"("):
        with suppress(ValueError):
            _results(program, b"1")
    # `import` of jq reads files; without a free descriptor it cannot open one.
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    responses.write(b"!")
    responses.flush()
    while len(header := requests.read(_HEADER.size)) == _HEADER.size:
        program, data = (requests.read(size) for size in _HEADER.unpack(header))
        try:
            failed, output = 0, _results(program, data).encode()
        except (ValueError, MemoryError) as error:
            failed, output = 1, str(error).encode()[:256]
        responses.write(_HEADER.pack(failed, len(output)) + output)
        responses.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
