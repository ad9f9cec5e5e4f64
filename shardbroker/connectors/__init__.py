"""Connections to other systems: a pool, TLS, timeouts, health and an end. Authenticators stand on them, and sinks may.

A connector knows nothing about users, rules or messages. `connector` is what all of them have in common; each of the others is one
kind of server, and the only place that imports its library. The keys of a connection are in `config.connectors`.
"""
