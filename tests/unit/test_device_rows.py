"""Scores of a cluster's nodes that are kept between decisions are those that are computed anew."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from moorage.fit.device_rows import DeviceRows
from moorage.fleet import normalize_node
from moorage.model.part_reports import DeviceReport
from moorage.model.part_requests import DeviceAsk, PartGroup, PropertyCondition
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape
from moorage_testkit.fleets import node, writer_of

MODELS, NODES = "ABC", 6


def gpu_node(rng: random.Random, name: str) -> NodeReport:
    models = [rng.choice(MODELS) for _ in range(rng.randint(0, 4))]
    devices = [
        DeviceReport(id=f"gpu.d/{name}/g{i}", driver="gpu.d", pool=name, name=f"g{i}", attributes={"model": model})
        for i, model in enumerate(models)
    ]
    return msgspec.structs.replace(node(name, cpu="32", memory="64Gi"), devices=devices)


def shape(rng: random.Random) -> Shape:
    groups = []
    for number in range(rng.choice((1, 1, 2))):
        wanted = PropertyCondition(key="model", operator="In", values=(rng.choice(MODELS),))
        ask = DeviceAsk(properties=((wanted,),), count=rng.choice((1, 1, 2)))
        groups.append(PartGroup(suffix=f"gpu-{number}", devices=(ask,)))
    count = rng.choice((1, 1, 3))
    return Shape(key=repr(groups), object="Deployment/a", count=count, resources={"cpu": 500, "pods": 1}, groups=groups)


@pytest.mark.parametrize("algorithm", ["best-fit", "first-fit", "spread"])
@pytest.mark.parametrize("seed", range(4))
def test_kept_scores_are_those_of_now(seed: int, algorithm: str) -> None:
    rng = random.Random(seed)
    names = {cluster: [f"{cluster}{i}" for i in range(NODES)] for cluster in "ab"}
    writer = writer_of({f"lab/{c}": [gpu_node(rng, name) for name in names[c]] for c in names})
    fleet = writer.fleet
    kept = DeviceRows(fleet)
    for _ in range(60):
        cid = rng.randrange(2)
        cluster = "ab"[cid]
        where = fleet.rows_of(cid)
        if rng.random() < 0.15:  # other devices
            report = gpu_node(rng, rng.choice(names[cluster]))
            writer.put(cid, f"lab/{cluster}", [normalize_node(report)[0]], as_of=1.0)
        asked = [shape(rng)]
        feasible = np.array([[rng.random() < 0.9 for _ in where]])
        found = kept.choose(asked, where, feasible, algorithm)
        expected = DeviceRows(fleet).choose(asked, where, feasible, algorithm)
        assert (found is None) == (expected is None)
        if found is None or expected is None:
            continue
        assert (found == expected).all()
        for at in np.flatnonzero(found[0]).tolist():  # some of it is taken
            row, held = int(where[at]), fleet.inside(int(where[at]))[1]
            paths = [held.parts[entry.part].path for entry in held.entries if held.parts[entry.part].device >= 0]
            taken = {path: {held.parts[held.at[path]].unit[0]: 1} for path in paths if rng.random() < 0.3}
            ids = {path: fleet.part_id(fleet.inside(row)[0] + held.at[path]) for path in taken}
            fleet.take_parts(row, {ids[path]: amounts for path, amounts in taken.items()}, rng.choice((1, 1, -1)))
            fleet.take(row, {"cpu": rng.choice((500, 4000))})
