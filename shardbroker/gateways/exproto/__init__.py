"""Protocols of one's own: devices speak to a program by way of this gateway, over gRPC as in EMQX (exproto.proto).

    session    the MQTT side of one connection, without I/O: calls of the program and packets of the broker in, events out
    handler    the client of the program's service: passes the events of each connection on, one after the other
    adapter    the service for the program's calls
    contract   messages and methods, from the descriptors that `make proto` builds
    main       entry point
"""
