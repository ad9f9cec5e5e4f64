"""Wheels of what the broker and its dashboard need, for installations without a network: in `build/wheelhouse`."""

import subprocess
import sys
import tomllib
from pathlib import Path

__all__ = ["filled"]

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "wheelhouse"
LISTED = PLACE / "requirements.txt"
"""What the wheels there are for; written last."""
EXTRAS = ("api", "dashboard")
TIMEOUT_S = 300.0


def filled() -> Path:
    """Returns the directory. Raises OSError if a wheel is missing and cannot be had."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    text = "".join(f"{one}\n" for one in wanted if not one.startswith("shardbroker"))
    if LISTED.exists() and LISTED.read_text() == text:
        return PLACE
    PLACE.mkdir(parents=True, exist_ok=True)
    new = LISTED.with_suffix(".new")
    new.write_text(text)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(PLACE), "--requirement", str(new)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise OSError(f"wheels of {', '.join(wanted)}: {done.stderr.strip()[-500:]}")
    new.rename(LISTED)
    return PLACE
