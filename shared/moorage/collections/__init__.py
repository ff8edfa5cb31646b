"""Containers: with a bounded size, and for rows of arrays."""

from __future__ import annotations

from .lru import LruDict

__all__ = ["LruDict"]
