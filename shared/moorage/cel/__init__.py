"""CEL expressions that select devices, as DeviceClasses and ResourceClaims of Kubernetes have them."""

from .devices import CelDevice
from .selector import MAX_LENGTH, CelError, CelTooCostly, CelUnavailable, Selector, SelectorCache, compile_selector

__all__ = [
    "MAX_LENGTH",
    "CelDevice",
    "CelError",
    "CelTooCostly",
    "CelUnavailable",
    "Selector",
    "SelectorCache",
    "compile_selector",
]
