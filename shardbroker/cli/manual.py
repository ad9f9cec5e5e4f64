"""Manual pages in roff, made from the generated pages of the documentation; `shardbroker install` and packages place them."""

import re
from collections.abc import Iterator
from importlib.metadata import version

from shardbroker.cli import ctl_reference, reference
from shardbroker.config.show import reference as configuration_reference

__all__ = ["manual", "roff"]

_INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\([^)]*\)")
_BEGINS = re.compile(r"$|#|```|    |\||- |\d+\. ")
"""Of a line that does not continue the paragraph of the line before."""
_CELLS = re.compile(r"(?<!\\)\|")
"""Between two cells of a row; in a cell it has a backslash in front of it."""

_SHARDBROKER = """\
## Name

shardbroker - MQTT broker with one worker process for each core

## Synopsis

**shardbroker** COMMAND [OPTION]...

## Description

`shardbroker serve` runs a broker in the foreground; the unit `shardbroker.service` runs it as a service. The other commands check
and show the configuration, talk to a running broker, and read its files. Without a command it prints its help.

## Signals

| signal | effect on the broker |
|---|---|
| `SIGTERM`, `SIGINT` | clients are disconnected, journals are completed, exit code 0; a second one ends it faster |
| `SIGHUP` | the configuration is read again |

## Files

| file | content |
|---|---|
| `/etc/shardbroker/shardbroker.toml` | configuration of the service |
| `/var/lib/shardbroker` | data directory of the service |

## Exit status

0 success, 1 failure, 2 invalid configuration or usage

"""
_CTL = "## Name\n\nshardbroker-ctl - inspect and change a running MQTT broker\n"
_TOML = "## Name\n\nshardbroker.toml - configuration of the MQTT broker shardbroker\n"
_SEE_ALSO = "\n## See also\n\n`{}`({}), `{}`({})\n"


def manual(program: reference.Program) -> dict[str, str]:
    """Returns the pages by file name, such as man1/shardbroker.1."""
    commands = _from(reference.reference(program), "\n## ")
    verbs = _CTL + "\n## Description\n" + _from(ctl_reference.reference(), "\n    ")
    keys = _TOML + "\n## Description\n" + _from(configuration_reference(), "\nValues come from")
    texts = {("shardbroker", 1): _SHARDBROKER + commands, ("shardbroker-ctl", 1): verbs, ("shardbroker.toml", 5): keys}
    pages = {}
    for (name, section), text in texts.items():
        others = [part for page in texts if page != (name, section) for part in page]
        pages[f"man{section}/{name}.{section}"] = roff(name, section, text + _SEE_ALSO.format(*others))
    return pages


def _from(page: str, mark: str) -> str:
    """Returns a page without what is in front of the mark: its title, and how the page is made."""
    return page[page.index(mark) + 1 :]


def roff(name: str, section: int, text: str) -> str:
    """Returns a page in roff. Of Markdown it knows what the generated pages have: headings, paragraphs, lists, tables, examples."""
    lines = [f'.TH "{name}" {section} "" "shardbroker {version("shardbroker")}"', ".nh", ".ad l"]
    rest = iter(_joined(text))
    header: list[str] | None = None
    for line in rest:
        if not line.startswith("|"):
            header = None
        if line.startswith("```"):
            lines += [".PP", ".EX", *(_verbatim(one) for one in _until_fence(rest)), ".EE"]
        elif line.startswith("    "):
            if lines[-1] == ".EE":
                lines.pop()  # a further line of the same example
            else:
                lines += [".PP", ".EX"]
            lines += [_verbatim(line), ".EE"]
        elif line.startswith("### "):
            lines.append(f".SS {_inline(line[4:])}")
        elif line.startswith("## "):
            lines.append(f".SH {_inline(line[3:])}")
        elif line.startswith("|"):
            cells = [one.strip().replace("\\|", "|") for one in _CELLS.split(line)[1:-1]]
            if header is None:
                header = cells
            elif not set(line) <= set("|-: "):
                lines += _row(header, cells)
        elif line.startswith("- "):
            lines += [".IP \\(bu 2", _inline(line[2:])]
        elif found := re.match(r"(\d+)\. (.*)", line):
            lines += [f".IP {found[1]}. 3", _inline(found[2])]
        elif line.strip():
            lines.append(_inline(line))
        else:
            lines.append(".PP")
    return "\n".join(lines) + "\n"


def _joined(text: str) -> list[str]:
    """Returns the lines, wrapped ones as one: what is marked in a line may go on in the next one."""
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        if not fenced and lines and not _BEGINS.match(line) and lines[-1] and not lines[-1].startswith(("#", "```", "    ", "|")):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
        fenced ^= line.startswith("```")
    return lines


def _until_fence(rest: Iterator[str]) -> Iterator[str]:
    for line in rest:
        if line.startswith("```"):
            return
        yield line


def _row(header: list[str], cells: list[str]) -> list[str]:
    """A tagged paragraph: the last cell is its text, those between are named below it."""
    facts = [f"{name}: {_inline(cell)}" for name, cell in zip(header[1:-1], cells[1:-1], strict=True) if cell]
    return [".TP", _inline(cells[0]) or "\\&", _inline(cells[-1]) or "\\&", *(line for fact in facts for line in (".br", fact))]


def _verbatim(line: str) -> str:
    return "\\&" + _escaped(line).replace("-", "\\-")


def _inline(text: str) -> str:
    parts = []
    at = 0
    for found in _INLINE.finditer(text):
        parts.append(_escaped(text[at : found.start()]))
        code, strong, link = found.groups()
        parts.append(_escaped(link) if link is not None else "\\fB" + _escaped(code or strong).replace("-", "\\-") + "\\fR")
        at = found.end()
    line = "".join(parts) + _escaped(text[at:])
    return "\\&" + line if line.startswith((".", "'")) else line


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e")
