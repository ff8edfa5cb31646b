"""Describes devices as expressions see them: attributes and capacities by domain and name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from .functions import quantity, semver

#: A value as the CEL runtime gets it. Versions and quantities are maps there.
CelValue = Any
Domains = Mapping[str, Mapping[str, CelValue]]


class CelDevice(NamedTuple):
    """`attributes` and `capacity` have their values as CEL values, by domain and name."""

    driver: str
    attributes: Domains = {}
    capacity: Domains = {}
    allow_multiple_allocations: bool = False

    @classmethod
    def of(
        cls, driver: str, attributes: Mapping[str, CelValue], capacity: Mapping[str, str], multiple: bool
    ) -> CelDevice:
        """Makes a device of attributes and capacities by qualified name. A name without a domain is the driver's own.
        Raises ValueError for a quantity that cannot be read."""
        return cls(driver, _by_domain(driver, attributes), _by_domain(driver, _read(capacity)), multiple)


def version(text: str) -> CelValue:
    """Returns an attribute's version. What is none stays unequal to all versions, and comparing it is an error."""
    return _version(text)


@lru_cache(1024)
def _version(text: str) -> CelValue:
    try:
        return semver(text)
    except ValueError:
        return {"semver": text}


@lru_cache(4096)
def _quantity(text: str) -> CelValue:
    return quantity(text)


def _read(capacity: Mapping[str, str]) -> dict[str, CelValue]:
    return {name: _quantity(text) for name, text in capacity.items()}


def _by_domain(driver: str, values: Mapping[str, CelValue]) -> dict[str, dict[str, CelValue]]:
    found: dict[str, dict[str, CelValue]] = {}
    for name, value in values.items():
        domain, slash, own = name.partition("/")
        if not slash:
            domain, own = driver, name
        found.setdefault(domain, {})[own] = value
    return found
