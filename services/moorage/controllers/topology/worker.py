"""Runs the controller `topology`."""

from __future__ import annotations

from moorage.sdk import Answer, Ask, Declared, Fleet, Settings, run

from .core.answers import NAME, TopologyAnswers


async def main(settings: Settings) -> None:
    answers: dict[Fleet, TopologyAnswers] = {}

    def candidates(ask: Ask, fleet: Fleet) -> Answer:
        if fleet not in answers:
            answers.clear()
            answers[fleet] = TopologyAnswers(fleet)
        return answers[fleet].answer(ask)

    await run(settings, [Declared(NAME, policy="required", capacity=True, candidates=candidates)], worker=NAME)
