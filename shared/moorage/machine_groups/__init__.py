"""The rules of machine groups, without any I/O: `machines` in each cluster, `slots` for the fleet, the simulator and whoever takes
Machine documents apply the same ones."""

from __future__ import annotations

from .documents import Read, Surroundings, read
from .sizes import Size, children_of, maximum, sizes

__all__ = ["Read", "Size", "Surroundings", "children_of", "maximum", "read", "sizes"]
