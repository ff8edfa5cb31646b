"""Reads typed values of properties, and the texts of conditions as those types.

Two values can be ordered only within one dimension; they are equal only there, too. Quantities, integers and fractions are one
dimension; bandwidths are another.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_UP, Decimal
from functools import lru_cache
from typing import Literal

from moorage.model.part_reports import PropertyValue, Scalar, Typed
from moorage.parsing import parse_bandwidth, parse_nanos, parse_version

Dimension = Literal["number", "bandwidth", "version", "bool", "string"]
#: A value that compares as its dimension does.
Comparable = int | str | tuple[int, ...]
ORDERED: tuple[Dimension, ...] = ("number", "bandwidth", "version")
_NANO = 10**9


def scalars(value: PropertyValue) -> tuple[Scalar, ...]:
    """Returns the elements of a list, or the value alone."""
    return value if isinstance(value, tuple) else (value,)


def reading(value: Scalar) -> tuple[Dimension, Comparable | None]:
    """Returns dimension and comparable form of a value. None: it is not what its type says, and compares with nothing."""
    if isinstance(value, bool):
        return "bool", "true" if value else "false"
    if isinstance(value, int):
        return "number", value * _NANO
    if isinstance(value, float):
        found = Decimal(repr(value))
        return "number", int((found * _NANO).to_integral_value(ROUND_UP)) if found.is_finite() else None
    if isinstance(value, str):
        return "string", value
    if value.version:
        return "version", readings(value.version)["version"]
    if value.bandwidth:
        return "bandwidth", readings(value.bandwidth).get("bandwidth")
    if value.string:
        return "string", value.string
    return "number", readings(value.quantity).get("number")


@lru_cache(65536)
def readings(text: str) -> Mapping[Dimension, Comparable]:
    """Returns what a text is in each dimension in which it can be read. A version that is no dotted integers is only equal to
    itself. A bare quantity is a bandwidth in bits per second."""
    found: dict[Dimension, Comparable] = {"string": text, "version": text}
    if text in ("true", "false"):
        found["bool"] = text
    try:
        found["version"] = parse_version(text)
    except ValueError:
        pass
    try:
        found["number"] = found["bandwidth"] = parse_nanos(text)
    except ValueError:
        try:
            found["bandwidth"] = parse_bandwidth(text)
        except ValueError:
            pass
    return found


def ordered_reading(dimension: Dimension, found: Comparable | None) -> Comparable | None:
    """Returns what can be ordered in its dimension; None if it cannot be."""
    if dimension not in ORDERED or isinstance(found, str):
        return None
    return found


def identity(value: PropertyValue) -> object:
    """Returns a key that tells values of different types apart, which `1 == True == 1.0` does not."""
    if isinstance(value, tuple):
        return tuple((type(one), one) for one in value)
    return type(value), value


def text_of(value: PropertyValue) -> str:
    """Formats a value for people: `80Gi`, `true`, `[1, 2]`."""
    if isinstance(value, tuple):
        return "[" + ", ".join(map(text_of, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Typed):
        return value.version or value.bandwidth or value.string or value.quantity
    return str(value)
