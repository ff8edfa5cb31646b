"""Reads amounts of parts as they are reported: classes, inventories and CPUs."""

from __future__ import annotations

import math
import re
from itertools import pairwise

from moorage.model.part_names import KUBERNETES_RESOURCES, short_name
from moorage.model.part_reports import InventoryReport
from moorage.parsing import CAPACITY_MAX, parse_amount, parse_nanos

from .class_columns import UNLIMITED, Inventory

#: What is more makes no sense. What is less, and more than any machine has, is cut off.
_LARGEST = (2**63 - 1) * 10**9
_RESOURCE = re.compile("[!-~]{1,320}", re.ASCII)


def class_amount(name: str, text: str, up: bool = False) -> tuple[str, int]:
    """Returns class and amount as they are kept: Kubernetes resources in their units, all else in whole ones."""
    resource, units = class_of(name)
    return resource, min(parse_amount(resource if units == 1 else "", text, up) * units, CAPACITY_MAX)


def class_of(name: str) -> tuple[str, int]:
    """Returns the class in which a resource is kept, and how many of its units one is."""
    found = KUBERNETES_RESOURCES.get(name)
    return (short_name(name), 1) if found is None else (found.name, found.units)


def is_resource(name: str) -> bool:
    """Returns whether a resource or a class of parts may have the name."""
    return _RESOURCE.fullmatch(name) is not None


def inventory_of(name: str, given: str | InventoryReport) -> tuple[str, Inventory]:
    """Returns the class and the inventory of an amount that is reported. Raises `ValueError` if it makes no sense."""
    if not is_resource(name):
        raise ValueError("this is no name of a class or resource")
    if parse_nanos(given if isinstance(given, str) else given.total) > _LARGEST:
        raise ValueError("the amount is too large")
    if isinstance(given, str):
        resource, total = class_amount(name, given)
        if total < 0:
            raise ValueError(f"{given!r} is negative")
        return resource, Inventory(total, max_unit=CAPACITY_MAX)
    resource, total = class_amount(name, given.total)
    _, reserved = class_amount(name, given.reserved, up=True)
    units = class_of(name)[1] if name in KUBERNETES_RESOURCES else 1000 if name == "cpu" else 1
    if total < 0 or reserved < 0:
        raise ValueError("an amount is negative")
    if reserved > total:
        raise ValueError(f"more is reserved than {given.total}")
    if not (
        1 <= given.min_unit <= UNLIMITED and 1 <= given.step_size <= UNLIMITED and 0 <= given.max_unit <= UNLIMITED
    ):
        raise ValueError(f"minUnit and stepSize are at least 1, maxUnit 0 or more, all at most {UNLIMITED}")
    if given.max_unit and given.max_unit < given.min_unit:
        raise ValueError("maxUnit is less than minUnit")
    ratio = given.allocation_ratio
    if not (math.isfinite(ratio) and 0 < ratio <= 1e6):
        raise ValueError(f"{ratio} is no allocation ratio")
    if (total - reserved) * ratio > CAPACITY_MAX:
        raise ValueError("the amount is too large")
    # Limits of units that are not given must not get in the way of thousandths.
    least = given.min_unit * units if given.min_unit > 1 else 1
    step = given.step_size * units if given.step_size > 1 else 1
    most = given.max_unit * units if given.max_unit else CAPACITY_MAX
    return resource, Inventory(total, reserved, least, most, step, ratio)


def cpu_count(given: int | str) -> int:
    """Returns the number of CPUs of a number, or of a list like `0-3,8`."""
    if isinstance(given, int):
        if not 0 <= given <= 1 << 20:
            raise ValueError(f"{given} is no number of CPUs")
        return given
    runs: list[tuple[int, int]] = []
    for run in given.split(",") if given else ():
        first, dash, last = run.strip().partition("-")
        if not (first.isdecimal() and len(first) < 8 and (not dash or (last.isdecimal() and len(last) < 8))):
            raise ValueError(f"{given[:80]!r} is no list of CPUs")
        runs.append((int(first), int(last or first)))
    runs.sort()
    if any(low > high for low, high in runs):
        raise ValueError(f"{given[:80]!r} is no list of CPUs")
    if any(low <= before for (_, before), (low, _) in pairwise(runs)):
        raise ValueError(f"{given[:80]!r} names a CPU twice")
    return sum(high - low + 1 for low, high in runs)
