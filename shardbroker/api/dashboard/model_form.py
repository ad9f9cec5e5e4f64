"""A form for a section of the configuration, made from the fields of its model."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from nicegui import ui
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shardbroker.config.keys import is_secret
from shardbroker.config.show import shown

__all__ = ["ModelForm"]

LONG = 4096
"""Length of a text above which it has several lines: a template, a statement."""
Folds = Mapping[str, Sequence[str]]
"""Title -> fields that are seldom changed."""


class ModelForm:
    """Fields of a model with their values. choices: field -> texts to choose from, for a field that names something.

    path: of the section in the configuration, by which secrets are known. folds: parts of the form that are closed at first.
    prefix: of the keys in errors, for a table within another.
    """

    def __init__(
        self,
        model: type[BaseModel],
        path: tuple[str, ...],
        values: Mapping[str, Any],
        choices: Mapping[str, list[str]],
        folds: Folds,
        prefix: str = "",
    ) -> None:
        self._prefix = prefix
        self._defaults = shown(model())
        self._readers: dict[str, Callable[[], Any]] = {}
        self._inputs: dict[str, tuple[Any, ui.expansion | None]] = {}
        self._tables: dict[str, tuple[ModelForm, ui.expansion]] = {}
        sections = {name: inner for name, field in model.model_fields.items() if (inner := _model(field)) is not None}
        folded = {name for names in folds.values() for name in names}

        def add(names: Sequence[str], within: ui.expansion | None) -> None:
            with ui.grid().classes("w-full grid-cols-1 md:grid-cols-2 gap-x-4 gap-y-1 items-start"):
                for name in names:
                    value = values.get(name, self._defaults[name])
                    hidden = is_secret((*path, name))
                    element, self._readers[name] = _input(name, model.model_fields[name], value, hidden, choices.get(name))
                    self._inputs[name] = element, within

        add([name for name in model.model_fields if name not in sections and name not in folded], None)
        for name, inner in sorted(sections.items()):  # parameters before resource_opts
            with ui.expansion(name, value=name == "parameters").classes("w-full").props("dense") as opened:
                self._tables[name] = ModelForm(inner, (*path, name), values.get(name) or {}, {}, {}, f"{prefix}{name}."), opened
        for title, names in folds.items():
            if found := [name for name in model.model_fields if name in names]:
                with ui.expansion(title).classes("w-full").props("dense") as opened:
                    add(found, opened)

    def values(self) -> dict[str, Any]:
        """Returns what differs from the defaults. Raises ValueError, with the key, for a field that must be JSON."""
        found: dict[str, Any] = {}
        for name, read in self._readers.items():
            try:
                found[name] = read()
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{self._prefix}{name}: must be JSON, got {error}") from None
        changed = {name: value for name, value in found.items() if value != self._defaults[name]}
        tables = {name: values for name, (table, _) in self._tables.items() if (values := table.values())}
        return {**changed, **tables}

    def show_errors(self, text: str) -> str:
        """Shows each `key: what is wrong` of a text, separated by `; `, below the field of the key; returns the rest."""
        inputs = dict(self._all_inputs())
        for element, _ in inputs.values():
            _set_error(element, None)
        keys = "|".join(re.escape(key) for key in sorted(inputs, key=len, reverse=True))
        found = [*re.finditer(rf"(?:^|; )({keys})(?:[.\[][^:;\s]*)?: ", text)] if keys else []
        for number, match in enumerate(found):
            end = found[number + 1].start() if number + 1 < len(found) else len(text)
            element, around = inputs[match[1]]
            if not _set_error(element, text[match.end() : end]):
                return text
            for one in around:
                one.open()
        return text[: found[0].start()] if found else text

    def _all_inputs(self) -> Iterator[tuple[str, tuple[Any, list[ui.expansion]]]]:
        """Yields key -> input, and what it is folded in."""
        for name, (element, within) in self._inputs.items():
            yield f"{self._prefix}{name}", (element, [within] if within is not None else [])
        for table, opened in self._tables.values():
            for key, (element, around) in table._all_inputs():
                yield key, (element, [opened, *around])


def _set_error(element: Any, text: str | None) -> bool:
    """Returns whether the element can show one."""
    if not hasattr(element, "error"):
        return False
    element.error = text
    return True


def _model(field: FieldInfo) -> type[BaseModel] | None:
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _input(name: str, field: FieldInfo, value: Any, hidden: bool, choices: list[str] | None) -> tuple[Any, Callable[[], Any]]:
    """Adds the input of a field; returns it, and what reads it. That raises ValueError for text that is not JSON."""
    annotation: Any = field.annotation
    element: Any
    read: Callable[[], Any] = lambda: "" if element.value is None else element.value  # noqa: E731
    if annotation is bool:
        element = ui.switch(name, value=value)
    elif choices is not None or get_origin(annotation) is Literal:
        options = choices if choices is not None else [*get_args(annotation)]
        element = ui.select([*dict.fromkeys([*options, *([value] if value else [])])], value=value or None, label=name)
    elif isinstance(value, list | dict):
        element = ui.input(f"{name} (JSON)", value=json.dumps(value, ensure_ascii=False))
        read = lambda: json.loads(element.value or "")  # noqa: E731
    elif hidden:
        element = ui.input(name, value=value, password=True)
    elif any(getattr(mark, "max_length", 0) > LONG for mark in field.metadata):
        element = ui.textarea(name, value=value).props("autogrow").classes("md:col-span-2 font-mono w-full")
    else:
        element = ui.input(name, value="" if value is None else str(value))
        read = lambda: _like(value, element.value)  # noqa: E731
    element.props("dense").tooltip(field.description or "")
    return element, read


def _like(before: Any, text: str) -> Any:
    """Returns a text as the number that it was, where it still is one."""
    if isinstance(before, int | float) and not isinstance(before, bool):
        try:
            return type(before)(text)
        except ValueError:
            return text
    return text
