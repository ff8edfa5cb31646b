"""Reads the annotation `moorage.dev/parts`: the zones that a decision chose for the pods of a claim on this node."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from moorage.model.object_names import PARTS

from .messages import PodSpec

_ZONE = re.compile(r"numa-([0-9]{1,5})", re.ASCII)
#: A claim has at most so many runs on a node; an annotation is at most 256 KiB.
_MOST_SLOTS = 4096


class _Run(msgspec.Struct):
    count: int = 1
    parts: dict[str, dict[str, str | int | float]] = {}


_decode = msgspec.json.Decoder(dict[str, list[_Run]]).decode


class BadClaim(ValueError):
    """Raised where the annotation cannot be read."""


def slot_zones(pod: PodSpec, node: str) -> list[int]:
    """Returns for each slot of the pod's claim on this node, in order, the zones it names; 0: any. Raises BadClaim."""
    text = pod.annotations.get(PARTS, "")
    if not text:
        return []
    try:
        runs = _decode(text).get(node, [])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadClaim(f"the annotation {PARTS} cannot be read: {error}") from None
    found: list[int] = []
    for run in runs:
        mask = 0
        for part in run.parts:
            mask |= _zone_of(part, node)
        found += [mask] * max(0, min(run.count, _MOST_SLOTS - len(found)))
    return found


def _zone_of(part: str, node: str) -> int:
    """Returns the zone of a part `NODE/numa-N` or of a part below it."""
    for name in part.removeprefix(f"{node}/").split("/"):
        found = _ZONE.fullmatch(name)
        if found is not None:
            return 1 << int(found[1])
    return 0


def zones_for(slots_of_claim: list[int], taken: Iterable[int]) -> tuple[int, int]:
    """Returns the first slot that no pod has and its zones (0: any). Where all are taken, because a pod comes before another one
    is gone, it is -1 and the zones of all of them."""
    used = set(taken)
    for slot, mask in enumerate(slots_of_claim):
        if slot not in used:
            return slot, mask
    every = 0
    for mask in slots_of_claim:
        if not mask:
            return -1, 0
        every |= mask
    return -1, every
