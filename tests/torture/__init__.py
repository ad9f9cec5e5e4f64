"""Crash test from outside: clients that remember everything, a broker whose processes are killed, and a check in the end.

killer   runs a broker of its own and sends SIGKILL to random processes of it; starts it again when all of them are gone
mover    replaces its workers and upgrades it, with kills in the middle of some; no client may be disconnected but by these
client   correct MQTT clients on one selector, over TCP, TLS and WebSocket (transports): they keep what is not acknowledged,
         send it again, and go and come back at will
checker  what the clients saw, and what must not be in it: messages lost, doubled or out of order, sessions, subscriptions
         or retained messages gone
torture  one run: traffic and kills, then peace, then the check: `python -m tests.torture.torture --seed 1 --kills 200`

A seed repeats the choices of a run, not the moments at which the kernel lets them happen.
"""
