"""hpa as a worker: answers which clusters have the hardware, and what to write into the manifests. Both halves are pure;
this connects them to the mesh."""

from __future__ import annotations

from moorage.fit import any_with_label
from moorage.fleet import Fleet
from moorage.model.candidates import Answer, Ask
from moorage.model.desired import ActionAsk, Contribution
from moorage.sdk import Declared, Settings, run

from .core.actions import contributions
from .core.answers import NAME, HardwareAnswers


async def main(settings: Settings) -> None:
    kept: dict[Fleet, HardwareAnswers] = {}

    def candidates(ask: Ask, fleet: Fleet) -> Answer:
        if fleet not in kept:
            kept.clear()
            kept[fleet] = HardwareAnswers(fleet)
        return kept[fleet].answer(ask)

    def actions(ask: ActionAsk, fleet: Fleet) -> list[Contribution]:
        def carried(cluster: str, label: tuple[str, str]) -> bool:
            cid = fleet.ids.get(cluster)
            return cid is not None and any_with_label(fleet, label, fleet.rows_of(cid))

        return contributions(ask, carried)

    one = Declared(NAME, policy="required", capacity=True, candidates=candidates, actions=actions)
    await run(settings, [one], worker=NAME)
