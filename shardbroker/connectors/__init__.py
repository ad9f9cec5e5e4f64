"""Connections to other systems: a pool, TLS, timeouts, health and an orderly end. Authenticators and sinks use them.

A connector knows nothing about users, rules or messages. `connector` has the parts common to all; each other module is for one kind
of server, and is the only one that imports its library. The keys of a connection are in `config.connectors`.
"""
