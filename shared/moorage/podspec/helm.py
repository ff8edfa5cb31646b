"""Runs `helm template`, the one way charts are rendered here: with custom resource definitions and without test hooks,
which would otherwise be placed like any other Pod."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


class HelmMissing(Exception):
    """There is no program `helm` on the path."""


class HelmFailed(Exception):
    """The chart could not be rendered; the message is what helm wrote, or why it did not end."""


def is_installed() -> bool:
    return shutil.which("helm") is not None


def template(
    release: str, chart: Path, values: Mapping[str, Any], *, options: Sequence[str] = (), timeout: float
) -> str:
    """Renders a chart as YAML documents. `options` follow the values, so that `--set` wins over them."""
    helm = shutil.which("helm")
    if helm is None:
        raise HelmMissing
    command = [helm, "template", release, str(chart), "--include-crds", "--skip-tests", "--values", "-", *options]
    try:
        done = subprocess.run(command, input=_encode(values), capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise HelmFailed(f"helm template did not end within {timeout:g} s") from None
    except OSError as error:
        raise HelmFailed(f"helm could not be started: {error}") from error
    if done.returncode:
        raise HelmFailed(done.stderr.decode("utf-8", "replace").strip())
    return done.stdout.decode("utf-8", "replace")
