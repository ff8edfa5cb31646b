"""Runs the controller `machine`, a placement and an action controller."""

from __future__ import annotations

from moorage.model.controllers import MACHINES
from moorage.sdk import Declared, Settings, run

from .core.answers import NAME, candidates
from .core.labels import contributions


async def main(settings: Settings) -> None:
    machine = Declared(
        NAME,
        policy="required",
        capacity=True,
        concerns=(MACHINES,),
        action_concerns=(MACHINES,),
        candidates=candidates,
        actions=contributions,
    )
    await run(settings, [machine], worker=NAME)
