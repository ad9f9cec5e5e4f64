"""Connectors and actions as the pages of sinks show them."""

import tomllib
from typing import Any

from tests.docs.pages import ROOT, Example, parts_of

__all__ = ["settings_of"]


def settings_of(page: str, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the settings of the first connector and the first action of a page below docs/."""
    parts = parts_of(ROOT / "docs" / page)
    text = next(one.text for one in parts if isinstance(one, Example) and one.kind == "toml")
    tables = tomllib.loads(text)
    (connector,), (action,) = tables["connectors"][kind].values(), tables["actions"][kind].values()
    assert action["connector"] in tables["connectors"][kind]
    assert all(f"{kind}:{name}" in rule["actions"] for rule in tables["rules"].values() for name in tables["actions"][kind])
    return connector, action
