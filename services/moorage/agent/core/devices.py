"""Which devices each node can use, from ResourceSlices: a driver publishes pools of them, in generations of one or more
slices, for one node, for several or for all. A pool that is being replaced counts again when its newest generation is
whole, as the scheduler has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from moorage.model.shapes import Requirement

from .kube_types import Node, NodeSelector, Selects, Slice, SliceSpec

#: `shared`: other nodes can use the same device; it has one id wherever it appears.
Device = dict[str, Any]


class Pool(NamedTuple):
    driver: str
    name: str


class Devices:
    """`touch` gets the nodes whose devices may have changed, `touch_all` says that it may be any of them."""

    def __init__(self, touch: Callable[[str], None], touch_all: Callable[[], None]) -> None:
        self._touch, self._touch_all = touch, touch_all
        self._slices: dict[str, SliceSpec] = {}
        self._pools: dict[Pool, dict[str, SliceSpec]] = {}
        self._on_node: dict[str, dict[Pool, int]] = {}  # how many slices of a pool name the node
        self._wide: dict[Pool, int] = {}  # how many of a pool name none

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
        pool = Pool(spec.driver, spec.pool.name)
        slices = self._pools.setdefault(pool, {})
        if by > 0:
            slices[name] = spec
        else:
            del slices[name]
            if not slices:
                del self._pools[pool]
        counts = self._on_node.setdefault(spec.node_name, {}) if spec.node_name else self._wide
        counts[pool] = counts.get(pool, 0) + by
        if not counts[pool]:
            del counts[pool]

    def _changed(self, *specs: SliceSpec | None) -> None:
        """One slice decides for its whole pool: whether it is whole, and which generation counts."""
        for spec in specs:
            if spec is None:
                continue
            pool = self._pools.get(Pool(spec.driver, spec.pool.name), {})
            named = [one.node_name for one in (spec, *pool.values())]
            if not all(named):
                self._touch_all()
                return
            for node in named:
                self._touch(str(node))

    def of(self, node: Node) -> Iterator[Device]:
        pools = {**self._on_node.get(node.metadata.name, {}), **self._wide}
        for pool in sorted(pools):
            slices = self._pools[pool]
            newest = max(spec.pool.generation for spec in slices.values())
            current = {name: spec for name, spec in slices.items() if spec.pool.generation == newest}
            if any(spec.pool.resource_slice_count > len(current) for spec in current.values()):
                continue
            for name in sorted(current):
                yield from _reached(current[name], pool, node)


def _reached(spec: SliceSpec, pool: Pool, node: Node) -> Iterator[Device]:
    each = spec.per_device_node_selection
    if not each and not _reaches(spec.node_name, spec.node_selector, spec.all_nodes, node):
        return
    for device in spec.devices or ():
        if each and not _reaches(device.node_name, device.node_selector, device.all_nodes, node):
            continue
        made = {
            "id": f"{pool.driver}/{pool.name}/{device.name}",
            "driver": pool.driver,
            "pool": pool.name,
            "name": device.name,
            "attributes": {k: _attribute(v) for k, v in (device.attributes or {}).items()},
            "capacity": {k: _capacity(v) for k, v in (device.capacity or {}).items()},
            "taints": device.taints or [],
        }
        yield made if (device if each else spec).node_name else {**made, "shared": True}


def _reaches(name: str | None, selector: NodeSelector | None, everywhere: bool | None, node: Node) -> bool:
    if name:
        return name == node.metadata.name
    return bool(everywhere) or (selector is not None and selects(selector, node))


def selects(selector: NodeSelector, node: Node) -> bool:
    from moorage.selectors import term_matches  # brings numpy along, which few clusters' agents need

    labels, fields = node.metadata.labels or {}, {"metadata.name": node.metadata.name}
    for term in selector.node_selector_terms or ():
        asked = [(_requirements(term.match_expressions), labels), (_requirements(term.match_fields), fields)]
        asked = [(wanted, facts) for wanted, facts in asked if wanted]
        if asked and all(term_matches(wanted, facts) for wanted, facts in asked):
            return True
    return False


def _requirements(given: list[Selects] | None) -> list[Requirement]:
    return [Requirement(key=r.key, operator=r.operator, values=tuple(r.values or ())) for r in given or ()]


def _attribute(value: Any) -> Any:
    """`{"string": "x"}` → `"x"`; a version stays a version."""
    if isinstance(value, dict) and len(value) == 1 and "version" not in value:
        return next(iter(value.values()))
    return value


def _capacity(value: Any) -> Any:
    return value.get("value", value) if isinstance(value, dict) else value
