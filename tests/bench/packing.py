"""Measures how many packings of full clusters are found, and how soon: the whole way from the greedy passes to the solver."""

from __future__ import annotations

import time

import numpy as np

from moorage.fit.budget import BudgetExceeded
from moorage.fit.cluster_nodes import MAX_STEPS
from moorage.fit.hard_packing import pack_hard
from moorage.fit.packing import PackingProblem, pack
from moorage_testkit.brute_force import planted_packing

from .harness import Figure

#: Pods, nodes, resources, part to spare; at least so much is found, within so many milliseconds at p99.
CASES = (
    (12, 4, 2, 0.0, 0.97, 250),
    (12, 4, 2, 0.05, 0.99, 100),
    (12, 4, 2, 0.1, 0.99, 100),
    (20, 6, 2, 0.0, 0.90, 500),
    (20, 6, 2, 0.05, 0.99, 100),
    (20, 6, 2, 0.1, 0.99, 100),
    (20, 6, 2, 0.02, 0.90, 500),
    (32, 8, 2, 0.0, 0.9, 550),
    (32, 8, 2, 0.05, 0.99, 100),
    (32, 8, 2, 0.1, 0.99, 100),
    (8, 3, 4, 0.05, 0.99, 100),
    (20, 3, 4, 0.05, 0.99, 100),
    (32, 8, 4, 0.05, 0.99, 100),
    (40, 4, 4, 0.05, 0.99, 100),
    (40, 8, 4, 0.05, 0.99, 100),
    (40, 12, 3, 0.05, 0.99, 100),
    (40, 12, 4, 0.05, 0.99, 100),
    (40, 12, 4, 0.1, 0.99, 100),
)
PROBLEMS = 200
SECONDS = 0.5


def find(problem: PackingProblem) -> bool:
    try:
        return not isinstance(pack(problem, MAX_STEPS), int)
    except BudgetExceeded:
        try:
            return pack_hard(problem, SECONDS) is not None
        except BudgetExceeded:
            return False


async def packing() -> list[Figure]:
    figures = []
    for pods, nodes, resources, spare, least, most in CASES:
        rng = np.random.default_rng(pods)
        found, samples = 0, []
        for _ in range(PROBLEMS):
            problem = planted_packing(rng, pods, nodes, resources, spare)
            began = time.perf_counter()
            found += find(problem)
            samples.append((time.perf_counter() - began) * 1e3)
        name = (
            f"{pods} pods on {nodes} nodes, {resources} resources, {spare:.0%} to spare: {found / PROBLEMS:.1%} found"
        )
        goal = f">= {least:.0%} found, p99 <= {most} ms" if least else "printed"
        figure = Figure.of(name, samples, goal, p99=most if least else float("inf"))
        figure.ok = figure.ok and found >= least * PROBLEMS
        figures.append(figure)
    return figures
