"""An installation of shardbroker that is changed in place while a broker runs from it: links to the sources, and own files."""

import os
import sys
from pathlib import Path

from tests.docs.pages import ROOT

__all__ = ["Installation"]

SCRIPT = "#!{python}\nimport sys\nfrom shardbroker.cli.main import main\nsys.exit(main())\n"


class Installation:
    """`program` is its command."""

    def __init__(self, directory: Path, version: str) -> None:
        self.directory = directory
        self.program = directory / "broker"
        self.program.write_text(SCRIPT.format(python=sys.executable))
        self.program.chmod(0o755)
        for name in ("acceptor", "perf", "shm", "shardbroker"):
            (directory / name).symlink_to(ROOT / name)
        self.install(version)

    @property
    def environment(self) -> dict[str, str]:
        """Two files of the same size and second must not be taken for one."""
        return dict(os.environ) | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(self.directory)}

    def install(self, version: str) -> None:
        """Puts code there that says it is of this version."""
        self.replace("shardbroker/__init__.py", '__version__ = "0.1.0"', f'__version__ = "{version}"')

    def replace(self, file: str, old: str, new: str) -> None:
        """Puts a source there in which one text takes the place of another, as a package manager does: as a new file."""
        text = (ROOT / file).read_text()
        assert old in text, f"{file} has no {old}"
        self._own(Path(file).parent)
        path = self.directory / file
        made = path.with_suffix(".new")
        made.write_text(text.replace(old, new))
        made.rename(path)

    def restore(self, file: str) -> None:
        """Puts the source itself there."""
        path = self.directory / file
        path.unlink()
        path.symlink_to(ROOT / file)

    def _own(self, folder: Path) -> None:
        """Makes a folder of links of a link to a folder."""
        for part in [*reversed(folder.parents[:-1]), folder]:
            own = self.directory / part
            if not own.is_symlink():
                continue
            own.unlink()
            own.mkdir()
            for path in (ROOT / part).iterdir():
                if path.name != "__pycache__":
                    (own / path.name).symlink_to(path)
