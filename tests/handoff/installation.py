"""An installation of shardbroker that is changed in place while a broker runs from it: links to the sources, and own files."""

import os
import shutil
import sys
from pathlib import Path

from tests.docs.pages import ROOT

__all__ = ["Installation"]

PACKAGES = ("acceptor", "perf", "shm", "shardbroker")
SCRIPT = "#!{python}\nimport sys\nfrom shardbroker.cli.main import main\nsys.exit(main())\n"


class Installation:
    """`program` is its command. root: the compiled tree that it links to."""

    def __init__(self, directory: Path, version: str, root: Path = ROOT) -> None:
        self.directory, self.root = directory, root
        self.program = directory / "broker"
        self.program.write_text(SCRIPT.format(python=sys.executable))
        self.program.chmod(0o755)
        self.use(root, version)

    @property
    def environment(self) -> dict[str, str]:
        """Two files of the same size and second must not be taken for one."""
        return dict(os.environ) | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(self.directory)}

    def use(self, root: Path, version: str) -> None:
        """Puts another tree there."""
        self.root = root
        for name in PACKAGES:
            link, old = self.directory / f"{name}.new", self.directory / name
            link.symlink_to(root / name)
            if old.is_dir() and not old.is_symlink():
                shutil.rmtree(old)
            link.rename(old)
        self.install(version)

    def install(self, version: str) -> None:
        """Puts code there that says it is of this version."""
        self.replace("shardbroker/__init__.py", '__version__ = "0.1.0"', f'__version__ = "{version}"')

    def replace(self, file: str, old: str, new: str) -> None:
        """Puts a source there in which one text takes the place of another, as a package manager does: as a new file."""
        self._write(file, (self.root / file).read_text(), old, new)

    def change(self, file: str, old: str, new: str) -> None:
        """Does the same with the file that is there."""
        self._write(file, (self.directory / file).read_text(), old, new)

    def _write(self, file: str, text: str, old: str, new: str) -> None:
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
        path.symlink_to(self.root / file)

    def _own(self, folder: Path) -> None:
        """Makes a folder of links of a link to a folder."""
        for part in [*reversed(folder.parents[:-1]), folder]:
            own = self.directory / part
            if not own.is_symlink():
                continue
            own.unlink()
            own.mkdir()
            for path in (self.root / part).iterdir():
                if path.name != "__pycache__":
                    (own / path.name).symlink_to(path)
