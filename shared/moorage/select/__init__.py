"""Who is meant: node selector requirements, tolerations and placement terms, evaluated once per distinct set."""

from __future__ import annotations

from .clusters import ClusterView, placed
from .labels import Labels, Terms, holds, matches, meets
from .taints import Taints, tolerated

__all__ = ["ClusterView", "Labels", "Taints", "Terms", "holds", "matches", "meets", "placed", "tolerated"]
