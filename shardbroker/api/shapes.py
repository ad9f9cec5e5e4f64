"""Rows and bodies in the format of EMQX: times in RFC 3339, names instead of codes."""

import base64
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from shardbroker.control import ControlError

__all__ = ["Body", "PublishBody", "TimeMs", "moment", "timed"]

TIME_MAX = 253_402_300_799_999
"""Unix ms of the end of the year 9999."""


class Body(BaseModel):
    """A body of a request; unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid")


def _milliseconds(value: Any) -> Any:
    """Returns Unix ms for RFC 3339; other values unchanged."""
    if not isinstance(value, str) or value.isdecimal():
        return value
    try:
        at = datetime.fromisoformat(value)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError("must be Unix ms, or a time such as 2026-01-31T12:00:00Z") from None


TimeMs = Annotated[int, BeforeValidator(_milliseconds), Field(ge=0, le=TIME_MAX)]


def moment(unix_ms: int | float | None) -> str | None:
    """Returns a time in RFC 3339, or None."""
    if unix_ms is None:
        return None
    at = datetime.fromtimestamp(min(unix_ms, TIME_MAX) / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def timed(row: dict[str, Any], *names: str) -> dict[str, Any]:
    """Returns the row with these times in RFC 3339, as far as it has them."""
    return row | {name: moment(row[name]) for name in names if name in row}


class Properties(Body):
    """Properties of MQTT 5.0."""

    payload_format_indicator: Literal[0, 1] | None = None
    message_expiry_interval: int | None = Field(None, ge=0, le=2**32 - 1)
    response_topic: str | None = Field(None, max_length=65535)
    correlation_data: str | None = Field(None, max_length=65535)
    user_properties: dict[str, str] = {}
    content_type: str | None = Field(None, max_length=65535)


class PublishBody(Body):
    """A message."""

    topic: str = Field(min_length=1, max_length=65535, examples=["a/b"])
    payload: str = ""
    payload_encoding: Literal["plain", "base64"] = "plain"
    qos: Literal[0, 1, 2] = 0
    retain: bool = False
    clientid: str = Field("", max_length=65535, description="Client id of the publisher, for subscribers and journals.")
    properties: Properties = Properties()

    def params(self) -> dict[str, Any]:
        """Returns the parameters of the verb. Raises ControlError."""
        try:
            payload = base64.b64decode(self.payload, validate=True) if self.payload_encoding == "base64" else self.payload.encode()
            given = self.properties.model_dump(exclude_none=True)
            if self.properties.correlation_data is not None:
                given["correlation_data"] = self.properties.correlation_data.encode()
        except UnicodeError:
            raise ControlError("BAD_REQUEST", "text with an unpaired surrogate is not valid Unicode") from None
        except ValueError as error:
            raise ControlError("BAD_REQUEST", f"payload: must be base64: {error}") from None
        return {"topic": self.topic, "payload": payload, "qos": self.qos, "retain": self.retain, "clientid": self.clientid, **given}
