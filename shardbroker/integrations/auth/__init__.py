"""Authenticators and authorizers, on top of `shardbroker.connectors`.

`backends` holds all of them for one state of the settings, made by `factory`. `chain` tries one after the other. Each row of the
tables in `config.access` has a module: `postgresql`, `mysql`, `mongodb`, `redis`, `builtin` and `file` look up hashes and rules,
which `stored` compares; `ldap`, `http`, `jwt`, `certificate` and `scram` decide in ways of their own. `modules` finds those of
other packages. `services` has the resources that authenticators share.

Passwords are hashed in a few threads. Each request to a back end has its own timeout. As many run at a time as the pool allows;
further ones wait in this process, with their deadlines running.
"""
