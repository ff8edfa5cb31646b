"""Settles a cluster after pods started elsewhere than expected: slots follow their pods, and open slots that lost their room
move to where they fit. Pure: it depends on the ledger, the fleet's rows and their surroundings only.

Withdrawn claims only follow their pods. A slot that fits once ending pods and withdrawn claims are gone waits where it is. What
fits nowhere is displaced: a decision that did not run yet is then taken back as a whole, one that ran keeps its slots and pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from moorage.ledger.ledger import DEVICE_FAILED, MASS_FAILURE
from moorage.model.claims import Settlement, Shortfall, Slot
from moorage.model.part_requests import ClassVersion
from moorage.model.slots import resized

from .class_versions import class_versions
from .daemon_set_slots import follow_nodes, short_daemon_sets
from .device_moves import move_on_nodes, shortfall_of, vacated
from .open_places import merged_slots
from .relocation import Relocation
from .settlement_draft import Draft


class Settled(NamedTuple):
    """`entry`: None if nothing has to change. `displaced`: groups with slots that fit nowhere, whether their decision ends or
    stands."""

    entry: Settlement | None
    displaced: dict[str, Shortfall] = {}


def is_unsettled(draft: Draft) -> bool:
    """Returns whether a pod runs beside its claim's slots while one is open, or on other parts than its slot's, an open slot has
    lost its room or its node, a group was displaced there before, or a DaemonSet may have other nodes now."""
    return (
        draft.has_strays
        or draft.parts_moved
        or draft.has_daemon_sets
        or bool(draft.bad_nodes())
        or bool(draft.ledger.displaced_on(draft.cluster))
        or bool(draft.to_confine({}))
        or has_failures(draft)
    )


def has_failures(draft: Draft) -> bool:
    """Returns whether a claim names a device that failed, or its pods are to leave one."""
    return any(
        active.claim.vacated or any(grant.part in draft.around.failures.failed for grant in slot.devices)
        for active in draft.active.values()
        if not active.withdrawn
        for slot in active.claim.slots
    )


def groups_to_settle(draft: Draft) -> set[str]:
    """Returns the groups with claims on the cluster whose documents `settle` needs. Slots that only follow their pods need none,
    but for the classes of their devices."""
    assigns = draft.parts_moved or bool(draft.bad_nodes())
    groups = {
        place.group for place in draft.movable() if assigns or any(slot.devices for slot in place.members.values())
    }
    if has_failures(draft):
        groups |= {active.group for active in draft.active.values() if not active.withdrawn}
    return groups | {
        a.group for a in draft.active.values() if not a.withdrawn and a.claim.object.startswith("DaemonSet/")
    }


def settle(draft: Draft) -> Settled:
    """Settles the cluster. The draft is as it is after the settlement then, so it serves once."""
    ledger = draft.ledger
    draft.follow_pods()
    short = follow_nodes(draft)
    move_on_nodes(draft)
    relocation = Relocation(draft)
    ended, displaced = _make_room(draft, relocation)
    for group in {active.group for active in draft.active.values()} if draft.around.failures.failed else ():
        waits = group in displaced or any(draft.active[ident].group == group for ident in draft.waiting)
        lack = shortfall_of(draft, group, DEVICE_FAILED) if waits else None
        if lack is None and group not in displaced:
            lack = shortfall_of(draft, group, MASS_FAILURE)
        if lack is not None:
            displaced[group] = lack
    for group, resources in (short | short_daemon_sets(draft)).items():
        displaced.setdefault(group, relocation.shortfall_of(group, resources))
        if group not in ended and _may_end(group, draft):
            ended.append(group)
    standing = {group: lack for group, lack in displaced.items() if group not in ended}
    slots = draft.changed_slots()
    restored: list[str] = []
    for group in ended:
        if _may_stand_again(group, draft):
            restored.append(ledger.previous[group][-1].id)
            slots |= _restored_slots(draft, group, slots)
    kept = {ident for ident, active in draft.active.items() if active.group not in ended}
    confined = {ident: words for ident, words in draft.to_confine(slots).items() if ident in kept}
    leaving = {ident: left for ident, left in vacated(draft, slots).items() if ident in kept}
    classes = _changed_classes(draft, slots)
    known = ledger.displaced_on(draft.cluster)
    same = standing.keys() == known.keys() and all(
        (lack.code, lack.devices) == (known[group].code, known[group].devices) for group, lack in standing.items()
    )
    if same and not (slots or ended or confined or leaving):
        return Settled(None, displaced)
    entry = Settlement(
        cluster=draft.cluster,
        epoch=str(draft.fleet.epoch),
        slots=slots,
        ended=sorted(ledger.standing[group].id for group in ended),
        restored=sorted(restored),
        displaced=standing,
        confined=confined,
        vacated=leaving,
        classes=classes,
    )
    return Settled(entry, displaced)


def _changed_classes(draft: Draft, slots: Mapping[str, Sequence[Slot]]) -> dict[str, dict[str, ClassVersion]]:
    """Returns the classes of claims that have other ones with these slots."""
    found: dict[str, dict[str, ClassVersion]] = {}
    for ident, of in slots.items():
        claim = draft.active[ident].claim
        shape = draft.shape_of(claim, draft.active[ident].group)
        classes = class_versions(of, shape, draft.cluster, claim)
        if classes != claim.classes:
            found[ident] = classes
    return found


def _make_room(draft: Draft, relocation: Relocation) -> tuple[list[str], dict[str, Shortfall]]:
    """Moves open places off nodes where they do not fit. Returns the groups whose decision ends, and the groups that fit
    nowhere."""
    if not draft.bad_nodes() or relocation.move(relocation.groups, lenient=False):
        return [], {}
    kept: list[str] = []
    gone: set[str] = set()
    displaced: set[str] = set()
    for group in relocation.groups:
        if group in gone:
            continue
        if relocation.fits([*kept, group], gone):
            kept.append(group)
            continue
        younger = [
            other
            for other in reversed(relocation.groups)
            if other not in gone
            and other not in kept
            and relocation.age(other) > relocation.age(group)
            and _may_end(other, draft)
        ]
        enough = next(
            (k for k in range(1, len(younger) + 1) if relocation.fits([*kept, group], gone | set(younger[:k]))), 0
        )
        if enough:
            gone.update(younger[:enough])
            kept.append(group)
            continue
        displaced.add(group)
        if _may_end(group, draft):
            gone.add(group)
        elif relocation.leave_behind(kept, group, gone):
            kept.append(group)
    if not relocation.move(kept, lenient=False):
        relocation.move(kept, lenient=True, gone=gone)
    return sorted(gone), {group: relocation.shortfall(group) for group in sorted(displaced | gone)}


def _may_end(group: str, draft: Draft) -> bool:
    """Returns whether the group's decision may be taken back: it did not run in full, and nothing of the group did, or what
    ran can stand again."""
    progress = draft.around.progress(group)
    if group not in draft.around.documents or progress is None or progress.reached:
        return False
    return _may_stand_again(group, draft) or not progress.ran


def _may_stand_again(group: str, draft: Draft) -> bool:
    progress = draft.around.progress(group)
    return progress is not None and progress.restorable and group in draft.ledger.previous


def _restored_slots(draft: Draft, group: str, changed: dict[str, list[Slot]]) -> dict[str, list[Slot]]:
    """Returns the slots of claims that the ended decision shares with the one that stands again and had fewer of: those with
    pods are kept first."""
    result: dict[str, list[Slot]] = {}
    for claim in draft.ledger.previous[group][-1].claims:
        active = draft.active.get(claim.id)
        wanted = _pods(claim.slots)
        if active is None or wanted >= _pods(active.claim.slots):
            continue
        stands = [place for place in draft.places if claim.id in place.members and not place.dropped]
        stands.sort(key=lambda place: not place.stray)
        single = [resized(slot, 1) for slot in draft.covered[claim.id] for _ in range(slot.count)]
        single += [place.slot(claim.id) for place in stands]
        result[claim.id] = merged_slots([slot for slot in single if not slot.surge][:wanted])
    return result


def _pods(slots: Iterable[Slot]) -> int:
    """Returns the number of pods, without those of a surge."""
    return sum(slot.count for slot in slots if not slot.surge)
