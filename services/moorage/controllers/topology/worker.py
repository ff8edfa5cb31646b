"""Runs the controller `topology`."""

from __future__ import annotations

from moorage.model.controllers import PARTS
from moorage.sdk import Answer, Ask, Declared, Fleet, Settings, run

from .core.answers import NAME, TopologyAnswers


async def main(settings: Settings) -> None:
    answers: dict[Fleet, TopologyAnswers] = {}

    def candidates(ask: Ask, fleet: Fleet) -> Answer:
        if fleet not in answers:
            answers.clear()
            answers[fleet] = TopologyAnswers(fleet)
        return answers[fleet].answer(ask)

    topology = Declared(NAME, policy="required", capacity=True, concerns=(PARTS,), prepare=True, candidates=candidates)
    await run(settings, [topology], worker=NAME)
