"""Parses the amount of a need: any Kubernetes quantity, or a number in units; plain numbers are cores of CPU and MB of
memory. Text with an exponent is a quantity: "1e8" are bytes. Errors say what to write instead."""

from __future__ import annotations

import math
from functools import lru_cache

from .quantities import NEED_MAX, parse_nanos

_CPU_UNITS = {"cores": 10**9, "core": 10**9, "m": 10**6}
_KUBERNETES = ("k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_BYTE_UNITS = {"B": 10**9} | {name: parse_nanos("1" + name) for name in _KUBERNETES}
_BYTE_UNITS |= {name + "B": factor for name, factor in list(_BYTE_UNITS.items()) if name != "B"}
_BYTE_UNITS["KB"] = _BYTE_UNITS["kB"]
_BYTES = ("memory", "ephemeral-storage", "hugepages-")
_QUANTITY_TYPES = (str, int, float)


def _number(resource: str, value: str | float) -> tuple[str, bool]:
    """Returns the value as text, and whether it is a number without a suffix."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{resource}: {value!r} is not a quantity; write a finite number")
    text = value.strip() if isinstance(value, str) else repr(value)
    return text, text[-1:].isdigit() or text[-1:] == "."


def _factor(resource: str, text: str, units: str) -> int:
    """Returns the number of nano units in one of `units`."""
    if resource == "cpu":
        known, names = _CPU_UNITS, "cores or m"
    elif resource.startswith(_BYTES):
        known, names = _BYTE_UNITS, "B, kB, MB, GB, KiB, MiB, GiB or a Kubernetes suffix like Gi"
    else:
        raise ValueError(f"{resource}: {units!r} is not a unit of this resource, which is counted; leave units out")
    if units not in known:
        raise ValueError(f"{resource}: unknown units {units!r}; use {names}")
    return known[units]


def need_amount(resource: str, value: str | float, units: str = "") -> int:
    """Parses the amount of a need, rounded up: CPU in milli, all else whole units. The text of a ValueError says what to
    write instead."""
    if not resource:
        raise ValueError("name the resource, like cpu, memory or nvidia.com/gpu")
    if isinstance(value, bool) or not isinstance(value, _QUANTITY_TYPES):
        raise ValueError(f"{resource}: {value!r} is not a quantity; write a number or text like 500m or 1Gi")  # noqa: TRY004
    return _need_amount(resource, value, units)


@lru_cache(65536, typed=True)
def _need_amount(resource: str, value: str | float, units: str) -> int:
    text, bare = _number(resource, value)
    try:
        nano = parse_nanos(text)
    except ValueError as error:
        raise ValueError(f"{resource}: {error}") from None
    if units:
        factor = _factor(resource, text, units)
        if not bare:
            raise ValueError(f"{resource}: {text!r} has a suffix and units {units!r} besides; use one of the two")
        nano = -(-nano * factor // 10**9)
    elif bare and resource == "memory" and not (isinstance(value, str) and "e" in text.lower()):
        nano *= 10**6
    if nano <= 0:
        raise ValueError(f"{resource}: {text!r} must be more than 0; to ask for none, leave the need out")
    if resource != "cpu" and not resource.startswith(_BYTES) and nano % 10**9:
        raise ValueError(f"{resource}: {text!r} must be an integer; parts of it cannot be requested")
    amount = -(-nano // (10**6 if resource == "cpu" else 10**9))
    if amount >= NEED_MAX:
        raise ValueError(f"{resource}: {text!r} is more than any node can have; check its suffix")
    return amount
