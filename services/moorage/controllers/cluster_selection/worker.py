"""Runs the controller `labels`. It sees clusters and their labels and does not count capacity."""

from __future__ import annotations

from moorage.sdk import Declared, Settings, run

from .core.selection import KIND, NAME, decide


async def main(settings: Settings) -> None:
    labels = Declared(NAME, policy="required", static=True, concerns=(KIND,), candidates=decide)
    await run(settings, [labels], worker=NAME)
