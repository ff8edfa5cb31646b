"""Renders uploaded charts by `helm template`, where that program is installed."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from moorage.model.problems import Problem, Refused
from moorage.podspec import helm

from . import uploads

TIMEOUT = 30.0
MAX_OUTPUT = 4 << 20
#: Characters of helm's error output that are answered: its end says what is wrong.
_SHOWN = 500


def missing() -> Problem | None:
    """The problem to answer where helm is not installed."""
    if helm.is_installed():
        return None
    return Problem(
        title="Charts cannot be rendered",
        status=400,
        code="HelmMissing",
        detail="the file is a Helm chart, and there is no program `helm` on the path of the intent store; install it, or"
        " upload the output of `helm template` for the chart",
    )


async def render(release: str, chart: bytes, values: dict[str, Any], overrides: dict[str, Any]) -> list[dict[str, Any]]:
    """Renders the manifests of a chart. `values` are those of a profile; `overrides`, those of the group, win over them."""
    if (problem := missing()) is not None:
        raise Refused(msgspec.structs.replace(problem, status=409))
    options = [option for key, value in overrides.items() for option in _option(key, value)]
    with tempfile.TemporaryDirectory(prefix="moorage-chart-") as directory:
        file = Path(directory) / "chart.tgz"
        file.write_bytes(chart)
        try:
            text = await asyncio.to_thread(helm.template, release, file, values, options=options, timeout=TIMEOUT)
        except helm.HelmFailed as error:
            raise _failed(release, str(error).replace(f"{directory}/", "")[-_SHOWN:]) from None
    if len(text) > MAX_OUTPUT:
        raise _failed(release, f"the chart renders to more than {MAX_OUTPUT} bytes")
    return uploads.manifests(text, f"apps/{release}")


def _option(key: str, value: Any) -> tuple[str, str]:
    if isinstance(value, dict | list):
        return "--set-json", f"{key}={msgspec.json.encode(value).decode()}"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    # A comma would begin another value.
    return "--set", f"{key}=" + text.replace("\\", "\\\\").replace(",", "\\,")


def _failed(release: str, detail: str) -> Refused:
    return Refused(
        Problem(title="Chart not rendered", status=409, code="ChartFailed", detail=f"app {release}: {detail}")
    )
