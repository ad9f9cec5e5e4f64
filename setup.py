"""Builds the compiled data plane; everything else about the package stands in pyproject.toml.

SHARDBROKER_DEBUG=1 turns bounds checks, initialisation checks and assertions on (``make debug``).
SHARDBROKER_SANITIZE=1, with CC=clang, builds what ``make asan`` and ``make fuzz`` run: see fuzz/README.md.
SHARDBROKER_COMPILED=1 leaves out what ``build_ext --inplace`` has built: an editable installation finds it in place.

A wheel has one top-level name. The folders beside ``shardbroker`` are installed as ``shardbroker/parts/<name>`` and imported by
their names all the same, by the finder in ``shardbroker/__init__.py``; a source tree has them where they are.
"""

import os
import shutil
import sys
from itertools import count
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.egg_info import egg_info
from setuptools.command.install_lib import install_lib
from setuptools.modified import newer_group

DEBUG = os.environ.get("SHARDBROKER_DEBUG") == "1"
SANITIZE = os.environ.get("SHARDBROKER_SANITIZE") == "1"
COMPILED = os.environ.get("SHARDBROKER_COMPILED") == "1"
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
    # Function objects and pickling of compiled classes: a quarter of the C compiler's time, and nothing here uses them.
    "binding": False,
    "auto_pickle": False,
}
SANITIZERS = ["-fsanitize=address,undefined,fuzzer-no-link", "-fno-sanitize-recover=undefined", "-shared-libasan"]
if SANITIZE:
    COMPILE_ARGS = ["-O1", "-gline-tables-only", "-UNDEBUG", "-fno-omit-frame-pointer", "-w", *SANITIZERS]
elif DEBUG:
    COMPILE_ARGS = ["-O1", "-g1", "-UNDEBUG", "-w"]
else:
    COMPILE_ARGS = ["-O3", "-g0", "-w", "-DCYTHON_WITHOUT_ASSERTIONS"]
LINK_ARGS = SANITIZERS if SANITIZE else []
PACKAGE, PARTS = "shardbroker", ("acceptor", "perf", "shm")
"""The one name in site-packages, and the folders that are installed below it."""
JOBS = len(os.sched_getaffinity(0))


class Build(build_ext):
    """Compiles the largest modules first, so that the last ones are short, and reports progress."""

    def run(self):
        self.in_place = self.inplace  # the super class builds elsewhere, and copies
        super().run()

    def build_extensions(self):
        self.extensions.sort(key=lambda one: -os.path.getsize(one.sources[0]))
        self.numbers = count(1)
        super().build_extensions()

    def build_extension(self, ext):
        module = Path(self.get_ext_fullpath(ext.name))
        before = module.stat().st_mtime_ns if module.exists() else 0
        made = Path(self.get_ext_filename(ext.name))  # by `build_ext --inplace`: the same bytes, for the same Python
        if not (self.in_place or DEBUG or SANITIZE) and not newer_group([*ext.sources, *ext.depends], str(made)):
            module.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(made, module)
            return
        super().build_extension(ext)  # does nothing if the module is newer than its sources
        number = next(self.numbers)
        if module.stat().st_mtime_ns != before:
            sys.stdout.write(f"[{number}/{len(self.extensions)}] compiled {ext.name}\n")  # at once: threads print here


class InstallLib(install_lib):
    """Places the folders beside the package below it: into a wheel, not into an editable installation."""

    def install(self):
        files = super().install()
        parts = Path(self.install_dir, PACKAGE, "parts")
        parts.mkdir(parents=True, exist_ok=True)
        for name in PARTS:
            if Path(self.install_dir, name).exists():
                Path(self.install_dir, name).rename(parts / name)
        return files


class EggInfo(egg_info):
    def run(self):
        super().run()
        Path(self.egg_info, "top_level.txt").write_text(f"{PACKAGE}\n")


def compiled(sources: list[Path], directives: dict[str, object]) -> list[Extension]:
    modules = [
        Extension(".".join(path.with_suffix("").parts), [str(path)], extra_compile_args=COMPILE_ARGS, extra_link_args=LINK_ARGS)
        for path in sources
    ]
    return list(cythonize(modules, compiler_directives=directives, nthreads=JOBS, force=DEBUG))


def extensions() -> list[Extension]:
    sources = sorted(path for package in PACKAGES for path in Path(package).rglob("*.pyx"))
    return compiled(sources, DIRECTIVES) + (compiled(PARSERS, {"annotation_typing": False}) if SANITIZE else [])


setup(
    ext_modules=[] if COMPILED else extensions(),
    cmdclass={"build_ext": Build, "egg_info": EggInfo, "install_lib": InstallLib},
    options={"build_ext": {"parallel": JOBS}},
)
