"""Fails tests of workers that block their event loop."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx

import moorage

PACKAGES = [importlib.import_module(f"moorage.{found.name}") for found in pkgutil.iter_modules(moorage.__path__)]
#: These read files once in the life of a process, or for an error that is logged.
ALLOWED = {
    "<frozen importlib._bootstrap>": "_find_and_load",
    "moorage/mesh/discovery.py": "find_specs",
    "moorage/telemetry/health.py": "version_of_moorage",
    "redis/utils.py": "get_lib_version",
    "rich/traceback.py": "__rich_console__",
    "tests/mesh/test_together.py": "candidates",  # keeps the worker busy
}


@pytest.fixture(autouse=True)
def blocking_calls_are_errors() -> Iterator[None]:
    with blockbuster_ctx(PACKAGES) as detector:
        for call in detector.functions.values():
            for file, function in ALLOWED.items():
                call.can_block_in(file, function)
        yield
