"""Places groups of many different pods on a cluster that they fill almost exactly."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np
import pytest

from moorage.bus import Bus
from moorage.controllers.hardware.core.answers import HardwareAnswers
from moorage.fit.budget import BudgetExceeded
from moorage.fit.packing import PackingProblem, pack
from moorage.merger.worker import start
from moorage.model.shapes import Shape, ShapedApp
from moorage_testkit.brute_force import planted_packing
from moorage_testkit.fleets import node
from moorage_testkit.merger_harness import Clusters, MergerHarness, revision, shape
from moorage_testkit.servers import NatsServer


def hard_problem(pods: int, nodes: int) -> PackingProblem:
    """Returns a solvable problem that the bounded search does not solve."""
    rng = np.random.default_rng(5)
    for _ in range(50):
        problem = planted_packing(rng, pods, nodes, 2, 0.04)
        try:
            pack(problem, 1000)
        except BudgetExceeded:
            return problem
    pytest.fail("no hard problem was found")


async def test_tight_groups_are_packed_without_blocking_others(nats: NatsServer, bus: Bus) -> None:
    problem = hard_problem(16, 5)

    def fleet() -> Clusters:
        nodes = [node(cpu=f"{cpu}m", memory=str(memory)) for cpu, memory in problem.free.tolist()]
        return {"lab/full": nodes, "lab/small": [node(cpu="1", memory="1")]}

    def pod(number: int, cpu: int, memory: int) -> Shape:
        return msgspec.structs.replace(
            shape(template=f"t{number}"),
            object=f"Deployment/d{number}",
            key=f"{cpu} {memory}",
            resources={"pods": 1, "cpu": cpu, "memory": memory},
        )

    shapes = [pod(number, cpu, memory) for number, (cpu, memory) in enumerate(problem.needs.tolist())]
    site = MergerHarness(nats, bus, fleet, start, lambda fleet: HardwareAnswers(fleet).answer)
    try:
        await site.open(1)
        await site.hpa()
        full = revision("full", ShapedApp(name="a", shapes=shapes), at="1")
        assert (await site.simulate(full)).phase == "Placed"
        await asyncio.gather(site.decide(full), site.decide(revision("small", at="2")))
        placed = await site.attempt("full", "Placed", seconds=30)
        await site.attempt("small", "Placed")
        assert placed.apps["a"].clusters == ["lab/full"]
        await site.check()
    finally:
        await site.close()
