"""Makes a Pod a guest: gives it the size of a slot, and what it needs to go to one and nowhere else. Pure; for Pods as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from moorage.model.machines import Machine
from moorage.model.object_names import CLAIM
from moorage.parsing import format_amount, parse_amount, readable_amount
from moorage.podspec import ContainerResources, container_resources, diff, pod_requests, with_required, with_value

from .names import (
    CONTAINER,
    CONTAINER_ALIAS,
    GUEST,
    MACHINE,
    MACHINE_GROUP,
    MACHINE_TYPE,
    POD_ROLE,
    SLOT_GATE,
    SLOT_OF,
    WINDOW,
    machine_key,
)
from .objects import labels as object_labels
from .objects import requirements, tolerations
from .sizes import Size

Pod = Mapping[str, Any]


class MachineGroup:
    """A Machine that keeps all rules, with the sizes of its slots. What guests of a type need is computed once."""

    def __init__(self, machine: Machine, sizes: Mapping[str, Size]) -> None:
        self.machine, self.sizes = machine, sizes
        self._needs: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {}

    def needs(self, machine_type: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Returns the tolerations of guests of a type, and the requirements on their Node."""
        found = self._needs.get(machine_type)
        if found is None:
            tolerated = tolerations(self.machine, self.sizes, machine_type)
            found = self._needs[machine_type] = tolerated, requirements(self.machine, self.sizes, machine_type)
        return found


class Denied(NamedTuple):
    code: str
    message: str


class Injected(NamedTuple):
    """The Pod as it is to be, and what differs from the one that was given."""

    pod: dict[str, Any]
    patch: list[dict[str, Any]]


def machine_type_of(labels: Mapping[str, str]) -> str:
    return labels.get(MACHINE_TYPE) or labels.get(MACHINE) or ""


