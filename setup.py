"""Builds the compiled data plane; everything else about the package stands in pyproject.toml.

SHARDBROKER_DEBUG=1 turns bounds checks, initialisation checks and assertions on (``make debug``).
SHARDBROKER_SANITIZE=1, with CC=clang, builds what ``make asan`` and ``make fuzz`` run: see fuzz/README.md.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("SHARDBROKER_DEBUG") == "1"
SANITIZE = os.environ.get("SHARDBROKER_SANITIZE") == "1"
PACKAGES = ("shardbroker", "acceptor", "shm") if SANITIZE else ("shardbroker", "acceptor", "shm", "perf")
PARSERS = [
    Path("acceptor/proxy.py"), *(Path(f"shardbroker/gateways/{name}/codec.py") for name in ("coap", "mqttsn", "stomp")),
    *(Path(f"shardbroker/journal/{name}.py") for name in ("layout", "reader", "schema")),
]  # fmt: skip
"""Plain Python that reads bytes from outside: compiled with sanitizers, so that libFuzzer sees which branch an input takes."""
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "nonecheck": DEBUG,
    "cdivision": True,
    "embedsignature": True,
}
SANITIZERS = ["-fsanitize=address,undefined,fuzzer-no-link", "-fno-sanitize-recover=undefined", "-shared-libasan"]
if SANITIZE:
    COMPILE_ARGS = ["-O1", "-gline-tables-only", "-UNDEBUG", "-fno-omit-frame-pointer", "-w", *SANITIZERS]
else:
    COMPILE_ARGS = ["-O1", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-DCYTHON_WITHOUT_ASSERTIONS"]
LINK_ARGS = SANITIZERS if SANITIZE else []


def extensions() -> list[Extension]:
    sources = sorted(path for package in PACKAGES for path in Path(package).rglob("*.pyx"))
    return compiled(sources, DIRECTIVES) + (compiled(PARSERS, {"annotation_typing": False}) if SANITIZE else [])


def compiled(sources: list[Path], directives: dict[str, object]) -> list[Extension]:
    modules = [
        Extension(".".join(path.with_suffix("").parts), [str(path)], extra_compile_args=COMPILE_ARGS, extra_link_args=LINK_ARGS)
        for path in sources
    ]
    return list(cythonize(modules, compiler_directives=directives, nthreads=os.cpu_count() or 1, force=DEBUG))


setup(
    ext_modules=extensions(),
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
)
