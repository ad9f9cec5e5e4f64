"""Access: test of rules, and bans."""

from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card, table
from shardbroker.api.dashboard.session import Session
from shardbroker.api.shapes import moment

__all__ = ["page"]

VERDICTS = {True: ("allowed", "positive"), False: ("denied", "negative"), None: ("another source decides", "warning")}
BANS = {"kind": "What", "value": "Whom", "until": "Until", "by": "By", "reason": "Reason"}
KINDS = ["clientid", "username", "peerhost", "clientid_re", "username_re", "peerhost_net"]


async def _fill(session: Session) -> None:
    _rules(session)
    await _bans(session)


def _rules(session: Session) -> None:
    with card("Would the rules let a client …?"):
        with ui.row().classes("items-center w-full"):
            action = ui.select(["publish", "subscribe"], value="publish", label="Action").props("dense").classes("w-32")
            topic = ui.input("Topic or filter").props("dense").classes("w-64")
            client_id = ui.input("Client id").props("dense")
            username = ui.input("User name").props("dense")
            address = ui.input("Address", value="127.0.0.1").props("dense")
            qos = ui.select([0, 1, 2], value=0, label="QoS").props("dense").classes("w-20")
            retain = ui.checkbox("Retain")
            ui.button("Test", icon="rule", on_click=lambda: test())
        with ui.row().classes("items-center"):
            verdict = ui.badge("").props('data-testid="verdict"')
            why = ui.label().classes("opacity-70 text-sm")
        verdict.set_visibility(False)

    async def test() -> None:
        request = session.call(
            "acl test", action=action.value, topic=topic.value, clientid=client_id.value or "", username=username.value or None,
            ip_address=address.value or "", qos=qos.value, retain=retain.value,
        )  # fmt: skip
        found = await session.show_errors(request)
        if found is None:
            return
        text, color = VERDICTS[found["allowed"]]
        verdict.set_text(text)
        verdict.props(f"color={color}")
        verdict.set_visibility(True)
        results = ", ".join(f"{one['source']}: {one['says']}" for one in found["sources"])
        why.set_text(f"{results or 'no sources of rules are configured'}; decided by {found['decided_by'] or 'no rule'}")


async def _bans(session: Session) -> None:
    with card("Banned"):
        with ui.row().classes("items-center w-full"):
            kind = ui.select(KINDS, value="clientid", label="What").props("dense").classes("w-40")
            value = ui.input("Whom").props("dense")
            seconds = ui.number("Seconds; empty: for good", min=1).props("dense").classes("w-52")
            reason = ui.input("Reason").props("dense")
            ui.button("Ban", icon="block", on_click=lambda: ban()).set_enabled(session.may_change)
        bans = table(BANS, "key", selection="single")
        ui.button("End the ban", on_click=lambda: unban()).props("flat").set_enabled(session.may_change)

    async def look() -> None:
        found = await session.show_errors(session.call("banned list"))
        if found is not None:
            bans.selected = []
            bans.rows = [_ban(row) for row in found["data"]]

    async def ban() -> None:
        request = session.call("banned add", kind=kind.value, value=value.value, seconds=seconds.value or None,
                            reason=reason.value or "", by=session.name)  # fmt: skip
        if await session.show_errors(request):
            await look()

    async def unban() -> None:
        for row in bans.selected:
            await session.show_errors(session.call("banned delete", kind=row["kind"], value=row["value"]))
        await look()

    await look()


def _ban(row: dict[str, Any]) -> dict[str, Any]:
    until = "for good" if row["until"] is None else moment(row["until"] * 1000)
    return row | {"until": until, "key": f"{row['kind']} {row['value']}"}


page = Page("/access", "Access", "shield", _fill)
