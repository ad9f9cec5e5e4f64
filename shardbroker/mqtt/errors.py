"""What the protocol layers raise.

MqttError                  reason_code, statement (norm id or ""), and a sentence
 ├─ MalformedPacket        0x81: the bytes cannot be parsed
 └─ ProtocolError          0x82: they can, but are not allowed here

Other reason codes are raised as a plain `MqttError` with that code. All of them mean that the peer is at
fault and that the connection ends; the shell decides in one place how it says so (MQTT 5.0 §4.13).
"""

from shardbroker.mqtt.spec import ReasonCode

__all__ = ["MalformedPacket", "MqttError", "ProtocolError"]


class MqttError(Exception):
    """The peer broke a rule; the connection that it did so on ends.

    reason_code: MQTT 5.0 reason code, 0x80 or more. statement: id of the norm, such as "MQTT-3.3.1-4".
    """

    def __init__(self, reason_code: int, message: str, statement: str = "") -> None:
        super().__init__(message)
        self.reason_code = int(reason_code)
        self.message = message
        self.statement = statement

    def __str__(self) -> str:
        return f"{self.message} [{self.statement}]" if self.statement else self.message


class MalformedPacket(MqttError):
    """Reason code 0x81."""

    def __init__(self, message: str, statement: str = "") -> None:
        super().__init__(ReasonCode.MALFORMED_PACKET, message, statement)


class ProtocolError(MqttError):
    """Reason code 0x82."""

    def __init__(self, message: str, statement: str = "") -> None:
        super().__init__(ReasonCode.PROTOCOL_ERROR, message, statement)
