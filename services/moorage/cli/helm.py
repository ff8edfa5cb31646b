"""Renders `{chart: PATH, values: {}}` among manifests. The command line does it because the chart lies on its machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .exit_codes import FAILED, Failure

_TIMEOUT = 60.0
#: Characters of helm's error output that are shown: the error is at its end.
_SHOWN = 2000


def is_chart(item: object) -> bool:
    return isinstance(item, dict) and "chart" in item and item.keys() <= {"chart", "values"}


def render(item: Mapping[str, Any], release: str, where: str, base: Path) -> str:
    """Renders the chart with the values, as YAML documents. `where` is the path of the item in the document."""
    from moorage.podspec import helm  # imported only for charts, because each import delays every command

    name, values = item["chart"], item.get("values") or {}
    if not isinstance(name, str) or not name:
        raise Failure(f"{where}.chart: must be a path", FAILED)
    if not isinstance(values, dict):
        raise Failure(f"{where}.values: must be an object", FAILED)
    chart = base / name
    if not chart.exists():
        raise Failure(
            f"{where}.chart: there is no '{chart}'; a chart is a directory or an archive on this machine", FAILED
        )
    try:
        return helm.template(release, chart, values, timeout=_TIMEOUT)
    except helm.HelmMissing:
        raise Failure(
            f"{where}.chart: {chart} is a Helm chart, and there is no program `helm` on the path; install it, or replace "
            f"the chart by the output of `helm template {release} {name}`",
            FAILED,
        ) from None
    except helm.HelmFailed as error:
        raise Failure(f"{where}.chart: {chart} cannot be rendered: {str(error)[-_SHOWN:]}", FAILED) from error
