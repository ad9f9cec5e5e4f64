"""A journal to damage: as it was written, and a copy of it for each test."""

import shutil
from pathlib import Path

import pytest

from tests.journal.samples import Sample, write_sample


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return write_sample(tmp_path_factory.mktemp("journal"))


@pytest.fixture
def copy(sample: Sample, tmp_path: Path) -> Sample:
    shutil.copytree(sample.directory, tmp_path / "copy")
    return Sample(tmp_path / "copy", sample.records)
