"""Reads and writes lists of CPUs or NUMA nodes as Linux has them (`0-3,8`). A set is a number with one bit for each."""

from __future__ import annotations

import re
from functools import lru_cache

_FORM = re.compile(r"[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*", re.ASCII)
#: No machine has CPUs with larger numbers; a set from outside is not built before its size is known.
MAX_CPUS = 8192


@lru_cache(8192)
def parse_cpuset(text: str, most: int = MAX_CPUS) -> int:
    """Returns the set; raises ValueError where the text is none or has numbers from `most` on."""
    text = text.strip()
    if not text:
        return 0
    if len(text) > 8 * most or not _FORM.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is not a list of CPUs or nodes; write it like 0-3,8")
    mask = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if low > high or high >= most:
            raise ValueError(f"{part} is not in 0-{most - 1}, or ends before it begins")
        mask |= (1 << (high + 1)) - (1 << low)
    return mask


@lru_cache(8192)
def format_cpuset(mask: int) -> str:
    """Returns the shortest list, ascending; an empty text for the empty set."""
    parts = []
    base = 0
    while mask:
        skipped = (mask & -mask).bit_length() - 1
        mask >>= skipped
        base += skipped
        run = (~mask & (mask + 1)).bit_length() - 1
        parts.append(f"{base}-{base + run - 1}" if run > 1 else str(base))
        mask >>= run
        base += run
    return ",".join(parts)
