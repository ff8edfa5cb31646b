"""Measures how large a candidate answer is at 100,000 clusters."""

from __future__ import annotations

import numpy as np

from moorage.bus.server import encode
from moorage.candidates import pack
from moorage.model.candidates import Answer, AppAnswer, CandidateGroup

from .harness import Figure


async def answers() -> list[Figure]:
    mask = np.random.default_rng(1).random(100_000) < 0.5
    packed = pack(mask)
    group = CandidateGroup(mode="allow", clusters=packed)
    message = encode(Answer(id="x" * 22, cause="y" * 22, apps={"fwall": AppAnswer(groups=[group])}, epoch="1.1"))
    floor = 100_000 / 8
    sizes = {"set": float(len(packed.data)), "message": float(len(message))}
    return [
        Figure(
            name="candidate answer, 100,000 clusters, half allowed at random: the set",
            n=1,
            p50=sizes["set"],
            p99=sizes["set"],
            floor=floor,
            ratio=sizes["set"] / floor,
            goal="<= 12,600 bytes",
            ok=sizes["set"] <= 12_600,
            unit="bytes",
        ),
        Figure(
            name="candidate answer, 100,000 clusters, half allowed at random: the message",
            n=1,
            p50=sizes["message"],
            p99=sizes["message"],
            floor=floor,
            ratio=sizes["message"] / floor,
            goal="<= 20,000 bytes",
            ok=sizes["message"] <= 20_000,
            unit="bytes",
        ),
    ]
