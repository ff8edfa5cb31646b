"""Nodes that differ only in identities of devices, like uuids, share a layout, and are told apart where a need names these."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.classes import Selector
from moorage.fit import FitCache
from moorage.fit.device_counts import count_devices
from moorage.fleet import FleetWriter, device_properties, normalize_node, selected_rows
from moorage.model.part_reports import DeviceClassReport, DeviceReport, PropertyValue, Typed
from moorage.model.part_requests import AttributeRelation, DeviceAsk, PartGroup, PropertyCondition
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape
from moorage.parts import identities
from moorage.parts.inside import Inside, decode, encode
from moorage.parts.layout import common_layout, layout_of

CLUSTERS, NODES, DEVICES = 3, 2, 3
#: Few values, so that devices of several nodes have the same.
UUIDS = ("GPU-a", "GPU-b", "GPU-c", "17")
EXPRESSIONS = (
    'device.attributes["d.com"].uuid == "GPU-a"',
    'device.attributes["d.com"].model == "A"',
    'device.attributes["d.com"].exists(name, name == "uuid")',
)


def _condition(key: str, operator: str, *values: str) -> PropertyCondition:
    return PropertyCondition(key=key, operator=operator, values=values)  # type: ignore[arg-type]


def _device(number: int, uuid: str | None, *, driver: bool = False) -> DeviceReport:
    properties: dict[str, PropertyValue] = {"memory": Typed(quantity=f"{40 * (1 + number % 2)}Gi")}
    own: dict[str, PropertyValue] = {} if uuid is None else {"uuid": uuid}
    if driver:
        attributes: dict[str, PropertyValue] = {"model": "A" if number else "B", **own}
        return DeviceReport(driver="d.com", pool="n", name=f"g{number}", properties=properties, attributes=attributes)
    return DeviceReport(name=f"g{number}", kind="gpu", properties={**properties, **own})


def _fleet(uuids: list[str | None], *, driver: bool = False) -> FleetWriter:
    writer, left = FleetWriter(), iter(uuids)
    classes = [DeviceClassReport(name="by-uuid", selectors=[EXPRESSIONS[0]])]
    for cid in range(CLUSTERS):
        rows = []
        for node in range(NODES):
            devices = [_device(number, next(left), driver=driver) for number in range(DEVICES)]
            report = NodeReport(name=f"n-{node}", ready=True, allocatable={"cpu": "8"}, devices=devices)
            report.device_classes = classes if driver else []
            rows.append(normalize_node(report)[0])
        writer.put(cid, f"lab/c-{cid}", rows, whole=True, as_of=1.0)
    return writer


def _same_fits(uuids: list[str | None], shape: Shape, *, driver: bool = False) -> None:
    found = FitCache(_fleet(uuids, driver=driver).fleet).get(shape).fits
    with mock.patch.object(identities, "is_identity", lambda name: False):
        expected = FitCache(_fleet(uuids, driver=driver).fleet).get(shape).fits
    assert found.tolist() == expected.tolist()


_UUIDS = st.lists(
    st.sampled_from((*UUIDS, None)), min_size=CLUSTERS * NODES * DEVICES, max_size=CLUSTERS * NODES * DEVICES
)
_OF_UUID = st.builds(
    lambda operator, values: _condition("uuid", operator, *values),
    st.sampled_from(("In", "NotIn")),
    st.lists(st.sampled_from(UUIDS), min_size=1, max_size=2),
)
_CONDITIONS = st.one_of(
    _OF_UUID,
    st.sampled_from(
        [_condition("uuid", "Exists"), _condition("uuid", "DoesNotExist"), _condition("memory", "GtEq", "60Gi")]
    ),
)
_SELECTORS = st.lists(st.lists(_CONDITIONS, min_size=1, max_size=2).map(tuple), min_size=1, max_size=2).map(tuple)


@given(_UUIDS, st.lists(_SELECTORS, min_size=1, max_size=2), st.integers(1, 2), st.booleans())
@settings(deadline=None, max_examples=120)
def test_needs_that_name_identities_fit_where_they_would_with_a_layout_for_each_node(
    uuids: list[str | None], selectors: list[tuple[tuple[PropertyCondition, ...], ...]], count: int, distinct: bool
) -> None:
    asks = [(DeviceAsk(resource_class="c", properties=selector, count=count),) for selector in selectors]
    groups = [PartGroup(suffix=f"/need-{i}", devices=ask) for i, ask in enumerate(asks)]
    relation = AttributeRelation(groups=("/need-0",), attribute="uuid", distinct=True)
    shape = Shape(key="s", object="Deployment/a", groups=groups, relations=[relation] if distinct else [])
    _same_fits(uuids, shape)


@given(_UUIDS, st.sampled_from([*EXPRESSIONS, ""]), st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_expressions_see_identities(uuids: list[str | None], expression: str, count: int) -> None:
    ask = (
        DeviceAsk(selectors=(expression,), count=count)
        if expression
        else DeviceAsk(device_class="by-uuid", count=count)
    )
    shape = Shape(key="s", object="Deployment/a", groups=[PartGroup(suffix="claim/request", devices=(ask,))])
    _same_fits(uuids, shape, driver=True)


@given(_UUIDS, _SELECTORS)
@settings(deadline=None, max_examples=100)
def test_classes_select_and_counts_count_by_identities(
    uuids: list[str | None], selector: tuple[tuple[PropertyCondition, ...], ...]
) -> None:
    def found() -> tuple[list[bool], list[list[int]], list[object]]:
        fleet = _fleet(uuids).fleet
        rows = np.flatnonzero(fleet.parts.node[: fleet.parts.n] >= 0)
        counts = count_devices(fleet, DeviceAsk(resource_class="c", properties=selector), fleet.known)
        properties: list[object] = [device_properties(fleet, row) for row in rows.tolist()]
        return selected_rows(fleet, rows, Selector(selector)).tolist(), [c.tolist() for c in counts[:9]], properties

    ours = found()
    with mock.patch.object(identities, "is_identity", lambda name: False):
        assert ours == found()


def test_nodes_that_differ_only_in_identities_share_a_layout() -> None:
    fleet = _fleet([f"GPU-{number}" for number in range(CLUSTERS * NODES * DEVICES)]).fleet
    assert len(fleet.layout_sets) == 1 + CLUSTERS * NODES
    assert fleet.parts.layouts.part.n == 1 + DEVICES
    assert np.unique(fleet.parts.property_set[: fleet.parts.n]).tolist() == [0, 1, 2]  # nodes, and two sizes of memory
    row = fleet.row_of(1, "n-1")
    assert row is not None
    _, common = fleet.inside(row)
    own = fleet.own_layout(row)
    assert common.entries == own.entries and common.at == own.at
    assert dict(own.parts[1].properties)["uuid"] == "GPU-9" and "uuid" not in dict(common.parts[1].properties)


def test_what_is_inside_a_node_is_read_as_it_was_written() -> None:
    inside = Inside(devices=[_device(0, "GPU-a"), _device(1, None), _device(2, "GPU-b", driver=True)])
    source = encode(inside)
    assert decode(source) == inside and encode(decode(source)) == source
    assert common_layout(source).source == encode(
        Inside(devices=[_device(0, None), _device(1, None), _device(2, None, driver=True)])
    )
    assert [part.path for part in layout_of(source).parts] == [part.path for part in common_layout(source).parts]


@pytest.mark.parametrize("name", ["uuid", "UUID", "gpu.nvidia.com/uuid", "serial-number", "a.com/macAddress"])
def test_identities_are_known_by_their_names(name: str) -> None:
    assert identities.is_identity(name)
    assert identities.mentions_identity(f'{{"key":"{name}"}}'.encode())


def test_identities_for_another_number_of_devices_are_refused() -> None:
    source = encode(Inside(devices=[_device(0, "GPU-a")]))
    with pytest.raises(ValueError, match="identities of 2 devices"):
        layout_of(source[:-1] + b",{}]")
