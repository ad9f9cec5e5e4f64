"""A form for a section of the configuration, made from the fields of its model."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin

from nicegui import ui
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shardbroker.config.keys import is_secret
from shardbroker.config.show import shown

__all__ = ["ModelForm"]

LONG = 4096
"""Length of a text above which it has several lines: a template, a statement."""


class ModelForm:
    """Fields of a model with their values. choices: field -> texts to choose from, for a field that names something.

    path: of the section in the configuration, by which secrets are known.
    """

    def __init__(self, model: type[BaseModel], path: tuple[str, ...], values: Mapping[str, Any], choices: Mapping[str, list[str]]):
        self._defaults = shown(model())
        self._readers: dict[str, Callable[[], Any]] = {}
        self._tables: dict[str, ModelForm] = {}
        sections = {name: inner for name, field in model.model_fields.items() if (inner := _model(field)) is not None}
        with ui.grid(columns=2).classes("w-full gap-x-4 gap-y-1"):
            for name, field in model.model_fields.items():
                if name not in sections:
                    value = values.get(name, self._defaults[name])
                    self._readers[name] = _input(name, field, value, is_secret((*path, name)), choices.get(name))
        for name, inner in sorted(sections.items()):  # parameters before resource_opts
            with ui.expansion(name, value=name == "parameters").classes("w-full").props("dense"):
                self._tables[name] = ModelForm(inner, (*path, name), values.get(name) or {}, {})

    def values(self) -> dict[str, Any]:
        """Returns what differs from the defaults. Raises ValueError for a field that must be JSON."""
        found = {name: read() for name, read in self._readers.items()}
        changed = {name: value for name, value in found.items() if value != self._defaults[name]}
        tables = {name: values for name, table in self._tables.items() if (values := table.values())}
        return {**changed, **tables}


def _model(field: FieldInfo) -> type[BaseModel] | None:
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _input(name: str, field: FieldInfo, value: Any, hidden: bool, choices: list[str] | None) -> Callable[[], Any]:
    """Adds the input of a field; returns what reads it."""
    hint = field.description or ""
    annotation: Any = field.annotation
    element: Any
    if annotation is bool:
        element = ui.switch(name, value=value)
    elif choices is not None or get_origin(annotation) is Literal:
        options = choices if choices is not None else [*get_args(annotation)]
        element = ui.select([*dict.fromkeys([*options, *([value] if value else [])])], value=value or None, label=name)
    elif isinstance(value, list | dict):
        element = ui.input(f"{name} (JSON)", value=json.dumps(value, ensure_ascii=False))
        element.props("dense").tooltip(hint)
        return lambda: _parsed(name, element.value)
    elif hidden:
        element = ui.input(name, value=value, password=True)
    elif any(getattr(mark, "max_length", 0) > LONG for mark in field.metadata):
        element = ui.textarea(name, value=value).props("autogrow").classes("col-span-2 font-mono")
    else:
        element = ui.input(name, value="" if value is None else str(value))
        element.props("dense").tooltip(hint)
        return lambda: _like(value, element.value)
    element.props("dense").tooltip(hint)
    return lambda: "" if element.value is None else element.value


def _like(before: Any, text: str) -> Any:
    """Returns a text as the number that it was, where it still is one."""
    if isinstance(before, int | float) and not isinstance(before, bool):
        try:
            return type(before)(text)
        except ValueError:
            return text
    return text


def _parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: must be JSON, got {error}") from None
