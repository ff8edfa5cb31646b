"""Tells whether the value of a property meets a condition.

Values of a condition are text and are read as the property's type. What cannot be compared does not hold, and nothing raises:
a property that is missing meets only NotIn and DoesNotExist. Of a list one element must hold, for NotIn all.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from moorage.model.part_reports import PropertyValue, Scalar
from moorage.model.part_requests import Operator, PropertyCondition, PropertySelector

from .typed_values import ORDERED, ordered_reading, reading, readings, scalars

Properties = frozenset[tuple[str, PropertyValue]]
#: Codes of what is told about comparisons that cannot hold: the type has no order; the values are of two dimensions.
NOT_ORDERED, OTHER_DIMENSION = "NotOrdered", "OtherDimension"
DIAGNOSTICS = (NOT_ORDERED, OTHER_DIMENSION)
ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "Gt": operator.gt,
    "GtEq": operator.ge,
    "Lt": operator.lt,
    "LtEq": operator.le,
}
#: Operators that hold exactly where these do not.
NEGATED: Mapping[Operator, Operator] = {"NotGt": "Gt", "NotGtEq": "GtEq", "NotLt": "Lt", "NotLtEq": "LtEq"}


def meets(properties: Properties, selector: PropertySelector) -> bool:
    """Returns whether the properties meet the selector. One without alternatives is met by all."""
    if not selector:
        return True
    found = dict(properties)
    return any(alternative and all(holds(found.get(one.key), one) for one in alternative) for alternative in selector)


def holds(value: PropertyValue | None, condition: PropertyCondition, counts: Counter[str] | None = None) -> bool:
    """Returns whether a value meets a condition; None is a missing property. `counts` counts diagnostics by code."""
    name = condition.operator
    if name in NEGATED:
        return not holds(value, msgspec.structs.replace(condition, operator=NEGATED[name]), counts)
    if value is None:
        return name in ("NotIn", "DoesNotExist")
    if name in ("Exists", "DoesNotExist"):
        return name == "Exists"
    if name in ORDERS:
        if len(condition.values) != 1:
            return False
        # All elements are looked at, so that what is counted does not depend on their order.
        return sum(_is_in_order(one, name, condition.values[0], counts) for one in scalars(value)) > 0
    is_among = any(_equals(one, text) for one in scalars(value) for text in condition.values)
    return not is_among if name == "NotIn" else is_among


def _equals(value: Scalar, text: str) -> bool:
    dimension, mine = reading(value)
    return mine is not None and readings(text).get(dimension) == mine


def _is_in_order(value: Scalar, name: str, text: str, counts: Counter[str] | None) -> bool:
    dimension, found = reading(value)
    mine = ordered_reading(dimension, found)
    other = ordered_reading(dimension, readings(text).get(dimension))
    if mine is not None and other is not None:
        return ORDERS[name](mine, other)
    if counts is not None:
        counts[OTHER_DIMENSION if dimension in ORDERED else NOT_ORDERED] += 1
    return False
