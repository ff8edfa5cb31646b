"""Measures how much of the devices of a trace is allocated, beside first-fit, best-fit and FGD, and how long a decision takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from moorage.device_algorithms import WHOLE, Chooser, RequestMix, find_algorithm
from moorage.device_algorithms.trace import Node, Task, columns_of, kinds_of, replay
from moorage_testkit.gpu_trace import draw, more_bound, more_devices, more_sharing, read_trace, trace_directory

from .harness import Figure

SEEDS = 10
SEEDS_OF_OTHERS = 3
CLUSTERS = 50
Result = tuple[float, float, list[float]]  # allocated when 100 % and 130 % were asked, milliseconds of each decision


def allocated(nodes: Sequence[Node], tasks: Sequence[Task], algorithm: str) -> Result:
    result = replay(nodes, tasks, find_algorithm(algorithm))
    capacity = WHOLE * sum(node.devices for node in nodes)
    asked = taken = at_full = 0
    for task, placement in zip(tasks, result.placements, strict=True):
        taken += task.request.amount if placement.node else 0
        if asked < capacity:
            at_full = taken
        asked += task.request.amount
    return 100 * at_full / capacity, result.allocated, [1e3 * seconds for seconds in result.seconds]


def allocated_over_clusters(nodes: Sequence[Node], tasks: Sequence[Task]) -> float:
    """Deals the nodes over clusters. The cluster whose best node has the best score gets the task; one mix is learned."""
    kinds, mix = kinds_of(nodes), RequestMix()
    choosers = []
    for cluster in range(CLUSTERS):
        columns = columns_of(nodes[cluster::CLUSTERS])
        columns.kinds[:] = [kinds[node.kind] for node in nodes[cluster::CLUSTERS]]
        choosers.append(Chooser(columns, find_algorithm(), mix))
    taken = 0
    for task in tasks:
        found = [(choice.score, -c, choice) for c, each in enumerate(choosers) if (choice := each.choose(task.request))]
        if found:
            _, cluster, choice = max(found, key=lambda one: one[:2])
            choosers[-cluster].take(choice, task.request)
            taken += task.request.amount
        mix.record(task.request)
    return 100 * taken / (WHOLE * sum(node.devices for node in nodes))


async def device_choice() -> list[Figure]:
    directory = trace_directory()
    if directory is None:
        return [Figure(name="choice of devices: MOORAGE_DATA does not name the trace", n=0, p50=0, p99=0)]
    nodes, tasks = read_trace(directory)
    return [*_trace(nodes, tasks), *_others(nodes, tasks), _split(nodes, tasks)]


def _trace(nodes: Sequence[Node], tasks: Sequence[Task]) -> list[Figure]:
    figures = []
    drawn = [draw(nodes, tasks, seed) for seed in range(SEEDS)]
    for name in ("default", "first-fit", "best-fit", "fgd"):
        found = [allocated(nodes, each, name) for each in drawn]
        full, over = np.mean([each[:2] for each in found], axis=0)
        samples = [ms for each in found for ms in each[2]]
        mine = name == "default"
        goal = ">= 95.5/95.6 %, p50 <= 1 ms" if mine else "printed"
        figure = Figure.of(
            f"trace, {name}: {full:.2f}/{over:.2f} % allocated", samples, goal, p50=1 if mine else np.inf
        )
        figure.ok = figure.ok and (not mine or bool(full >= 95.5 and over >= 95.6))
        figures.append(figure)
    return figures


def _others(nodes: Sequence[Node], tasks: Sequence[Task]) -> list[Figure]:
    workloads: dict[str, Callable[[int], list[Task]]] = {
        "60 % more share": lambda seed: more_sharing(tasks, 0.6, seed),
        "all share": lambda seed: more_sharing(tasks, 1.0, seed),
        "20 % ask for several": lambda seed: more_devices(tasks, 0.2, seed),
        "50 % ask for several": lambda seed: more_devices(tasks, 0.5, seed),
        "all ask for several": lambda seed: more_devices(tasks, 1.0, seed),
        "10 % bound to models": lambda seed: more_bound(nodes, tasks, 0.1, seed),
        "33 % bound to models": lambda seed: more_bound(nodes, tasks, 0.33, seed),
        "80 % bound to models": lambda seed: more_bound(nodes, tasks, 0.8, seed),
        "all bound to models": lambda seed: more_bound(nodes, tasks, 1.0, seed),
        "33 % bound, 50 % ask for several": lambda seed: more_bound(
            nodes, more_devices(tasks, 0.5, seed), 0.33, seed + 1
        ),
        "50 % bound, 50 % ask for several": lambda seed: more_bound(
            nodes, more_devices(tasks, 0.5, seed), 0.5, seed + 1
        ),
        "all bound, 30 % ask for several": lambda seed: more_bound(
            nodes, more_devices(tasks, 0.3, seed), 1.0, seed + 1
        ),
        "50 % bound, all share": lambda seed: more_bound(nodes, more_sharing(tasks, 1.0, seed), 0.5, seed + 1),
    }
    figures = []
    for name, make in workloads.items():
        drawn = [draw(nodes, make(seed), seed) for seed in range(SEEDS_OF_OTHERS)]
        by = {}
        samples = []
        for algorithm in ("default", "first-fit", "fgd"):
            found = [allocated(nodes, each, algorithm) for each in drawn]
            by[algorithm] = np.mean([each[:2] for each in found], axis=0)
            if algorithm == "default":
                samples = [ms for each in found for ms in each[2]]
        behind = float((np.maximum(by["first-fit"], by["fgd"]) - by["default"]).max())
        text = ", ".join(f"{algorithm} {full:.2f}/{over:.2f}" for algorithm, (full, over) in by.items())
        figure = Figure.of(f"{name}: {text}", samples, "<= 0.1 below the better")
        figure.ok = behind <= 0.1
        figures.append(figure)
    return figures


def _split(nodes: Sequence[Node], tasks: Sequence[Task]) -> Figure:
    whole, split, samples = [], [], []
    for seed in range(SEEDS_OF_OTHERS):
        drawn = draw(nodes, tasks, seed)
        whole.append(allocated(nodes, drawn, "default")[1])
        began = time.perf_counter()
        split.append(allocated_over_clusters(nodes, drawn))
        samples.append((time.perf_counter() - began) * 1e3 / len(drawn))
    below = float(np.mean(whole) - np.mean(split))
    name = f"trace over {CLUSTERS} clusters: {np.mean(split):.2f} %, {below:.2f} below one"
    figure = Figure.of(name, samples, "<= 0.3 below")
    figure.ok = below <= 0.3
    return figure
