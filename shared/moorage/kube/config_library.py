"""Imports of kubernetes-asyncio only what reads configurations: its packages import a class for each kind and version of Kubernetes, which
take 67 MB and a second."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, NamedTuple

_NAME = "kubernetes_asyncio"


class Library(NamedTuple):
    """`configuration` is the class Configuration, `config` the module that loads one."""

    configuration: Any
    config: Any


@cache
def library() -> Library:
    """Imports what reads configurations; the whole library where that is there already, or its version is laid out differently."""
    if _NAME not in sys.modules:
        try:
            return _import_part()
        except (ImportError, AttributeError):
            pass
        finally:
            # A later import of the library gets all of it.
            for name in [name for name in sys.modules if name == _NAME or name.startswith(f"{_NAME}.")]:
                del sys.modules[name]
    from kubernetes_asyncio import client, config

    return Library(client.Configuration, config)


def _import_part() -> Library:
    _add_package(_NAME)
    client: Any = _add_package(f"{_NAME}.client")
    client.Configuration = import_module(f"{_NAME}.client.configuration").Configuration
    client.ApiClient = object  # named, but not used, where a configuration is loaded
    return Library(client.Configuration, import_module(f"{_NAME}.config"))


def _add_package(name: str) -> ModuleType:
    """Adds a package without what its `__init__` imports."""
    spec = find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    package = sys.modules[name] = module_from_spec(spec)
    return package
