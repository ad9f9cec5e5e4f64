"""A form for a section of the configuration, made from the fields of its model."""

import json
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Literal, Union, get_args, get_origin

from nicegui import ui
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shardbroker.config.keys import allowed_text, is_secret
from shardbroker.config.show import shown

__all__ = ["ModelForm"]

LONG = 4096
"""Length of a text above which it has several lines: a template, a statement."""
SHOWN_MAX = 300
"""Most characters of a refused value between its key and what is wrong."""
Folds = Mapping[str, Sequence[str]]
"""Title -> fields that are seldom changed."""


class ModelForm:
    """Fields of a model with their values. choices: field -> texts to choose from, for a field that names something.

    path: of the section in the configuration, by which secrets are known. folds: parts of the form that are closed at first.
    prefix: of the keys in errors, for a table within another. example: an object of a model that cannot be made without values.
    without: fields that are shown elsewhere.
    """

    def __init__(
        self,
        model: type[BaseModel],
        path: tuple[str, ...],
        values: Mapping[str, Any],
        choices: Mapping[str, list[str]],
        folds: Folds,
        prefix: str = "",
        example: BaseModel | None = None,
        without: Sequence[str] = (),
    ) -> None:
        self._prefix = prefix
        self._defaults = shown(model() if example is None else example)
        self._readers: dict[str, Callable[[], Any]] = {}
        self._inputs: dict[str, tuple[Any, ui.expansion | None]] = {}
        self._tables: dict[str, tuple[ModelForm, ui.expansion]] = {}
        fields = {name: field for name, field in model.model_fields.items() if name not in without}
        sections = {name: inner for name, field in fields.items() if (inner := _model(field)) is not None}
        folded = {name for names in folds.values() for name in names}

        def add(names: Sequence[str], within: ui.expansion | None) -> None:
            with ui.grid().classes("w-full grid-cols-1 md:grid-cols-2 gap-x-4 gap-y-1 items-start"):
                for name in names:
                    value = values.get(name, self._defaults[name])
                    hidden = is_secret((*path, name))
                    element, self._readers[name] = _input(name, fields[name], value, hidden, choices.get(name))
                    self._inputs[name] = element, within
                    element.props("dense").tooltip(_help(fields[name], self._defaults[name], hidden))

        add([name for name in fields if name not in sections and name not in folded], None)
        for name, inner in sorted(sections.items()):  # parameters before resource_opts
            with ui.expansion(name, value=name == "parameters").classes("w-full").props("dense") as opened:
                self._tables[name] = ModelForm(inner, (*path, name), values.get(name) or {}, {}, {}, f"{prefix}{name}."), opened
        for title, names in folds.items():
            if found := [name for name in fields if name in names]:
                with ui.expansion(title).classes("w-full").props("dense") as opened:
                    add(found, opened)

    def values(self) -> dict[str, Any]:
        """Returns what differs from the defaults. Raises ValueError, with the key, for a field that must be JSON."""
        return self.differing({})

    def differing(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what differs from known values, or from the default of what is not known, as values() does."""
        changed = {name: value for name, value in self._read().items() if value != known.get(name, self._defaults[name])}
        inner = {name: table.differing(known.get(name) or {}) for name, (table, _) in self._tables.items()}
        return {**changed, **{name: values for name, values in inner.items() if values}}

    def everything(self) -> dict[str, Any]:
        """Returns all values, as values() does."""
        return {**self._read(), **{name: table.everything() for name, (table, _) in self._tables.items()}}

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, read in self._readers.items():
            try:
                found[name] = read()
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{self._prefix}{name}: must be JSON, got {error}") from None
        return found

    def show_errors(self, text: str) -> str:
        """Shows each `key: what is wrong` of a text, separated by `; `, below the field of the key; returns the rest."""
        inputs = dict(self._all_inputs())
        for element, _ in inputs.values():
            _set_error(element, None)
        keys = "|".join(re.escape(key) for key in sorted(inputs, key=len, reverse=True))
        found = [*re.finditer(rf"(?:^|; )({keys})(?:[.\[][^:;\s]*)?(?: = .{{0,{SHOWN_MAX}}}? \([^()]*\))?: ", text)] if keys else []
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
    elif get_origin(annotation) in (Union, types.UnionType) and bool in get_args(annotation):
        words = [word for one in get_args(annotation) if get_origin(one) is Literal for word in get_args(one)]
        element = ui.select({True: "yes", False: "no", **{word: word for word in words}}, value=value, label=name)
        read = lambda: element.value  # noqa: E731
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
        element = ui.input(name, value="" if value is None else "infinity" if value == inf else str(value))
        read = lambda: _like(value, element.value)  # noqa: E731
    return element, read


def _help(field: FieldInfo, default: Any, hidden: bool) -> str:
    """Returns what a field is for, what it allows, and its default."""
    word = "infinity" if default == inf else default or "empty" if isinstance(default, str) else None
    text = word or json.dumps(default, ensure_ascii=False)
    return f"{field.description or ''} Allowed: {allowed_text(field)}. {'' if hidden else f'Default: {text}'}".strip()


def _like(before: Any, text: str) -> Any:
    """Returns a text as the number that it was, where it still is one."""
    if isinstance(before, int | float) and not isinstance(before, bool):
        try:
            return type(before)(text)
        except ValueError:
            return text
    return text
