"""Drivers of connectors and actions, one module for each type of `config/sinks/types.py`, loaded when it is used.

A module has two functions:

- `connect(settings, key)` returns the Connector (shardbroker/connectors) of a model of the type; `key` names it in errors. It opens
  nothing, and raises ConnectionSettingError for settings that can never work. A connector with an attribute `data_dir` gets that of
  the broker there, before its first use;
- `make(action, connector, id)` returns the Driver (shardbroker/flows/sinks/driver.py) of an action, `id` being `type:name`. It
  raises ValueError for parameters that cannot be used, such as a template.
"""
