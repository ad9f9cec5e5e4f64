"""`shardbroker ctl`: one command per verb of the control table, tables for reading, `--json` for programs.

Commands, their arguments and options are made from `shardbroker.control.VERBS`; only the layout of some results is defined here.
Exit codes: 0 success, 1 refused or not found, 2 wrong usage, 3 no broker.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from shardbroker.cli import data, render
from shardbroker.cli.actions import cursor
from shardbroker.cli.completion import complete, keys_from
from shardbroker.cli.locate import Target, running_data_dir
from shardbroker.cli.rules import test
from shardbroker.cli.set_workers import set_workers
from shardbroker.cli.upgrade import upgrade
from shardbroker.config import ConfigError
from shardbroker.config.keys import dotted
from shardbroker.config.sources import KEPT_FILE, read_kept, without, write_kept
from shardbroker.control import VERBS, Control, ControlError, Verb

__all__ = ["app", "main"]

GROUPS = {
    "clients": "Clients: list, find, kick.",
    "sessions": "Sessions, with or without a connection.",
    "subscriptions": "Subscriptions of clients.",
    "node": "This node.",
    "node evacuate": "Evacuation of this node, before it is stopped.",
    "cluster core": "etcd as the core of the cluster: its members and their state.",
    "topics": "Topic filters with subscribers.",
    "routes": "Routes of messages.",
    "retained": "Retained messages.",
    "delayed": "Messages to be published later.",
    "exclusive": "Exclusive subscriptions.",
    "listeners": "Listeners of the broker.",
    "journal": "Journals.",
    "workers": "Processes.",
    "config": "Configuration of the running broker.",
    "data": "Exports and imports of configuration and data.",
    "log": "Log level.",
    "rules": "Rules: SQL over messages.",
    "connectors": "Connections to other systems.",
    "actions": "What rules write to other systems.",
    "sources": "What arrives from other systems.",
    "users": "Users of the broker's own store.",
    "auth": "Authenticators, in the order in which they are queried.",
    "acl": "Rules for publishing and subscribing.",
    "acl sources": "Sources of rules, in the order in which they are queried.",
    "banned": "Bans.",
    "admins": "Accounts of the REST API and the dashboard.",
    "api-keys": "Keys of the REST API.",
    "audit": "Log of changes.",
    "trace": "Traces of single clients, topics and addresses.",
    "slow-subs": "Slowest deliveries.",
    "topic-metrics": "Messages counted by topic.",
    "alarms": "Active and past alarms.",
    "plugins": "Plugins in the workers.",
    "hooks": "Hook points and their callbacks.",
    "exhook": "Programs behind hooks over gRPC.",
}
"""Help of the groups, the first words of verbs with several."""


def main(argv: list[str]) -> int:
    """Runs `shardbroker ctl ARGV...`; returns the exit code."""
    try:
        result = app(argv, prog_name="shardbroker ctl", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        return 130
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except ControlError as error:
        print(f"{error.code}: {error}", file=sys.stderr)
        return 3 if error.code == "BROKER_DOWN" else 1


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Data directory of the broker; default: that of `serve`, else of the service.",
)
@click.option("--config", type=click.Path(path_type=Path), help="TOML file of the broker.")
@click.option("--json", "as_json", is_flag=True, help="JSON, for programs; a list is one object a line.")
@click.option(
    "--node", default="", metavar="NAME", help="Node of the cluster that is asked; default: this one."
)
@click.pass_context
def app(context: click.Context, data_dir: Path | None, config: Path | None, as_json: bool, node: str) -> None:
    """Inspect and change a running broker, through the socket in its data directory."""
    context.obj = Target(lambda: running_data_dir(data_dir, config), as_json, node)


@app.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes `shardbroker` in this shell: evaluate it, or store it where the shell searches."""
    complete(f"{shell}_source", "_SHARDBROKER_COMPLETE", {})


@app.command("reference")
def reference() -> None:
    """Print docs/ctl.md."""
    from shardbroker.cli.ctl_reference import reference as page

    print(page(), end="")


@app.command("backup")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.pass_context
def backup(context: click.Context, file: Path) -> int:
    """Write sessions, queued and retained messages, users, rules and accounts to FILE while the broker runs."""
    from shardbroker.deploy import BackupError, backup

    target: Target = context.obj
    try:
        size = backup(target.here(), file)
    except BackupError as error:
        print(error, file=sys.stderr)
        return 1
    print(dumps({"file": str(file), "bytes": size}) if target.as_json else f"{file}: {size:,} bytes")
    return 0


SECRET = "password"
"""The field of a verb that is never an option."""


def add_verbs(root: click.Group, verbs: Iterable[Verb]) -> None:
    """Adds a command for each verb, those of several words in groups."""
    for verb in verbs:
        *groups, name = verb.name.split()
        parent = root
        for depth, group in enumerate(groups, 1):
            found = parent.commands.get(group)
            if found is None:
                found = click.Group(group, help=GROUPS.get(" ".join(groups[:depth])))
                parent.add_command(found)
            assert isinstance(found, click.Group)
            parent = found
        parent.add_command(command_of(verb, name))


