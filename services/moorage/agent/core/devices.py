"""Derives from ResourceSlices which devices each node can use. A driver publishes pools of devices, in generations of one or
more slices, for one node, for several or for all. As in the scheduler, a pool that is being replaced counts again once its
newest generation is complete. Of a pool that is not, or that makes no sense, no device counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from moorage.model.part_reports import CounterSetReport, DeviceReport, DeviceTaint, PropertyValue, Typed
from moorage.model.shapes import Requirement

from .kube_types import DeviceBody, Node, NodeSelector, SelectorRequirement, Slice, SliceSpec


class DevicePool(NamedTuple):
    driver: str
    name: str


class NodeDevices(NamedTuple):
    devices: list[DeviceReport]
    counters: list[CounterSetReport]
    problems: list[str]


class _Pool(NamedTuple):
    """The slices of the newest generation of a pool, and why none of them counts (empty: they do). `crossing`: the sets of
    counters of which devices of several nodes take."""

    slices: dict[str, SliceSpec]
    problem: str
    counters: list[CounterSetReport]
    crossing: frozenset[str]


class Devices:
    """`mark` gets each node whose devices may have changed; `mark_all` is called if those of any node may have."""

    def __init__(self, mark: Callable[[str], None], mark_all: Callable[[], None]) -> None:
        self._mark, self._mark_all = mark, mark_all
        self._slices: dict[str, SliceSpec] = {}
        self._pools: dict[DevicePool, dict[str, SliceSpec]] = {}
        self._on_node: dict[str, dict[DevicePool, int]] = {}  # node → slices of each pool that name it
        self._for_many: dict[DevicePool, int] = {}  # slices of each pool that name no node
        self._current: dict[DevicePool, _Pool] = {}

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
        self._current.pop(pool, None)
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

    def mark_pool(self, pool: DevicePool) -> None:
        """Marks the nodes that reach devices of a pool."""
        self._changed(*self._pools.get(pool, {}).values())

    def of(self, node: Node) -> NodeDevices:
        found = NodeDevices([], [], [])
        pools = {**self._on_node.get(node.metadata.name, {}), **self._for_many}
        for pool in sorted(pools):
            current = self._current.get(pool)
            if current is None:
                current = self._current[pool] = _current(pool, self._pools[pool])
            if current.problem:
                if any(_slice_reaches(spec, node) for spec in current.slices.values()):
                    found.problems.append(f"pool {pool.driver}/{pool.name}: {current.problem}")
                continue
            before = len(found.devices)
            for name in sorted(current.slices):
                found.devices.extend(_reached(current.slices[name], pool, node, current.crossing))
            taken = {name for device in found.devices[before:] if not device.shared for name in device.consumes}
            found.counters.extend(counters for counters in current.counters if counters.name in taken)
        return found


def _current(pool: DevicePool, slices: dict[str, SliceSpec]) -> _Pool:
    newest = max(spec.pool.generation for spec in slices.values())
    current = {name: spec for name, spec in slices.items() if spec.pool.generation == newest}
    specs = [current[name] for name in sorted(current)]
    counters = [
        CounterSetReport(
            driver=pool.driver,
            pool=pool.name,
            name=s.name,
            counters={k: _capacity(v) for k, v in (s.counters or {}).items()},
        )
        for spec in specs
        for s in spec.shared_counters or ()
    ]
    problem, crossing = "", frozenset[str]()
    if (expected := max(spec.pool.resource_slice_count for spec in specs)) > len(specs):
        problem = f"{len(specs)} of {expected} slices of generation {newest} are there"
    else:
        names = [device.name for spec in specs for device in spec.devices or ()]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        sets = {found.name: found.counters for found in counters}
        unknown = sorted(
            f"{use.counter_set}/{counter}"
            for _, body in _bodies(specs)
            for use in body.consumes_counters or ()
            for counter in use.counters or {}
            if counter not in sets.get(use.counter_set, {})
        )
        if twice:
            problem = f"two devices are named {twice[0]}"
        elif unknown:
            problem = f"devices take of the counter {unknown[0]}, which is not there"
        crossing = _crossing(specs)
    return _Pool(current, problem, counters, crossing)


def _bodies(specs: Iterable[SliceSpec]) -> Iterator[tuple[str | None, DeviceBody]]:
    """Yields the devices of slices, each with the only node that reaches it."""
    for spec in specs:
        for device in spec.devices or ():
            yield (device.body if spec.per_device_node_selection else spec).node_name, device.body


def _crossing(specs: Iterable[SliceSpec]) -> frozenset[str]:
    nodes: dict[str, set[str | None]] = {}
    for node, body in _bodies(specs):
        for use in body.consumes_counters or ():
            nodes.setdefault(use.counter_set, set()).add(node)
    return frozenset(name for name, of in nodes.items() if len(of) > 1 or None in of)


def _slice_reaches(spec: SliceSpec, node: Node) -> bool:
    if not spec.per_device_node_selection:
        return _reaches(spec.node_name, spec.node_selector, spec.all_nodes, node)
    bodies = (device.body for device in spec.devices or ())
    return any(_reaches(body.node_name, body.node_selector, body.all_nodes, node) for body in bodies)


def _reached(spec: SliceSpec, pool: DevicePool, node: Node, crossing: frozenset[str]) -> Iterator[DeviceReport]:
    each = spec.per_device_node_selection
    if not each and not _reaches(spec.node_name, spec.node_selector, spec.all_nodes, node):
        return
    for device in spec.devices or ():
        body = device.body
        if each and not _reaches(body.node_name, body.node_selector, body.all_nodes, node):
            continue
        consumes = {use.counter_set: use.counters or {} for use in body.consumes_counters or ()}
        yield DeviceReport(
            id=f"{pool.driver}/{pool.name}/{device.name}",
            driver=pool.driver,
            pool=pool.name,
            name=device.name,
            attributes={k: _attribute(v) for k, v in (body.attributes or {}).items()},
            capacity={k: _capacity(v) for k, v in (body.capacity or {}).items()},
            taints=msgspec.convert(body.taints or [], list[DeviceTaint]),
            shared=not (body if each else spec).node_name or not crossing.isdisjoint(consumes),
            divisible=bool(body.allow_multiple_allocations),
            consumes={name: {k: _capacity(v) for k, v in counters.items()} for name, counters in consumes.items()},
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
