"""The building of examples/: from sensors over a real broker and its journal to Parquet, a plot and a notebook, without Spark."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib.image
import nbformat
import numpy as np
import pytest

from tests.harness.broker import Broker

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/building"
READINGS = 24 * 288
"""Of each sensor one in five minutes."""
DIFFERENCE_MAX = 0.05
"""Mean difference of two pictures, of 1: fonts of another version of matplotlib are allowed."""

pytestmark = [pytest.mark.own_broker, pytest.mark.timeout(300)]


def run(*command: str | Path, cwd: Path) -> str:
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    done = subprocess.run([str(one) for one in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the export, as the page makes it; the day passes at once."""
    directory = tmp_path_factory.mktemp("building")
    with Broker(2, {"journal.capture": "#"}, data_dir=directory / "data") as broker:
        host, port = broker.address
        said = run(sys.executable, EXAMPLE / "simulate.py", "--minutes=0", f"--host={host}", f"--port={port}", cwd=directory)
    assert said == f"{READINGS} of {READINGS} messages acknowledged\n"
    program = Path(sys.executable).with_name("shardbroker")
    options = ("--topics=building/#", "--types=message", "--payload=json")
    run(program, "export", "--data-dir=data", "--to=building", *options, cwd=directory)
    yield directory


def test_the_plot_is_that_of_the_page(place: Path) -> None:
    said = run(sys.executable, EXAMPLE / "plot.py", "building", "building.png", cwd=place)
    assert said == f"{READINGS} readings of 24 sensors drawn to building.png\n"
    made, shown = (matplotlib.image.imread(path) for path in (place / "building.png", ROOT / "docs/images/building.png"))
    assert made.shape == shown.shape
    assert float(np.abs(made - shown).mean()) < DIFFERENCE_MAX
    assert float(made[..., :3].std()) > DIFFERENCE_MAX, "nothing is drawn"


def test_the_notebook_finds_the_meetings_and_the_window(place: Path) -> None:
    notebook = nbformat.read(EXAMPLE / "building.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells), "outputs are not part of the sources"
    # As Jupyter does: cell by cell in one namespace, the last expression is shown.
    program = "import ast, sys\nspace = {}\n"
    for cell in cells:
        program += (
            f"tree = ast.parse({cell.source!r})\nlast = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None\n"
            "exec(compile(tree, 'cell', 'exec'), space)\n"
            "if last is not None: print(eval(compile(ast.Expression(last.value), 'cell', 'eval'), space))\n"
        )
    inside = place / "examples/building"
    inside.mkdir(parents=True)
    said = run(sys.executable, "-c", program, cwd=inside)
    rows = ["".join(line.split()) for line in said.splitlines()]
    assert any(line.startswith("│co2│3456│2026-03-0200:00:00│2026-03-0223:55:00") for line in rows), said
    assert sum(line.startswith("│2│4│") for line in rows) == 1, said
    assert any(line.startswith("│3│1│2026-03-0212:") for line in rows), said
