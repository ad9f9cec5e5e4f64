"""Templates of JSON whose placeholders keep the types of their values.

The text is parsed once, when the template is made; values are put into the parsed object. So no text of a client can end a string
or add a key.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from shardbroker.flows.drivers.getters import Getter
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.functions.texts import json_value, text_of
from shardbroker.rules.templates import PLACEHOLDER, template
from shardbroker.rules.values import UNDEFINED, Value

__all__ = ["Build", "json_template"]

Build = Callable[[Row], Any]
BEGIN, END = "\ue000", "\ue001"
"""Around the number of a placeholder while the template is parsed; not allowed in a template."""
MARK = re.compile(f"({BEGIN}b?[0-9]+{END})")
STRING_OR_PLACEHOLDER = re.compile(r'"(?:[^"\\]|\\.)*"|' + PLACEHOLDER.pattern, re.DOTALL)


def json_template(text: str, undefined_as_null: bool = False) -> Build:
    """Returns what builds the value of a template for a row. Raises ValueError if the template is no JSON object.

    `${a}` outside of quotes is the value of the field with its type, the value of its text if that is JSON, or null if it is
    missing. Within quotes it is text; bytes alone within quotes stay bytes. undefined_as_null: a missing field alone within quotes
    is null as well.
    """
    if BEGIN in text or END in text:
        raise ValueError(f"must not have the characters {BEGIN!r} and {END!r}")
    getters: list[Getter] = []

    def mark(found: re.Match[str], bare: str) -> str:
        (steps,) = template(found[0]).parts
        assert not isinstance(steps, str)
        getters.append(Getter(steps))
        return f"{BEGIN}{bare}{len(getters) - 1}{END}"

    def piece(found: re.Match[str]) -> str:
        if found[0].startswith('"'):
            return PLACEHOLDER.sub(lambda one: mark(one, ""), found[0])
        return f'"{mark(found, "b")}"'

    try:
        parsed = json.loads(STRING_OR_PLACEHOLDER.sub(piece, text), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must be JSON with placeholders; {type(error).__name__}") from None
    if not isinstance(parsed, dict):
        raise ValueError("must be a JSON object")
    return _build(parsed, getters, _null_or_quoted if undefined_as_null else _quoted)


def _refuse(name: str) -> Value:
    raise ValueError(name)


def _build(node: Any, getters: list[Getter], quoted: Callable[[Value], Value]) -> Build:
    if isinstance(node, dict):
        pairs = [(_text(key, getters), _build(value, getters, quoted)) for key, value in node.items()]
        return lambda row: {(key if isinstance(key, str) else key(row)): value(row) for key, value in pairs}
    if isinstance(node, list):
        elements = [_build(value, getters, quoted) for value in node]
        return lambda row: [one(row) for one in elements]
    if not isinstance(node, str):
        return lambda row: node
    found = _text(node, getters)
    if isinstance(found, str):
        return lambda row: found
    if (alone := MARK.fullmatch(node)) is None:
        return found
    get = getters[int(alone[1].strip(BEGIN + END + "b"))]
    return (lambda row: _typed(get(row))) if alone[1].startswith(BEGIN + "b") else (lambda row: quoted(get(row)))


def _text(node: str, getters: list[Getter]) -> str | Build:
    """Returns a constant text, or what joins the texts of placeholders."""
    parts: list[str | Getter] = [
        getters[int(one.strip(BEGIN + END + "b"))] if MARK.fullmatch(one) else one for one in MARK.split(node) if one
    ]
    if all(isinstance(one, str) for one in parts):
        return node
    return lambda row: "".join([one if isinstance(one, str) else _shown(one(row)) for one in parts])


def _shown(value: Value) -> str:
    shown = text_of(value)
    return shown if isinstance(shown, str) else shown.decode(errors="replace")


def _quoted(value: Value) -> Value:
    return value if type(value) is str or type(value) is bytes else _shown(value)


def _null_or_quoted(value: Value) -> Value:
    return None if value is UNDEFINED else _quoted(value)


def _typed(value: Value) -> Value:
    if type(value) is str:
        try:
            return json_value(value)
        except Exception:  # of any of the parsers of JSON
            return value
    return None if value is UNDEFINED else value
