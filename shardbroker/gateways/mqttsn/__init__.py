"""MQTT-SN 1.2; docs/gateway-mqttsn.md describes it for users.

`codec.py` makes messages of datagrams and datagrams of messages. `door.py` decides about datagrams of unknown senders, and
`session.py` maps one device to an MQTT 5.0 session: `topics.py` has its topics by their ids, `wills.py` wills of devices without a
connection. `publisher.py` is the session that publishes QoS -1. None of them does I/O or has a clock. Sections of the norm
("MQTT-SN Protocol Specification Version 1.2") are cited as MQTT-SN §6.14; the test of each statement is listed in
tests/gateways/mqttsn_statements.md.
"""

__all__: list[str] = []
