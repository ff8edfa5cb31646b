"""Merges hints of resources into the zones of a container or pod, as the topology manager of a kubelet does.

A set of zones is a number with one bit for each zone. The result of a merge depends on the distinct sets only, so they are
combined resource by resource and never as a product over all hints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

TopologyPolicy = Literal["none", "best-effort", "restricted", "single-numa-node"]
TopologyScope = Literal["container", "pod"]
#: By zone, its distance to every zone.
Distances = Sequence[Sequence[int]]

#: Up to so many zones all sets of them are counted; beyond that the sets that hints have in common are enumerated.
_COUNTED_ZONES = 10
#: The most sets that are enumerated at once. Hints for single zones and pairs of 64 zones stay below it; of junk the widest
#: sets are kept. Whether a pod is admitted does not depend on them: they are not preferred.
_MOST_COMBINATIONS = 1 << 19


class Hint(NamedTuple):
    zones: int | None  # None: any
    preferred: bool


#: The hints for one resource. None: no preference; empty: no set of zones can give it.
Hints = Sequence[Hint] | None
_INDIFFERENT = Hint(None, True)
_IMPOSSIBLE = Hint(None, False)


class Merged(NamedTuple):
    hint: Hint
    admitted: bool


def merge(policy: TopologyPolicy, resources: Iterable[Hints], zones: int, closest: Distances | None = None) -> Merged:
    """Chooses the zones for the resources of a container or pod on a node with this number of zones. Among sets of one size,
    those that are near each other by `closest` win."""
    if policy == "none":
        return Merged(Hint(None, False), True)
    every = (1 << zones) - 1
    lists = [_usable(hints) for hints in resources]
    if policy == "single-numa-node":
        lists = [single_zone_hints(hints) for hints in lists]
    best = _best(lists, every, closest)
    if policy == "single-numa-node" and best.zones == every:
        best = Hint(None, best.preferred)
    return Merged(best, best.preferred or policy == "best-effort")


def _usable(hints: Hints) -> Sequence[Hint]:
    if hints is None:
        return (_INDIFFERENT,)
    return hints or (_IMPOSSIBLE,)


def single_zone_hints(hints: Sequence[Hint]) -> list[Hint]:
    """Returns the preferred hints for one zone or any."""
    return [hint for hint in hints if hint.preferred and (hint.zones is None or hint.zones.bit_count() == 1)]


def narrowest_needed(lists: Iterable[Sequence[Hint]]) -> int:
    """Returns the largest, over the resources, of the number of zones of the narrowest hint."""
    return max(
        (min((h.zones.bit_count() for h in hints if h.zones is not None), default=0) for hints in lists), default=0
    )


def mean_distance(mask: int, distances: Distances) -> float:
    """Returns the mean distance between the zones of a set, each to itself included."""
    chosen = [i for i in range(mask.bit_length()) if mask >> i & 1]
    if not chosen:
        return 0.0
    return sum(distances[i][j] for i in chosen for j in chosen) / len(chosen) ** 2


def rank(hint: Hint, wanted: int, closest: Distances | None = None) -> tuple[int, int, float, int]:
    """Returns a key that is smaller for a better hint. Hints that are not preferred should have `wanted` zones."""
    zones = hint.zones or 0
    bits = zones.bit_count()
    distance = mean_distance(zones, closest) if closest is not None else 0.0
    if hint.preferred:
        return 0, bits, distance, zones
    if bits == wanted:
        return 1, bits, distance, zones
    return (2, -bits, distance, zones) if bits < wanted else (3, bits, distance, zones)


def _best(lists: Sequence[Sequence[Hint]], every: int, closest: Distances | None) -> Hint:
    agreed = _agreed(lists, every)
    if agreed:
        return min((Hint(mask, True) for mask in agreed), key=lambda hint: rank(hint, 0, closest))
    wanted = narrowest_needed(lists)
    masks = [{every if hint.zones is None else hint.zones & every for hint in hints} for hints in lists]
    count = _counted_sets if every.bit_length() <= _COUNTED_ZONES else _enumerated_sets
    found = count(masks, every, wanted)
    widths = set(map(int.bit_count, found))
    if not widths:
        return Hint(every, False)
    width = min(widths, key=lambda bits: rank(Hint((1 << bits) - 1, False), wanted))
    best = (mask for mask in found if mask.bit_count() == width)
    return Hint(min(best, key=lambda mask: (mean_distance(mask, closest) if closest is not None else 0, mask)), False)


def _agreed(lists: Sequence[Sequence[Hint]], every: int) -> set[int]:
    """Returns the sets that every resource prefers, or that those prefer to which not any set is equal."""
    found: set[int] | None = None
    for hints in lists:
        preferred = {hint.zones for hint in hints if hint.preferred}
        if None in preferred:
            continue
        masks = {mask & every for mask in preferred if mask is not None} - {0}
        found = masks if found is None else found & masks
    if found is not None:
        return found
    # Each resource takes any set; those that would prefer one, too, may have it.
    several = {hint.zones & every for hints in lists for hint in hints if hint.preferred and hint.zones} - {0}
    return several | ({every} if every else set())


def _counted_sets(masks: Sequence[set[int]], every: int, _: int) -> Collection[int]:
    """Returns what the hints, one of each resource, can have in common. For each set it counts the combinations of hints that
    include it; of these counts follow those of the combinations that have exactly the set in common."""
    size = every + 1
    combinations = [1] * size
    for family in masks:
        counts = [0] * size
        for mask in family:
            counts[mask] = 1
        _sum_over_supersets(counts, 1)
        combinations = [a * b for a, b in zip(combinations, counts, strict=True)]
    _sum_over_supersets(combinations, -1)
    return [mask for mask in range(1, size) if combinations[mask]]


def _sum_over_supersets(counts: list[int], sign: int) -> None:
    step = 1
    while step < len(counts):
        for base in range(0, len(counts), 2 * step):
            for low in range(base, base + step):
                counts[low] += sign * counts[low + step]
        step *= 2


def _enumerated_sets(masks: Sequence[set[int]], every: int, wanted: int) -> Collection[int]:
    """Returns what the hints, one of each resource, can have in common, without some sets that are not the best."""
    found = {every}
    families = sorted(masks, key=len)
    for i, family in enumerate(families[:-1]):
        found = {common & mask for common in found for mask in family}
        found.discard(0)
        most = _MOST_COMBINATIONS // len(families[i + 1])
        if len(found) > most:
            found = set(sorted(found, key=int.bit_count, reverse=True)[:most])
    best: set[int] = set()
    widest = 0  # of those found that are not wider than wanted: what has fewer zones is worse
    for common in sorted(found, key=int.bit_count, reverse=True):
        if common.bit_count() < widest:
            break
        reached = {common & mask for mask in (families[-1] if families else {every})}
        reached.discard(0)
        best |= reached
        widest = max(widest, max((n for n in map(int.bit_count, reached) if n <= wanted), default=0))
    return best


class NumericAlignment(NamedTuple):
    """The zones of each resource, which may differ under the policy `numeric`."""

    hints: Mapping[str, Hint]
    admitted: bool


def merge_numeric(resources: Mapping[str, Hints], aligned: Sequence[str] = ("cpu", "memory")) -> NumericAlignment:
    """Chooses zones for each resource. Those of `aligned` get the same zones, and one of them prefers these; of any two sets
    one includes the other; as many of the others as can be get zones that they prefer, and the largest set is as small as
    can be."""
    lists = {name: _usable(hints) for name, hints in resources.items()}
    if any(hints is not None and not hints for hints in resources.values()):
        return NumericAlignment({}, False)
    alike = [name for name in lists if name in aligned]
    others = [name for name in lists if name not in aligned]
    best: tuple[tuple[int, int, tuple[int, ...]], dict[str, Hint]] | None = None
    for start in _aligned_starts(lists, alike):
        found = _nested(start, lists, others)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return NumericAlignment(best[1], True) if best is not None else NumericAlignment({}, False)


def _aligned_starts(lists: Mapping[str, Sequence[Hint]], alike: Sequence[str]) -> list[dict[str, Hint]]:
    """Returns the ways in which the aligned resources get the same zones."""
    if not alike:
        return [{}]
    masks = {hint.zones for name in alike for hint in lists[name] if hint.zones is not None}
    starts = []
    candidates: list[int | None] = [*sorted(masks)] or [None]
    for mask in candidates:
        chosen = {
            name: max(
                (hint for hint in lists[name] if hint.zones in (mask, None)), key=lambda h: h.preferred, default=None
            )
            for name in alike
        }
        start = {name: hint for name, hint in chosen.items() if hint is not None}
        if len(start) == len(alike) and any(hint.preferred for hint in start.values()):
            starts.append(start)
    return starts


def _nested(
    start: Mapping[str, Hint], lists: Mapping[str, Sequence[Hint]], others: Sequence[str]
) -> tuple[tuple[int, int, tuple[int, ...]], dict[str, Hint]] | None:
    """Adds the other resources so that all sets include each other; returns the result with its key, smaller being better."""
    first = frozenset(hint.zones for hint in start.values() if hint.zones is not None)
    chains: dict[frozenset[int], tuple[int, dict[str, Hint]]] = {first: (0, dict(start))}
    for name in others:
        longer: dict[frozenset[int], tuple[int, dict[str, Hint]]] = {}
        for chain, (missed, chosen) in chains.items():
            for hint in lists[name]:
                mask = hint.zones
                if mask is not None and not all(mask & other in (mask, other) for other in chain):
                    continue
                key = chain if mask is None else chain | {mask}
                now = missed + (not hint.preferred)
                if key not in longer or now < longer[key][0]:
                    longer[key] = now, {**chosen, name: hint}
        chains = longer
    keyed = [
        ((missed, max((mask.bit_count() for mask in chain), default=0), tuple(sorted(chain))), chosen)
        for chain, (missed, chosen) in chains.items()
    ]
    return min(keyed, key=lambda found: found[0], default=None)
