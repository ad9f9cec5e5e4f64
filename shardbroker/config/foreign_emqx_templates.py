"""Templates of EMQ X Enterprise 3 and 4: messages as points of InfluxDB and OpenTSDB, and as statements of TimescaleDB.

A file `data/templates/*.tmpl` is a JSON object: topic filter -> template, whose values are constants, placeholders such as
`$topic`, or paths into the payload such as `["$payload", "data", "$0", "temp"]`. `$0` is each element of a list, `$2` the
second one.

A template becomes the SQL of a rule and the parameters of an action. Each value is a field of the rule with a name of its own; a
list is read by FOREACH, several lists together by `jq`. Keys and texts of the template are in the SQL only in quotes, and refused
where the language has no way to write them.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from shardbroker.config.persistence import check_filters_of_rule

__all__ = ["Made", "Template", "made_of", "read_templates"]

OF_MESSAGE_NS = "subbits(hexstr2bin(id), 1, 64) * 1000 + (subbits(hexstr2bin(id), 97, 32) mod 1000)"
"""Unix ns of a message: an id begins with its us, which messages of a pass of a worker share, and ends with a number of 32 bits."""
PLACEHOLDERS = {
    "$id": "id",
    "$clientid": "clientid",
    "$username": "username",
    "$peerhost": "peerhost",
    "$qos": "qos",
    "$topic": "topic",
    "$payload": "payload",
    "$content": "payload",
    "$timestamp": OF_MESSAGE_NS,
}
"""Placeholder -> expression of a rule."""
ELEMENT = re.compile(r"\$([0-9]{1,9})")
EVERY = "$0"
TOGETHER = 'if (map(length) | unique | length) == 1 then transpose[] else error("lists of different lengths") end'
"""Program of jq: lists -> for each place, the list of their elements there."""
PARAMETER = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|\$([0-9]{1,9})""")
"""A parameter of a statement, or what may contain the characters of one."""
KEYS = {
    "influxdb": ({"measurement", "fields"}, {"tags", "timestamp"}),
    "opents": ({"measurement", "value"}, {"tags", "timestamp"}),
    "timescale": ({"sql", "param_keys"}, {"name"}),
}
"""Type -> keys that a template of it has, and may have."""


class Template(NamedTuple):
    """type: of the action. filter: topic filter of the messages."""

    type: str
    filter: str
    body: dict[str, Any]


class Made(NamedTuple):
    """SQL of a rule and parameters of an action. unit_is_unknown: of times in InfluxDB."""

    sql: str
    parameters: dict[str, Any]
    unit_is_unknown: bool = False


def read_templates(text: str) -> tuple[list[Template], list[str]]:
    """Returns the templates of a file, and what is wrong with others. Raises ValueError if it is no JSON object."""
    try:
        pairs = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("must have fewer levels of brackets") from None
    if not isinstance(pairs, _Pairs):
        raise ValueError("must be a JSON object of topic filter and template")
    found, wrong = [], []
    for filter, value in pairs:
        for body in value if isinstance(value, list) and not isinstance(value, _Pairs) else [value]:
            try:
                found.append(_template(filter, _plain(body)))
            except ValueError as error:
                wrong.append(f"template of {filter!r}: {error}")
    return found, wrong


