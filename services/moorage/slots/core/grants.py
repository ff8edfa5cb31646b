"""Gives free slots to guests that wait, and takes back those of guests that are over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import NamedTuple

from moorage.machine_groups.guest_rules import PlacedGuests
from moorage.machine_groups.windows import AHEAD, MARGIN, Holder, Span, deadline_seconds, end_of, may_enter
from moorage.model.machine_slots import GrantedSlot, reservation_claim, slot_resource
from moorage.model.machines import Allow, GuestReport, WaitingReason

from .layout import NodeKey

#: Pods of applications that have slots, by claim and node.
_InClaims = Mapping[str, Mapping[str, int]]
#: Returns how many slots a node offers of a resource of slots.
Offered = Callable[[NodeKey, str], int]


#: Where no guest has rules about others.
ANYWHERE = PlacedGuests({}, lambda _uid: "", lambda _node, _key: None)


class SlotUse(NamedTuple):
    """A machine type in a cluster. `total`: its slots there that the mesh promises. `claims`: applications that the mesh placed into
    its slots, with the slots of each by node. `last`: nodes of the reservations that
    leave first. `usable`: nodes on which slots are granted. `parent`: the type in whose slots it lives. `windows`: the slots of each window by
    node; `in_windows`: claims that use these; `promised`: the slots that all other claims have, those of an object once, by the time by
    which their pods are gone (inf: nobody knows) and node; `lent`: these times by claim. `times`: by when guests may be gone to have slots
    that windows keep for later, the first one first."""

    machine: str
    cluster: str
    total: int
    slots: Mapping[str, int]
    spans: Sequence[Span] = ()
    allow: Allow = Allow()
    claims: Mapping[str, Mapping[str, int]] = {}
    last: Sequence[str] = ()
    usable: frozenset[str] = frozenset()
    parent: str = ""
    windows: Mapping[str, Mapping[str, int]] = {}
    in_windows: frozenset[str] = frozenset()
    promised: Mapping[float, Mapping[str, int]] = {}
    lent: Mapping[str, int] = {}
    times: Sequence[int] = ()


@dataclass(slots=True)
class GrantPlan:
    """`observed`: slots that guests have already, and the ledger does not know."""

    granted: list[GrantedSlot] = field(default_factory=list)
    observed: list[GrantedSlot] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    waiting: list[WaitingReason] = field(default_factory=list)


def plan_grants(
    use: SlotUse, guests: Iterable[GuestReport], held: Mapping[str, GrantedSlot], offered: Offered, now: float,
    placed: PlacedGuests = ANYWHERE,
) -> GrantPlan:  # fmt: skip
    """Plans for the guests of one machine type in one cluster. `held`: the slots that guests of it have by the ledger; `placed`: all that have
    some, and the rules that guests have about each other."""
    plan = GrantPlan()
    known = {guest.uid: guest for guest in guests}
    stays: dict[str, GrantedSlot] = {}
    for uid, slot in held.items():
        guest = known.get(uid)
        if guest is None or guest.ended or (guest.state == "waiting" and guest.not_before > slot.at):
            plan.withdrawn.append(uid)
        else:
            stays[uid] = slot
    for guest in known.values():
        if _has_unknown_slot(guest, stays.get(guest.uid)):
            slot = granted_slot(use, guest, guest.node, now)
            plan.observed.append(slot)
            stays[guest.uid] = slot
    plan.withdrawn += _without_room(use, stays, known, offered)
    if set(plan.withdrawn) | {slot.uid for slot in plan.observed}:
        return plan  # what is free is known once this is in the log
    waiting = [guest for guest in known.values() if guest.uid not in stays and not guest.ended]
    _grant(use, sorted(waiting, key=sort_key), stays, offered, now, plan, placed)
    return plan


def _without_room(
    use: SlotUse, stays: Mapping[str, GrantedSlot], known: Mapping[str, GuestReport], offered: Offered
) -> list[str]:
    """Returns the guests that were not let in yet and whose slots are gone, one of each node, the newest."""
    newest: dict[str, GrantedSlot] = {}
    for uid, slot in stays.items():
        waits = uid in known and known[uid].state == "waiting"
        if waits and any(offered(NodeKey(use.cluster, slot.node), resource) < 0 for resource in slot.takes):
            newest[slot.node] = max(slot, newest.get(slot.node, slot), key=lambda one: (one.at, one.uid))
    return [slot.uid for slot in newest.values()]


def _has_unknown_slot(guest: GuestReport, slot: GrantedSlot | None) -> bool:
    """Returns whether a guest has a slot that is not the one that the ledger has for it: its cluster gave it that alone."""
    if guest.ended or not guest.node or guest.state == "waiting":
        return False
    if slot is None:
        return guest.state == "used" or guest.alone
    return guest.node != slot.node or (guest.alone and not slot.alone)


def sort_key(guest: GuestReport) -> tuple[int, float, str]:
    """Sorts guests by priority, then by age."""
    return -guest.priority, _seconds(guest.created_at), guest.uid


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _grant(
    use: SlotUse,
    waiting: Sequence[GuestReport],
    stays: Mapping[str, GrantedSlot],
    offered: Offered,
    now: float,
    plan: GrantPlan,
    placed: PlacedGuests,
) -> None:
    holders = [Holder(slot.window, slot.until or None) for slot in stays.values() if not slot.alone]
    in_claims: dict[str, dict[str, int]] = {}
    for slot in stays.values():
        if slot.alone and slot.node not in use.claims.get(slot.claim, {}):
            continue  # the slot that its application has is open still
        by_node = in_claims.setdefault(slot.claim, {})
        by_node[slot.node] = by_node.get(slot.node, 0) + 1
    free = _Free(use, stays.values(), in_claims, offered, now)
    # Slots of applications are promised to their pods, whether these are there or not.
    own = reservation_claim(use.machine, use.cluster)
    for claim, nodes in use.claims.items():
        open_places = sum(nodes.values()) - sum(in_claims.get(claim, {}).values())
        end = use.lent.get(claim)
        holders += [Holder(end=end)] * max(0, open_places if end is None or end > now else 0)
    enters: dict[Holder, bool] = {}  # whether guests of a kind may enter beside those who have slots now
    for guest in waiting:
        refusal = refusal_of(use, guest, now)
        if refusal is not None:
            plan.waiting.append(refusal)
            continue
        until = end_of(now, guest.seconds, guest.grace)
        if guest.claim in use.claims and (until or inf) <= use.lent.get(guest.claim, inf):
            node = _node_of_claim(use, in_claims, guest, placed)
            if node is None:
                text = "all slots that its application has are in use, or rules about other guests keep it off"
                plan.waiting.append(short_of(guest, text))
                continue
            slot = granted_slot(use, guest, node, now)
        else:
            holder = Holder(guest.window, until)
            if holder not in enters:
                enters[holder] = may_enter(use.total, use.spans, holders, holder, now)
            if not enters[holder]:
                plan.waiting.append(_why_not(use, guest, holders, now))
                continue
            # Slots that windows keep for later are free again by then.
            before = next((time for time in use.times if until is not None and until <= time and not guest.window), 0)
            node = free.first(guest, before, placed)
            if node is None:
                plan.waiting.append(short_of(guest, _nothing_free(use, guest, placed)))
                continue
            free.take(guest.window, node, until)
            holders.append(holder)
            enters = {holder: False for holder, enter in enters.items() if not enter}
            slot = granted_slot(use, guest, node, now, pool=guest.window, before=before, claim=own)
        by_node = in_claims.setdefault(slot.claim, {})
        by_node[slot.node] = by_node.get(slot.node, 0) + 1
        placed.put(guest.uid, slot.node)
        plan.granted.append(slot)


def granted_slot(
    use: SlotUse,
    guest: GuestReport,
    node: str,
    now: float,
    *,
    pool: str = "",
    before: int = 0,
    claim: str = "",
) -> GrantedSlot:
    own = reservation_claim(use.machine, use.cluster)
    span = next((s for s in use.spans if s.window.name == guest.window), None) if guest.window else None
    until = end_of(max(now, span.begin if span else now), guest.seconds, guest.grace) or 0.0
    return GrantedSlot(
        uid=guest.uid,
        machine=use.machine,
        cluster=use.cluster,
        node=node,
        claim=claim or (guest.claim if guest.claim in use.claims else own),
        namespace=guest.namespace,
        name=guest.name,
        project=guest.project,
        window=guest.window,
        pool=pool,
        before=before,
        not_before=span.begin if span is not None else 0.0,
        until=min(until or span.end, span.end) if span is not None else until,
        at=now,
        parent=use.parent,
        alone=guest.alone and bool(guest.node),
    )


def refusal_of(use: SlotUse, guest: GuestReport, now: float) -> WaitingReason | None:
    """Returns why the guest gets no slot whatever is free."""
    allow = use.allow
    if not allow.admits(guest.project, guest.namespace):
        return WaitingReason(
            uid=guest.uid,
            code="NotAllowed",
            message=f"{use.machine} is for {allow.named()} only",
        )
    if guest.window:
        span = next((s for s in use.spans if s.window.name == guest.window), None)
        if span is None:
            text = f"{use.machine} has no window {guest.window}"
            return WaitingReason(uid=guest.uid, code="WindowLate", message=text)
        if span.window.projects and guest.project not in span.window.projects:
            text = f"the window {guest.window} is for {', '.join(span.window.projects)} only"
            return WaitingReason(uid=guest.uid, code="NotAllowed", message=text)
        if now < span.begin - AHEAD:
            text = f"the window {guest.window} begins at {span.window.from_}"
            return WaitingReason(uid=guest.uid, code="WindowClosed", message=text)
        left = deadline_seconds(span.end, max(now, span.begin), guest.grace, guest.seconds)
        if left < min(MARGIN, guest.seconds or MARGIN):  # clocks differ, and times of pods are whole seconds
            text = f"the window {guest.window} ended at {span.window.until}"
            if now < span.end:
                before = f"this pod would end {guest.grace + MARGIN:.0f} s before"
                text = f"the window {guest.window} ends at {span.window.until}: {before}"
            return WaitingReason(uid=guest.uid, code="WindowLate", message=text)
    if not guest.ready or guest.not_before > now:
        return WaitingReason(
            uid=guest.uid, code="SlotUnbound", message=guest.reason or "another scheduling gate is there"
        )
    return None


def _why_not(use: SlotUse, guest: GuestReport, holders: Sequence[Holder], now: float) -> WaitingReason:
    if len(holders) >= use.total:
        return short_of(guest, f"needs 1 slot of {use.machine}, {use.total} of {use.total} are in use")
    kept = max((s.slots for s in use.spans if s.end > now), default=0)
    text = f"{use.total - len(holders)} of {use.total} slots are free, and windows keep up to {kept} of them"
    if not guest.window and not guest.seconds:
        text += "; with activeDeadlineSeconds a guest may run before they begin"
    return WaitingReason(uid=guest.uid, code="WindowClosed" if kept else "SlotShort", message=text)


def short_of(guest: GuestReport, message: str) -> WaitingReason:
    """Returns the reason of a guest for which no slot is free."""
    return WaitingReason(uid=guest.uid, code="SlotShort", message=message)


def _nothing_free(use: SlotUse, guest: GuestReport, placed: PlacedGuests) -> str:
    if guest.nodes is not None:
        text = f"no slot is free on the {len(guest.nodes)} nodes that it may use"
    else:
        text = f"needs 1 slot of {use.machine}, none of {sum(use.slots.values())} is free on a node that is ready"
    kept_off = sum(not placed.allows(guest.uid, node) for node in use.slots) if placed.has_rules else 0
    return f"{text}; rules about other guests keep it off {kept_off} nodes" if kept_off else text


def _node_of_claim(
    use: SlotUse, in_claims: Mapping[str, Mapping[str, int]], guest: GuestReport, placed: PlacedGuests
) -> str | None:
    """Returns a node where the application of a guest has a slot for it, if there is one a node where the slot is empty: in others may be
    pods that an update replaces, which leave only once the new ones run."""
    used = in_claims.get(guest.claim, {})
    nodes = [
        node
        for node, count in use.claims[guest.claim].items()
        if count > used.get(node, 0) and node in use.usable and may_use(guest, node, placed)
    ]
    there = {node: sum(by_node.get(node, 0) for by_node in in_claims.values()) for node in nodes}
    return min(nodes, key=lambda node: there[node] >= use.slots.get(node, 0), default=None)


def may_use(guest: GuestReport, node: str, placed: PlacedGuests) -> bool:
    """Returns whether a guest may go to a node: by what it requires of nodes, and by rules about other guests. One that is pinned to its
    node may go there."""
    if guest.nodes is not None and node not in guest.nodes:
        return False
    return guest.node == node or placed.allows(guest.uid, node)


class _Free:
    """The slots that this plan has not given yet."""

    def __init__(
        self, use: SlotUse, stays: Iterable[GrantedSlot], in_claims: _InClaims, offered: Offered, now: float
    ) -> None:
        self._use, self._offered, self._now = use, offered, now
        #: Those of reservations that leave first come first, so that no other has to move.
        self._order = [n for n in dict.fromkeys((*use.last, *use.slots)) if n in use.slots and n in use.usable]
        #: By resource, nodes that may have free slots yet: a plan only takes of them.
        self._open: dict[str, list[str]] = {}
        self._taken: dict[tuple[str, str], int] = {}
        self._ends: dict[str, list[float]] = {}  # node → when those are over for whom no window keeps their slot
        for slot in stays:
            if not (slot.pool or slot.alone or slot.claim in use.in_windows):
                self._ends.setdefault(slot.node, []).append(slot.until or inf)
        for time, promised in use.promised.items():
            claims = [claim for claim in use.claims.keys() - use.in_windows if use.lent.get(claim, inf) == time]
            for node, count in promised.items():
                pods = sum(in_claims.get(claim, {}).get(node, 0) for claim in claims)
                self._ends.setdefault(node, []).extend([time] * (count - pods))

    def first(self, guest: GuestReport, before: int, placed: PlacedGuests) -> str | None:
        """Returns the first node with a free slot, of those where a guest may go."""
        resource = slot_resource(self._use.machine, guest.window, before)
        left, at = self._open.setdefault(resource, list(self._order)), 0
        allowed = None if guest.nodes is None else frozenset(guest.nodes)
        while at < len(left):
            node = left[at]
            if (allowed is not None and node not in allowed) or not (
                guest.node == node or placed.allows(guest.uid, node)
            ):
                at += 1
            elif self._offers(resource, guest.window, node):
                return left[at]
            else:
                del left[at]
        return None

    def _offers(self, resource: str, pool: str, node: str) -> bool:
        if self._offered(NodeKey(self._use.cluster, node), resource) <= self._taken.get((pool, node), 0):
            return False
        begins = (span.begin for span in self._use.spans if span.window.name == pool)
        return all(self._unused(node, max(begin, self._now)) >= 0 for begin in begins)

    def _unused(self, node: str, time: float) -> int:
        """Returns how many slots of a node nobody has at a time, and no window."""
        use = self._use
        kept = sum(
            use.windows.get(span.window.name, {}).get(node, 0) for span in use.spans if span.begin <= time < span.end
        )
        return use.slots.get(node, 0) - kept - sum(end > time for end in self._ends.get(node, ()))

    def take(self, pool: str, node: str, until: float | None) -> None:
        if not pool:
            self._ends.setdefault(node, []).append(until or inf)
        self._taken[pool, node] = self._taken.get((pool, node), 0) + 1
