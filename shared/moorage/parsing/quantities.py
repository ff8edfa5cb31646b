"""Kubernetes quantities as exact integers of nano units. Stricter than the upstream parser on purpose: at least one
digit, bounded length and exponent, no surrounding space, and the canonical form is always computed anew."""

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

#: Amounts are stored as int64 and added up, so they end well below its range; a need at its end fits in no capacity.
CAPACITY_MAX = 1 << 60
NEED_MAX = 1 << 61


@lru_cache(65536)
def parse_nanos(text: str) -> int:
    """Exact nano units, rounded away from zero; values with a binary suffix end at 2**63 - 1, as upstream."""
    found = _FORM.fullmatch(text) if len(text) <= 64 else None
    if found is None:
        raise ValueError(f"{text[:80]!r} is not a quantity; write it like 4, 1.5, 500m or 1Gi")
    sign, digits, fraction, bare, suffix = found.groups()
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


def _scaled(value: int, unit: int, up: bool) -> int:
    rounded = -(-value // unit) if up else value // unit
    top = NEED_MAX if up else CAPACITY_MAX
    return max(-top, min(top, rounded))


def _text(value: str | float) -> str:
    if isinstance(value, bool):
        raise ValueError(f"{value} is not a quantity")  # noqa: TRY004 - one exception for all that is no quantity
    return value if isinstance(value, str) else repr(value)


def parse_cpu_milli(value: str | float, up: bool) -> int:
    """Thousandths of a core; needs round up, capacity down."""
    return parse_amount("cpu", _text(value), up)


def parse_whole(value: str | float, up: bool) -> int:
    """Whole units (bytes, devices, pods); needs round up, capacity down."""
    return parse_amount("", _text(value), up)


@lru_cache(65536)
def parse_amount(resource: str, text: str, up: bool) -> int:
    """What `text` means for this resource: CPU in milli, all else whole; needs round up, capacity down."""
    return _scaled(parse_nanos(text), 10**6 if resource == "cpu" else _ONE, up)


def _decimal(value: int, exponents: bool = False) -> str:
    """`value` nano units with the largest suffix that leaves no fraction."""
    best = "n"
    for suffix, factor in _DECIMAL.items():
        if value % factor:
            break
        best = suffix
    shown = value // _DECIMAL[best]
    if not exponents:
        return f"{shown}{best}"
    power = 3 * (list(_DECIMAL).index(best) - 3)
    while not shown % 1000:  # exponents have no last suffix
        shown, power = shown // 1000, power + 3
    return f"{shown}e{power}" if power else str(shown)


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
def canonical(text: str) -> str:
    """The form Kubernetes itself would write, in the same notation (decimal, binary or exponent)."""
    value = parse_nanos(text)
    if not value:
        return "0"
    if text[-1] == "i":
        return _binary(value)
    return _decimal(value, exponents=text[-1].isdigit() and "e" in text.lower())


def format_amount(resource: str, value: int) -> str:
    """An amount as a canonical quantity: `4`, `500m`, `1Gi`, `1500M`."""
    if not value:
        return "0"
    nano = value * (10**6 if resource == "cpu" else _ONE)
    if value % 1024 or resource == "cpu":
        return _decimal(nano)
    return min(_binary(nano), _decimal(nano), key=len)
