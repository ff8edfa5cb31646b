"""affinity as a worker."""

from __future__ import annotations

from moorage.fleet import Fleet
from moorage.model.candidates import Answer, Ask
from moorage.sdk import Declared, Settings, run

from .core.rules import NAME, decide


def candidates(ask: Ask, fleet: Fleet) -> Answer:
    return decide(ask, fleet)


async def main(settings: Settings) -> None:
    await run(settings, [Declared(NAME, policy="required", candidates=candidates)], worker=NAME)
