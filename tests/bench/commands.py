"""Measures how long commands take, beside an interpreter that does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from moorage_testkit.mesh import Mesh

from .harness import Figure

_TIMES = 15
#: Commands with the milliseconds that half of their runs may take at most.
_COMMANDS: tuple[tuple[tuple[str, ...], float], ...] = (
    (("--help",), 250),
    (("get", "groups"), 150),
    (("why", "app1"), 300),
    (("--version",), 250),
)


def _milliseconds(command: Sequence[str], state: Path) -> float:
    started = time.perf_counter()
    environment = {**os.environ, "MOORAGE_STATE": str(state)}
    subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=True)
    return (time.perf_counter() - started) * 1e3


async def commands() -> list[Figure]:
    program = str(Path(sys.executable).with_name("moorage"))
    samples: dict[tuple[str, ...], list[float]] = {arguments: [] for arguments, _ in _COMMANDS}
    floor: list[float] = []
    with Mesh("--example") as mesh:
        for _ in range(_TIMES):  # in turns, so that all see the same load
            floor.append(_milliseconds([sys.executable, "-c", "pass"], mesh.state))
            for arguments, _most in _COMMANDS:
                samples[arguments].append(_milliseconds([program, *arguments], mesh.state))
    parts = {"python -c pass": sorted(floor)[_TIMES // 2]}
    return [
        Figure.of(f"moorage {' '.join(arguments)}", samples[arguments], f"<= {most:g} ms", p50=most, floor=parts)
        for arguments, most in _COMMANDS
    ]
