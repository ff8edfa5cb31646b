"""Runs the controller `resource-class`."""

from __future__ import annotations

from collections.abc import Iterable

from moorage.model.claims import Decision
from moorage.model.controllers import DEVICES
from moorage.sdk import Answer, Ask, Declared, Fleet, Settings, run

from .core.answers import NAME, ClassAnswers


async def main(settings: Settings) -> None:
    answers: dict[Fleet, ClassAnswers] = {}

    def begin(fleet: Fleet, standing: Iterable[Decision]) -> None:
        answers[fleet] = ClassAnswers(fleet)
        answers[fleet].learn_again(standing)

    def candidates(ask: Ask, fleet: Fleet) -> Answer:
        return answers[fleet].answer(ask)

    classes = Declared(NAME, policy="optional", capacity=True, concerns=(DEVICES,), prepare=True, candidates=candidates)
    await run(settings, [classes], worker=NAME, begin=begin)
