"""Runs the controller `affinity`."""

from __future__ import annotations

from moorage.sdk import Declared, Settings, run

from .core.rules import KIND, NAME, decide


async def main(settings: Settings) -> None:
    await run(settings, [Declared(NAME, policy="required", concerns=(KIND,), candidates=decide)], worker=NAME)
