"""How the configuration is shown: `config show` as TOML with sources, `config reference` as the page in docs."""

from collections.abc import Iterable

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shardbroker.config.errors import UNBUILT
from shardbroker.config.keys import allowed_text, toml
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
`shardbroker config check` only checks; `shardbroker config show` prints what is in force and where each value came from, as TOML
that can be used as a file.

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
    unbuilt = ", ".join(f"`{key}`" for key in UNBUILT)
    lines = [_INTRODUCTION, f"Keys of parts that are not built yet are refused as unknown: {unbuilt}."]
    for section, model in sections(Settings()):
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


def sections(settings: Settings) -> Iterable[tuple[str, BaseModel]]:
    """Every section with its dotted name."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield name, value
            yield from ((f"{name}.{key}", inner) for key, inner in value if isinstance(inner, BaseModel))
        else:
            for key, listener in value.items():
                yield f"{name}.{key}", listener


def leaves(model: BaseModel) -> Iterable[tuple[str, FieldInfo]]:
    """The keys of a section that are no sections themselves."""
    return ((name, field) for name, field in type(model).model_fields.items() if not isinstance(getattr(model, name), BaseModel))
