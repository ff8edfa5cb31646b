"""Renders uploaded charts by `helm template`, where that program is installed."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from moorage.model.problems import Problem, Refused
from moorage.podspec import helm

from ..core.v2_compose import Chart, Objects
from . import uploads

TIMEOUT = 30.0
MAX_OUTPUT = 4 << 20
#: Characters of helm's error output in the answer: the error is at its end.
_SHOWN = 500


def missing() -> Problem | None:
    """Returns the problem to answer where helm is not installed."""
    if helm.is_installed():
        return None
    return Problem(
        title="Charts cannot be rendered",
        status=400,
        code="HelmMissing",
        detail="the file is a Helm chart, and there is no program `helm` on the path of the intent store; install it, or"
        " upload the output of `helm template` for the chart",
    )


async def render(chart: Chart) -> Objects:
    """Renders the manifests of a chart."""
    if (problem := missing()) is not None:
        raise Refused(msgspec.structs.replace(problem, status=409))
    options = [option for key, value in chart.overrides.items() for option in _option(key, value)]
    if chart.namespace:
        options += ["--namespace", chart.namespace]
    with tempfile.TemporaryDirectory(prefix="moorage-chart-") as directory:
        file = Path(directory) / "chart.tgz"
        file.write_bytes(chart.archive)
        try:
            text = await asyncio.to_thread(
                helm.template, chart.release, file, chart.values, options=options, timeout=TIMEOUT
            )
        except helm.HelmFailed as error:
            raise _failed(chart.app, str(error).replace(f"{directory}/", "")[-_SHOWN:]) from None
    if len(text) > MAX_OUTPUT:
        raise _failed(chart.app, f"the chart renders to more than {MAX_OUTPUT} bytes")
    return uploads.manifests(text, f"apps/{chart.app}")


def _option(key: str, value: Any) -> tuple[str, str]:
    if isinstance(value, dict | list):
        return "--set-json", f"{key}={msgspec.json.encode(value).decode()}"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    # A comma would begin another value.
    return "--set", f"{key}=" + text.replace("\\", "\\\\").replace(",", "\\,")


def _failed(app: str, detail: str) -> Refused:
    return Refused(Problem(title="Chart not rendered", status=409, code="ChartFailed", detail=f"app {app}: {detail}"))
