"""An MQTT client in the page, connected to a listener of the broker, by WebSocket if there is one.

This process makes the connection, so it works wherever the page works, and its peer address is that of the broker: access rules for
that address apply, besides those for the given client id, user name and password. Therefore it is for administrators only, who may
publish and change access rules anyway. It ends with the page, with the login, and when the role changes.
"""

import asyncio
import secrets
import time
from functools import partial
from typing import Any

from nicegui import ui
from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

from shardbroker.api.dashboard.frame import Page, card, table
from shardbroker.api.dashboard.messages import readable
from shardbroker.api.dashboard.session import Session
from shardbroker.control import ControlError

__all__ = ["page"]

COLUMNS = {name: name for name in ("time", "topic", "qos", "retain", "payload")}
ROWS_MAX = 200
"""Messages shown; older ones are removed."""
CONNECT_S = 5.0
"""Longest time to connect."""
CHECK_S = 1.0
"""Between two checks whether the account may still have a client."""
CLIENTS_MAX = 20
"""Most clients of all pages together."""
SUPPORTED = ("ws", "tcp")
"""Supported types of listeners, in order of preference."""

_open: set[Client] = set()


async def _fill(session: Session) -> None:
    if not session.may_change:
        with card("Connection"):
            ui.label("The client connects from the broker's own address, so it is only for administrators.")
        return
    client: list[Client] = []
    loop = asyncio.get_running_loop()
    found = await session.show_errors(session.call("listeners list")) or {"data": []}
    usable = [row for row in found["data"] if row["type"] in SUPPORTED and not row["bind"].startswith("unix:")]
    usable.sort(key=lambda row: SUPPORTED.index(row["type"]))
    listeners = {row["id"]: f"{row['id']}  {row['bind']}" for row in usable}
    with card("Connection"), ui.row().classes("items-center w-full"):
        listener = ui.select(listeners, value=next(iter(listeners), None), label="Listener").props("dense").classes("w-64")
        client_id = ui.input("Client id", value=f"dashboard-{secrets.token_hex(3)}").props("dense")
        username = ui.input("User name").props('dense autocomplete="off"')
        password = ui.input("Password", password=True).props('dense autocomplete="new-password"')
        ui.button("Connect", icon="link", on_click=lambda: connect())
        ui.button("Disconnect", on_click=lambda: leave()).props("flat")
        state = ui.badge("not connected", color="grey-8").props('data-testid="state"')
    with ui.row().classes("w-full no-wrap items-start gap-4"):
        with card("Subscribe"):
            topic_filter = ui.input("Filter", value="test/#").classes("w-full").props("dense")
            filter_qos = ui.select([0, 1, 2], value=0, label="QoS").props("dense").classes("w-20")
            ui.button("Subscribe", on_click=lambda: subscribe())
        with card("Publish"):
            topic = ui.input("Topic", value="test/1").classes("w-full").props("dense")
            payload = ui.textarea("Payload").classes("w-full").props("dense rows=2")
            with ui.row().classes("items-center"):
                qos = ui.select([0, 1, 2], value=0, label="QoS").props("dense").classes("w-20")
                retain = ui.checkbox("Retain")
                ui.button("Publish", icon="send", on_click=lambda: publish())
    with card("Messages"):
        messages = table(COLUMNS, "key")

    def show(message: MQTTMessage) -> None:
        row = {"time": time.strftime("%H:%M:%S"), "topic": message.topic, "qos": message.qos, "retain": message.retain,
               "payload": readable(bytes(message.payload)), "key": time.monotonic_ns()}  # fmt: skip
        messages.rows = [row, *messages.rows[: ROWS_MAX - 1]]

    def say(text: str, color: str) -> None:
        state.set_text(text)
        state.props(f"color={color}")

    def in_loop(act: Any, *arguments: Any) -> None:
        """Callbacks run in the thread of the client; the page may be closed meanwhile."""
        if not state.is_deleted:
            loop.call_soon_threadsafe(act, *arguments)

    def allowed() -> bool:
        """Checks whether the account may have a client; disconnects it otherwise."""
        try:
            session.check(changes=True)
        except ControlError as error:
            leave()
            session.notify(error)
            return False
        return True

    def look() -> None:
        if client:
            allowed()

    async def connect() -> None:
        leave()
        if not allowed():
            return
        if listener.value is None or len(_open) >= CLIENTS_MAX:
            ui.notify("no listener of type ws or tcp" if listener.value is None else "too many clients are open", type="negative")
            return
        row = next(one for one in usable if one["id"] == listener.value)
        made = Client(CallbackAPIVersion.VERSION2, client_id.value, protocol=MQTTv5,
                      transport="websockets" if row["type"] == "ws" else "tcp", reconnect_on_failure=False)  # fmt: skip
        made.connect_timeout = CONNECT_S
        if username.value:
            made.username_pw_set(username.value, password.value or None)
        made.on_connect = lambda one, data, flags, reason, properties: in_loop(
            say, "connected" if not reason.is_failure else f"refused: {reason}", "negative" if reason.is_failure else "positive"
        )
        made.on_disconnect = lambda one, data, flags, reason, properties: in_loop(say, f"disconnected: {reason}", "grey-8")
        made.on_message = lambda one, data, message: in_loop(show, message)
        host, _, port = row["bind"].rpartition(":")
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host.strip("[]"), host.strip("[]"))
        _open.add(made)
        client.append(made)
        say("connecting", "grey-8")
        if row["type"] == "ws":
            path = await session.show_errors(_path(session, row["name"]))
            made.ws_set_options(path or "/mqtt")
        try:
            if made in client:
                await asyncio.to_thread(made.connect, host, int(port))
        except (OSError, ValueError) as error:
            leave()
            say(f"not connected: {error}", "negative")
            return
        if made in client:
            made.loop_start()
        else:
            made.disconnect()  # the page or the login has ended meanwhile

    def leave() -> None:
        while client:
            one = client.pop()
            _open.discard(one)
            one.disconnect()
            loop.run_in_executor(None, one.loop_stop)

    def connected() -> Client | None:
        if not allowed():
            return None
        if client and client[0].is_connected():
            return client[0]
        ui.notify("not connected", type="negative")
        return None

    def subscribe() -> None:
        one = connected()
        if one is not None:
            _tried(partial(one.subscribe, topic_filter.value, filter_qos.value))

    def publish() -> None:
        one = connected()
        if one is not None:
            _tried(partial(one.publish, topic.value, payload.value or "", qos.value, retain.value))

    ui.timer(CHECK_S, look)
    ui.context.client.on_disconnect(leave)


def _tried(act: Any) -> None:
    try:
        act()
    except ValueError as error:
        ui.notify(str(error), type="negative")


async def _path(session: Session, name: str) -> str:
    """Returns the path of a WebSocket listener; a listener added at run time is not among the settings."""
    try:
        (row,) = (await session.call("config get", key=f"listeners.{name}.websocket.path"))["data"]
    except ControlError as error:
        if error.code == "NOT_FOUND":
            return "/mqtt"
        raise
    return str(row["value"]).strip('"')


page = Page("/websocket", "WebSocket client", "forum", _fill)
