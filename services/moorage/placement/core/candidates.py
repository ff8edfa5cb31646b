"""Allocation candidates: reads the query and finds the ways to meet it."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from moorage.parts import NAMELESS, Budget, Group, Request, SameSubtree, candidate_rounds

from . import parsing, schemas
from .call import Answer, Call, LongBody, Search
from .candidate_text import CandidateText
from .errors import BAD_VALUE, DUPLICATE_PARAMETER, MISSING_VALUE, UnknownName, bad_request
from .state import State

#: Steps of the search in one answer.
STEPS = 2_000_000


class _Relation(NamedTuple):
    together: frozenset[str]
    apart: frozenset[str]


def listed(call: Call) -> Generator[None, None, Answer]:
    """Makes the answer in steps, so that others are served in between."""
    schemas.check_query(call.query, schemas.candidate_query(call.version))
    request = read(call)
    check_names(call.state, request)
    limit = left = min(int(call.first("limit") or call.limit), call.limit)
    budget = Budget(STEPS)
    text = CandidateText(call.state, call.version)
    one_part_a_tree = call.version < 29
    for found in candidate_rounds(call.state.forest, request, budget, one_part_a_tree, call.start):
        if found is not None:
            left -= text.add(found.first(left))
        if not left:
            break
        yield
    summaries = yield from text.summaries({name for group in request.groups.values() for name in group.resources})
    pieces = [b'{"allocation_requests":[', *text.requests, b'],"provider_summaries":{', *summaries, b"}}"]
    return Answer(
        body=LongBody(pieces), modified=call.now, search=Search(limit - left, STEPS - budget.left, budget.spent)
    )


# -- reading ------------------------------------------------------------------------------------------------------


def read(call: Call) -> Request:
    """Reads the query. Raises a refusal if it contradicts itself."""
    required, forbidden = _root_traits(call)
    relations = _relations(call)
    groups = _groups(call)
    _check_groups(call, groups, relations)
    members = parsing.aggregates(call.parameters("root_member_of"), call.version, "root_member_of")
    return Request(
        groups,
        tuple(SameSubtree(r.together, r.apart) for r in relations),
        _isolated(call, groups),
        required,
        forbidden,
        members.required,
        members.forbidden,
    )


def _root_traits(call: Call) -> parsing.Traits:
    values = call.parameters("root_required")
    if len(values) > 1:
        raise bad_request("Query parameter 'root_required' may be specified only once.", DUPLICATE_PARAMETER)
    if not values:
        return parsing.Traits()
    found = parsing.root_traits(values[0], call.version)
    both = sorted(name for any_of in found.required if any_of <= found.forbidden for name in any_of)
    if both:
        raise bad_request(
            f"Conflicting required and forbidden traits found in root_required: {', '.join(both)}", BAD_VALUE
        )
    return found


def _relations(call: Call) -> list[_Relation]:
    found = []
    for value in call.parameters("same_subtree"):
        names = {name.strip() for name in value.split(",")}
        if "" in names or "!" in names:
            raise bad_request("Empty string (unsuffixed group) can not be specified in `same_subtree` ", BAD_VALUE)
        apart = {name for name in names if name.startswith("!")} if call.version >= 40 else set()
        relation = _Relation(frozenset(names - apart), frozenset(name[1:] for name in apart))
        if not relation.together:
            raise bad_request(f"`same_subtree` needs a suffix without `!`. Got: {value}", BAD_VALUE)
        if relation.together & relation.apart:
            raise bad_request(f"`same_subtree` has a suffix with and without `!`. Got: {value}", BAD_VALUE)
        found.append(relation)
    return found


def _groups(call: Call) -> dict[str, Group]:
    pattern = schemas.group_parameter(call.version)
    groups: dict[str, Group] = {}
    for key, value in call.query:
        match = pattern.match(key)
        if match is None:
            continue
        kind, suffix = match[1], match[2] or NAMELESS
        group = groups.get(suffix, Group())
        if kind == "resources":
            group = group._replace(resources=parsing.resources(value))
        elif kind == "required":
            required, forbidden = parsing.traits(call.parameters(key), call.version)
            group = group._replace(required=required, forbidden=forbidden)
        elif kind == "member_of":
            members, others = parsing.aggregates(call.parameters(key), call.version, key)
            group = group._replace(member_of=members, not_member_of=others)
        else:
            group = group._replace(in_tree=parsing.in_tree(value))
        groups[suffix] = group
    return groups


def _check_groups(call: Call, groups: dict[str, Group], relations: list[_Relation]) -> None:
    if call.version >= 36:
        _check_resourceless(call, groups, relations)
    else:
        _check_orphans(groups)
    if call.version >= 22:
        conflicts = sorted(
            f"required{suffix}: ({', '.join(sorted(any_of))})"
            for suffix, group in groups.items()
            for any_of in group.required
            if any_of <= group.forbidden
        )
        if conflicts:
            raise bad_request(
                f"Conflicting required and forbidden traits found in the following traits keys: {', '.join(conflicts)}"
            )
    if call.version < 40 and call.first("group_policy") is None and sum(s != NAMELESS for s in groups) > 1:
        raise bad_request(
            'The "group_policy" parameter is required when specifying more than one "resources{N}" parameter.'
        )


def _check_resourceless(call: Call, groups: dict[str, Group], relations: list[_Relation]) -> None:
    empty = [suffix for suffix, group in groups.items() if not group.resources]
    named = {suffix for relation in relations for suffix in relation.together | relation.apart}
    if len(empty) == len(groups):
        raise bad_request("There must be at least one resources or resources[$S] parameter.", MISSING_VALUE)
    bad = [suffix for suffix in empty if suffix not in named and not (call.version >= 40 and suffix == NAMELESS)]
    if bad:
        raise bad_request(
            f"Resourceless suffixed group request should be specified in `same_subtree` query param: bad group(s) - {bad}.",
            BAD_VALUE,
        )
    unknown = [suffix for suffix in named if suffix not in groups]
    if unknown:
        raise bad_request(
            f"Real suffixes should be specified in `same_subtree`: {unknown} not found in {list(groups)}.", BAD_VALUE
        )


def _check_orphans(groups: dict[str, Group]) -> None:
    traits = [f"required{suffix}" for suffix, group in groups.items() if group.required and not group.resources]
    if traits:
        raise bad_request(
            "All traits parameters must be associated with resources.  "
            f"Found the following orphaned traits keys: {', '.join(traits)}"
        )
    members = [
        f"member_of{suffix}"
        for suffix, group in groups.items()
        if (group.member_of or group.not_member_of) and not group.resources
    ]
    if members:
        raise bad_request(
            "All member_of parameters must be associated with resources. "
            f"Found the following orphaned member_of keys: {', '.join(members)}"
        )
    if not all(group.resources for group in groups.values()):
        raise bad_request("All request groups must specify resources.")
    if not groups:
        raise bad_request("At least one request group (`resources` or `resources{$S}`) is required.")


def _isolated(call: Call, groups: dict[str, Group]) -> frozenset[str]:
    suffixes = frozenset(groups) - {NAMELESS}
    policy = call.first("group_policy")
    values = call.parameters("isolate")
    if not values:
        return suffixes if policy == "isolate" else frozenset()
    if policy is not None:
        raise bad_request("`isolate` and `group_policy` exclude each other.", BAD_VALUE)
    found = frozenset(name.strip() for value in values for name in value.split(","))
    unknown = sorted(found - suffixes)
    if unknown:
        raise bad_request(
            f"Real suffixes should be specified in `isolate`: {unknown} not found in {list(groups)}.", BAD_VALUE
        )
    return found


def check_names(state: State, request: Request) -> None:
    """Refuses classes and traits that do not exist."""
    try:
        for group in request.groups.values():
            for name in group.resources:
                state.check_class(name)
    except UnknownName as error:
        raise bad_request(f"Invalid resource class in resources parameter: {error}") from None
    try:
        for required, forbidden in (
            (request.root_required, request.root_forbidden),
            *((group.required, group.forbidden) for group in request.groups.values()),
        ):
            state.check_traits(sorted({name for any_of in required for name in any_of} | forbidden))
    except UnknownName as error:
        raise bad_request(str(error)) from None
