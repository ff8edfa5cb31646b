"""Runs the controller `affinity`."""

from __future__ import annotations

from moorage.sdk import Declared, Settings, run

from .core.rules import NAME, decide


async def main(settings: Settings) -> None:
    await run(settings, [Declared(NAME, policy="required", candidates=decide)], worker=NAME)
