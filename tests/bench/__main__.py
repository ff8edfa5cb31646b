"""`make bench [NAME=part of a name]`: runs the benchmarks, prints a line each, writes bench.json."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from . import machine_cluster, parts
from .answers import answers
from .commands import commands
from .deadlines import deadlines
from .decisions import one_at_a_time, throughput, updates
from .device_choice import device_choice
from .device_claims import device_claims
from .device_decisions import device_decisions
from .device_quotas import device_quotas
from .explain import explain
from .failing_devices import failing_devices
from .gateway import lists, posts, watchers
from .growth import growth
from .harness import Figure
from .kube import kube
from .machine_windows import machine_windows
from .machines import machine_decisions
from .node_agent import node_admissions, node_controller, node_idle, node_mesh, node_plugins, node_pools, node_proxy
from .node_core import node_core, roles_come_and_go
from .packing import packing
from .placement import candidates, reported, traps, writes
from .reports import changes, first_reports
from .resource_classes import resource_classes
from .settling import settlements
from .startup import startup


async def _one(figure: Awaitable[Figure]) -> list[Figure]:
    return [await figure]


ALL: dict[str, Callable[[], Awaitable[list[Figure]]]] = {
    "answers": answers,
    "packing": packing,
    "startup": startup,
    "commands": commands,
    "decision-1k": lambda: _one(one_at_a_time(1_000, 200, goal=True)),
    "deadlines": deadlines,
    "throughput": throughput,
    "updates": lambda: _one(updates()),
    "explain": explain,
    "reports": lambda: _one(first_reports()),
    "changes": lambda: _one(changes()),
    "settlements": lambda: _one(settlements()),
    "posts": posts,
    "lists": lists,
    "watchers": watchers,
    "parts-decisions": parts.decisions,
    "parts-wakes": parts.wakes,
    "device-choice": device_choice,
    "device-claims": device_claims,
    "device-decisions": device_decisions,
    "device-quotas": device_quotas,
    "resource-classes": resource_classes,
    "placement-candidates": candidates,
    "placement-traps": traps,
    "placement-writes": writes,
    "placement-reported": reported,
    "machines": machine_decisions,
    "node-core": node_core,
    "node-roles": roles_come_and_go,
    "node-admissions": node_admissions,
    "node-proxy": node_proxy,
    "node-pools": node_pools,
    "node-plugins": node_plugins,
    "node-idle": node_idle,
    "node-controller": node_controller,
    "node-mesh": node_mesh,
    "kube": kube,
    "failing-devices": failing_devices,
    "machine-cluster": machine_cluster.machine_cluster,
    "machine-cluster-many": lambda: _one(machine_cluster.many()),
    "machine-cluster-ended": machine_cluster.ended,
    "machine-cluster-rest": machine_cluster.rest,
    "machine-windows": machine_windows,
    "decision-10k": lambda: _one(one_at_a_time(10_000, 100, goal=False)),
    "decision-100k": lambda: _one(one_at_a_time(100_000, 50, goal=False)),
}
#: These take long and run only where their name is given.
BY_NAME = {"growth": growth}


async def main(wanted: str) -> list[Figure]:
    figures: list[Figure] = []
    chosen = {wanted: BY_NAME[wanted]} if wanted in BY_NAME else {n: b for n, b in ALL.items() if wanted in n}
    for bench in chosen.values():
        for figure in await bench():
            sys.stdout.write(figure.line() + "\n")
            sys.stdout.flush()
            figures.append(figure)
    return figures


wanted = sys.argv[1] if len(sys.argv) > 1 else ""
figures = asyncio.run(main(wanted))
if not figures:
    sys.exit(f"no benchmark is called {wanted!r}; there are {', '.join((*ALL, *BY_NAME))}")
Path("bench.json").write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
sys.exit(0 if all(figure.ok for figure in figures) else 1)
