"""python -m tests.docs.merge FILE EXAMPLE

What an example of TOML says goes into a configuration file, in place of what that said of the same keys.
"""

import re
import sys
from pathlib import Path

HEADER = re.compile(r"\[[^]]+\]")


def merged(text: str, example: str) -> str:
    """Each table goes to where the file has it, else to its end; keys of a line each."""
    lines = text.splitlines()
    for table in re.split(r"^(?=\[)", example, flags=re.MULTILINE):
        if not table.strip():
            continue
        header, *body = table.strip().splitlines()
        name = header.split("#")[0].strip()
        start = next((number for number, line in enumerate(lines) if line.split("#")[0].strip() == name), len(lines))
        if start == len(lines):
            lines.append(name)
        end = next((number for number in range(start + 1, len(lines)) if HEADER.match(lines[number])), len(lines))
        keys = {line.split("=")[0].strip() for line in body}
        kept = [line for line in lines[start + 1 : end] if line.split("=")[0].strip() not in keys]
        lines[start + 1 : end] = body + kept
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    file, example = map(Path, sys.argv[1:])
    file.write_text(merged(file.read_text(), example.read_text()))
