"""Tells whether typed properties meet a selector: one of its alternatives, of which all conditions hold.

Values of a selector are text and are read as the property's type. What cannot be compared does not hold, and nothing raises:
a property that is missing meets only NotIn and DoesNotExist.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from moorage.model.part_reports import PropertyValue, Typed
from moorage.model.part_requests import PropertyCondition, PropertySelector
from moorage.parsing import parse_nanos

Properties = frozenset[tuple[str, PropertyValue]]
_VERSION = re.compile(r"v?([0-9]{1,18}(?:\.[0-9]{1,18})*)", re.ASCII)
_NANO = 10**9


def meets(properties: Properties, selector: PropertySelector) -> bool:
    """Returns whether the properties meet the selector. One without alternatives is met by all."""
    if not selector:
        return True
    found = dict(properties)
    return any(alternative and all(_holds(found, one) for one in alternative) for alternative in selector)


def _holds(properties: Mapping[str, PropertyValue], condition: PropertyCondition) -> bool:
    value, operator = properties.get(condition.key), condition.operator
    if value is None:
        return operator in ("NotIn", "DoesNotExist")
    match operator:
        case "Exists":
            return True
        case "DoesNotExist":
            return False
        case "In" | "Eq":
            return any(_compare(value, text) == 0 for text in condition.values)
        case "NotIn":
            return not any(_compare(value, text) == 0 for text in condition.values)
    order = _compare(value, condition.values[0]) if len(condition.values) == 1 and _is_ordered(value) else None
    if order is None:
        return False
    return {"Gt": order > 0, "GtEq": order >= 0, "Lt": order < 0, "LtEq": order <= 0}.get(operator, False)


def _is_ordered(value: PropertyValue) -> bool:
    return not isinstance(value, bool | str)


def _compare(value: PropertyValue, text: str) -> int | None:
    """Returns whether the value is less (-1), equal (0) or more (1) than the text; None if they cannot be compared."""
    if isinstance(value, bool):
        return 0 if text == ("true" if value else "false") else None
    if isinstance(value, str):
        return 0 if value == text else 1
    if isinstance(value, Typed) and value.version:
        mine, other = _version(value.version), _version(text)
        if mine is None or other is None:
            return 0 if value.version == text else None
        return (mine > other) - (mine < other)
    mine_nanos, other_nanos = _nanos(value), _nanos(text)
    if mine_nanos is None or other_nanos is None:
        return None
    return (mine_nanos > other_nanos) - (mine_nanos < other_nanos)


def _version(text: str) -> tuple[int, ...] | None:
    """Returns the numbers of a version without the zeros at its end, so that 1.2 is 1.2.0."""
    found = _VERSION.fullmatch(text)
    if found is None:
        return None
    numbers = [int(number) for number in found[1].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _nanos(value: float | str | Typed) -> Decimal | int | None:
    if isinstance(value, Typed):
        value = value.quantity
    if isinstance(value, int):
        return value * _NANO
    if isinstance(value, float):
        found = Decimal(repr(value))
        return found * _NANO if found.is_finite() else None
    try:
        return parse_nanos(value)
    except ValueError:
        return None
