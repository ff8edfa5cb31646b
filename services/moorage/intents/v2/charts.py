"""Charts are rendered by `helm template`, where that program is found."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from moorage.model.problems import Problem, Refused

from . import uploads

TIMEOUT = 30.0
MAX_OUTPUT = 4 << 20


def missing() -> Problem | None:
    """Why charts cannot be rendered here."""
    if shutil.which("helm") is not None:
        return None
    return Problem(
        title="Charts cannot be rendered",
        status=400,
        code="HelmMissing",
        detail="the file is a Helm chart, and there is no program `helm` on the path of the intent store; install it, or"
        " upload what `helm template` makes of the chart",
    )


async def render(release: str, chart: bytes, values: dict[str, Any], overrides: dict[str, Any]) -> list[dict[str, Any]]:
    """The manifests of a chart, with a profile's values and those that the group sets one by one over them."""
    if (problem := missing()) is not None:
        raise Refused(msgspec.structs.replace(problem, status=409))
    command = ["helm", "template", release, "chart.tgz", "--include-crds"]
    with tempfile.TemporaryDirectory(prefix="moorage-chart-") as name:
        place = Path(name)
        (place / "chart.tgz").write_bytes(chart)
        if values:
            (place / "values.json").write_bytes(msgspec.json.encode(values))
            command += ["--values", "values.json"]
        for key, value in overrides.items():
            text = msgspec.json.encode(value).decode() if isinstance(value, dict | list) else _text(value)
            command += ["--set-json" if isinstance(value, dict | list) else "--set", f"{key}={text}"]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=name, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(TIMEOUT):
                out, err = await process.communicate()
        except TimeoutError:
            raise _failed(release, f"helm template did not end within {TIMEOUT:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
    if process.returncode:
        raise _failed(release, err.decode("utf-8", "replace").strip()[-500:])
    if len(out) > MAX_OUTPUT:
        raise _failed(release, f"it makes more than {MAX_OUTPUT} bytes")
    return uploads.manifests(out, f"apps/{release}")


def _text(value: Any) -> str:
    """As helm's --set reads it: commas would begin another value."""
    text = msgspec.json.encode(value).decode() if not isinstance(value, str) else value
    return text.replace("\\", "\\\\").replace(",", "\\,")


def _failed(release: str, detail: str) -> Refused:
    return Refused(
        Problem(title="Chart not rendered", status=409, code="ChartFailed", detail=f"app {release}: {detail}")
    )