def command_of(verb: Verb, name: str) -> click.Command:
    """Returns the command of one verb."""
    fields = verb.params.model_fields
    params: list[click.Parameter] = []
    for field_name, field in fields.items():
        if field_name != SECRET:
            params.append(parameter_of(field_name, field))
            if verb.name.startswith("config ") and field_name == "key":
                params[-1] = with_keys(params[-1])
    if "payload" in fields and fields["payload"].annotation is bytes:
        params.append(click.Option(["--stdin", "from_stdin"], is_flag=True, help="Read the payload from standard input."))
    if "cursor" in fields:
        params.append(click.Option(["--all", "all_pages"], is_flag=True, help="Read all pages."))
    if verb.columns and not verb.is_shared and not verb.is_of_client and "cluster" not in fields:
        params.append(click.Option(["--cluster", "of_all_nodes"], is_flag=True, help="Rows of all nodes of the cluster."))
    # Accepted after the command as well as before it.
    params.append(click.Option(["--json", "json_here"], is_flag=True, help="JSON, for programs."))

    @click.pass_context
    def run(context: click.Context, /, **given: Any) -> int:
        target: Target = context.obj
        as_json = given.pop("json_here") or target.as_json
        all_pages, of_all_nodes = given.pop("all_pages", False), given.pop("of_all_nodes", False)
        if target.node and of_all_nodes:
            raise click.UsageError("--node and --cluster exclude each other")
        if given.pop("from_stdin", False):
            given["payload"] = sys.stdin.buffer.read()
        if SECRET in fields:
            given[SECRET] = read_secret()
        asked = {key: wire(fields[key], value) for key, value in given.items() if value is not None and value != ()}
        try:
            control = target.connect(of_all_nodes)
        except ControlError as error:
            if verb.name != "config reset" or error.code != "BROKER_DOWN" or target.node or asked.get("cluster"):
                raise
            show_result(verb, reset_without_broker(target.find_data_dir(), asked["key"]), as_json)
            return 0
        with control:
            code = carry_out(control, verb, asked, as_json, all_pages)
        for missing in control.missing.values():
            print(f"node {missing['node']}: its rows are missing: {missing['reason']}", file=sys.stderr)
        return 1 if control.missing else code

    return click.Command(name, params=params, callback=run, help=verb.summary, short_help=verb.summary)


def reset_without_broker(data_dir: Path, key: str) -> dict[str, Any]:
    """Runs `config reset` for a broker that does not start with its runtime settings. Raises ControlError, ConfigError."""
    from shardbroker.supervisor.layout import StartError, lock_data_dir

    path = data_dir / KEPT_FILE
    kept = read_kept(path)
    name, left = without(kept, key)
    if len(left) == len(kept):
        raise ControlError("NOT_FOUND", f"no broker runs, and {key} is not in {path}")
    try:
        lock = lock_data_dir(data_dir)  # a broker that is just starting reads the file
        try:
            write_kept(path, left)
        finally:
            os.close(lock)
    except (StartError, OSError) as error:
        raise ControlError("NOT_AVAILABLE", f"{path}: {error}") from None
    return {"key": dotted(name), "applied": [], "needs_restart": [dotted(name)]}


def read_secret() -> str:
    """Prompts on a terminal, otherwise reads a line of standard input: a command line is visible to all users."""
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    return sys.stdin.readline().rstrip("\r\n")


def wire(field: FieldInfo, value: Any) -> Any:
    """Converts a value from the command line to the form that the verb expects."""
    kind = plain(field.annotation)
    if kind is bytes and isinstance(value, str):
        return value.encode()
    if get_origin(kind) is list:
        return list(value)
    if get_origin(kind) is dict:
        return dict(pair.split("=", 1) for pair in value)
    return value


def parameter_of(name: str, field: FieldInfo) -> click.Parameter:
    """Returns the argument or option of one field."""
    kind = plain(field.annotation)
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    many = get_origin(kind) is list
    type_ = click_type(kind)
    if extra.get("argument"):
        return click.Argument([name], type=type_, required=field.is_required(), nargs=-1 if many else 1)
    flag = f"--{name.replace('_', '-')}"
    if kind is bool:
        # Three states: yes, no, not given.
        declaration = f"{flag}/--no-{name.replace('_', '-')}"
        return click.Option([declaration, name], default=None, help=field.description)
    if get_origin(kind) is dict:
        return click.Option([flag, name], multiple=True, callback=check_pairs, metavar="NAME=VALUE", help=field.description)
    shown = None if field.default in (None, ..., "") or field.is_required() else str(field.default)
    text = f"{field.description} [default: {shown}]" if shown else field.description
    return click.Option([flag, name], type=type_, multiple=many, required=field.is_required(), help=text)


def with_keys(parameter: click.Parameter) -> click.Parameter:
    """Returns the argument, completed with configuration keys."""
    return click.Argument(
        [str(parameter.name)], type=parameter.type, required=parameter.required, nargs=parameter.nargs,
        shell_complete=lambda context, parameter, incomplete: keys_from(incomplete),
    )  # fmt: skip


