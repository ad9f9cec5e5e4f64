"""Common parts of all pages: header, menu, theme, routing."""

import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from nicegui import ui

from shardbroker.api.dashboard.session import PREFIX, Session

__all__ = ["Page", "add_pages", "asked", "card", "columns", "number", "size", "table", "within"]

DARK = """@layer overrides {
    .body--dark .text-primary, .body--dark .q-item--active { color: #7cb0fd !important }
    .body--dark .text-negative { color: #f87171 !important }
}"""
"""Colors of texts and icons that are too dark there."""
CHOOSE = '<q-checkbox dense v-model="props.selected" aria-label="Choose the row" />'
"""The box that chooses a row, with a name for screen readers."""
THEME = "shardbroker_theme"
"""Cookie of the theme: dark or light; without it, that of the system."""


@dataclass(frozen=True)
class Page:
    """One page: its path, title, icon in the menu, and the function that fills it."""

    path: str
    title: str
    icon: str
    fill: Callable[[Session], Awaitable[None]]


Menu = Mapping[str, tuple[Page, ...]]
"""Title of a group -> its pages."""


def add_pages(app: FastAPI, menu: Menu) -> None:
    """Registers the pages with NiceGUI, and NiceGUI with the application."""
    for page in (page for group in menu.values() for page in group):
        ui.page(page.path, title=f"{page.title} · shardbroker")(functools.partial(_show, app, menu, page))
    ui.run_with(app, mount_path=PREFIX, binding_refresh_interval=None, show_welcome_message=False)


async def _show(app: FastAPI, menu: Menu, page: Page, request: Request) -> Response | None:
    session = Session.of(app, request)
    if session is None:
        return RedirectResponse(f"{PREFIX}/login")
    _frame(session, menu, page, request.cookies.get(THEME, ""))
    with ui.column().classes("w-full gap-4 p-2"):
        await page.fill(session)
    return None


def _frame(session: Session, menu: Menu, here: Page, theme: str) -> None:
    ui.colors(primary="#2563eb")
    ui.add_css(DARK)
    ui.add_head_html("<script>document.documentElement.lang = 'en'</script>")
    dark = ui.dark_mode({"dark": True, "light": False}.get(theme))

    def turn() -> None:
        dark.value = not dark.value
        word = "dark" if dark.value else "light"
        ui.run_javascript(f"document.cookie = '{THEME}={word}; path={PREFIX}; SameSite=Strict; max-age=31536000'")

    def leave() -> None:
        session.log_out()
        ui.navigate.to("/login")

    with (
        ui.left_drawer(value=False).props("width=210 bordered show-if-above").classes("p-0") as drawer,
        ui.list().classes("w-full pt-2"),
    ):
        for title, pages in menu.items():
            ui.item_label(title).props("header").classes("pt-3 pb-1")
            for one in pages:
                state = "dense active" if one is here else "dense"
                with ui.item(on_click=functools.partial(ui.navigate.to, one.path)).props(state):
                    with ui.item_section().props("avatar"):
                        ui.icon(one.icon)
                    ui.item_section(one.title)
    with ui.header().classes("items-center gap-3 py-2"):
        ui.button(icon="menu", on_click=drawer.toggle).props('flat round dense color=white aria-label="Menu"').classes("lg:hidden")
        ui.icon("hub").classes("text-2xl")
        ui.label("shardbroker").classes("text-lg font-medium")
        ui.label(session.app.state.node).classes("max-sm:hidden")
        ui.space()
        ui.label(f"{session.name} · {session.role}").classes("max-sm:hidden")
        for icon, act, title in (("contrast", turn, "Dark or light"), ("logout", leave, "Log out")):
            ui.button(icon=icon, on_click=act).props(f'flat round dense color=white aria-label="{title}"').tooltip(title)


def asked(name: str) -> str:
    """Returns a parameter of the address of the page that is being filled, or an empty text. A link may have any text there."""
    request = ui.context.client.request
    return request.query_params.get(name, "") if request is not None else ""


def card(title: str) -> ui.card:
    """Returns a card with a title, to be filled in its context."""
    made = ui.card().classes("w-full")
    with made:
        ui.label(title).classes("text-base font-medium")
    return made


def columns(titles: dict[str, str], **options: Any) -> list[dict[str, Any]]:
    """Returns columns of a table for fields with their titles."""
    return [{"name": name, "label": title, "field": name, "align": "left", **options} for name, title in titles.items()]


def table(titles: dict[str, str], key: str, **options: Any) -> ui.table:
    """Returns an empty table. titles: field -> title of its column; key: the field that tells rows apart."""
    made = ui.table(columns=columns(titles), rows=[], row_key=key, **options).classes("w-full").props("flat dense wrap-cells")
    if options.get("selection"):
        made.add_slot("body-selection", CHOOSE)
    return made


def within(place: ui.element, act: Callable[..., Awaitable[None]], *args: Any) -> Callable[[], Awaitable[None]]:
    """Returns a handler that shows its messages at a place of the page: the button that calls it may be gone before it ends."""

    async def handler() -> None:
        with place:
            await act(*args)

    return handler


def number(value: float) -> str:
    """Returns a number in short form: 12.3K for 12345."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e4, "K")):
        if abs(value) >= unit:
            return f"{value / (1e3 if name == 'K' else unit):.1f}{name}"
    return f"{value:.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.1f}"


def size(value: float) -> str:
    """Returns bytes with a unit."""
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
        if abs(value) >= unit:
            return f"{value / unit:.1f} {name}"
    return f"{value:.0f} B"
