"""Builds the compiled data plane; everything else about the package stands in pyproject.toml.

SHARDBROKER_DEBUG=1 turns bounds checks, initialisation checks and assertions on (``make debug``).
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("SHARDBROKER_DEBUG") == "1"
PACKAGES = ("shardbroker", "acceptor", "shm", "perf")
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "nonecheck": DEBUG,
    "cdivision": True,
    "embedsignature": True,
}
COMPILE_ARGS = ["-O1", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-DCYTHON_WITHOUT_ASSERTIONS"]


def extensions() -> list[Extension]:
    sources = sorted(path for package in PACKAGES for path in Path(package).rglob("*.pyx"))
    return [Extension(".".join(path.with_suffix("").parts), [str(path)], extra_compile_args=COMPILE_ARGS) for path in sources]


setup(
    ext_modules=cythonize(
        extensions(),
        compiler_directives=DIRECTIVES,
        nthreads=os.cpu_count() or 1,
        force=DEBUG,
    ),
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
)