def is_guest(pod: Pod) -> bool:
    """Returns whether a Pod of an enabled namespace asks for a slot, even if it does not say of which type."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return (MACHINE_TYPE in labels or MACHINE in labels) and labels.get(POD_ROLE, GUEST) == GUEST


def find_group(labels: Mapping[str, str], groups: Mapping[str, MachineGroup]) -> MachineGroup | Denied:
    """Returns the group of a guest: the one it names, else the only one that has its type."""
    wanted, alias = machine_type_of(labels), labels.get(MACHINE) or ""
    if alias and alias != wanted:
        return Denied(
            "MachineUnknown", f"labels {MACHINE_TYPE}={wanted} and {MACHINE}={alias} differ; keep one of them"
        )
    name = labels.get(MACHINE_GROUP, "")
    if name:
        group = groups.get(name)
        if group is None:
            return Denied("MachineUnknown", f"there is no Machine with group {name!r}; {_known(groups)}")
        if wanted not in group.sizes:
            types = ", ".join(sorted(group.sizes))
            return Denied("MachineUnknown", f"group {name!r} has no machine type {wanted!r}; it has {types}")
        return group
    found = [group for group in groups.values() if wanted in group.sizes]
    if len(found) != 1:
        names = ", ".join(sorted(group.machine.group for group in found))
        text = (
            f"several groups have it: {names}; say which with label {MACHINE_GROUP}" if found else "no Machine has it"
        )
        return Denied("MachineUnknown", f"machine type {wanted!r}: {text}")
    return found[0]


def _known(groups: Mapping[str, MachineGroup]) -> str:
    return f"known are {', '.join(sorted(groups)[:10])}" if groups else "there are no Machines"


def inject(pod: Pod, namespace: str, groups: Mapping[str, MachineGroup]) -> Injected | Denied | None:
    """Returns the guest that a Pod becomes, or why it may not be one; None if it asks for no slot. Injecting twice is the same as
    once."""
    if not is_guest(pod):
        return None
    meta, spec = dict(pod.get("metadata") or {}), dict(pod.get("spec") or {})
    labels = meta.get("labels") or {}
    group = find_group(labels, groups)
    if isinstance(group, Denied):
        return group
    machine, machine_type = group.machine, machine_type_of(labels)
    refusal = _refusal(machine, machine_type, namespace, labels, spec)
    if refusal is not None:
        return refusal
    named = _container_index(labels, spec)
    if isinstance(named, Denied):
        return named
    sized = _with_size(spec, named, group.sizes[machine_type], machine_key(machine.group, machine_type))
    if isinstance(sized, Denied):
        return sized
    tolerated, required = group.needs(machine_type)
    spec = with_required(with_tolerations(sized, tolerated), required)
    gates = spec.get("schedulingGates") or []
    if not any(gate.get("name") == SLOT_GATE for gate in gates):
        spec = {**spec, "schedulingGates": [*gates, {"name": SLOT_GATE}]}
    annotations = {**(meta.get("annotations") or {}), SLOT_OF: machine_key(machine.group, machine_type)}
    meta |= {"labels": {**labels, **object_labels(machine.group, machine_type)}, "annotations": annotations}
    after = {**pod, "metadata": meta, "spec": spec}
    return Injected(after, diff(pod, after))


def _refusal(
    machine: Machine, machine_type: str, namespace: str, labels: Mapping[str, str], spec: Mapping[str, Any]
) -> Denied | None:
    allow = machine.allow
    # Who may use it by project is checked where the claim was decided.
    decided = allow.projects and labels.get(CLAIM)
    if (allow.projects or allow.namespaces) and namespace not in allow.namespaces and not decided:
        return Denied("NotAllowed", f"namespace {namespace!r} may not use group {machine.group!r} (spec.allow)")
    if spec.get("nodeName"):
        return Denied("NotAllowed", f"spec.nodeName is {spec['nodeName']!r}; a guest gets its Node with its slot")
    if window := labels.get(WINDOW):
        known = [w.name for t in machine.types if t.name == machine_type for w in t.windows]
        if window not in known:
            text = f"known are {', '.join(known)}" if known else "it has none"
            return Denied("WindowClosed", f"machine type {machine_type!r} has no window {window!r}; {text}")
    return None


def _container_index(labels: Mapping[str, str], spec: Mapping[str, Any]) -> int | Denied:
    name, alias = labels.get(CONTAINER, ""), labels.get(CONTAINER_ALIAS, "")
    if name and alias and name != alias:
        return Denied("NotAllowed", f"labels {CONTAINER}={name} and {CONTAINER_ALIAS}={alias} differ; keep one of them")
    names = [container.get("name", "") for container in spec.get("containers") or ()]
    name = name or alias
    if not name:
        return 0
    if name not in names:
        return Denied("NotAllowed", f"there is no container {name!r}; the Pod has {', '.join(names)}")
    return names.index(name)


def _with_size(spec: dict[str, Any], index: int, size: Size, slot: str) -> dict[str, Any] | Denied:
    """Sets requests and limits of the container to the size of the slot, less what the rest of the Pod requests."""
    containers = [dict(container) for container in spec.get("containers") or ()]
    if not containers:
        return Denied("NotAllowed", "the Pod has no containers")
    overhead = _amounts(spec.get("overhead"))
    own = spec.get("resources") or {}
    rest = [c for i, c in enumerate(_resources(containers)) if i != index]
    others = _resources(spec.get("initContainers") or (), init=True)
    beside = pod_requests([*rest, *(c for c in others if c.sidecar)])
    peak = pod_requests([*rest, *others], requests=_amounts(own.get("requests")), limits=_amounts(own.get("limits")))
    left: dict[str, int] = {}
    for name, amount in size.amounts.items():
        free = amount - overhead.get(name, 0)
        if peak.get(name, 0) > free or beside.get(name, 0) >= free:
            needed = max(peak.get(name, 0), beside.get(name, 0)) + overhead.get(name, 0)
            text = f"a slot of {slot} has {readable_amount(name, amount)} {name}; the rest of the Pod requests "
            return Denied("NotAllowed", f"{text}{readable_amount(name, needed)}, so nothing is left for the container")
        left[name] = free - beside.get(name, 0)
    resources = containers[index].get("resources") or {}
    given = {name: format_amount(name, amount) for name, amount in left.items()}
    containers[index]["resources"] = {
        **resources,
        "requests": _updated(resources.get("requests"), given),
        "limits": _updated(resources.get("limits"), given),
    }
    spec = {**spec, "containers": containers}
    for kind in ("requests", "limits"):
        # What the Pod as a whole has must not be less than its containers have together.
        whole = own.get(kind) or {}
        for name in whole:
            if name in size.amounts:
                most = format_amount(name, size.amounts[name] - overhead.get(name, 0))
                if _amounts({name: whole[name]}) != _amounts({name: most}):
                    spec = with_value(spec, ["resources", kind, name], most)
    return spec


def _updated(before: Mapping[str, Any] | None, given: Mapping[str, str]) -> dict[str, Any]:
    """Replaces amounts; what is the same amount in other words stays as it is."""
    before = before or {}
    same = _amounts(before)
    return {**before, **{k: v for k, v in given.items() if same.get(k) != parse_amount(k, v, True)}}


def requested(spec: Mapping[str, Any]) -> dict[str, int]:
    """Returns what the scheduler counts of a Pod."""
    own = spec.get("resources") or {}
    return pod_requests(
        [*_resources(spec.get("containers") or ()), *_resources(spec.get("initContainers") or (), init=True)],
        requests=_amounts(own.get("requests")),
        limits=_amounts(own.get("limits")),
        overhead=_amounts(spec.get("overhead")),
    )


def exceeded(spec: Mapping[str, Any], size: Size, slot: str) -> Denied | None:
    """Returns why a Pod is larger than its slot."""
    for name, amount in requested(spec).items():
        most = size.amounts.get(name)
        if most is not None and amount > most:
            has, wants = readable_amount(name, most), readable_amount(name, amount)
            return Denied("NotAllowed", f"a slot of {slot} has {has} {name}; the Pod would request {wants}")
    return None


def _resources(containers: Iterable[Mapping[str, Any]], *, init: bool = False) -> list[ContainerResources]:
    found = []
    for container in containers:
        amounts = container.get("resources") or {}
        found.append(
            container_resources(
                container.get("name", ""),
                _amounts(amounts.get("requests")),
                _amounts(amounts.get("limits")),
                init=init,
                restart_policy=container.get("restartPolicy"),
            )
        )
    return found


def _amounts(quantities: Mapping[str, Any] | None) -> dict[str, int]:
    amounts = {}
    for name, quantity in (quantities or {}).items():
        try:
            amounts[name] = parse_amount(name, str(quantity), True)
        except ValueError:
            continue  # the API server refuses it
    return amounts


def with_tolerations(spec: dict[str, Any], wanted: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the spec of a Pod with those tolerations that it does not have yet."""
    have = spec.get("tolerations") or []
    new = [t for t in wanted if not any(_covers(existing, t) for existing in have)]
    return {**spec, "tolerations": [*have, *new]} if new else spec


