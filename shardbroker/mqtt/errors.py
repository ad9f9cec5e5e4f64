"""The exceptions of the protocol layers.

MqttError                  reason_code, statement (norm id or ""), and a sentence
 ├─ MalformedPacket        0x81: the bytes cannot be parsed
 └─ ProtocolError          0x82: the bytes can be parsed, but are not allowed here

Other reason codes are raised as a plain `MqttError` with that code. Each of these errors means that the peer is at fault and that
the connection ends. The shell decides in one place how to close it (MQTT 5.0 §4.13).
"""

from shardbroker.mqtt.spec import ReasonCode

__all__ = ["MalformedPacket", "MqttError", "ProtocolError"]


class MqttError(Exception):
    """A violation of the protocol by the peer, which ends the connection.

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
    """A packet that cannot be parsed: reason code 0x81."""

    def __init__(self, message: str, statement: str = "") -> None:
        super().__init__(ReasonCode.MALFORMED_PACKET, message, statement)


class ProtocolError(MqttError):
    """A packet that is not allowed here: reason code 0x82."""

    def __init__(self, message: str, statement: str = "") -> None:
        super().__init__(ReasonCode.PROTOCOL_ERROR, message, statement)
