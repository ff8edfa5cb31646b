"""Runs the controller `resource-class`."""

from __future__ import annotations

from moorage.sdk import Answer, Ask, Declared, Fleet, Settings, run

from .core.answers import NAME, ClassAnswers


async def main(settings: Settings) -> None:
    answers: dict[Fleet, ClassAnswers] = {}

    def candidates(ask: Ask, fleet: Fleet) -> Answer:
        if fleet not in answers:
            answers.clear()
            answers[fleet] = ClassAnswers(fleet)
        return answers[fleet].answer(ask)

    await run(settings, [Declared(NAME, policy="optional", capacity=True, candidates=candidates)], worker=NAME)
