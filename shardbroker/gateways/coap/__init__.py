"""CoAP; docs/gateway-coap.md describes it for users.

    codec.py      datagrams and messages                                        RFC 7252 §3
    requests.py   what the options of a request ask for                         RFC 7252 §5, EMQX's names of queries
    blocks.py     bodies in blocks, in both directions                          RFC 7959
    messages.py   messages that are sent until they are acknowledged, and what  RFC 7252 §4
                  was received before
    session.py    one device as a session of MQTT 5.0                           RFC 7641, EMQX's API
    door.py       datagrams of unknown senders
    main.py       the entry point

None of them but main.py does I/O or has a clock. The test of each statement of the norms is listed in
tests/gateways/coap_statements.md.
"""

__all__: list[str] = []
