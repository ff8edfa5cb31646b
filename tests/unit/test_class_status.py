"""The status of classes is that of the fleet as it is, in whatever order events came."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.classes import BUILT_IN_ONLY, ClassCatalog
from moorage.fleet import ClassStatus, DeviceCount, Fleet, FleetWriter, format_units, normalize_node, with_devices
from moorage.fleet.delta import GONE
from moorage.model.part_reports import DeviceReport, DeviceTaint, PropertyValue
from moorage.model.reports import NodeReport
from moorage.model.resource_classes import FleetObject, StoredMetadata

GPU, MEMORY, DRIVER = "nvidia.com/gpu", "nvidia.com/gpu.memory", "gpu.nvidia.com"
CLUSTERS = ("lab/a", "lab/b", "lab/c")


def class_(name: str, *conditions: tuple[str, str, str], cluster: str = "") -> tuple[str, bytes]:
    expressions = [{"key": k, "operator": o, "values": [v]} for k, o, v in conditions]
    meta = StoredMetadata(name=name, cluster=cluster, uid=f"{name}{cluster}{conditions}")
    found = FleetObject(
        kind="ResourceClass", metadata=meta, spec={"resourceSelector": [{"matchExpressions": expressions}]}
    )
    return found.key, msgspec.json.encode(found)


def node(
    name: str, gpus: int = 0, memory: int = 16, used: int = 0, devices: list[DeviceReport] | None = None
) -> NodeReport:
    return NodeReport(
        name=name,
        ready=True,
        allocatable={"cpu": "8"} | ({GPU: str(gpus)} if gpus else {}),
        requested={GPU: str(used)} if used else {},
        labels={MEMORY: str(memory * 1024)},
        devices=devices or [],
        in_use={f"{DRIVER}/{name}/d-{i}": {"GPU_NVIDIA_COM": "1"} for i in range(used)} if devices else {},
    )


def device(node: str, number: int, memory: int, *effects: str) -> DeviceReport:
    taints = [DeviceTaint(key="failed", effect=effect) for effect in effects]
    name, capacity = f"d-{number}", {"memory": f"{memory}Gi"}
    attributes: dict[str, PropertyValue] = {"uuid": f"{node}-{number}"}
    return DeviceReport(driver=DRIVER, pool=node, name=name, capacity=capacity, taints=taints, attributes=attributes)


class World:
    def __init__(self) -> None:
        self.writer, self.catalog = FleetWriter(), ClassCatalog()
        self.status = ClassStatus(self.fleet, self.catalog)

    @property
    def fleet(self) -> Fleet:
        return self.writer.fleet

    def put(self, cluster: str, *nodes: NodeReport, gone: list[str] | None = None) -> None:
        rows = [with_devices(normalize_node(one)[0], BUILT_IN_ONLY) for one in nodes]
        cid = CLUSTERS.index(cluster)
        self.writer.put(cid, cluster, rows, gone=gone or [], as_of=1.0)

    def counts(self, name: str, cluster: str = "") -> tuple[int, int]:
        self.status.refresh()
        found = self.status.total(name, cluster)
        return found.allocatable, found.requested


LARGE = class_("large", ("Kind", "In", "nvidia-gpu"), ("memory", "GtEq", "30G"))


def test_devices_are_counted_with_what_strangers_hold() -> None:
    world = World()
    world.catalog.put(*LARGE, 1)
    world.put("lab/a", node("n-0", 4, 80, used=1), node("n-1", 2))
    assert world.counts("large") == (4000, 1000)
    world.put("lab/a", node("n-0", 4, 80, used=3))
    assert world.counts("large") == (4000, 3000)
    world.put("lab/b", node("n-0", devices=[device("n-0", 0, 80), device("n-0", 1, 80, "NoExecute")], used=1))
    assert world.counts("large") == (5000, 4000)
    assert world.status.by_cluster("large") == {"lab/a": DeviceCount(4000, 3000), "lab/b": DeviceCount(1000, 1000)}


@pytest.mark.parametrize(
    ("effects", "counts"),
    [
        (["NoSchedule"], (2000, 1000)),  # it is healthy, and its pod stays
        (["None"], (2000, 1000)),
        (["NoSchedule", "NoExecute"], (1000, 0)),
    ],
)
def test_a_taint_that_keeps_new_pods_away_leaves_a_device_healthy(effects: list[str], counts: tuple[int, int]) -> None:
    world = World()
    world.catalog.put(*LARGE, 1)
    devices = [device("n-0", 0, 80, *effects), device("n-0", 1, 80)]
    world.put("lab/a", node("n-0", devices=devices, used=1))
    assert world.counts("large") == counts


def test_claims_count_before_their_pods_run() -> None:
    world = World()
    world.catalog.put(*LARGE, 1)
    world.put("lab/a", node("n-0", 4, 80))
    world.put("lab/b", node("n-0", devices=[device("n-0", 0, 80)]))
    rows = {cluster: int(world.fleet.rows_of(world.fleet.ids[cluster])[0]) for cluster in ("lab/a", "lab/b")}
    world.fleet.take(rows["lab/a"], {GPU: 2})
    world.fleet.take_parts(rows["lab/b"], {f"{DRIVER}/n-0/d-0": {"GPU_NVIDIA_COM": 1}})
    assert world.counts("large") == (5000, 3000)


def test_a_device_that_is_divided_is_one_of_which_a_share_is_taken() -> None:
    shared = DeviceReport(driver=DRIVER, pool="n-0", name="d-0", capacity={"memory": "80Gi"}, divisible=True)
    report = NodeReport(name="n-0", ready=True, allocatable={"cpu": "8"}, devices=[shared])
    report.in_use = {f"{DRIVER}/n-0/d-0": {"MEMORY": "20Gi"}}
    world = World()
    world.catalog.put(*LARGE, 1)
    world.put("lab/a", report)
    assert world.counts("large") == (1000, 250) and format_units(250) == "250m"


def test_only_classes_that_changed_are_told() -> None:
    world = World()
    world.catalog.put(*LARGE, 1)
    world.catalog.put(*class_("nics", ("Kind", "In", "nic")), 2)
    world.put("lab/a", node("n-0", 4, 80))
    assert world.status.refresh() == {("large", ""), ("nics", "")}
    assert world.status.refresh() == set()
    world.put("lab/a", node("n-0", 4, 80, used=1))
    assert world.status.refresh() == {("large", "")}
    world.catalog.put(LARGE[0], None)
    assert world.status.refresh() == {("large", "")}


CLASSES = [
    LARGE,
    class_("large", ("memory", "GtEq", "10G"), cluster="lab/b"),
    class_("small", ("Kind", "In", "nvidia-gpu"), ("memory", "Lt", "30G")),
    class_("there", ("Cluster", "Eq", "lab/a")),
    class_("one", ("Node", "Eq", "n-1")),
    class_("first", ("Name", "Eq", "d-0")),
]
nodes = st.builds(
    lambda at, gpus, memory, used, drawn: (
        node(f"n-{at}", gpus, memory, min(used, gpus))
        if not drawn
        else node(
            f"n-{at}",
            devices=[device(f"n-{at}", i, memory, *([], ["NoExecute"], ["NoSchedule"])[i]) for i in range(drawn)],
            used=min(used, drawn),
        )
    ),
    st.integers(0, 2),
    st.integers(0, 4),
    st.sampled_from([16, 80]),
    st.integers(0, 2),
    st.integers(0, 3),
)
steps = st.one_of(
    st.tuples(st.just("node"), st.sampled_from(CLUSTERS), nodes),
    st.tuples(st.just("gone"), st.sampled_from(CLUSTERS), st.integers(0, 2)),
    st.tuples(st.just("left"), st.sampled_from(CLUSTERS), st.none()),
    st.tuples(st.just("class"), st.sampled_from(CLASSES), st.booleans()),
    st.tuples(st.just("refresh"), st.none(), st.none()),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(steps, max_size=24))
def test_any_order_of_events_comes_to_the_same(found: list[tuple[str, object, object]]) -> None:
    world, told = World(), dict[tuple[str, str], tuple[int, int]]()
    for kind, first, second in found:
        if kind == "node":
            assert isinstance(first, str) and isinstance(second, NodeReport)
            world.put(first, second)
        elif kind == "gone":
            assert isinstance(first, str)
            if first in world.fleet.ids:
                world.put(first, gone=[f"n-{second}"])
        elif kind == "left":
            cid = CLUSTERS.index(str(first))
            if cid < world.fleet.size and world.fleet.known[cid]:
                world.writer.put(cid, str(first), [], whole=True, state=GONE)
        elif kind == "class":
            assert isinstance(first, tuple)
            world.catalog.put(first[0], first[1] if second else None, 1)
        else:
            for key in world.status.refresh():
                told[key] = world.counts(*key)
    for key in world.status.refresh():
        told[key] = world.counts(*key)
    fresh = ClassStatus(world.fleet, world.catalog)
    fresh.refresh()
    for one in world.catalog.classes:
        key = one.name, one.cluster
        assert world.status.by_cluster(*key) == fresh.by_cluster(*key)
        assert told[key] == (fresh.total(*key).allocatable, fresh.total(*key).requested), "each change was told"
        by_hand = sum(_units(world, cid, key) for cid in np.flatnonzero(world.fleet.known).tolist())
        assert fresh.total(*key).allocatable == by_hand


def _units(world: World, cid: int, key: tuple[str, str]) -> int:
    """Counts one by one, by the layouts of nodes, what a class selects on a cluster."""
    fleet, cluster = world.fleet, world.fleet.names[cid]
    known = world.catalog.class_in(key[0], cluster)
    if known is None or (known.name, known.cluster) != key:
        return 0
    units = 0
    for row in fleet.rows_of(cid).tolist():
        for part in fleet.inside(row)[1].parts[1:]:
            own = {"Name": part.path.rpartition("/")[2], "Node": fleet.node_name(row), "Cluster": cluster}
            if (part.healthy or part.closed) and known.selector.matches(dict(part.properties) | own):
                name, size = part.unit
                units += part.inventories[name].capacity // size * 1000
    return units
