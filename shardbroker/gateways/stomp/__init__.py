"""STOMP 1.0, 1.1 and 1.2; docs/gateway-stomp.md describes it for users.

`codec.py` finds frames in bytes and makes bytes of frames. `session.py` maps one connection to an MQTT 5.0 session. Both do no I/O
and have no clock. Sections of the norm (https://stomp.github.io) are cited as STOMP 1.2 "Heart-beating"; the test of each statement
is listed in tests/gateways/stomp_statements.md.
"""

__all__: list[str] = []
