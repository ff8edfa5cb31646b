"""Evaluates the conditions of a request for all parts at once: which can meet each group, and which trees may have candidates."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .forest import Forest
from .properties import meets
from .request import NAMELESS, Group, Request

Rows = NDArray[np.int64]


class Choice(NamedTuple):
    """The parts of all trees that can meet a group, or give one class of the nameless group."""

    suffix: str
    resources: Mapping[str, int]
    rows: Rows  # ascending
    shared: tuple[int, ...]  # those of them that serve other trees


def choices_of(forest: Forest, request: Request) -> Generator[None, None, list[Choice] | None]:
    """Returns the parts that can meet each group; None if a group has none."""
    found: list[Choice] = []
    sharing = forest.sharing()
    known: dict[object, Rows] = {}
    for suffix, group in request.groups.items():
        if suffix != NAMELESS:
            parts = {NAMELESS: group.resources}
        elif group.resources:
            parts = {name: {name: amount} for name, amount in group.resources.items()}
        else:
            continue  # it only limits the trees
        tree = _root_of(forest, group.in_tree)
        for resources in parts.values():
            asked = tuple(sorted(resources.items())), group._replace(resources={})[1:], suffix == NAMELESS
            if asked not in known:
                rows = _rows_with(forest, resources)
                rows = rows[meets_conditions(forest, group, rows, spread=suffix == NAMELESS)]
                known[asked] = rows[forest.root[rows] == tree] if tree is not None else rows
                yield
            rows = known[asked]
            if not len(rows):
                return None
            shared: tuple[int, ...] = ()
            if len(sharing) and not (suffix == NAMELESS and tree is not None):
                shared = tuple(rows[np.isin(rows, sharing)].tolist())
                if suffix == NAMELESS and group.member_of:
                    shared = tuple(row for row in shared if _is_member(forest, group, row))
            found.append(Choice(suffix, resources, rows, shared))
    return found


def _root_of(forest: Forest, part: str | None) -> int | None:
    if part is None:
        return None
    row = forest.rows.get(part)
    return int(forest.root[row]) if row is not None else -2  # no tree


def _rows_with(forest: Forest, resources: Mapping[str, int]) -> Rows:
    """Returns the rows that have room for all amounts."""
    mask: NDArray[np.bool_] | None = None
    for name, amount in resources.items():
        columns = forest.classes.get(name)
        if columns is None:
            return np.empty(0, np.int64)
        rows = columns.with_room(amount)
        rows = rows[~forest.disabled[rows]]
        if mask is not None:
            rows = rows[mask[rows]]
        mask = np.zeros(forest.n, np.bool_)
        mask[rows] = True
    if mask is None:
        mask = (forest.root[: forest.n] >= 0) & ~forest.disabled[: forest.n]
    return np.flatnonzero(mask).astype(np.int64)


def meets_conditions(forest: Forest, group: Group, rows: Rows, spread: bool) -> NDArray[np.bool_]:
    """Tells which rows meet the group's traits and aggregates. Required traits of a group that is spread are met together."""
    ok = np.ones(len(rows), np.bool_)
    required = () if spread else group.required
    if required or group.forbidden:
        fits = forest.traits.where(
            ("traits", required, group.forbidden),
            lambda traits: all(any_of & traits for any_of in required) and not group.forbidden & traits,
        )
        ok &= fits[forest.trait_set[rows]]
    if group.properties and not meets(frozenset(), group.properties):
        ok[:] = False  # made parts have no properties
    if group.member_of:
        member = _members(forest, group.member_of)
        found = member[forest.aggregate_set[rows]]
        if spread:
            found = found | member[forest.aggregate_set[forest.root[rows]]]
        ok &= found
    if group.not_member_of:
        bad = _members(forest, (group.not_member_of,))
        ok &= ~bad[forest.aggregate_set[rows]]
        if spread:
            ok &= ~bad[forest.aggregate_set[forest.root[rows]]]
    return ok


def _members(forest: Forest, member_of: tuple[frozenset[str], ...]) -> NDArray[np.bool_]:
    return forest.aggregates.where(("in", member_of), lambda names: all(any_of & names for any_of in member_of))


def _is_member(forest: Forest, group: Group, row: int) -> bool:
    return bool(_members(forest, group.member_of)[forest.aggregate_set[row]])


def possible_trees(
    forest: Forest, request: Request, choices: list[Choice], serving: Mapping[int, set[int]]
) -> Generator[None, None, Rows]:
    """Returns the roots of the trees where each choice has a part at least, in the order of the trees."""
    n = forest.n
    mask = (forest.root[:n] == np.arange(n)) & ~forest.disabled[:n]
    if request.root_required or request.root_forbidden:
        fits = forest.traits.where(
            ("traits", request.root_required, request.root_forbidden),
            lambda traits: all(s & traits for s in request.root_required) and not request.root_forbidden & traits,
        )
        mask &= fits[forest.trait_set[:n]]
    if request.root_member_of:
        mask &= _members(forest, request.root_member_of)[forest.aggregate_set[:n]]
    if request.root_not_member_of:
        mask &= ~_members(forest, (request.root_not_member_of,))[forest.aggregate_set[:n]]
    nameless = request.groups.get(NAMELESS)
    if nameless is not None and nameless.not_member_of:
        mask &= ~_members(forest, (nameless.not_member_of,))[forest.aggregate_set[:n]]
    for choice in {id(choice.rows): choice for choice in choices}.values():
        here = np.zeros(n, np.bool_)
        here[forest.root[choice.rows]] = True
        for served in {id(served): served for served in map(serving.__getitem__, choice.shared)}.values():
            here[list(served)] = True
        mask &= here
        yield
    if nameless is not None and not nameless.resources:
        mask &= _meets_in_one_part(forest, nameless)
    found = np.flatnonzero(mask)
    order = forest.order[found]
    return found if (order[1:] >= order[:-1]).all() else found[np.argsort(order, kind="stable")]


def _meets_in_one_part(forest: Forest, group: Group) -> NDArray[np.bool_]:
    """Marks the roots of trees with a part that meets all conditions of a group without resources."""
    rows = _rows_with(forest, {})
    rows = rows[meets_conditions(forest, group, rows, spread=False)]
    if (tree := _root_of(forest, group.in_tree)) is not None:
        rows = rows[forest.root[rows] == tree]
    mask = np.zeros(forest.n, np.bool_)
    mask[forest.root[rows]] = True
    return mask


def has_any(forest: Forest, names: frozenset[str]) -> NDArray[np.bool_]:
    """Tells, by set of traits, whether it has one of these."""
    return forest.traits.where(("any", names), lambda traits: not names.isdisjoint(traits))
