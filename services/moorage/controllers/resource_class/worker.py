"""Runs the controller `resource-class`."""

from __future__ import annotations

from moorage.model.controllers import DEVICES
from moorage.sdk import Answer, Ask, Declared, Fleet, Settings, run

from .core.answers import NAME, ClassAnswers


async def main(settings: Settings) -> None:
    answers: dict[Fleet, ClassAnswers] = {}

    def candidates(ask: Ask, fleet: Fleet) -> Answer:
        if fleet not in answers:
            answers.clear()
            answers[fleet] = ClassAnswers(fleet)
        return answers[fleet].answer(ask)

    classes = Declared(NAME, policy="optional", capacity=True, concerns=(DEVICES,), candidates=candidates)
    await run(settings, [classes], worker=NAME)
