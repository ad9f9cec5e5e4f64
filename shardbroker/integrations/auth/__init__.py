"""Authenticators and authorizers, on top of `shardbroker.connectors`.

`backends` holds all of one state of the settings, which `factory` makes. `chain` asks one after the other. Each row of the tables
in `config.access` has a module: `postgresql`, `mysql`, `mongodb`, `redis`, `builtin` and `file` look up hashes and rules, which
`stored` compares; `ldap`, `http`, `jwt`, `certificate` and `scram` decide in ways of their own. `modules` finds those of other
packages. What authenticators share comes from `services`.

Passwords are hashed in a few threads. Every question to a back end has a timeout of its own, and as many as the pool allows are
asked at a time; the others wait here, with their own deadlines running.
"""