def check_pairs(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if "=" not in value:
            raise click.BadParameter(f"must be NAME=VALUE, got {value!r}")
    return values


def plain(annotation: Any) -> Any:
    """Returns the type inside Annotated and `| None`."""
    if hasattr(annotation, "__metadata__"):
        return plain(annotation.__origin__)
    if get_origin(annotation) in (Union, UnionType):
        return plain(next(branch for branch in get_args(annotation) if branch is not type(None)))
    return annotation


def click_type(kind: Any) -> Any:
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return click.Choice([str(choice) for choice in choices]) if isinstance(choices[0], str) else IntChoice(choices)
    return click.INT if kind is int else click.FLOAT if kind is float else click.STRING


class IntChoice(click.ParamType[int]):
    """A choice among numbers."""

    name = "number"

    def __init__(self, choices: tuple[int, ...]) -> None:
        self._choices = choices

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "|".join(map(str, self._choices))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            number = -1
        if number not in self._choices:
            self.fail(f"must be one of {', '.join(map(str, self._choices))}, got {value!r}", param, ctx)
        return number


# --- results ------------------------------------------------------------------------------------------------------------------


def carry_out(control: Control, verb: Verb, params: dict[str, Any], as_json: bool, all_pages: bool) -> int:
    """Runs a verb and prints its result. Returns the exit code."""
    if verb.stream:
        show_stream(control, verb, params, as_json)
    elif all_pages:
        rows = control.pages(verb.name, **params)
        if as_json:
            for row in rows:
                print(dumps(row))
        else:
            render.rows(columns_of(control, verb), list(rows), None, human)
    elif params.get("cluster") and not verb.cluster_columns:
        return show_change(control.call(verb.name, **params), as_json)
    else:
        columns = verb.cluster_columns if params.get("cluster") else columns_of(control, verb)
        show_result(verb, control.call(verb.name, **params), as_json, columns)
    return 0


def show_change(result: dict[str, Any], as_json: bool) -> int:
    """Prints a change of settings of all nodes, and the state of each node. Returns 1 if one that runs has not applied it."""
    if as_json:
        print(dumps(result))
    else:
        render.fields({name: value for name, value in result.items() if name != "nodes"}, human)
        render.rows(("node", "state", "reason"), result["nodes"], None, human)
    return 1 if any(one["state"] in ("failed", "waiting") for one in result["nodes"]) else 0


def columns_of(control: Control, verb: Verb) -> tuple[str, ...]:
    return ("node", *verb.columns) if control.of_all_nodes and "node" not in verb.columns else verb.columns


def show_result(verb: Verb, result: Any, as_json: bool, columns: tuple[str, ...] = ()) -> None:
    if as_json:
        print(dumps(result))
    elif verb.columns:
        render.rows(columns or verb.columns, result["data"], result.get("cursor"), human)
    elif isinstance(result, dict):
        render.fields(result, human)
    elif result is not None:
        print(result)


def show_stream(control: Control, verb: Verb, params: dict[str, Any], as_json: bool) -> None:
    show: Callable[[Any], None] = (
        (lambda item: print(dumps(item), flush=True)) if as_json else (lambda item: render.line(item, human))
    )
    for item in control.stream(verb.name, **params):
        show(item)


def dumps(value: Any) -> str:
    return json.dumps(
        value, ensure_ascii=False, default=lambda one: one.decode(errors="replace") if isinstance(one, bytes) else str(one)
    )


def human(name: str, value: Any) -> str:
    """Formats a value for reading: times of day instead of milliseconds."""
    if value is None or value == "":
        return "-"
    if (name == "at" or name.endswith("_at")) and isinstance(value, int):
        return datetime.fromtimestamp(value / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S") if value else "-"
    if name == "uptime_ms":
        seconds = value // 1000
        return f"{seconds // 86400}d {seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(human("", one) for one in value) or "-"
    if isinstance(value, dict):
        return dumps(value)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


@click.command("download")
@click.argument("name")
@click.argument("file", type=click.File("wb", lazy=False), default="-")
@click.pass_context
def download(context: click.Context, name: str, file: Any) -> int:
    """Write the file of a trace to FILE, or to standard output."""
    target: Target = context.obj
    position, size = 0, 1
    with target.connect() as control:
        while position < size:
            part = control.call("trace read", name=name, position=position)
            file.write(part["data"])
            position, size = part["position"], part["size"]
            if not part["data"]:
                break
    return 0


add_verbs(app, VERBS.values())
app.add_command(upgrade)  # with --check, besides the verbs
cast(click.Group, app.commands["workers"]).add_command(set_workers)  # follows it to its end, besides the verb
for command in (data.export, data.import_file):  # with files of this machine, besides the verbs
    cast(click.Group, app.commands["data"]).add_command(command)
cast(click.Group, app.commands["rules"]).add_command(test)
cast(click.Group, app.commands["trace"]).add_command(download)
cast(click.Group, app.commands["actions"]).add_command(cursor)  # with --rewind, besides the verb
