"""Parses bandwidths: bits per second, exact, in nano units."""

from __future__ import annotations

import re
from functools import lru_cache

from .quantities import parse_nanos

_FORM = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)) ?(?P<prefix>[KMGTPE]i|[kKMGTPE]?)"
    r"(?P<unit>bps|b/s|bit/s|Bps|B/s|BPS)",
    re.ASCII,
)
_BYTES = ("Bps", "B/s")


@lru_cache(65536)
def parse_bandwidth(text: str) -> int:
    """Parses a bandwidth with its unit: `40Gbps`, `40Gb/s` and `40Gbit/s` are bits, `5GBps` and `5GB/s` bytes of 8 bits. All in
    capitals, as in `40GBPS`, are bits."""
    match = _FORM.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        raise ValueError(f"{text[:80]!r} is not a bandwidth; write it like 40Gbps (bits) or 5GB/s (bytes)")
    bits = parse_nanos(match["number"] + match["prefix"].replace("K", "k" if len(match["prefix"]) == 1 else "K"))
    return 8 * bits if match["unit"] in _BYTES else bits


def has_ambiguous_unit(text: str) -> bool:
    """Returns whether a bandwidth is all in capitals, so that a reader may take its bits for bytes."""
    match = _FORM.fullmatch(text) if len(text) <= 64 else None
    return match is not None and match["unit"] == "BPS"
