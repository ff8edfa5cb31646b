"""Shows slots to people and programs: by node and parts, with amounts as canonical quantities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moorage.model.attempts import GrantView, SlotView
from moorage.model.slots import DeviceGrant, Slot
from moorage.parsing import format_amount


def slot_views(slots: Iterable[Slot]) -> list[SlotView]:
    """Adds up slots by node, equal parts and the needs that these serve: a claim that grew has separate slots for the added pods. Those for a surge, which
    only count during a rollout, are left out."""
    found: dict[tuple[str, str], SlotView] = {}
    for slot in slots:
        if not slot.surge:
            parts = readable_parts(slot.parts)
            view = SlotView(node=slot.node, count=0, parts=parts, devices=[_grant_view(g) for g in slot.devices])
            view = found.setdefault((slot.node, f"{parts} {view.devices}"), view)
            view.count += slot.count
    return list(found.values())


def _grant_view(grant: DeviceGrant) -> GrantView:
    amount = format_amount(grant.name, grant.amount)
    return GrantView(part=grant.part, need=grant.need, name=grant.name, amount=amount)


def readable_parts(parts: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, str]]:
    """Returns amounts of parts as canonical quantities."""
    return {
        part: {name: format_amount(name, amount) for name, amount in sorted(amounts.items())}
        for part, amounts in sorted(parts.items())
    }