def made_of(template: Template, only: str = "#", precision: str = "") -> Made:
    """Returns the rule and the parameters of a template. Raises ValueError that names what has no counterpart.

    only: topic filter of the messages that the plugin takes. precision: unit of times in InfluxDB that are not `$timestamp`."""
    check_filters_of_rule([template.filter, only])
    return _BUILDERS[template.type](template.body, _Fields(template.filter, only), precision)


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON with all of its members: a topic filter may be there twice."""


def _refuse_constant(name: str) -> None:
    raise ValueError(f"must have finite numbers, got {name}")


def _plain(value: Any) -> Any:
    if isinstance(value, _Pairs):
        return {name: _plain(one) for name, one in value}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _template(filter: str, body: Any) -> Template:
    if not isinstance(body, dict):
        raise ValueError("must be an object, or a list of objects")
    for type, (needed, more) in KEYS.items():
        if needed <= body.keys():
            if unknown := sorted(body.keys() - needed - more):
                raise ValueError(f"must have no keys but {', '.join(sorted(needed | more))}, got {unknown[0]!r:.100}")
            return Template(type, filter, body)
    raise ValueError("must have measurement with fields (InfluxDB) or value (OpenTSDB), or sql and param_keys (TimescaleDB)")


# --- fields of the rule -----------------------------------------------------------------------------------------------------------


@dataclass
class _Fields:
    """The fields of a rule, and the lists whose elements are its results."""

    filter: str
    only: str
    _expressions: dict[str, Any] = field(default_factory=dict)
    """Name -> expression, or the list and the steps from its element."""
    _lists: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, wanted: str, value: Any) -> str:
        """Adds a value; returns the placeholder of its field. Raises ValueError."""
        base = re.sub(r"[^A-Za-z0-9]+", "_", wanted).strip("_").lower() or "value"
        name, number = base, 1
        while name in self._expressions:
            number += 1
            name = f"{base}_{number}"
        self._expressions[name] = self._expression(value)
        return f"${{{name}}}"

    def sql(self) -> str:
        fields = ", ".join(f"{self._sql_of(one)} AS {name}" for name, one in self._expressions.items())
        where = "" if self.only == "#" else f" WHERE topic =~ {_text(self.only)}"
        head = f"FOREACH {self._source()} AS e DO {fields}" if self._lists else f"SELECT {fields}"
        return f'{head} FROM "{self.filter}"{where}'

    def _expression(self, value: Any) -> Any:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int):
            return str(value)
        if isinstance(value, float):
            shown = f"{Decimal(repr(value)):f}"
            return shown if "." in shown else f"{shown}.0"
        if isinstance(value, str):
            return _of_text(value)
        if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            return self._of_path(value)
        raise ValueError(f"must be text, a number, a boolean or a list of text, got {value!r:.100}")

    def _of_path(self, path: Sequence[str]) -> Any:
        first, *steps = path
        if first != "$payload":
            if steps:
                raise ValueError(f"a path must begin with $payload, got {first!r:.100}")
            return _of_text(first)
        if EVERY not in steps:
            return _steps("payload", steps)
        at = steps.index(EVERY)
        if EVERY in steps[at + 1 :]:
            raise ValueError("a path must have one $0")
        of = tuple(steps[:at])
        if of not in self._lists:
            self._lists.append(of)
        return of, steps[at + 1 :]

    def _sql_of(self, expression: Any) -> str:
        if isinstance(expression, str):
            return expression
        of, steps = expression
        return _steps("e" if len(self._lists) == 1 else f"e[{self._lists.index(of) + 1}]", steps)

    def _source(self) -> str:
        """Returns the expression of the list: with several of them, a list of their elements at each place."""
        if len(self._lists) == 1:
            (steps,) = self._lists
            return _steps("payload", steps) if steps else "json_decode(payload)"
        paths = ", ".join("." + "".join(map(_jq_step, steps)) for steps in self._lists)
        return f"jq({_text(f'[{paths}] | {TOGETHER}')}, payload)"


def _of_text(value: str) -> str:
    if value in PLACEHOLDERS:
        return PLACEHOLDERS[value]
    if value.startswith("$"):
        raise ValueError(f"must be one of {', '.join(PLACEHOLDERS)}, got {value!r:.100}")
    return _text(value)


def _text(value: str) -> str:
    """Returns a constant of the language, which has no way to write a quote within one."""
    if "'" in value:
        raise ValueError(f"a text must be without ', got {value!r:.100}")
    return f"'{value}'"


def _steps(start: str, steps: Sequence[str]) -> str:
    found = start
    for step in steps:
        if (element := ELEMENT.fullmatch(step)) is not None:
            found += f"[{int(element[1])}]"
        elif not step or '"' in step:
            raise ValueError(f'a key of a path must not be empty or have ", got {step!r:.100}')
        else:
            found += f'."{step}"'
    return found


def _jq_step(step: str) -> str:
    if (element := ELEMENT.fullmatch(step)) is not None:
        return f"[{int(element[1]) - 1}]"
    if "\\" in step:
        raise ValueError(f"a key of a path with several lists must be without backslash, got {step!r:.100}")
    return f"[{json.dumps(step, ensure_ascii=False)}]"


# --- parameters of actions --------------------------------------------------------------------------------------------------------


def _influxdb(body: dict[str, Any], fields: _Fields, precision: str) -> Made:
    time, own, unknown = body.get("timestamp", "$timestamp"), "ns", False
    if time not in ("$timestamp", ["$timestamp"]):
        own, unknown = precision or "ms", not precision
    measurement = fields.add("measurement", body["measurement"])
    tags = [f",{_key(name)}={fields.add(f'tag_{name}', one)}" for name, one in _table(body, "tags").items()]
    values = [f"{_key(name)}={fields.add(f'field_{name}', one)}" for name, one in _table(body, "fields").items()]
    if not values:
        raise ValueError("fields: must have at least one")
    syntax = f"{measurement}{''.join(tags)} {','.join(values)} {fields.add('time', time)}"
    return Made(fields.sql(), {"write_syntax": syntax, "precision": own}, unknown)


def _opents(body: dict[str, Any], fields: _Fields, precision: str) -> Made:
    point: dict[str, Any] = {"metric": fields.add("metric", body["measurement"])}
    point["tags"] = {_key(name, escaped=False): fields.add(f"tag_{name}", one) for name, one in _table(body, "tags").items()}
    if not point["tags"]:
        raise ValueError("tags: must have at least one, as OpenTSDB refuses points without")
    point["value"] = fields.add("value", body["value"])
    time = body.get("timestamp", "$timestamp")
    if time not in ("$timestamp", ["$timestamp"]):
        point["timestamp"] = fields.add("time", time)
    return Made(fields.sql(), {"data": [point]})


def _timescale(body: dict[str, Any], fields: _Fields, precision: str) -> Made:
    keys, sql = body["param_keys"], body["sql"]
    if not isinstance(keys, list) or not isinstance(sql, str):
        raise ValueError("sql must be text, and param_keys a list")
    names = [fields.add(f"p{number}", one) for number, one in enumerate(keys, 1)]
    if "${" in sql:
        raise ValueError("sql: must be without ${")
    if not names:
        fields.add("id", "$id")

    def name(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        if not 1 <= int(found[1]) <= len(names):
            raise ValueError(f"sql: must have parameters from $1 to ${len(names)}, which param_keys has, got ${found[1]}")
        return names[int(found[1]) - 1]

    statement = PARAMETER.sub(name, sql)
    return Made(fields.sql(), {"sql": statement, "undefined_vars_as_null": True})


_BUILDERS = {"influxdb": _influxdb, "opents": _opents, "timescale": _timescale}


def _table(body: dict[str, Any], name: str) -> dict[str, Any]:
    found = body.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"{name}: must be an object")
    return found


def _key(name: str, *, escaped: bool = True) -> str:
    """Returns the name of a tag or a field as templates of actions have it."""
    if not name or not name.isprintable() or any(one in name for one in ('"', "\\", "${")):
        raise ValueError(f'a name must be printable and without ", backslash and ${{, got {name!r:.100}')
    return re.sub(r"([,= ])", r"\\\1", name) if escaped else name
