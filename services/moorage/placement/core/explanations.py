"""Explains a query for candidates: how many there are, how many providers each group has left after each of its conditions, and if
there are none, why: what the first failing group lacks, or which relation excludes the rest, with the nearest miss."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.model.placement_explanations import CandidatesExplained, GroupExplained
from moorage.model.reasons import Reason
from moorage.parts import NAMELESS, Budget, Candidate, Group, Request, candidates_in_steps
from moorage.parts.class_columns import UNLIMITED

from . import candidates, schemas
from .call import Answer, Call, Search
from .state import State

#: Steps of each search for what would fit without one of the relations.
_STEPS = 50_000
_SAMPLES = 5
Rows = NDArray[np.int64]


class _Relaxation(NamedTuple):
    relation: str
    what: str
    request: Request


def explained(call: Call) -> Generator[None, None, Answer]:
    """Makes the answer in steps, so that others are served in between."""
    schemas.check_query(call.query, schemas.candidate_query(call.version))
    request = candidates.read(call)
    candidates.check_names(call.state, request)
    limit = min(int(call.first("limit") or call.limit), call.limit)
    budget = Budget(candidates.STEPS)
    found = 0
    for candidate in candidates_in_steps(call.state.forest, request, budget, call.version < 29):
        found += candidate is not None
        if found == limit:
            break
        if candidate is None or not found % 200:
            yield
    search = _Explanation(call.state, request, call.version < 29)
    groups: list[GroupExplained] = []
    for suffix, group in request.groups.items():
        for counts in search.counts(suffix, group):
            groups.append(counts)
            yield
    reasons: list[Reason] = []
    if not found:
        reasons = yield from search.of_groups()
        if not reasons and budget.spent:
            reasons = [_reason("SearchBound", "the search ended at its bound; there may be candidates")]
        elif not reasons:
            reasons = yield from search.of_relations()
    body = CandidatesExplained(candidates=found, groups=groups, reasons=reasons)
    return Answer(body=body, modified=call.now, search=Search(found, candidates.STEPS - budget.left, budget.spent))


class _Explanation:
    def __init__(self, state: State, request: Request, one_part_a_tree: bool) -> None:
        self._state, self._forest, self._request = state, state.forest, request
        self._one_part_a_tree = one_part_a_tree

    # -- groups -------------------------------------------------------------------------------------------------------

    def counts(self, suffix: str, group: Group) -> Iterator[GroupExplained]:
        for resources in _parts(suffix, group):
            rows = [len(left) for _, left in self._narrowed(suffix, group, resources)]
            offering, traits, aggregates, tree, room = rows
            yield GroupExplained(
                group=suffix,
                resources=dict(resources),
                providers=offering,
                with_traits=traits,
                with_aggregates=aggregates,
                in_tree=tree,
                with_room=room,
            )

    def of_groups(self) -> Generator[None, None, list[Reason]]:
        """Returns a reason for each group that no provider meets by itself."""
        found = []
        for suffix, group in self._request.groups.items():
            for resources in _parts(suffix, group):
                before: Rows | None = None
                for what, rows in self._narrowed(suffix, group, resources):
                    if not len(rows):
                        found.append(self._failing(suffix, group, resources, what, before))
                        break
                    before = rows
                yield
        return found

    def _narrowed(self, suffix: str, group: Group, resources: Mapping[str, int]) -> Iterator[tuple[str, Rows]]:
        """Yields the rows that are left after each condition, with what it asks."""
        forest = self._forest
        spread = suffix == NAMELESS and bool(resources)
        usable = (forest.root[: forest.n] >= 0) & ~forest.disabled[: forest.n]
        rows = np.flatnonzero(usable).astype(np.int64)
        for name in resources:
            columns = forest.classes.get(name)
            offering = columns.row[columns.row >= 0] if columns is not None else np.empty(0, np.int64)
            rows = rows[self._marked(offering)[rows]]
        yield "offers " + ", ".join(resources) if resources else "exists", rows
        required = () if spread else group.required
        traits = forest.traits.where(
            ("traits", required, group.forbidden),
            lambda names: all(any_of & names for any_of in required) and not group.forbidden & names,
        )
        rows = rows[traits[forest.trait_set[rows]]]
        yield f"has {_conditions(group)}", rows
        rows = rows[self._members(rows, group, spread)]
        yield "is in the aggregates that are asked", rows
        if group.in_tree is not None:
            at = forest.rows.get(group.in_tree)
            rows = rows[forest.root[rows] == (forest.root[at] if at is not None else -2)]
        yield f"is in the tree of {group.in_tree}", rows
        for name, amount in resources.items():
            rows = rows[self._marked(forest.classes[name].with_room(amount))[rows]] if len(rows) else rows
        yield "has room", rows

    def _marked(self, rows: Rows) -> NDArray[np.bool_]:
        """Tells of each row whether it is one of these."""
        found = np.zeros(self._forest.n, np.bool_)
        found[rows] = True
        return found

    def _members(self, rows: Rows, group: Group, spread: bool) -> NDArray[np.bool_]:
        """Aggregates of a root span its tree for the group without a suffix."""
        forest = self._forest
        wanted, others = group.member_of, group.not_member_of
        member = forest.aggregates.where(("in", wanted), lambda names: all(any_of & names for any_of in wanted))
        apart = forest.aggregates.where(("not in", others), lambda names: not others & names)
        own, root = forest.aggregate_set[rows], forest.aggregate_set[forest.root[rows]]
        found: NDArray[np.bool_] = (member[own] | (member[root] & spread)) & apart[own] & (apart[root] | (not spread))
        return found

    def _failing(
        self, suffix: str, group: Group, resources: Mapping[str, int], what: str, before: Rows | None
    ) -> Reason:
        name = f"group {suffix}" if suffix else "the group without a suffix"
        if before is None:
            text = f"no provider offers {', '.join(resources)} together, which {name} asks"
            return _reason("PartMissing", text, group=suffix, need=", ".join(resources))
        if what != "has room":
            text = f"of {len(before)} providers that are left for {name}, none {what}"
            return _reason("PartMissing", text, group=suffix, need=", ".join(resources))
        wanted = " and ".join(f"{amount} {resource}" for resource, amount in resources.items())
        text = f"of {len(before)} providers that are left for {name}, none can give {wanted}"
        shares = np.array([self._forest.room_by_row(c, UNLIMITED)[0][before] / n for c, n in resources.items()])
        best = int(np.argmax(shares.min(axis=0)))
        resource, amount = list(resources.items())[int(np.argmin(shares[:, best]))]
        row = int(before[best])
        free = self._free(row, resource)
        text += f"; nearest is {self._name(row)}"
        if free >= amount:
            text += ", whose units (least, most, step) do not allow this amount"
        return _reason(
            "PartShort",
            text,
            group=suffix,
            need=resource,
            needed=str(amount),
            free=str(free),
            samples=[self._name(row)],
        )

    def _free(self, row: int, name: str) -> int:
        return max(0, self._forest.room(row, name))

    def _name(self, row: int) -> str:
        uuid = self._forest.ids[row]
        return self._state.brief(uuid).name

    # -- relations ----------------------------------------------------------------------------------------------------

    def of_relations(self) -> Generator[None, None, list[Reason]]:
        """Names the relation without which there would be candidates, with one of these as the nearest miss. Each group has
        providers by itself."""
        relaxations = list(_relaxations(self._request))
        for relation, what, request in relaxations:
            nearest = yield from self._first(request)
            if nearest is not None:
                text = f"providers meet each group, but not {what}; without that, {self._shown(nearest)}"
                return [_reason("RelationFails", text, relation=relation, samples=self._samples(nearest))]
        free = _unrelated(self._request)
        if len(relaxations) > 1:
            nearest = yield from self._first(free)
            if nearest is not None:
                names = ", ".join(dict.fromkeys(relation for relation, _, _ in relaxations))
                text = f"providers meet each group, but not all of {names}; without these, {self._shown(nearest)}"
                return [_reason("RelationFails", text, relation=names, samples=self._samples(nearest))]
        return (yield from self._of_trees(free))

    def _of_trees(self, request: Request) -> Generator[None, None, list[Reason]]:
        """Explains groups that no tree meets together: adds one after the other until none does."""
        nearest: Candidate | None = None
        groups = [(suffix, group) for suffix, group in request.groups.items() if group.resources]
        for count, (suffix, group) in enumerate(groups, 1):
            found = yield from self._first(request._replace(groups=dict(groups[:count])))
            if found is not None:
                nearest = found
                continue
            asked = ", ".join(f"{amount} {name}" for name, amount in group.resources.items())
            others = ", ".join(s or "the group without a suffix" for s, _ in groups[: count - 1])
            roots: dict[str, int] = {}
            for s, g in groups[:count]:
                roots[s] = self._roots(s, g)
                yield
            text = ", ".join(f"{s or 'the group without a suffix'} in {n}" for s, n in roots.items())
            text = f"no tree has room for {asked} of {suffix or 'the group without a suffix'} beside {others} (trees: {text})"
            if count == 1:
                text = f"no tree meets the conditions of {suffix or 'the group without a suffix'} on {asked} together"
            if nearest is not None:
                text += f"; nearest: {self._shown(nearest)}"
            samples = self._samples(nearest) if nearest is not None else []
            return [_reason("RelationFails", text, group=suffix, relation="tree", samples=samples)]
        text = "no tree has a provider that meets the group without resources"
        return [_reason("RelationFails", text, relation="tree")]

    def _roots(self, suffix: str, group: Group) -> int:
        """Returns how many trees have what a group asks."""
        found = np.ones(self._forest.n, np.bool_)
        for resources in _parts(suffix, group):
            *_, (_, rows) = self._narrowed(suffix, group, resources)
            found &= self._marked(self._forest.root[rows])
        return int(np.count_nonzero(found))

    def _first(self, request: Request) -> Generator[None, None, Candidate | None]:
        for found in candidates_in_steps(self._forest, request, Budget(_STEPS), self._one_part_a_tree):
            if found is not None:
                return found
            yield
        return None

    def _shown(self, found: Candidate) -> str:
        given = [
            f"{suffix or 'the group without a suffix'} by {', '.join(map(self._name, rows))}"
            for suffix, rows in found.mappings.items()
        ]
        return "; ".join(given)

    def _samples(self, found: Candidate) -> list[str]:
        return [self._name(row) for row in list(found.allocations)[:_SAMPLES]]


def _parts(suffix: str, group: Group) -> list[Mapping[str, int]]:
    """Returns the amounts that one provider gives together."""
    if suffix == NAMELESS and group.resources:
        return [{name: amount} for name, amount in group.resources.items()]
    return [group.resources]


def _relaxations(request: Request) -> Iterator[_Relaxation]:
    """Yields the request without one of its relations each."""
    for number, relation in enumerate(request.same_subtree):
        rest = request.same_subtree[:number] + request.same_subtree[number + 1 :]
        names = ",".join([*sorted(relation.together), *(f"!{name}" for name in sorted(relation.apart))])
        yield _Relaxation("sameSubtree", f"same_subtree={names}", _without_idle(request._replace(same_subtree=rest)))
    if request.isolated:
        what = f"isolation of {','.join(sorted(request.isolated))}"
        yield _Relaxation("isolate", what, request._replace(isolated=frozenset()))
    if request.root_required or request.root_forbidden:
        without = request._replace(root_required=(), root_forbidden=frozenset())
        yield _Relaxation("rootRequired", "root_required", without)
    if request.root_member_of or request.root_not_member_of:
        without = request._replace(root_member_of=(), root_not_member_of=frozenset())
        yield _Relaxation("rootMemberOf", "root_member_of", without)
    for suffix, group in request.groups.items():
        if suffix == NAMELESS and group.required and group.resources:
            groups = {**request.groups, suffix: group._replace(required=())}
            yield _Relaxation("required", f"required={_conditions(group)} together", request._replace(groups=groups))


def _unrelated(request: Request) -> Request:
    return _without_idle(Request(request.groups))


def _without_idle(request: Request) -> Request:
    """Leaves out groups without resources that no relation names any more: they would only multiply candidates."""
    named = {suffix for relation in request.same_subtree for suffix in relation.together | relation.apart}
    groups = request.groups.items()
    return request._replace(groups={s: g for s, g in groups if g.resources or s == NAMELESS or s in named})


def _conditions(group: Group) -> str:
    found = [
        name if len(any_of) == 1 else f"in:{','.join(sorted(any_of))}"
        for any_of in group.required
        for name in sorted(any_of)[:1]
    ]
    return ",".join([*found, *(f"!{name}" for name in sorted(group.forbidden))]) or "any traits"


def _reason(
    code: str,
    message: str,
    *,
    group: str = "",
    need: str = "",
    needed: str = "",
    free: str = "",
    relation: str = "",
    samples: list[str] | None = None,
) -> Reason:
    return Reason(
        code=code,
        message=message,
        group=group,
        need=need,
        needed=needed,
        free=free,
        relation=relation,
        samples=samples or [],
        by="placement",
    )
