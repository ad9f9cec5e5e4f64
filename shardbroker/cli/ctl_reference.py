"""Generates docs/ctl.md from the table of verbs."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from shardbroker.control import VERBS, Verb
from shardbroker.control.errors import STATUSES

__all__ = ["reference"]

INTRODUCTION = """\
# ctl: inspect and change a running broker

Made by `shardbroker ctl reference`; the table of verbs is `shardbroker/control/verbs.py`.

    shardbroker ctl [--data-dir DIR | --config FILE] [--json] [--node NAME] VERB ...

It talks to the broker through the socket `ctl.sock` in its data directory, which belongs to the user of the broker (mode 0600), so
there is no password. Without `--data-dir` the directory is found as `serve` finds it. `--json` prints JSON. `--all` reads all pages
of a list; as JSON that is one row a line. `eval "$(shardbroker ctl completion bash)"` completes verbs, options and
configuration keys; `zsh` and `fish` have theirs.

- Lists are read from shared memory and cost the workers nothing: clients from the registry, which each worker writes every
  200 ms, routes from the route table. A page looks at 10,000 clients at most, so one that is filtered may be short, or empty, and
  still have a `cursor` for the next page. Clients that connect or disconnect meanwhile may be missing; all others are listed once.
- Facts held by a worker only (one client, its subscriptions, its journal) are requested between two passes of its loop, and
  answered within 5 s or refused with `WORKER_DOWN` or `WORKER_TIMEOUT`.
- To kick is to end connection and session: 5.0 clients get DISCONNECT 0x98, the will is published.
- `config set` keeps the value in `runtime.toml` in the data directory, over the configuration file and below environment and
  options. The answer is sent when every process that the key concerns has applied the value. It lists what was `applied`, what
  `needs_restart`, what a value is `shadowed_by`, and which workers (`workers_behind`) and other processes (`processes_behind`) did
  not apply it within 5 s. `config reload` and SIGHUP read everything again.
- `config set --cluster` and `config reset --cluster` change a setting on all nodes of a cluster with etcd. The answer is sent when
  every node that runs has applied it, after 10 s at most, and has the state of each; see cluster.md.
- Settings that cannot work are refused with all findings, and nothing changes then: libraries, files, certificates and
  addresses that the new value names are tried. `config reset` works without a broker, too, on `runtime.toml`.
- `journal seal` ends the segment of each worker's journal, so that everything up to `durable` can be read from closed segments.
- `snapshot` writes a directory below `snapshots` in the data directory; `snapshot.interval` does so by itself (docs/spark.md).
- `data export --out FILE` writes a file on the machine of the command, and `data import FILE` reads one; otherwise files are those
  of `data list`, in the data directory. Exit code 1 of an import: some entries were refused; see operation-backup.md.
- `backup FILE` writes the broker's state to one file, see operation-backup.md; it needs no running broker.
- `rules test SQL --topic t --payload '{}'` evaluates a rule over a message, or an event with `--event connected`; columns come from
  `--context JSON`, others have example values. `rules test --offline --file CASES` reads one object a line (`id`, `sql`, `context`)
  and prints one a line: `id` and either `ok` or `error` (`parse`, `nomatch` or `eval`). `rules test SQL --past 1h`
  evaluates a rule over what the journals have since then. It needs no broker, see rules.md.
- Settings of connectors, actions and sources are JSON objects: `connectors add http:main '{"url": "http://127.0.0.1:8080"}'`. A
  command line is visible to all users: a secret in it should be `file:PATH`. `actions cursor ID --rewind 1h` is `actions rewind ID
  1h`.
- In a cluster `ctl --node NAME VERB` has another node carry out the verb, and `--cluster` behind a list shows the rows of all nodes
  (docs/cluster.md). Verbs about one client are carried out by the node that has it.
- Changes are logged: `audit by=... verb=... code=... params=...`, without payloads.

Exit codes: 0 well, 1 refused, 2 wrong usage, 3 no broker. Programs in Python may use `shardbroker.control.Control`.
"""


def reference() -> str:
    """Returns the whole page."""
    lines = [INTRODUCTION, "## Verbs", ""]
    for verb in VERBS.values():
        lines += [f"### {verb.name}", "", verb.summary + (" Changes the broker." if verb.changes else ""), ""]
        rows = list(_rows(verb))
        if rows:
            lines += ["| parameter | allowed | meaning |", "|---|---|---|", *rows, ""]
    codes = ", ".join(f"`{code}` ({status})" for code, status in STATUSES.items())
    lines += ["## Codes of errors", "", f"In brackets the HTTP status that fits: {codes}.", ""]
    return "\n".join(lines)


def _rows(verb: Verb) -> Iterator[str]:
    for name, field in verb.params.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        shown = name.upper() if extra.get("argument") else f"--{name.replace('_', '-')}"
        yield f"| `{shown}` | {_allowed(field)} | {field.description} |"


def _allowed(field: FieldInfo) -> str:
    text = _kind(field.annotation)
    bounds = {name: getattr(mark, name) for mark in field.metadata for name in ("ge", "le") if hasattr(mark, name)}
    if "ge" in bounds:
        text += f" from {bounds['ge']}"
    if "le" in bounds:
        text += f" up to {bounds['le']}"
    if not field.is_required() and field.default not in (None, "", b"", False) and field.default != {}:
        text += f", default {field.default}"
    return text if field.is_required() else f"{text}, may be left out"


def _kind(annotation: Any) -> str:
    if hasattr(annotation, "__metadata__"):
        return _kind(annotation.__origin__)
    if annotation in (str, bytes):
        return "text"
    if annotation is int:
        return "a number"
    if annotation is bool:
        return "yes or no"
    arguments = [one for one in get_args(annotation) if one is not type(None)]
    if get_origin(annotation) is list:
        return "one or more texts"
    if get_origin(annotation) is dict:
        return "NAME=VALUE, may be repeated"
    if len(arguments) == 1 and not isinstance(arguments[0], str | int):
        return _kind(arguments[0])
    return ", ".join(f"`{one}`" for one in arguments)
