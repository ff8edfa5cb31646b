"""Draws workloads from a trace of tasks that ask for GPUs, and changes what they ask."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from moorage.device_algorithms import WHOLE
from moorage.device_algorithms.trace import Node, Task, kinds_of, read_nodes, read_tasks

#: A workload replays until so much of the devices has been asked for.
ASKED = 1.3


def trace_directory() -> Path | None:
    """Returns where the trace is, if the environment names it."""
    path = Path(os.environ.get("MOORAGE_DATA", "")) / "gpu-trace"
    return path if os.environ.get("MOORAGE_DATA") and path.is_dir() else None


def read_trace(directory: Path) -> tuple[list[Node], list[Task]]:
    with (directory / "nodes.csv").open(newline="") as file:
        nodes = read_nodes(file)
    with (directory / "tasks-default.csv").open(newline="") as file:
        return nodes, read_tasks(file, kinds_of(nodes))


def draw(nodes: Sequence[Node], tasks: Sequence[Task], seed: int) -> list[Task]:
    """Draws tasks with replacement until they ask for `ASKED` of all devices."""
    rng = np.random.default_rng(seed)
    capacity = WHOLE * sum(node.devices for node in nodes)
    drawn: list[Task] = []
    asked = 0
    while asked < ASKED * capacity:
        for at in rng.integers(len(tasks), size=256).tolist():
            drawn.append(tasks[at])
            asked += tasks[at].request.amount
            if asked >= ASKED * capacity:
                break
    return drawn


def more_sharing(tasks: Sequence[Task], part: float, seed: int) -> list[Task]:
    """Lets `part` of the tasks that ask for one device ask for a share of it, as those do that share already."""
    rng = np.random.default_rng(seed)
    shares = [task.request.share for task in tasks if task.request.devices == 1 and task.request.share < WHOLE]
    return [
        task._replace(request=task.request._replace(share=int(rng.choice(shares))))
        if task.request.devices == 1 and rng.random() < part
        else task
        for task in tasks
    ]


def more_devices(tasks: Sequence[Task], part: float, seed: int) -> list[Task]:
    """Lets `part` of the tasks that ask for devices ask for two, four or eight of them."""
    rng = np.random.default_rng(seed)
    return [
        task._replace(request=task.request._replace(devices=int(rng.choice([2, 4, 8])), share=WHOLE))
        if task.request.devices and rng.random() < part
        else task
        for task in tasks
    ]


def more_bound(nodes: Sequence[Node], tasks: Sequence[Task], part: float, seed: int) -> list[Task]:
    """Binds `part` of the tasks that ask for devices to one or two kinds, drawn by the devices there are of each."""
    rng = np.random.default_rng(seed)
    kinds = kinds_of(nodes)
    there = np.zeros(len(kinds))
    for node in nodes:
        there[kinds[node.kind]] += node.devices
    return [
        task._replace(
            request=task.request._replace(
                kinds=frozenset(
                    rng.choice(len(kinds), size=int(rng.integers(1, 3)), replace=False, p=there / there.sum()).tolist()
                )
            )
        )
        if task.request.devices and rng.random() < part
        else task
        for task in tasks
    ]
