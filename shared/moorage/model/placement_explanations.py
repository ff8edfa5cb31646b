"""The answer of the Placement interface about a query: how many candidates it has; if none, why."""

from __future__ import annotations

from .base import Model
from .reasons import Reason


class GroupExplained(Model, kw_only=True):
    """The providers that are left after each condition of a group; of the group without a suffix, for each class."""

    group: str
    resources: dict[str, int] = {}
    providers: int  # that offer the classes
    with_traits: int
    with_aggregates: int
    in_tree: int
    with_room: int


class CandidatesExplained(Model, kw_only=True):
    """The number of allocation candidates of a query; if there are none, why."""

    candidates: int
    groups: list[GroupExplained]
    reasons: list[Reason]