def _covers(existing: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(existing.get(k, "Equal" if k == "operator" else None) == v for k, v in wanted.items())


# --- changes of guests


def guest_change(before: Pod, after: Pod, *, by_controller: bool) -> Denied | None:
    """Returns why a guest may not be changed so. Everything else of it is the business of others."""
    old, new = _labels(before), _labels(after)
    was_let_in = _is_let_in(before)
    if was_let_in or is_guest(before):
        for key in (MACHINE_GROUP, MACHINE_TYPE, POD_ROLE):
            if was_let_in and old.get(key) != new.get(key):
                return Denied(
                    "NotAllowed", f"label {key} of a guest cannot be changed; delete the Pod and make another"
                )
    if by_controller:
        return None
    if (slot := _slot_of(before)) and _slot_of(after) != slot:
        # Without it nobody would be asked about the next change.
        return Denied("NotAllowed", f"annotation {SLOT_OF} of a guest cannot be changed")
    had, has = _has_gate(before), _has_gate(after)
    if had != has:
        return Denied("NotAllowed", f"the scheduling gate {SLOT_GATE} is removed when the Pod gets its slot")
    return None


def _is_let_in(pod: Pod) -> bool:
    return bool(_slot_of(pod)) or _has_gate(pod)


def _slot_of(pod: Pod) -> str:
    return str(((pod.get("metadata") or {}).get("annotations") or {}).get(SLOT_OF) or "")


def _labels(pod: Pod) -> Mapping[str, str]:
    return (pod.get("metadata") or {}).get("labels") or {}


def _has_gate(pod: Pod) -> bool:
    return any(gate.get("name") == SLOT_GATE for gate in (pod.get("spec") or {}).get("schedulingGates") or ())
