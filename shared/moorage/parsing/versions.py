"""Parses versions of dotted integers."""

from __future__ import annotations

import re
from functools import lru_cache

_FORM = re.compile(r"v?([0-9]{1,18}(?:\.[0-9]{1,18})*)", re.ASCII)


@lru_cache(65536)
def parse_version(text: str) -> tuple[int, ...]:
    """Returns the numbers of a version without the zeros at its end, so that 1.2 is 1.2.0."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:80]!r} is not a version; write it like 3.10.1")
    numbers = [int(number) for number in found[1].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
