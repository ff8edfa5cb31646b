"""Imports all that workers need, before they are forked. `python -m moorage.cli.up.warm` does only that, which compiles it."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterable

from moorage.mesh.discovery import installed
from moorage.telemetry import version_of_moorage

#: What most workers use. numpy would import `numpy.ma` in each worker that calls `unique`.
_HEAVY = (
    "asyncio",
    "hiredis",
    "msgspec",
    "nats",
    "numpy",
    "numpy.ma",
    "pyroaring",
    "redis.asyncio",
    "structlog",
    "uvloop",
)


def warm(kinds: Iterable[str]) -> None:
    """Imports the modules of these workers, without starting a thread in this process. Then freezes memory so that children
    share its pages, and turns garbage collection on."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    for name in (*_HEAVY, *(installed().workers[kind].module for kind in kinds)):
        importlib.import_module(name)
    version_of_moorage()  # all workers need it, and it is remembered
    gc.freeze()  # with the garbage: children would fill its gaps, and so copy the pages around them
    gc.enable()


if __name__ == "__main__":
    importlib.import_module("moorage.cli.up.launch")
    warm(installed().workers)
