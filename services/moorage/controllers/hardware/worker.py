"""Runs the controller `hpa`, a placement and an action controller."""

from __future__ import annotations

from moorage.fit import any_with_label
from moorage.sdk import CONSUMER_KINDS, ActionAsk, Answer, Ask, Contribution, Declared, Fleet, Settings, run

from .core.actions import NAME, contributions
from .core.answers import HardwareAnswers


async def main(settings: Settings) -> None:
    answers: dict[Fleet, HardwareAnswers] = {}

    def candidates(ask: Ask, fleet: Fleet) -> Answer:
        if fleet not in answers:
            answers.clear()
            answers[fleet] = HardwareAnswers(fleet)
        return answers[fleet].answer(ask)

    def actions(ask: ActionAsk, fleet: Fleet) -> list[Contribution]:
        def has_label(cluster: str, label: tuple[str, str]) -> bool:
            cid = fleet.ids.get(cluster)
            return cid is not None and any_with_label(fleet, label, fleet.rows_of(cid))

        return contributions(ask, has_label)

    hpa = Declared(
        NAME,
        policy="required",
        capacity=True,
        action_concerns=CONSUMER_KINDS,
        prepare=True,
        candidates=candidates,
        actions=actions,
    )
    await run(settings, [hpa], worker=NAME)
