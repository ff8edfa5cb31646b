"""Runs the controller `labels`. It sees clusters and their labels and does not count capacity."""

from __future__ import annotations

from moorage.sdk import Declared, Settings, run

from .core.selection import NAME, decide


async def main(settings: Settings) -> None:
    await run(settings, [Declared(NAME, policy="required", static=True, candidates=decide)], worker=NAME)
