"""Gateways: clients of other protocols as ordinary MQTT 5.0 sessions.

    device ── TCP, TLS, UDP, DTLS ── process of the gateway ── unix socket of the runtime directory ── acceptor ── worker
                          codec: bytes, frames      PROXY v2: address of the device         session, rules, limits, hooks
                          session: frames, MQTT

A gateway has no state that outlives its process, unless another one replaces it (handoff.py). What a worker acknowledges to it, it
acknowledges to its device; what a device does not acknowledge, it does not acknowledge to the worker. So a gateway that is killed
loses neither sessions nor acknowledged messages.

A gateway may have several processes: the kernel spreads devices over them by their addresses (SO_REUSEPORT), and they share
nothing but the key of DTLS cookies. A device that lands at another process is unknown there, connects, and takes over its session.

Each listener of a gateway has an internal MQTT listener of its own (config/gateways.py), named as EMQX names listeners of gateways,
`stomp:tcp:default`. Mount point, authentication, rates and all that listeners do for their clients are those of that listener.

    process.py     the process: listeners, settings, state for the manager
    connection.py  one device: its two transports, with back-pressure in both directions
    uplinks.py     the connections of all devices to the broker: one epoll
    timers.py      the timers of all devices: buckets by time
    datagrams.py   listeners over UDP: devices by address, and a bound on unknown senders
    dtls.py        their connections with DTLS
    session.py     the MQTT side of a session, which all protocols have in common
    proxy.py       the PROXY header
    handoff.py     the steps by which another process replaces one, with its sockets and devices
    image.py       values of sessions as plain ones, for that
    coap/          all but main.py does no I/O; main.py is the entry point
    mqttsn/        codec.py, door.py and session.py do no I/O; main.py is the entry point
    stomp/         codec.py and session.py do no I/O; main.py is the entry point
"""

__all__: list[str] = []
