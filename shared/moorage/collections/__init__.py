"""Containers: with a bounded size, and for rows of arrays."""

from __future__ import annotations

from .distinct_rows import unique_rows
from .lru import LruDict

__all__ = ["LruDict", "unique_rows"]
