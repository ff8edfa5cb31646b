"""Measures how long one node takes to find devices for ResourceClaims: the upstream vectors, and requests that have no solution."""

from __future__ import annotations

import gc
import time
from typing import Any

from tests.unit.test_device_claims import NOTHING_ASKED, asked, node_report, state_of, vectors

from moorage.fit.asked_parts import Asked
from moorage.fit.node_state import NodeState
from moorage.model.shapes import Shape

from .harness import Figure

ROUNDS = 20
REQUESTS, DEVICES = 16, 64


async def device_claims() -> list[Figure]:
    cases = vectors()
    if cases is None:
        return [Figure(name="claims to devices: MOORAGE_VECTORS does not name the vectors", n=0, p50=0, p99=0)]
    samples: list[float] = []
    for case in cases:
        if case["name"] in NOTHING_ASKED:
            continue
        state, shape = state_of(node_report(case)), asked([claim["spec"] for claim in case["claims"]])
        _took(state, shape)  # expressions are compiled once
        samples.append(_took(state, shape))
    figures = [Figure.of(f"claims on one node, {len(samples)} upstream cases", samples, "p99 <= 20 ms", p99=20)]
    state = state_of(node_report(_node()))
    for name, requests in _hopeless().items():
        shape = asked([requests])
        _took(state, shape)
        times = [_took(state, shape) for _ in range(ROUNDS)]
        title = f"{REQUESTS} requests, {DEVICES} devices, no solution: {name}"
        figures.append(Figure.of(title, times, "p99 <= 50 ms; upstream: none in 10 s", p99=50))
    return figures


def _took(state: NodeState, shape: Shape) -> float:
    """Returns the milliseconds of CPU of one search, in a state of its own."""
    fresh = NodeState(state.layout, state.free)
    gc.collect()  # what earlier searches left is not this one's
    start = time.process_time()
    fresh.assign([(Asked(shape), 1)])
    return 1e3 * (time.process_time() - start)


def _node() -> dict[str, Any]:
    devices = [
        {
            "name": f"gpu-{i:02}",
            "attributes": {
                "numa": {"int": i // 15},
                "model": {"string": "ab"[i % 2]},
                "index": {"int": i % 15},
                "uuid": {"string": f"GPU-{i}"},
            },
        }
        for i in range(DEVICES)
    ]
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d.io", "pool": pool, "nodeName": "n", "devices": devices}
    return {
        "node": {"metadata": {"name": "n", "labels": {}}},
        "slices": [{"metadata": {"name": "s"}, "spec": spec}],
        "classes": [{"metadata": {"name": "gpu"}, "spec": {}}],
    }


def _hopeless() -> dict[str, dict[str, Any]]:
    def of(constraints: list[dict[str, Any]], *expressions: str) -> dict[str, Any]:
        requests = [
            {
                "name": f"r{i}",
                "exactly": {
                    "deviceClassName": "gpu",
                    "selectors": [{"cel": {"expression": expressions[i % len(expressions)]}}] if expressions else [],
                },
            }
            for i in range(REQUESTS)
        ]
        return {"devices": {"requests": requests, "constraints": constraints}}

    numa, attribute = {"matchAttribute": "d.io/numa"}, "device.attributes['d.io']"
    halves = [{"requests": [f"r{i}" for i in range(half, half + 8)], "matchAttribute": "d.io/index"} for half in (0, 8)]
    return {
        "one zone has 15": of([numa]),
        "15 values": of([{"distinctAttribute": "d.io/index"}]),
        "15 are selected": of([], f"{attribute}.numa == 0"),
        "two relations": of([{"matchAttribute": "d.io/model"}, {"distinctAttribute": "d.io/numa"}]),
        "models of one zone": of([numa], *[f"{attribute}.model == '{model}'" for model in "ab"]),
        "two halves": of(halves),
    }
