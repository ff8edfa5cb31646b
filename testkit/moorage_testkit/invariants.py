"""Checks invariants of the decision log, after every test of a mesh."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from moorage.bus import Bus, Settings
from moorage.fleet import Fleet
from moorage.fleet.redis_store import FAILURES, FleetStore, GenerationChanged
from moorage.ledger import LOG, CountedClaim, Family, Ledger, decode_commit, open_room, read_snapshot
from moorage.model.allocations import IN_COMMON
from moorage.model.claims import Claim, Commit, Decision, Settlement
from moorage.model.slots import Slot, resource_of_part
from moorage.parts.layout import part_id

#: Cluster → node → resource → the largest sum of claims.
Room = Mapping[str, Mapping[str, Mapping[str, int]]]
#: An amount that is not known.
ENDLESS = 1 << 62


async def read_log(bus: Bus) -> tuple[Ledger, list[tuple[int, Commit]]]:
    """Returns the newest snapshot and every commit after it, as any reader gets them."""
    ledger = await read_snapshot(bus)
    log = bus.log(LOG)
    first, last = max(ledger.seq + 1, await log.first()), await log.last()
    found: dict[int, bytes] = {}
    if first <= last:
        tail = await log.follow(first, found.__setitem__)
        await tail.stop()
    missing = [seq for seq in range(first, last + 1) if seq not in found]
    if missing:
        raise AssertionError(f"the log has no message {missing[0]}")
    return ledger, [(seq, _commit(found[seq])) for seq in range(first, last + 1)]


def _commit(data: bytes) -> Commit:
    """Decodes a commit; every reader takes an unreadable one as empty."""
    try:
        return decode_commit(data)
    except msgspec.DecodeError:
        return Commit()


def violations(
    commits: Iterable[tuple[int, Commit]], room: Room, ledger: Ledger | None = None, unknown: int = 0
) -> list[str]:
    """Returns each place and moment at which the log claims more than there is, names a commit twice, or decides a group
    twice in one commit. Counts every slot in full, but old and new ones of an object together, which is stricter than the
    arithmetic of free capacity; zones that kubelets choose are left out. A settlement may leave a node overfull: its slots wait
    where their pods do. `unknown` is the capacity of nodes and resources that `room` does not name."""
    ledger = ledger or Ledger()
    found: list[str] = []
    seen: set[str] = set(ledger.commits)
    taken: dict[tuple[str, str, str], int] = {}
    forgiven: dict[tuple[str, str, str], int] = {}
    counted: dict[Family, list[tuple[tuple[str, str, str], int]]] = {}
    family_of: dict[str, Family] = {}

    def key_of(cluster: str, node: str, name: str) -> tuple[str, str, str]:
        common = room.get(cluster, {}).get(IN_COMMON, {})
        return cluster, IN_COMMON if name in common else node, name

    def recount(ident: str) -> set[tuple[str, str, str]]:
        """Counts the claims of one object on one cluster together, as an update of it does."""
        touched: set[tuple[str, str, str]] = set()
        active = ledger.claims.get(ident)
        families = {family_of[ident]} if ident in family_of else set()
        if active is not None:
            family_of[ident] = active.family
            families.add(active.family)
            families |= {ledger.claims[other].family for other in _going_with_devices(active.group, ledger)}
        for family in families:
            for key, amount in counted.pop(family, ()):
                taken[key] -= amount
            claims = ledger.family_of(family)
            counted_claims = [CountedClaim(_told_slots(_without_passed_on(claim, ledger))) for claim in claims]
            reserved = open_room(counted_claims) if claims else {}
            mine = [
                (key_of(family.cluster, node, name), amount)
                for node, amounts in reserved.items()
                for name, amount in amounts.items()
            ]
            for key, amount in mine:
                taken[key] = taken.get(key, 0) + amount
                touched.add(key)
            counted[family] = mine
        return touched

    consumed: dict[str, list[tuple[tuple[str, str, str], int]]] = {}

    def recount_consumer(ident: str) -> set[tuple[str, str, str]]:
        """Counts what a consumer of the Placement interface holds of nodes."""
        before = consumed.pop(ident, [])
        held = ledger.allocations.consumers.get(ident)
        after = [
            (key_of(cluster, node, name), amount)
            for cluster, nodes in (held.taken if held is not None else {}).items()
            for node, amounts in nodes.items()
            for name, amount in amounts.items()
        ]
        consumed[ident] = after
        for sign, amounts in ((-1, before), (1, after)):
            for key, amount in amounts:
                taken[key] = taken.get(key, 0) + sign * amount
        return {key for key, _ in after}

    def beyond(touched: Iterable[tuple[str, str, str]], when: str) -> None:
        for cluster, node, name in sorted(touched):
            there = room.get(cluster, {}).get(node, {}).get(name, unknown)
            if taken[cluster, node, name] > max(there, forgiven.get((cluster, node, name), 0)):
                found.append(f"{when}: {cluster} {node} has {there} {name}, claimed are {taken[cluster, node, name]}")

    at_first = {key for ident in ledger.claims for key in recount(ident)}
    at_first |= {key for ident in ledger.allocations.consumers for key in recount_consumer(ident)}
    beyond(at_first, f"up to {ledger.seq}")
    for seq, commit in commits:
        if commit.id and commit.id in seen:
            found.append(f"{seq}: commit {commit.id} is in the log twice")
        seen.add(commit.id)
        groups = [decision.group for decision in commit.entries_of(Decision)]
        if len(groups) != len(set(groups)):
            found.append(f"{seq}: a group is decided twice in one commit")
        changes = ledger.fold(seq, commit)
        touched: set[tuple[str, str, str]] = set()
        for ident in changes.claims:
            touched |= recount(ident)
        for ident in changes.consumers:
            touched |= recount_consumer(ident)
        forgiven.update((key, min(forgiven[key], taken[key])) for key in touched & forgiven.keys())
        if commit.entries_of(Settlement):
            forgiven.update((key, taken[key]) for key in touched)
        beyond(touched, str(seq))
    return found


def _going_with_devices(group: str, ledger: Ledger) -> list[str]:
    going = (ident for ident in ledger.by_group.get(group, ()) if ledger.claims[ident].withdrawn)
    return [ident for ident in going if any(slot.devices for slot in ledger.claims[ident].claim.slots)]


def _without_passed_on(claim: Claim, ledger: Ledger) -> list[Slot]:
    """Returns the slots without what another object of the app has from this one, which goes: devices of a ResourceClaim that pods of both
    have together."""
    active = ledger.claims[claim.id]
    if not active.withdrawn or not any(slot.devices for slot in claim.slots):
        return claim.slots
    others = [ledger.claims[ident] for ident in ledger.by_group.get(active.group, ())]
    passed_on = {
        (slot.node, grant.part, grant.name)
        for other in others
        if not other.withdrawn and (other.claim.app, other.claim.cluster) == (claim.app, claim.cluster)
        for slot in other.claim.slots
        for grant in slot.devices
        if "/" in grant.need
    }
    return [
        msgspec.structs.replace(
            slot,
            parts={
                part: {name: n for name, n in amounts.items() if (slot.node, part, name) not in passed_on}
                for part, amounts in slot.parts.items()
            },
        )
        for slot in claim.slots
    ]


def _told_slots(slots: Sequence[Slot]) -> list[Slot]:
    """Returns the slots without the zones that kubelets choose: a pod may have come to another one, and once a report counts it
    there, what its slot names is free."""
    return [_told(slot) if slot.aligned else slot for slot in slots]


def _told(slot: Slot) -> Slot:
    parts = {
        part: {name: amount for name, amount in amounts.items() if name not in slot.aligned.get(part, {})}
        for part, amounts in slot.parts.items()
    }
    return msgspec.structs.replace(slot, parts={part: amounts for part, amounts in parts.items() if amounts})


def room_in(fleet: Fleet) -> Room:
    """Returns the capacity of every node and of its parts; that of parts which several nodes reach once."""
    columns = {name: column for name in fleet.resources if (column := fleet.allocatable(name)) is not None}
    return {
        cluster: {
            fleet.node_name(row): {name: int(column[row]) for name, column in columns.items()} | _parts_in(fleet, row)
            for row in map(int, fleet.rows_of(cid))
        }
        | _in_common(fleet, cid)
        for cluster, cid in fleet.ids.items()
    }


def _in_common(fleet: Fleet, cid: int) -> dict[str, dict[str, int]]:
    rows = map(int, fleet.rows_of(cid))
    found = {name: amount for row in rows for name, amount in _parts_in(fleet, row, shared=True).items()}
    return {IN_COMMON: found} if found else {}


def _parts_in(fleet: Fleet, row: int, *, shared: bool = False) -> dict[str, int]:
    _, layout = fleet.inside(row)
    node = fleet.node_name(row)
    return {
        resource_of_part(part_id(node, layout.parts[part].path), name): layout.parts[part].inventories[name].capacity
        for part, name in layout.entries
        if layout.parts[part].shared == shared
    }


async def room_now(redis_url: str, seconds: float = 60) -> Room:
    """Returns the capacity of the clusters that are known now. An unreadable fleet is an error, too."""
    store, last = FleetStore(redis_url), ""
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    if (current := await store.current()).generation:
                        return room_in(await store.read(current))
                except (GenerationChanged, *FAILURES) as error:
                    last = repr(error)
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"what there is cannot be read, so nothing can be checked ({last})") from None
    finally:
        await store.close()


async def wrong_since(before: Room, settings: Settings) -> list[str]:
    """Returns the violations of a running mesh: claims beyond the capacity that a known node has, or had before."""
    room: dict[str, dict[str, dict[str, int]]] = {}
    for seen in (before, await room_now(settings.redis_url)):
        for cluster, nodes in seen.items():
            for node, amounts in nodes.items():
                most = room.setdefault(cluster, {}).setdefault(node, {})
                most.update({name: max(amount, most.get(name, 0)) for name, amount in amounts.items()})
    bus = await Bus.connect(settings, worker="admin")
    try:
        ledger, commits = await read_log(bus)
    finally:
        await bus.close()
    return violations(commits, room, ledger, unknown=ENDLESS)


def counting_pods(ledger: Ledger) -> int:
    """Counts the pods of standing decisions."""
    return sum(s.count for d in ledger.standing.values() for c in d.claims for s in c.slots)
