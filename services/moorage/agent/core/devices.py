"""Derives from ResourceSlices which devices each node can use. A driver publishes pools of devices, in generations of one or
more slices, for one node, for several or for all. As in the scheduler, a pool that is being replaced counts again once its
newest generation is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from moorage.model.part_reports import DeviceReport, DeviceTaint, PropertyValue, Typed
from moorage.model.shapes import Requirement

from .kube_types import Node, NodeSelector, SelectorRequirement, Slice, SliceSpec


class DevicePool(NamedTuple):
    driver: str
    name: str


class Devices:
    """`mark` gets each node whose devices may have changed; `mark_all` is called if those of any node may have."""

    def __init__(self, mark: Callable[[str], None], mark_all: Callable[[], None]) -> None:
        self._mark, self._mark_all = mark, mark_all
        self._slices: dict[str, SliceSpec] = {}
        self._pools: dict[DevicePool, dict[str, SliceSpec]] = {}
        self._on_node: dict[str, dict[DevicePool, int]] = {}  # node → slices of each pool that name it
        self._for_many: dict[DevicePool, int] = {}  # slices of each pool that name no node

    def put(self, name: str, found: Slice) -> None:
        before = self._slices.get(name)
        if before == found.spec:
            return
        if before is not None:
            self._count(name, before, -1)
        self._slices[name] = found.spec
        self._count(name, found.spec, 1)
        self._changed(before, found.spec)

    def drop(self, name: str) -> None:
        before = self._slices.pop(name, None)
        if before is not None:
            self._count(name, before, -1)
            self._changed(before)

    def _count(self, name: str, spec: SliceSpec, by: int) -> None:
        pool = DevicePool(spec.driver, spec.pool.name)
        slices = self._pools.setdefault(pool, {})
        if by > 0:
            slices[name] = spec
        else:
            del slices[name]
            if not slices:
                del self._pools[pool]
        counts = self._on_node.setdefault(spec.node_name, {}) if spec.node_name else self._for_many
        counts[pool] = counts.get(pool, 0) + by
        if not counts[pool]:
            del counts[pool]

    def _changed(self, *specs: SliceSpec | None) -> None:
        """A slice affects its whole pool: whether it is complete, and which generation counts."""
        for spec in specs:
            if spec is None:
                continue
            pool = self._pools.get(DevicePool(spec.driver, spec.pool.name), {})
            named = [slice_spec.node_name for slice_spec in (spec, *pool.values())]
            if not all(named):
                self._mark_all()
                return
            for node in named:
                self._mark(str(node))

    def of(self, node: Node) -> Iterator[DeviceReport]:
        pools = {**self._on_node.get(node.metadata.name, {}), **self._for_many}
        for pool in sorted(pools):
            slices = self._pools[pool]
            newest = max(spec.pool.generation for spec in slices.values())
            current = {name: spec for name, spec in slices.items() if spec.pool.generation == newest}
            if any(spec.pool.resource_slice_count > len(current) for spec in current.values()):
                continue
            for name in sorted(current):
                yield from _reached(current[name], pool, node)


def _reached(spec: SliceSpec, pool: DevicePool, node: Node) -> Iterator[DeviceReport]:
    each = spec.per_device_node_selection
    if not each and not _reaches(spec.node_name, spec.node_selector, spec.all_nodes, node):
        return
    for device in spec.devices or ():
        if each and not _reaches(device.node_name, device.node_selector, device.all_nodes, node):
            continue
        yield DeviceReport(
            id=f"{pool.driver}/{pool.name}/{device.name}",
            driver=pool.driver,
            pool=pool.name,
            name=device.name,
            attributes={k: _attribute(v) for k, v in (device.attributes or {}).items()},
            capacity={k: _capacity(v) for k, v in (device.capacity or {}).items()},
            taints=msgspec.convert(device.taints or [], list[DeviceTaint]),
            shared=not (device if each else spec).node_name,
        )


def _reaches(name: str | None, selector: NodeSelector | None, everywhere: bool | None, node: Node) -> bool:
    if name:
        return name == node.metadata.name
    return bool(everywhere) or (selector is not None and selects(selector, node))


def selects(selector: NodeSelector, node: Node) -> bool:
    from moorage.selectors import term_matches  # imports numpy, which few clusters need

    labels, fields = node.metadata.labels or {}, {"metadata.name": node.metadata.name}
    for term in selector.node_selector_terms or ():
        terms = [(_requirements(term.match_expressions), labels), (_requirements(term.match_fields), fields)]
        terms = [(requirements, values) for requirements, values in terms if requirements]
        if terms and all(term_matches(requirements, values) for requirements, values in terms):
            return True
    return False


def _requirements(given: list[SelectorRequirement] | None) -> list[Requirement]:
    return [Requirement(key=r.key, operator=r.operator, values=tuple(r.values or ())) for r in given or ()]


def _attribute(value: Any) -> PropertyValue:
    """Unwraps `{"string": "x"}` to `"x"`; a version keeps its type."""
    inner = next(iter(value.values()), "") if isinstance(value, dict) else value
    if isinstance(value, dict) and "version" in value:
        return Typed(version=str(inner))
    return inner if isinstance(inner, bool | int | float | str) else str(inner)


def _capacity(value: Any) -> str:
    return str(value.get("value", "0") if isinstance(value, dict) else value)
