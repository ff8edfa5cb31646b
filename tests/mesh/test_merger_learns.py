"""A merger that starts learns what was asked for devices from the decisions that stand."""

from __future__ import annotations

import msgspec

from moorage.model.part_reports import DeviceReport
from moorage.model.part_requests import DeviceAsk, PartGroup, PropertyCondition
from moorage.model.reports import NodeReport
from moorage.model.shapes import ShapedApp
from moorage_testkit.fleets import node
from moorage_testkit.merger_harness import Clusters, OpenMergers, revision, shape


def _gpus(name: str, models: str) -> NodeReport:
    devices = [
        DeviceReport(id=f"gpu.d/{name}/g{i}", driver="gpu.d", pool=name, name=f"g{i}", attributes={"model": model})
        for i, model in enumerate(models)
    ]
    return msgspec.structs.replace(node(name, cpu="64"), devices=devices)


def _clusters() -> Clusters:
    return {"lab/a": [_gpus("a0", "AAAAAAAA"), _gpus("a1", "AABB")], "lab/b": [_gpus("b0", "BBBBBBBB")]}


def _app(model: str, devices: int, pods: int) -> ShapedApp:
    wanted = PropertyCondition(key="model", operator="In", values=(model,))
    ask = DeviceAsk(properties=((wanted,),), count=devices)
    groups = [PartGroup(suffix="gpu", devices=(ask,))]
    return ShapedApp(name="a", shapes=[shape(count=pods, groups=groups)])


async def test_a_restarted_merger_knows_the_mix(open_mergers: OpenMergers) -> None:
    async with open_mergers(_clusters) as s:
        asked = [("A", 1, 2), ("B", 2, 1), ("A", 2, 1), ("B", 1, 3), ("A", 1, 1)]
        for number, (model, devices, pods) in enumerate(asked):
            await s.decide(revision(f"g{number}", _app(model, devices, pods)))
            await s.attempt(f"g{number}", "Placed")
        before = s.mergers[0].decider.devices.mix
        assert before.known
        await s.buses[0].close()
        s.mergers.clear()
        mixes = [(await s.merger()).decider.devices.mix for _ in range(2)]
        for mix in mixes:
            assert (mix.requests, mix.weights.tolist()) == (before.requests, before.weights.tolist())
            assert (mix.sample, mix.distinct, mix.known) == (before.sample, before.distinct, before.known)
            assert mix.counts.tolist() == before.counts.tolist()
