"""Measures how long it takes to find the devices of a class, the classes of a device, and the status of classes after a pod event."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import numpy as np

from moorage.classes import BUILT_IN_ONLY, ClassCatalog, ClassIndex, Selector, identity
from moorage.fleet import ClassStatus, FleetWriter, normalize_node, with_devices
from moorage.model.part_reports import PropertyValue, Typed
from moorage.model.part_requests import PropertyCondition
from moorage.model.reports import NodeReport
from moorage.model.resource_classes import FleetObject, StoredMetadata
from moorage.parts import PropertyTable

from .harness import Figure

DEVICES, KINDS, CLASSES = 1_000_000, 300, 1_000
CLUSTERS, STATUS_CLASSES, NODES = 10_000, 100, 4
GPU, MEMORY = "nvidia.com/gpu", "nvidia.com/gpu.memory"


def kind(number: int) -> dict[str, PropertyValue]:
    return {
        "Kind": f"kind-{number}",
        "Vendor": f"vendor-{number % 7}",
        "memory": Typed(quantity=f"{8 + number % 80}Gi"),
        "version": Typed(version=f"{number % 9}.{number}"),
    }


def class_of(number: int) -> Selector:
    wanted = PropertyCondition(key="Kind", operator="In", values=(f"kind-{number % KINDS}",))
    least = PropertyCondition(key="memory", operator="GtEq", values=(f"{number % 90}Gi",))
    return Selector(((wanted, least),))


def milliseconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return 1e3 * (time.process_time() - began)


def _class_over_devices() -> Figure:
    """Each device has a uuid, so that all sets of properties are distinct. Each sample is another class, for the first time."""
    table, kinds = PropertyTable(), [kind(number) for number in range(KINDS)]
    numbers = np.fromiter(
        (table.number({**kinds[i % KINDS], "uuid": f"uuid-{i}"}.items()) for i in range(DEVICES)), np.int32, DEVICES
    )
    columns = {name: table.columns[name].of_set[1 : DEVICES + 1].astype(np.int64) for name in ("Kind", "memory")}
    ours, floor = [], []
    for number in range(0, KINDS, 10):
        selector = class_of(number)
        ours.append(milliseconds(lambda: np.take(table.selected(selector), numbers, mode="clip")))  # noqa: B023
        value = int(columns["Kind"][number])
        floor.append(milliseconds(lambda: (columns["Kind"] == value) & (columns["memory"] >= 40)))  # noqa: B023
    parts = {"one numpy pass over the columns": float(np.median(floor))}
    figure = Figure.of("a class over 1,000,000 devices of 300 kinds, first", ours, "<= 15 x", floor=parts)
    figure.ok = figure.ratio <= 15
    return figure


def _classes_of_a_device() -> Figure:
    """Values are new to the index in each sample."""
    index = ClassIndex({str(number): class_of(number) for number in range(CLASSES)})
    devices = [kind(i % KINDS) | {"memory": Typed(quantity=f"{i * 37 + 1}Mi"), "uuid": f"u-{i}"} for i in range(2_000)]
    assert len({identity(device["memory"]) for device in devices}) == len(devices)
    samples = [milliseconds(lambda: index.selecting(device)) for device in devices]  # noqa: B023
    return Figure.of("one device changed, 1,000 classes", samples, "p50 <= 0.1", p50=0.1)


def _status_after_an_event() -> Figure:
    writer, catalog = FleetWriter(), ClassCatalog()
    for number in range(STATUS_CLASSES):
        wanted = {"key": "memory", "operator": "GtEq", "values": [f"{number}Gi"]}
        meta = StoredMetadata(name=f"class-{number}", uid=str(number))
        spec = {"resourceSelector": [{"matchExpressions": [wanted]}]}
        made = FleetObject(kind="ResourceClass", metadata=meta, spec=spec)
        catalog.put(made.key, msgspec.json.encode(made), 1)

    def node(at: int, used: int) -> NodeReport:
        labels = {MEMORY: str(1024 * (16 + at * 16))}
        allocatable = {"cpu": "8", GPU: "8"}
        return NodeReport(
            name=f"n-{at}", ready=True, allocatable=allocatable, requested={GPU: str(used)}, labels=labels
        )

    def rows(used: int) -> list[object]:
        return [with_devices(normalize_node(node(at, used))[0], BUILT_IN_ONLY) for at in range(NODES)]

    plain = rows(0)
    for cid in range(CLUSTERS):
        writer.put(cid, f"lab/c-{cid}", plain, whole=True, as_of=1.0)  # type: ignore[arg-type]
    status = ClassStatus(writer.fleet, catalog)
    status.refresh()
    samples = []
    for number in range(200):
        changed = with_devices(normalize_node(node(1, 1 + number % 7))[0], BUILT_IN_ONLY)
        writer.put(number * 7, f"lab/c-{number * 7}", [changed], as_of=1.0)
        samples.append(milliseconds(status.refresh))
    return Figure.of("class status after a pod event, 10,000 clusters, 100 classes", samples, "<= 300", p99=300)


async def resource_classes() -> list[Figure]:
    return [_class_over_devices(), _classes_of_a_device(), _status_after_an_event()]
