"""Derives from ResourceSlices which devices each node can use. A driver publishes pools of devices, in generations of one or
more slices, for one node, for several or for all. As in the scheduler, a pool that is being replaced counts again once its
newest generation is complete. Of a pool that is not, or that makes no sense, no device counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from moorage.kube.objects import Object
from moorage.model.part_reports import (
    CapacityPolicy,
    CounterSetReport,
    DeviceReport,
    DeviceTaint,
    PropertyValue,
    Scalar,
    Typed,
)
from moorage.model.shapes import Requirement

from .objects import (
    DeviceBody,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
    NodeSelector,
    SelectorRequirement,
    Slice,
    SliceSpec,
)

#: Ends what is said of pools of which slices are missing.
_MISSING_SLICES = "are there"


Made = TypeVar("Made")


class DevicePool(NamedTuple):
    driver: str
    name: str


class NodeDevices(NamedTuple):
    """`problems`: why there are pools for the node of which no device counts."""

    devices: list[DeviceReport]
    counters: list[CounterSetReport]
    problems: list[str]

    @property
    def offers(self) -> bool:
        """Returns whether a driver offers devices for the node, also where none of them counts."""
        return bool(self.devices or self.problems)

    @property
    def has_invalid_pools(self) -> bool:
        """Returns whether a pool makes no sense, rather than being published just now."""
        return any(not text.endswith(_MISSING_SLICES) for text in self.problems)


class _Pool(NamedTuple):
    """The slices of the newest generation of a pool for some nodes, and why none of them counts (empty: they do). `others`: its
    slices for other nodes. `crossing`: the sets of counters of which devices of several nodes take, each with those that have
    a device in common with it."""

    slices: dict[str, SliceSpec]
    problem: str
    counters: list[CounterSetReport]
    others: dict[str, SliceSpec]
    crossing: dict[str, frozenset[str]]
    binding: bool  # devices of it have binding conditions


class Devices:
    """`mark` gets each node whose devices may have changed; `mark_all` is called if those of any node may have."""

    def __init__(self, mark: Callable[[str], None], mark_all: Callable[[], None]) -> None:
        self._mark, self._mark_all = mark, mark_all
        self._slices: dict[str, SliceSpec] = {}
        self._pools: dict[DevicePool, dict[str, SliceSpec]] = {}
        self._on_node: dict[str, dict[DevicePool, int]] = {}  # node → slices of each pool that name it
        self._for_many: dict[DevicePool, int] = {}  # slices of each pool that name no node
        self._rules: dict[str, DeviceTaintRuleSpec] = {}
        self._current: dict[DevicePool, dict[frozenset[str], _Pool | None]] = {}  # by the slices that are for a node
        self._made: dict[str, Any] = {}  # of all devices of a driver

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

    def put_rule(self, name: str, found: DeviceTaintRule) -> None:
        """Adds a rule by which somebody taints devices of drivers."""
        if self._rules.get(name) != found.spec:
            self._rules[name] = found.spec
            self._mark_all()

    def drop_rule(self, name: str) -> None:
        if self._rules.pop(name, None) is not None:
            self._mark_all()

    def _with_rules(self, device: DeviceReport) -> DeviceReport:
        more = [
            msgspec.convert(rule.taint, DeviceTaint)
            for _, rule in sorted(self._rules.items())
            if rule.taint and _is_tainted(device, rule.device_selector)
        ]
        return msgspec.structs.replace(device, taints=[*device.taints, *more]) if more else device

    def _count(self, name: str, spec: SliceSpec, by: int) -> None:
        pool = DevicePool(spec.driver, spec.pool.name)
        self._current.pop(pool, None)
        self._made.pop(spec.driver, None)
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

    def of_driver(self, driver: str) -> Iterator[tuple[str, DeviceBody]]:
        """Yields all devices of a driver in the cluster, also those of pools that do not count, by their ids."""
        for pool, slices in self._pools.items():
            if pool.driver == driver:
                for spec in slices.values():
                    for device in spec.devices or ():
                        yield f"{driver}/{pool.name}/{device.name}", device.body

    def made_of(self, driver: str, make: Callable[[str, Mapping[str, DeviceBody]], Made]) -> Made:
        """Returns what `make`, of which there is one, makes of all devices of a driver, until these change."""
        if driver not in self._made:
            self._made[driver] = make(driver, dict(self.of_driver(driver)))
        found: Made = self._made[driver]
        return found

    def is_allocable(self, ident: str) -> bool | None:
        """Returns whether there is a device that can be allocated as a whole, without anything beside it; None for one of which more
        must be told than its name."""
        body = dict(self.of_driver(ident.partition("/")[0])).get(ident)
        if body is None:
            return False
        return None if body.allow_multiple_allocations or body.binding_conditions else True

    def mark_pool(self, pool: DevicePool) -> None:
        """Marks the nodes that reach devices of a pool."""
        self._changed(*self._pools.get(pool, {}).values())

    def of(self, node: Object) -> NodeDevices:
        found = NodeDevices([], [], [])
        pools = {**self._on_node.get(node.metadata.name, {}), **self._for_many}
        seen = [(pool, current) for pool in pools if (current := self._of_pool(pool, node)) is not None]
        # As in the scheduler, devices that delay the binding of pods come last.
        for pool, current in sorted(seen, key=lambda item: (item[1].binding, item[0])):
            if current.problem:
                found.problems.append(f"pool {pool.driver}/{pool.name}: {current.problem}")
                continue
            before = len(found.devices)
            for name in sorted(current.slices):
                reached = _reached(current.slices[name], pool, node, current.crossing)
                found.devices.extend(map(self._with_rules, reached) if self._rules else reached)
            taken = {name for device in found.devices[before:] for name in device.consumes}
            crossing = frozenset().union(*(current.crossing.get(name, ()) for name in taken))
            if crossing:
                found.devices.extend(_elsewhere(current, pool, node, crossing))
                taken |= crossing
            found.counters.extend(counters for counters in current.counters if counters.name in taken)
        return found

    def _of_pool(self, pool: DevicePool, node: Object) -> _Pool | None:
        """Returns a pool as a node sees it; None if nothing of it is for the node, or what was is being replaced."""
        slices = self._pools[pool]
        own = {name for name, spec in slices.items() if spec.shared_counters or _slice_reaches(spec, node)}
        if not own:
            return None
        newest = max(slices[name].pool.generation for name in own)
        own = {name for name in own if slices[name].pool.generation == newest}
        known = self._current.setdefault(pool, {})
        key = frozenset(own)
        if key not in known:
            known[key] = _current(pool, slices, own, newest)
        return known[key]


def _current(pool: DevicePool, slices: dict[str, SliceSpec], own: set[str], generation: int) -> _Pool | None:
    """Returns what slices of a generation say. Slices for other nodes matter as far as these are not all that the generation has."""
    current = {name: slices[name] for name in sorted(own)}
    specs = list(current.values())
    same = [spec for spec in slices.values() if spec.pool.generation == generation]
    expected = max(spec.pool.resource_slice_count for spec in specs)
    if len(specs) != expected and any(spec.pool.generation > generation for spec in slices.values()):
        return None
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
    if len(same) != expected and len(specs) != expected:
        problem = f"{len(same)} of {expected} slices of generation {generation} {_MISSING_SLICES}"
    else:
        problem = _problem(specs, same, counters)
    binding = any(body.binding_conditions for _, body in _bodies(specs))
    others = {name: slices[name] for name in sorted(slices.keys() - own) if slices[name].pool.generation == generation}
    return _Pool(current, problem, counters, others, _crossing(same), binding)


def _problem(specs: list[SliceSpec], same: list[SliceSpec], counters: list[CounterSetReport]) -> str:
    """Returns why a pool makes no sense; empty if it does."""
    names = [device.name for spec in specs for device in spec.devices or ()]
    if len(set(names)) < len(names):
        return f"two devices are named {min(name for name in names if names.count(name) > 1)}"
    sets = {found.name: found.counters for found in counters}
    if len(sets) < len(counters):
        of = [found.name for found in counters]
        return f"two sets of counters are named {min(name for name in of if of.count(name) > 1)}"
    uses = [use for _, body in _bodies(same) for use in body.consumes_counters or ()]
    for use in uses:
        if unknown := sorted(use.counters.keys() - sets.get(use.counter_set, {}).keys() if use.counters else ()):
            return f"devices take of the counter {use.counter_set}/{unknown[0]}, which is not there"
        if use.counter_set not in sets:
            return f"devices take of the set of counters {use.counter_set}, which is not there"
    return ""


def _bodies(specs: Iterable[SliceSpec]) -> Iterator[tuple[str | None, DeviceBody]]:
    """Yields the devices of slices, each with the only node that reaches it."""
    for spec in specs:
        for device in spec.devices or ():
            yield (device.body if spec.per_device_node_selection else spec).node_name, device.body


def _crossing(specs: Iterable[SliceSpec]) -> dict[str, frozenset[str]]:
    """Returns the sets of counters that are not of one node, each with those that one device, or a chain of devices, takes of."""
    together: dict[str, set[str]] = {}
    nodes: dict[str, set[str | None]] = {}
    for node, body in _bodies(specs):
        taken = {use.counter_set for use in body.consumes_counters or ()}
        for name in taken:
            nodes.setdefault(name, set()).add(node)
            together.setdefault(name, {name})
        joined = set[str]().union(*(together[name] for name in taken))
        for name in joined:
            together[name] = joined
    found: dict[str, frozenset[str]] = {}
    for name, joined in together.items():
        of = set[str | None]().union(*(nodes[other] for other in joined))
        if len(of) > 1 or None in of:
            found[name] = frozenset(joined)
    return found


def _is_tainted(device: DeviceReport, selector: DeviceTaintSelector | None) -> bool:
    """Returns whether a rule is for a device. One without a selector is for all."""
    if selector is None:
        return True
    asked = ((selector.driver, device.driver), (selector.pool, device.pool), (selector.device, device.name))
    return all(wanted is None or wanted == own for wanted, own in asked)


def _slice_reaches(spec: SliceSpec, node: Object) -> bool:
    if not spec.per_device_node_selection:
        return _reaches(spec.node_name, spec.node_selector, spec.all_nodes, node)
    bodies = (device.body for device in spec.devices or ())
    return any(_reaches(body.node_name, body.node_selector, body.all_nodes, node) for body in bodies)


def _elsewhere(current: _Pool, pool: DevicePool, node: Object, counters: frozenset[str]) -> Iterator[DeviceReport]:
    """Yields the devices that the node does not reach and that take of these counters: these have no more than they leave."""
    for spec in (*current.slices.values(), *current.others.values()):
        each = spec.per_device_node_selection
        for device in spec.devices or ():
            found = device.body if each else spec
            consumes = _consumed(device.body)
            if consumes.keys().isdisjoint(counters) or _reaches(
                found.node_name, found.node_selector, found.all_nodes, node
            ):
                continue
            divisible = bool(device.body.allow_multiple_allocations)
            yield DeviceReport(
                id=f"{pool.driver}/{pool.name}/{device.name}",
                driver=pool.driver,
                pool=pool.name,
                name=device.name,
                capacity={k: _capacity(v) for k, v in (device.body.capacity or {}).items()} if divisible else {},
                shared=True,
                elsewhere=True,
                divisible=divisible,
                consumes=consumes,
            )


def _consumed(body: DeviceBody) -> dict[str, dict[str, str]]:
    return {
        use.counter_set: {name: _capacity(amount) for name, amount in (use.counters or {}).items()}
        for use in body.consumes_counters or ()
    }


def _reached(
    spec: SliceSpec, pool: DevicePool, node: Object, crossing: Mapping[str, frozenset[str]]
) -> Iterator[DeviceReport]:
    each = spec.per_device_node_selection
    if not each and not _reaches(spec.node_name, spec.node_selector, spec.all_nodes, node):
        return
    for device in spec.devices or ():
        body = device.body
        if each and not _reaches(body.node_name, body.node_selector, body.all_nodes, node):
            continue
        consumes = _consumed(body)
        yield DeviceReport(
            id=f"{pool.driver}/{pool.name}/{device.name}",
            driver=pool.driver,
            pool=pool.name,
            name=device.name,
            attributes={k: _attribute(v) for k, v in (body.attributes or {}).items()},
            capacity={k: _capacity(v) for k, v in (body.capacity or {}).items()},
            taints=msgspec.convert(body.taints or [], list[DeviceTaint]),
            shared=not (body if each else spec).node_name or not crossing.keys().isdisjoint(consumes),
            divisible=bool(body.allow_multiple_allocations),
            policies={k: p for k, v in (body.capacity or {}).items() if (p := _policy(v)) is not None},
            binding_conditions=body.binding_conditions or [],
            consumes=consumes,
        )


def _reaches(name: str | None, selector: NodeSelector | None, everywhere: bool | None, node: Object) -> bool:
    if name:
        return name == node.metadata.name
    return bool(everywhere) or (selector is not None and selects(selector, node))


def selects(selector: NodeSelector, node: Object) -> bool:
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
    """Unwraps `{"string": "x"}` to `"x"` and `{"ints": [1, 2]}` to its values; versions keep their type."""
    kind, inner = next(iter(value.items()), ("", "")) if isinstance(value, dict) else ("", value)
    if isinstance(inner, list):
        return tuple(_scalar(kind.removesuffix("s"), one) for one in inner)
    return _scalar(kind, inner)


def _scalar(kind: str, value: Any) -> Scalar:
    if kind == "version":
        return Typed(version=str(value))
    return value if isinstance(value, bool | int | float | str) else str(value)


def _policy(capacity: Any) -> CapacityPolicy | None:
    """Returns which amounts of a capacity are given, if the driver says so."""
    given = capacity.get("requestPolicy") if isinstance(capacity, dict) else None
    if not isinstance(given, dict):
        return None
    within = given.get("validRange")
    limits = within if isinstance(within, dict) else {}
    values = given.get("validValues")
    return CapacityPolicy(
        default=_text(given.get("default")),
        minimum=_text(limits.get("min")),
        maximum=_text(limits.get("max")),
        step=_text(limits.get("step")),
        values=tuple(map(_text, values)) if isinstance(values, list) else (),
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _capacity(value: Any) -> str:
    return str(value.get("value", "0") if isinstance(value, dict) else value)
