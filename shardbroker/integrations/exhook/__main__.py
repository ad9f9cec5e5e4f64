"""Prints exhook.proto, for authors of programs: python -m shardbroker.integrations.exhook > exhook.proto"""

from importlib.resources import files

print((files("shardbroker.integrations.exhook") / "exhook.proto").read_text(encoding="utf-8"), end="")
