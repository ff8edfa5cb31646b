"""Containers with a bounded size."""

from __future__ import annotations

from .lru import LruDict

__all__ = ["LruDict"]
