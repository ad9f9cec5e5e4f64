"""How the configuration is shown: `config show` as TOML with sources, `config reference` as the page in docs."""

from collections.abc import Iterable

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shardbroker.config.keys import allowed_text, dotted, toml
from shardbroker.config.listeners import Certificate, Listener, Tls
from shardbroker.config.live import is_live
from shardbroker.config.settings import Settings
from shardbroker.config.sources import Loaded

__all__ = ["leaves", "reference", "sections", "show"]

_INTRODUCTION = """\
# Configuration

Made by `shardbroker config reference`; the schema is `shardbroker/config/settings.py`.

Values come from, later ones over earlier: the default, the TOML file (`--config`), what was set while the broker ran
(`runtime.toml` in the data directory, written by `shardbroker ctl config set`), the environment (`SHARDBROKER__SECTION__KEY`),
`--set section.key=value`, and the options of `serve`. An unknown key or a bad value is refused at start with exit code 2 and a
line that names the key, the value, where it came from and what is allowed.
`shardbroker config check` only checks, like a start, and without asking any server: back ends with their libraries, certificates,
files of rules and passwords, and addresses are tried, too, and all that is wrong is listed at once; `shardbroker config show`
prints what is in force and where each value came from, as TOML that can be used as a file.

- Durations are written `500ms`, `15s`, `2h`, `1d`, `infinity`; a bare number is seconds. Sizes are written `65536`, `256KB`, `1MB`
  (1 KB is 1024 bytes).
- A file that names listeners has only those; `--listen` takes the place of all of them. The first `--listen` is called `default`,
  further ones `listen-2`, `listen-3`; what else is set for a listener of that name, such as `max_connections`, stays.
- What is marked `live` changes at once by `shardbroker ctl config set KEY VALUE`, by the REST API and by SIGHUP, which reads
  all of it again; what was granted to clients before stays. What is marked `restart` is kept, and holds from the next start on.
- Keys in the environment are read in lower case. Topics with capitals or dots go into a table:
  `SHARDBROKER__MQTT__MQUEUE_PRIORITIES='{ "Plant/v1.0" = 9 }'`.
"""


def show(loaded: Loaded) -> str:
    """The effective settings as TOML, each with a comment that says where it came from."""
    rows: list[tuple[str, str] | str] = []
    for section, model in sections(loaded.settings):
        rows.append(f"\n[{section}]")
        for name, field in leaves(model):
            rows.append((f"{name} = {toml(field, getattr(model, name))}", loaded.source(f"{section}.{name}")))
    width = max(len(row[0]) for row in rows if isinstance(row, tuple))
    return "\n".join(row if isinstance(row, str) else f"{row[0]:<{width}}  # {_comment(row[1])}" for row in rows).lstrip("\n")


def reference() -> str:
    """docs/configuration.md."""
    lines = [_INTRODUCTION.rstrip("\n")]
    tls = Tls().model_copy(update={"sni": {"<name>": Certificate()}})
    listeners = {"default": Listener().model_copy(update={"tls": tls})}
    for section, model in sections(Settings().model_copy(update={"listeners": listeners})):
        shown = section.replace("listeners.default", "listeners.<name>")
        summary = (type(model).__doc__ or "").splitlines()[0]
        lines += ["", f"## {shown}", "", summary, "", "| key | default | allowed | change | meaning |", "|---|---|---|---|---|"]
        for name, field in leaves(model):
            default = toml(field, getattr(model, name))
            change = "live" if is_live(f"{section}.{name}") else "restart"
            lines.append(f"| `{shown}.{name}` | `{default}` | {allowed_text(field)} | {change} | {field.description} |")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> str:
    """A file's name may hold what ends a comment."""
    return "".join(c if c.isprintable() else "?" for c in text)


def sections(model: BaseModel, prefix: str = "") -> Iterable[tuple[str, BaseModel]]:
    """Every section below a model, and every entry of a table of sections, each before what it holds itself."""
    for name, value in model:
        inner = value.items() if _is_table(value) else [("", value)] if isinstance(value, BaseModel) else ()
        for key, section in inner:
            path = f"{prefix}{name}" + (f".{dotted((key,))}" if key else "")
            yield path, section
            yield from sections(section, f"{path}.")


def leaves(model: BaseModel) -> Iterable[tuple[str, FieldInfo]]:
    """The keys of a section that are no sections themselves."""
    return ((name, field) for name, field in type(model).model_fields.items() if not _is_section(getattr(model, name)))


def _is_table(value: object) -> bool:
    return isinstance(value, dict) and any(isinstance(inner, BaseModel) for inner in value.values())


def _is_section(value: object) -> bool:
    """Sections, and tables of sections that have entries: an empty one is shown as a value."""
    return isinstance(value, BaseModel) or _is_table(value)
