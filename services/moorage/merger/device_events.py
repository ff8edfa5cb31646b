"""Tells which pods get other devices because theirs failed, and where too many devices failed at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

from moorage.bus import Bus, subjects
from moorage.ledger import ActiveClaim, Ledger
from moorage.ledger.ledger import MASS_FAILURE
from moorage.model.claims import GroupMove, ObjectMove, Settlement, Shortfall
from moorage.model.slots import Slot

from .core.device_failures import FailedDevice, Failures

#: Where a pod goes whose device failed: it stays on its `node`, or in the `cluster`.
ON_NODE, IN_CLUSTER = "node", "cluster"


def moves(ledger: Ledger, entry: Settlement, failures: Failures) -> list[GroupMove]:
    """Returns what a settlement moves off devices that failed, by group. Ask before it is folded."""
    found: dict[str, GroupMove] = {}
    for ident, slots in entry.slots.items():
        active = ledger.claims.get(ident)
        move = _move(active, slots, failures) if active is not None else None
        if active is None or move is None:
            continue
        claim = active.claim
        of_group = found.setdefault(
            active.group,
            GroupMove(
                group=active.group,
                revision=claim.intent.revision,
                decision=claim.decision,
                cluster=entry.cluster,
                moves=[],
                told=uuid4().hex,
            ),
        )
        of_group.moves.append(move)
        of_group.message = "; ".join(one.text for one in of_group.moves)
    return list(found.values())


def outcomes(found: Iterable[GroupMove]) -> Counter[str]:
    """Returns how many pods stay on their node, and in their cluster."""
    counts: Counter[str] = Counter()
    for group in found:
        for move in group.moves:
            counts.update(move.outcome)
    return counts


def _move(active: ActiveClaim, slots: Sequence[Slot], failures: Failures) -> ObjectMove | None:
    claim = active.claim
    before = _on_failed(claim.slots, failures)
    left = before - _on_failed(slots, failures)
    if not left:
        return None
    outcome: Counter[str] = Counter()
    pods_before, pods_after = _pods(claim.slots), _pods(slots)
    for node, count in left.items():
        stayed = min(count, max(0, pods_after[node] - pods_before[node] + count))
        outcome[ON_NODE] += stayed
        outcome[IN_CLUSTER] += count - stayed
    had, has = _devices(claim.slots), _devices(slots)
    gone = [part for part in sorted((had - has).keys()) if part in failures.failed]
    return ObjectMove(
        app=claim.app,
        object=claim.object,
        outcome=dict(+outcome),
        left={part: _wrong(failures.failed[part]) for part in gone},
        taken=sorted((has - had).keys()),
    )


def _wrong(device: FailedDevice) -> str:
    taint = next((taint for taint, _ in device.taints if taint.effect == "NoExecute"), None)
    if taint is not None:
        return f"it has the taint {taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
    return "it is gone" if device.gone is not None else "it is unhealthy"


def _devices(slots: Sequence[Slot]) -> Counter[str]:
    return Counter({part: slot.count for slot in slots for part in {grant.part for grant in slot.devices}})


def _on_failed(slots: Sequence[Slot], failures: Failures) -> Counter[str]:
    found: Counter[str] = Counter()
    for slot in slots:
        if any(grant.part in failures.failed for grant in slot.devices):
            found[slot.node] += slot.count
    return found


def _pods(slots: Sequence[Slot]) -> Counter[str]:
    found: Counter[str] = Counter()
    for slot in slots:
        found[slot.node] += slot.count
    return found


def mass_failures(before: Mapping[str, Shortfall], after: Mapping[str, Shortfall]) -> Iterator[dict[str, Any]]:
    """Yields what to tell of kinds of devices of which too many failed, or do not fail any more. Both are what groups lack."""
    old, new = (
        {lack.resource: lack for lack in found.values() if lack.code == MASS_FAILURE} for found in (before, after)
    )
    for kind, lack in sorted(new.items()):
        if kind not in old:
            yield {"kind": kind, "massFailure": "began", "failed": lack.needed, "of": lack.needed + lack.free}
    for kind in sorted(old.keys() - new.keys()):
        yield {"kind": kind, "massFailure": "ended"}


async def tell_move(bus: Bus, move: GroupMove) -> None:
    """Publishes the event of a move that is in the log; the broker keeps it once."""
    await bus.emit(subjects.decision_event("moved", move.group), move, id=move.told, once=True)


async def tell_masses(bus: Bus, cluster: str, masses: Iterable[dict[str, Any]]) -> None:
    for data in masses:
        await bus.emit(subjects.fleet_event("devices", cluster), data)
