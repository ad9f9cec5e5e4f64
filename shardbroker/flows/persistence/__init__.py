"""Presets that keep clients, subscriptions and messages in a database, as the backends of EMQ X Enterprise did.

    [persistence.pgsql] --> connector pgsql:persistence-pgsql, if it names none
                        --> for each part: rule persistence-pgsql-<part> --> action pgsql:persistence-pgsql-<part>

Rules are the same for all databases (`rules.py`); what a row becomes is in the module of the database, which has

- `parameters(part, section)`: returns the parameters of the action of a part;
- `create(connector)`: creates the tables of `schemas/` that are missing. It raises any exception if it cannot.

What is expanded has the origin `configuration`: it is listed like all others, and is changed by its section alone.
"""
