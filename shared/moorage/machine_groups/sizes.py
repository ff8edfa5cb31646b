"""Computes the size of a slot of each machine type. Amounts: CPU in milli, all else whole units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from moorage.model.machines import Gpu, Machine, MachineType
from moorage.model.shapes import PODS
from moorage.parsing import parse_amount


class Size(NamedTuple):
    """`parent` is the type in whose slots this one lives, `per_parent` how many of it one such slot holds."""

    amounts: Mapping[str, int]
    gpu_label: tuple[str, str] | None = None
    host_limit: Fraction = Fraction(1)
    parent: str = ""
    per_parent: int = 1


def exact(number: float) -> Fraction:
    """Returns the number as it was written: 0.1 is a tenth."""
    return Fraction(repr(number))


def gpu_label(gpu: Gpu | None) -> tuple[str, str] | None:
    """Returns the label that Nodes with such GPUs have."""
    if gpu is None:
        return None
    domain = gpu.type.partition("/")[0]
    for which in ("family", "product", "machine"):
        if value := getattr(gpu, which):
            return f"{domain}/gpu.{which}", value
    return None


def share(amount: int, ratio: Fraction) -> int:
    """Returns the part of an amount that a child has, rounded down."""
    return int(amount * ratio)


def own_amounts(machine_type: MachineType) -> dict[str, int]:
    """Returns what the type itself says of its size."""
    spec = machine_type.spec
    amounts = {
        name: parse_amount(name, text, True) for name, text in (("cpu", spec.cpu), ("memory", spec.memory)) if text
    }
    if spec.gpu is not None:
        amounts[spec.gpu.type] = spec.gpu.num
    return amounts


def in_order(types: Sequence[MachineType]) -> list[MachineType]:
    """Returns the types, each after the one that it depends on. Types that depend on
    themselves or on none that exists are left out."""
    by_name = {t.name: t for t in types}
    done: dict[str, MachineType] = {}
    for machine_type in types:
        chain = [machine_type]
        while (dependence := chain[-1].spec.dependence) is not None and chain[-1].name not in done:
            above = by_name.get(dependence.machine_type)
            if above is None or above in chain:
                break
            chain.append(above)
        else:
            done |= {t.name: t for t in reversed(chain)}
    return list(done.values())


def sizes(machine: Machine) -> dict[str, Size]:
    """Returns the size of each type of a Machine that keeps all rules."""
    found: dict[str, Size] = {}
    for machine_type in in_order(machine.types):
        spec = machine_type.spec
        amounts = own_amounts(machine_type)
        label, parent, per_parent = gpu_label(spec.gpu), "", 1
        if spec.dependence is not None:
            parent = spec.dependence.machine_type
            ratio = exact(spec.dependence.available_ratio)
            above = found[parent]
            amounts = {name: share(amount, ratio) for name, amount in above.amounts.items()} | amounts
            amounts = {name: amount for name, amount in amounts.items() if amount}
            label = label or above.gpu_label
            per_parent = int(1 / ratio)
        found[machine_type.name] = Size(amounts, label, exact(spec.host_limit), parent, per_parent)
    return found


def children_of(sizes: Mapping[str, Size]) -> dict[str, list[str]]:
    """Returns for each type the types that live in its slots."""
    children: dict[str, list[str]] = {name: [] for name in sizes}
    for name, size in sizes.items():
        if size.parent:
            children[size.parent].append(name)
    return children


def root_of(sizes: Mapping[str, Size], name: str) -> str:
    while sizes[name].parent:
        name = sizes[name].parent
    return name


def per_slot(sizes: Mapping[str, Size], name: str) -> int:
    """Returns how many of a type one slot of its root holds."""
    count = 1
    while sizes[name].parent:
        count *= sizes[name].per_parent
        name = sizes[name].parent
    return count


def slot_size(sizes: Mapping[str, Size], name: str) -> dict[str, int]:
    """Returns what a slot of a type takes of its node: room for as many pods as may share it."""
    pods = max((per_slot(sizes, other) for other in sizes if root_of(sizes, other) == name), default=1)
    return {**sizes[name].amounts, PODS: pods}


def maximum(machine: Machine, sizes: Mapping[str, Size], machine_type: str) -> int:
    """Returns how many slots of a type there are to be. A child that does not say it has all that fit into its parent's."""
    available = {t.name: t.available for t in machine.types}
    size = sizes[machine_type]
    if not size.parent:
        return available[machine_type]
    room = maximum(machine, sizes, size.parent) * size.per_parent
    return min(available[machine_type], room) if available[machine_type] >= 0 else room
