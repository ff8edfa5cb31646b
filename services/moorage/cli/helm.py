"""`{chart: PATH, values: {}}` among manifests: rendered here by `helm template`, since the chart lies where the command runs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .exit_codes import FAILED, Failure

_WITHIN = 60.0


def is_chart(item: object) -> bool:
    return isinstance(item, dict) and "chart" in item and item.keys() <= {"chart", "values"}


def render(item: Mapping[str, Any], release: str, where: str, base: Path) -> str:
    """What the chart makes of the values, as YAML documents; its custom resource definitions, too, but no tests."""
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
    helm = shutil.which("helm")
    if helm is None:
        raise Failure(
            f"{where}.chart: {chart} is a Helm chart, and there is no program `helm` on the path; install it, or write down "
            f"what `helm template {release} {name}` makes of it where it is installed",
            FAILED,
        )
    command = [helm, "template", release, str(chart), "--include-crds", "--skip-tests", "--values", "-"]
    try:
        done = subprocess.run(
            command, input=json.dumps(values), capture_output=True, text=True, timeout=_WITHIN, check=False
        )
    except (subprocess.TimeoutExpired, OSError) as wrong:
        raise Failure(f"{where}.chart: {chart} was not rendered: {wrong}", FAILED) from wrong
    if done.returncode:
        raise Failure(f"{where}.chart: {chart} was not rendered: {done.stderr.strip()[-2000:]}", FAILED)
    return done.stdout
