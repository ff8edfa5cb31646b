"""`moorage version`."""

from __future__ import annotations

from ..exit_codes import DONE
from ..output import Format, show
from ..terminal import out


def version(*, output: Format = "table") -> int:
    """Print the version."""
    from moorage.telemetry.health import version_of_moorage

    if output in ("json", "yaml"):
        return show({"version": version_of_moorage()}, output)
    out(f"moorage {version_of_moorage()}")
    return DONE
