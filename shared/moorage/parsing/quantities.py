"""Parses Kubernetes quantities into exact integers of nano units and formats them.

The parser is stricter than the upstream one on purpose: it requires a digit, bounds length and exponent, and refuses
surrounding space. The canonical form is always computed, never copied from the input.
"""

from __future__ import annotations

import re
from functools import lru_cache

_FORM = re.compile(
    r"([+-]?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?|[eE][+-]?[0-9]{1,3})", re.ASCII
)
_ONE = 10**9
_LIMIT = (2**63 - 1) * _ONE
_BINARY = {p + "i": 1 << 10 * (i + 1) for i, p in enumerate("KMGTPE")}
_DECIMAL = {
    "n": 1,
    "u": 10**3,
    "m": 10**6,
    "": _ONE,
    "k": 10**12,
    "M": 10**15,
    "G": 10**18,
    "T": 10**21,
    "P": 10**24,
    "E": 10**27,
}
_SUFFIX = _DECIMAL | {suffix: factor * _ONE for suffix, factor in _BINARY.items()}

#: Amounts are stored as int64 and summed, so they are capped well below its range. NEED_MAX exceeds CAPACITY_MAX: a need
#: that is capped never fits.
CAPACITY_MAX = 1 << 60
NEED_MAX = 1 << 61


@lru_cache(65536)
def parse_nanos(text: str) -> int:
    """Parses a quantity into nano units, rounded away from zero. Values with a binary suffix are capped at 2**63 - 1, as
    upstream."""
    match = _FORM.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        raise ValueError(f"{text[:80]!r} is not a quantity; write it like 4, 1.5, 500m or 1Gi")
    sign, digits, fraction, bare, suffix = match.groups()
    if digits is None:
        digits, fraction = "", bare
    divisor = 10 ** len(fraction) if fraction else 1
    number = int(digits + fraction) if fraction else int(digits)
    factor = _SUFFIX.get(suffix)
    if factor is None:
        exponent = int(suffix[1:])
        if not -64 <= exponent <= 64:
            raise ValueError(f"{text[:80]!r} is not a quantity: the exponent must be within -64 and 64")
        factor = _ONE * 10 ** max(exponent, 0)
        divisor *= 10 ** max(-exponent, 0)
    value = -(-number * factor // divisor)
    if suffix[-1:] == "i":
        value = min(value, _LIMIT)
    return -value if sign == "-" else value


def _round(value: int, unit: int, up: bool) -> int:
    rounded = -(-value // unit) if up else value // unit
    top = NEED_MAX if up else CAPACITY_MAX
    return max(-top, min(top, rounded))


@lru_cache(65536)
def parse_amount(resource: str, text: str, up: bool) -> int:
    """Parses the amount of a resource: CPU in milli, all else whole units. Needs round up, capacity rounds down."""
    return _round(parse_nanos(text), 10**6 if resource == "cpu" else _ONE, up)


def _decimal(value: int, exponents: bool = False) -> str:
    """Formats `value` nano units with the largest suffix, or exponent, that leaves no fraction."""
    best = "n"
    for suffix, factor in _DECIMAL.items():
        if value % factor:
            break
        best = suffix
    number = value // _DECIMAL[best]
    if not exponents:
        return f"{number}{best}"
    power = 3 * (list(_DECIMAL).index(best) - 3)
    while not number % 1000:  # suffixes end at E, exponents do not
        number, power = number // 1000, power + 3
    return f"{number}e{power}" if power else str(number)


def _binary(value: int) -> str:
    if abs(value) < 1024 * _ONE or value % _ONE:
        return _decimal(value)
    number, best = value // _ONE, ""
    for suffix, factor in _BINARY.items():
        if number % factor:
            break
        best = suffix
    return f"{number // _BINARY.get(best, 1)}{best}"


@lru_cache(65536)
def canonical_quantity(text: str) -> str:
    """Formats a quantity as Kubernetes would, in the same notation (decimal, binary or exponent)."""
    value = parse_nanos(text)
    if not value:
        return "0"
    if text[-1] == "i":
        return _binary(value)
    return _decimal(value, exponents=text[-1].isdigit() and "e" in text.lower())


def format_amount(resource: str, value: int) -> str:
    """Formats an amount of a resource as a canonical quantity: `4`, `500m`, `1Gi`, `1500M`."""
    if not value:
        return "0"
    nano = value * (10**6 if resource == "cpu" else _ONE)
    if value % 1024 or resource == "cpu":
        return _decimal(nano)
    return min(_binary(nano), _decimal(nano), key=len)


#: Resources that are counted in bytes.
_BYTES = ("memory", "ephemeral-storage", "storage", "hugepages-")


def readable_amount(resource: str, value: int) -> str:
    """Formats an amount for people: `2`, `1.5` or `500m` of CPU, `700Gi` of memory, rounded. Not exact."""
    if resource == "cpu":
        return f"{value / 1000:.10g}" if value % 1000 == 0 or abs(value) > 1000 else f"{value}m"
    if not resource.startswith(_BYTES):
        return str(value)
    unit, factor = "", 1
    for suffix, size in _BINARY.items():
        if abs(value) < size:
            break
        unit, factor = suffix, size
    number = value / factor
    return f"{round(number, 1):g}{unit}" if abs(number) >= 10 else f"{number:.3g}{unit}"


def readable_quantity(resource: str, text: str) -> str:
    """Formats a quantity for people; text that is no quantity is returned as it is."""
    try:
        return readable_amount(resource, parse_amount(resource, text, False))
    except ValueError:
        return text
