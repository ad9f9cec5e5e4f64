"""The build: only what has changed is compiled, and pip compiles nothing again."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYX = "cpdef int {name}():\n    return {value}\n"


def build(tree: Path, *command: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=tree, env=os.environ | environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_is_compiled_stays_so_until_its_source_changes(tmp_path: Path) -> None:
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tmp_path)
    package = tmp_path / "shm"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.pyx").write_text(PYX.format(name="one", value=1))
    (package / "two.pyx").write_text(PYX.format(name="two", value=2) + "# the larger one, compiled first\n")
    inplace = ("setup.py", "-q", "build_ext", "--inplace")
    assert sorted(build(tmp_path, *inplace).splitlines()[-2:])[0].startswith("[1/2] compiled shm.")
    assert "compiled" not in build(tmp_path, *inplace)
    times = {path.name: path.stat().st_mtime_ns for path in package.glob("*.so")}
    assert len(times) == 2

    (package / "two.pyx").write_text(PYX.format(name="two", value=3))
    build(tmp_path, *inplace)
    changed = {path.name for path in package.glob("*.so") if path.stat().st_mtime_ns != times[path.name]}
    assert [name.partition(".")[0] for name in changed] == ["two"]
    assert build(tmp_path, "-c", "from shm.one import one; from shm.two import two; print(one(), two())") == "1 3\n"

    # A wheel takes what is compiled; where its source is newer, that is compiled and the file in place stays.
    time_of_two = next(package.glob("two*.so")).stat().st_mtime_ns
    assert "compiled" not in build(tmp_path, "setup.py", "build_ext")
    (package / "one.pyx").write_text(PYX.format(name="one", value=4))
    assert "compiled shm.one\n" in build(tmp_path, "setup.py", "build_ext")
    assert next(package.glob("two*.so")).stat().st_mtime_ns == time_of_two
    assert build(tmp_path, "-c", "from shm.one import one; print(one())") == "1\n"

    wheel = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir", "out", ".")
    build(tmp_path, *wheel, SHARDBROKER_COMPILED="1")
    (file,) = (tmp_path / "out").iterdir()
    assert file.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(file).namelist() if name.endswith(".so")]
