"""Makes authenticators, sources of rules and sources of subscriptions from settings.

The tables are `config.access.Authenticators` and `Sources`, and `config.auto_subscribe.SubscriptionTables`. A field NAME there
denotes the module NAME of this package, with a function `authenticator(settings, services)`, `authorizer` or `subscriptions`.
Modules and their libraries are loaded only for names in use.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from shardbroker.access.contract import Authenticator, Authorizer, BackendError, SettingError
from shardbroker.access.files import FileError
from shardbroker.access.placeholders import PlaceholderError
from shardbroker.access.stores import StoreError
from shardbroker.config import Settings
from shardbroker.config.access import AUTHENTICATORS, SOURCES
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError, missing_library
from shardbroker.integrations.auth import modules
from shardbroker.integrations.auth.services import Services
from shardbroker.integrations.auth.stored import RuleBackend

__all__ = ["CONVERSATIONS", "build_authenticators", "build_sources", "build_subscription_sources"]

CONVERSATIONS = ("scram",)
"""Rows of the table without an authenticator: they take part only in enhanced authentication."""


def build_authenticators(
    settings: Settings, names: Sequence[str], services: Services
) -> tuple[dict[str, Authenticator], dict[str, Authenticator]]:
    """Returns all authenticators that chains name, and those of them from other packages. Raises BackendError."""
    installed = modules.load_modules(modules.AUTHENTICATORS, names, AUTHENTICATORS, settings.auth.module_settings)
    own = [name for name in names if name in AUTHENTICATORS and name not in CONVERSATIONS]
    return {name: _made("authenticator", name, getattr(settings.auth, name), services) for name in own} | installed, installed


def build_sources(settings: Settings, names: Sequence[str], services: Services) -> list[tuple[str, Authorizer]]:
    """Returns the sources in acl.sources that workers do not evaluate, in order, with those of other packages.

    Raises BackendError.
    """
    installed = modules.load_modules(modules.AUTHORIZERS, names, SOURCES, settings.acl.module_settings)
    return [
        (name, installed[name] if name in installed else _made("authorizer", name, getattr(settings.acl, name, None), services))
        for name in modules.expand(names, installed)
    ]


def build_subscription_sources(settings: Settings, services: Services) -> list[tuple[str, RuleBackend]]:
    """Returns the sources in auto_subscribe.sources, in order. Raises BackendError."""
    section = settings.auto_subscribe
    return [(name, _made("subscriptions", name, getattr(section, name), services)) for name in section.sources]


def _made(kind: str, name: str, settings: Any, services: Services) -> Any:
    try:
        return getattr(import_module(f"shardbroker.integrations.auth.{name}"), kind)(settings, services)
    except ImportError as error:
        raise BackendError(f"{name} needs {missing_library(error)}") from None
    except ConnectionSettingError as error:
        raise SettingError(*error.args) from None
    except (ConnectorError, FileError, StoreError, PlaceholderError) as error:
        raise BackendError(f"{name}: {error}") from None
    except BackendError:
        raise
    except Exception as error:  # of a library: no setting may end the process
        raise BackendError(f"{name} not created: {type(error).__name__}: {error}") from error
