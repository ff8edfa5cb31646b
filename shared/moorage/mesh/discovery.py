"""Finds the specs of all installed workers. Only the command line and tests look for them; others are given a `Mesh`."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

import moorage

from .mesh import Mesh
from .spec import WorkerSpec


def find_specs() -> list[WorkerSpec]:
    """Imports the module `spec` of every package of the namespace that declares a worker in it. Nothing else is imported,
    so commands that only need names start quickly."""
    found: dict[str, WorkerSpec] = {}
    for root in map(Path, moorage.__path__):
        for file in sorted(root.rglob("spec.py")):
            name = ".".join(("moorage", *file.relative_to(root).with_suffix("").parts))
            spec = getattr(importlib.import_module(name), "SPEC", None)
            if isinstance(spec, WorkerSpec):
                found[name] = spec
    return list(found.values())


@cache
def installed() -> Mesh:
    """Returns the mesh of all workers that are installed here."""
    return Mesh(find_specs())
