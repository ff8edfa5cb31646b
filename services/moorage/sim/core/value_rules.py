"""Checks single values of fleet files: amounts, and names of traits, aggregates, properties and resources."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from moorage.model.part_names import is_class, short_name
from moorage.model.problems import Violation
from moorage.parsing import CAPACITY_MAX, parse_nanos
from moorage.parts.reported_amounts import class_amount, is_resource

Quantity = str | int | float
#: Properties with larger numbers, or longer names and texts, could not be reported.
MAX_NUMBER = (1 << 63) - 1
MAX_TEXT = 4096
#: Kinds, vendors and counters; keys of taints.
NAMED = re.compile(r"[^\x00-\x1f\x7f]{1,255}")
_AGGREGATE = re.compile(r"[^\s,!\x00-\x1f\x7f]{1,255}")
_PROPERTY = re.compile(r"[^\s\x00-\x1f\x7f]{1,317}")
_NANO = 10**9


def violation(path: str, code: str, message: str) -> Violation:
    return Violation(path=path, code=code, message=message)


def text_of(amount: Quantity) -> str:
    return amount if isinstance(amount, str) else repr(amount)


def amount_errors(name: str, amount: Quantity, path: str) -> Iterator[Violation]:
    """Yields what is wrong with an amount of a Kubernetes resource or of a class of parts, which is counted in whole ones."""
    try:
        if parse_nanos(text_of(amount)) < 0:
            yield violation(path, "OutOfRange", "must not be negative")
        elif is_too_large(name, amount):
            yield violation(path, "OutOfRange", f"{text_of(amount)[:80]} is too large")
        elif not is_counted(name, amount):
            yield violation(path, "BadQuantity", f"{text_of(amount)[:80]}: {name} is counted in whole ones")
    except ValueError as error:
        yield violation(path, "BadQuantity", str(error))


def is_too_large(name: str, amount: Quantity) -> bool:
    """Returns whether the amount is one that reports cut off. What is no amount at all is told elsewhere."""
    try:
        return class_amount(name, text_of(amount))[1] >= CAPACITY_MAX
    except ValueError:
        return False


def is_counted(name: str, amount: Quantity) -> bool:
    """Returns whether the amount is a whole one, if it is one of a class of parts."""
    return not is_class(name) or is_whole(amount)


def is_whole(amount: Quantity) -> bool:
    """Returns whether the amount is a whole one. What is no amount at all is told elsewhere."""
    try:
        return parse_nanos(text_of(amount)) % _NANO == 0
    except ValueError:
        return True


def resource_errors(names: Mapping[str, object], path: str) -> Iterator[Violation]:
    """Yields the names that no resource and no class of parts has."""
    for name in names:
        if not is_resource(name):
            message = f"{name[:80]!r} is no name of a resource or class: that is 1 to 320 characters without spaces"
            yield violation(f"{path}.{name}", "BadName", message)


def trait_errors(names: Sequence[str], path: str) -> Iterator[Violation]:
    yield from _name_errors(
        names, path, lambda name: is_class(short_name(name)), "a trait: that is 1 to 255 of A-Z, 0-9 and _"
    )


def aggregate_errors(names: Sequence[str], path: str) -> Iterator[Violation]:
    is_aggregate: Callable[[str], object] = _AGGREGATE.fullmatch
    yield from _name_errors(
        names, path, is_aggregate, "an aggregate: that is 1 to 255 characters but spaces, ',' and '!'"
    )


def _name_errors(names: Sequence[str], path: str, is_one: Callable[[str], object], what: str) -> Iterator[Violation]:
    for i, name in enumerate(names):
        if not is_one(name):
            yield violation(f"{path}[{i}]", "BadName", f"{name[:80]!r} is no name of {what}")


def property_errors(properties: Mapping[str, Any], path: str) -> Iterator[Violation]:
    """Yields names and plain values that no property can have."""
    for name, value in properties.items():
        at = f"{path}.{name}"
        if not _PROPERTY.fullmatch(name):
            message = f"{name[:80]!r} is no name of a property: that is 1 to 317 characters without spaces"
            yield violation(at, "BadName", message)
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, float) and not math.isfinite(one):
                yield violation(at, "BadValue", f"{one} is not a number")
            elif isinstance(one, int) and abs(one) > MAX_NUMBER:
                yield violation(at, "BadValue", f"numbers are at most {MAX_NUMBER}")
            elif isinstance(one, str) and len(one) > MAX_TEXT:
                yield violation(at, "BadValue", f"texts have at most {MAX_TEXT} characters")
