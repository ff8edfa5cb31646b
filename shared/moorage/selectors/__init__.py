"""Evaluates node selector requirements, tolerations and placement terms, once per distinct set of labels or taints."""

from __future__ import annotations

from .labels import LabelIndex, Terms, requirement_matches, term_matches
from .placement_terms import ClusterView, select_clusters
from .taints import TaintIndex, tolerated

__all__ = [
    "ClusterView",
    "LabelIndex",
    "TaintIndex",
    "Terms",
    "requirement_matches",
    "select_clusters",
    "term_matches",
    "tolerated",
]
