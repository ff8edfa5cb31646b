"""Who is meant: node selector requirements, tolerations and placement terms, evaluated once per distinct set."""

from __future__ import annotations

from .labels import Labels, Terms, holds, matches, meets
from .placement_terms import ClusterView, placed
from .taints import Taints, tolerated

__all__ = ["ClusterView", "Labels", "Taints", "Terms", "holds", "matches", "meets", "placed", "tolerated"]
