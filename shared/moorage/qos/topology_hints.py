"""Merges the hints of a kubelet's managers into the zones of a container or pod, as its topology manager does.

A set of zones is a number with one bit for each zone. The result of a merge depends on the distinct sets only, so they are
combined resource by resource and never as a product over all hints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

TopologyPolicy = Literal["none", "best-effort", "restricted", "single-numa-node"]
TopologyScope = Literal["container", "pod"]


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


def merge(policy: TopologyPolicy, resources: Iterable[Hints], zones: int) -> Merged:
    """Chooses the zones for the resources of a container or pod on a node with this number of zones."""
    if policy == "none":
        return Merged(Hint(None, False), True)
    every = (1 << zones) - 1
    lists = [_usable(hints) for hints in resources]
    if policy == "single-numa-node":
        lists = [single_zone_hints(hints) for hints in lists]
    best = _best(lists, every)
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


def rank(hint: Hint, wanted: int) -> tuple[int, int, int]:
    """Returns a key that is smaller for a better hint. Hints that are not preferred should have `wanted` zones."""
    zones = hint.zones or 0
    bits = zones.bit_count()
    if hint.preferred:
        return 0, bits, zones
    if bits == wanted:
        return 1, bits, zones
    return (2, -bits, zones) if bits < wanted else (3, bits, zones)


def _best(lists: Sequence[Sequence[Hint]], every: int) -> Hint:
    # Of each combination: the common zones, whether all hints are preferred, and the set on which all agree (-1: none do).
    found: set[tuple[int, bool, int | None]] = {(every, True, None)}
    for hints in lists:
        found = {
            (
                common if hint.zones is None else common & hint.zones,
                preferred and hint.preferred,
                agreed if hint.zones is None else hint.zones if agreed in (None, hint.zones) else -1,
            )
            for common, preferred, agreed in found
            for hint in hints
        }
    merged = [Hint(common, preferred and agreed != -1) for common, preferred, agreed in found if common]
    wanted = narrowest_needed(lists)
    return min(merged, key=lambda hint: rank(hint, wanted), default=Hint(every, False))
