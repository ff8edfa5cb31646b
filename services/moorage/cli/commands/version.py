"""`moorage version`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

from ..output import Format, show
from ..terminal import out


def release() -> str:
    try:
        return installed("moorage")
    except PackageNotFoundError:
        return "0.0.0"


def version(*, output: Format = "table") -> int:
    """Print the version."""
    if output in ("json", "yaml"):
        return show({"version": release()}, output)
    out(f"moorage {release()}")
    return 0
