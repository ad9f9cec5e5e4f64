"""Common parts of all pages: header, menu, theme, routing."""

import functools
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from nicegui import ui

from shardbroker.api.dashboard.session import PREFIX, Session

__all__ = ["Page", "add_pages", "asked", "card", "number", "size"]

DARK = """@layer overrides {
    .body--dark .text-primary, .body--dark .q-item--active { color: #7cb0fd !important }
    .body--dark .text-negative { color: #f87171 !important }
}"""
"""Colors of texts and icons that are too dark there."""
THEME = "shardbroker_theme"
"""Cookie of the theme: dark or light; without it, that of the system."""


@dataclass(frozen=True)
class Page:
    """One page: its path, title, icon in the menu, and the function that fills it."""

    path: str
    title: str
    icon: str
    fill: Callable[[Session], Awaitable[None]]


def add_pages(app: FastAPI, pages: Iterable[Page]) -> None:
    """Registers the pages with NiceGUI, and NiceGUI with the application."""
    pages = tuple(pages)
    for page in pages:
        ui.page(page.path, title=f"{page.title} · shardbroker")(functools.partial(_show, app, pages, page))
    ui.run_with(app, mount_path=PREFIX, binding_refresh_interval=None, show_welcome_message=False)


async def _show(app: FastAPI, pages: tuple[Page, ...], page: Page, request: Request) -> Response | None:
    session = Session.of(app, request)
    if session is None:
        return RedirectResponse(f"{PREFIX}/login")
    _frame(session, pages, page, request.cookies.get(THEME, ""))
    with ui.column().classes("w-full gap-4 p-2"):
        await page.fill(session)
    return None


def _frame(session: Session, pages: tuple[Page, ...], here: Page, theme: str) -> None:
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
        ui.left_drawer(value=False).props("width=210 bordered show-if-above").classes("p-0") as menu,
        ui.list().classes("w-full pt-2"),
    ):
        for one in pages:
            with ui.item(on_click=functools.partial(ui.navigate.to, one.path)).props("active" if one is here else ""):
                with ui.item_section().props("avatar"):
                    ui.icon(one.icon)
                ui.item_section(one.title)
    with ui.header().classes("items-center gap-3 py-2"):
        ui.button(icon="menu", on_click=menu.toggle).props('flat round dense color=white aria-label="Menu"').classes("lg:hidden")
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
