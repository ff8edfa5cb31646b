"""Lets slots follow their pods inside a node: where a source tells what a pod takes of which parts, its slot takes the same.

On a node pods are matched to slots by parts, then in order. Of a class that the claim does not ask of parts nothing is matched:
a node's agent may bind pods to zones that never asked for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from moorage.model.slots import DeviceGrant, PartAmounts, Slot, resized

#: Node → what pods take of parts, and how many of them.
NamedByNode = Mapping[str, Sequence[tuple[PartAmounts, int]]]


def follow_parts(slots: Sequence[Slot], named: NamedByNode) -> Sequence[Slot]:
    """Returns the slots with the parts that their pods have; on each node those that pods are matched to come first. The same
    object if no pod has a say."""
    classes = {name for slot in slots for amounts in slot.parts.values() for name in amounts}
    if not classes or not any(slot.node in named for slot in slots):
        return slots
    by_node: dict[str, list[Slot]] = {}
    for slot in slots:
        by_node.setdefault(slot.node, []).append(slot)
    return [
        slot
        for node, there in by_node.items()
        for slot in (_followed(there, named[node], classes) if node in named else there)
    ]


def parts_moved(slots: Sequence[Slot], named: NamedByNode) -> bool:
    """Returns whether a pod has other parts than any slot that is left for it on its node."""
    followed = follow_parts(slots, named)
    return followed is not slots and not same_slots(followed, slots)


def same_slots(one: Iterable[Slot], other: Iterable[Slot]) -> bool:
    """Returns whether these are slots for the same pods, in any order."""
    return _counts(one) == _counts(other)


def _counts(slots: Iterable[Slot]) -> dict[bytes, int]:
    counts: dict[bytes, int] = {}
    for slot in slots:
        key = msgspec.json.encode(msgspec.structs.replace(slot, count=0), order="sorted")
        counts[key] = counts.get(key, 0) + slot.count
    return counts


def _followed(slots: Sequence[Slot], named: Iterable[tuple[PartAmounts, int]], classes: set[str]) -> list[Slot]:
    told = [parts for runs, count in named for parts in [_of(runs, classes)] * count if parts]
    left = [resized(slot, 1) for slot in slots for _ in range(slot.count)]
    matched: list[Slot] = []
    others: list[PartAmounts] = []
    for parts in told:
        at = next((i for i, slot in enumerate(left) if _of(slot.parts, _classes(parts)) == parts), None)
        if at is None:
            others.append(parts)
        else:
            matched.append(left.pop(at))
    moved = [_moved(slot, parts) for slot, parts in zip(left, others, strict=False)]
    return matched + moved + left[len(moved) :]


def _moved(slot: Slot, parts: PartAmounts) -> Slot:
    """Returns the slot with these parts instead of what it has of their classes."""
    classes = _classes(parts)
    kept = {name for amounts in slot.parts.values() for name in amounts} - classes
    aligned = {name for amounts in slot.aligned.values() for name in amounts}
    return msgspec.structs.replace(
        slot,
        parts=_joined(_of(slot.parts, kept), parts),
        aligned=_joined(_of(slot.aligned, kept), _of(parts, aligned)),
        starting={name: amount for name, amount in slot.starting.items() if name not in classes},
        devices=_regranted(slot.devices, parts),
    )


def _regranted(grants: Sequence[DeviceGrant], parts: PartAmounts) -> list[DeviceGrant]:
    """Returns the grants with the parts that serve them now: those of a class in order."""
    left = {name: [(part, a[name]) for part, a in parts.items() if name in a] for name in _classes(parts)}
    result: list[DeviceGrant] = []
    for grant in grants:
        amount = grant.amount
        if grant.name not in left:
            result.append(grant)
            continue
        while amount > 0 and left[grant.name]:
            part, there = left[grant.name][0]
            step = min(amount, there)
            result.append(msgspec.structs.replace(grant, part=part, amount=step))
            amount -= step
            if there > step:
                left[grant.name][0] = part, there - step
            else:
                left[grant.name].pop(0)
    return result


def _classes(parts: PartAmounts) -> set[str]:
    return {name for amounts in parts.values() for name in amounts}


def _of(parts: PartAmounts, classes: set[str]) -> PartAmounts:
    """Returns the amounts of these classes."""
    found = {part: {n: a for n, a in amounts.items() if n in classes and a} for part, amounts in parts.items()}
    return {part: amounts for part, amounts in found.items() if amounts}


def _joined(one: PartAmounts, other: PartAmounts) -> PartAmounts:
    return {part: one.get(part, {}) | other.get(part, {}) for part in {**one, **other}}
