"""Resource providers: create, show, list, rename, move, delete."""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterable
from collections.abc import Set as AbstractSet
from itertools import chain, islice
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from . import parsing, schemas
from .call import Answer, Call, LongBody
from .errors import (
    CANNOT_DELETE_PARENT,
    DUPLICATE_NAME,
    PROVIDER_IN_USE,
    UnknownName,
    bad_request,
    conflict,
    not_found,
)
from .records import Change, Provider
from .state import State

#: Providers that are shown between two steps of a long answer.
_SLICE = 200
#: Made providers that are compared with what is asked between two steps.
_LOOKED_AT = 2000
_NO_TRAITS, _NO_AGGREGATES = parsing.Traits(), parsing.Aggregates()


def shown(call: Call, provider: Provider, state: State | None = None) -> dict[str, Any]:
    state = state or call.state
    url = f"{call.prefix}/resource_providers/{provider.uuid}"
    rels = ["inventories", "usages"]
    rels += [rel for since, rel in ((1, "aggregates"), (6, "traits"), (11, "allocations")) if call.version >= since]
    found: dict[str, Any] = {
        "uuid": provider.uuid,
        "name": provider.name,
        "generation": provider.generation + state.writes(provider.uuid),
        "links": [{"rel": "self", "href": url}, *({"rel": rel, "href": f"{url}/{rel}"} for rel in rels)],
    }
    if call.version >= 14:
        found["parent_provider_uuid"] = provider.parent
        found["root_provider_uuid"] = provider.uuid if provider.parent is None else state.root_of(provider.parent)
    return found


def create(call: Call) -> Answer:
    data = schemas.decoded(call.body, schemas.provider(call.version, create=True))
    state = call.state
    made = str(uuid.UUID(data["uuid"])) if data.get("uuid") else str(uuid.uuid4())
    name, parent = data["name"], data.get("parent_provider_uuid")

    def refused(reason: str) -> Exception:
        return bad_request(
            f'Unable to create resource provider "{name}", {made}: Object action create failed because: {reason}'
        )

    if not name:
        raise refused("name is required")
    if parent is not None:
        if parent == made:
            raise refused(
                "parent provider UUID cannot be same as UUID. Please set parent provider UUID to None if there is no parent."
            )
        if not state.has(parent):
            raise refused("parent provider UUID does not exist.")
        state.made(parent)
    twice = f"name: {name}" if state.named(name) is not None else f"uuid: {made}" if state.has(made) else ""
    if twice:
        raise conflict(f"Conflicting resource provider {twice} already exists.", DUPLICATE_NAME)
    provider = Provider(
        uuid=made,
        name=name,
        parent=parent,
        generation=-state.writes(made),  # of an earlier provider with this uuid
        created=call.now,
        updated=call.now,
    )
    answer = Answer(201, location=f"{call.prefix}/resource_providers/{made}", change=Change({made: provider}))
    if call.version >= 20:
        answer.status, answer.body, answer.modified = 200, shown(call, provider), call.now
    return answer


def show(call: Call) -> Answer:
    provider = call.state.provider(call.path["uuid"])
    return Answer(body=shown(call, provider), modified=provider.updated or call.now)


class _Filter:
    """The conditions of a list: of made providers one by one, of nodes and parts over their rows."""

    def __init__(self, call: Call) -> None:
        self.state = call.state
        self.name, self.uuid, self.tree = (call.parameter(key) for key in ("name", "uuid", "in_tree"))
        self.traits, self.aggregates = parsing.Traits(), parsing.Aggregates()
        self.resources: dict[str, int] = {}
        if values := call.parameters("required"):
            self.traits = parsing.traits(values, call.version)
            required, forbidden = self.traits
            self.state.check_traits(sorted({name for any_of in required for name in any_of} | forbidden))
        if values := call.parameters("member_of"):
            self.aggregates = parsing.aggregates(values, call.version)
        if (text := call.parameter("resources")) is not None:
            self.resources = parsing.resources(text)
            for name in self.resources:
                self.state.check_class(name)

    def made(self) -> Generator[None, None, list[Provider]]:
        state = self.state
        tree = None
        if self.tree is not None:
            tree = set(state.subtree(state.root_of(self.tree))) if self.tree in state.providers else set[str]()
        having = [self._with_room(*asked) for asked in self.resources.items()]
        yield
        found: list[Provider] = []
        providers = iter(list(state.providers.values()) if tree is None or tree else ())
        row_of = state.forest.rows
        while some := list(islice(providers, _LOOKED_AT)):
            found += [
                p
                for p in some
                if (tree is None or p.uuid in tree)
                and (not self.name or p.name == self.name)
                and (not self.uuid or p.uuid == self.uuid)
                and (self.traits == _NO_TRAITS or _meets(self.traits, set(p.traits)))
                and (self.aggregates == _NO_AGGREGATES or _meets(self.aggregates, set(p.aggregates)))
                and all(has_room[row_of[p.uuid]] for has_room in having)
            ]
            yield
        return found

    def _with_room(self, name: str, amount: int) -> NDArray[np.bool_]:
        """Tells of each row whether so much can be taken of it."""
        columns = self.state.forest.classes.get(name)
        found = np.zeros(self.state.forest.n, np.bool_)
        if columns is not None:
            found[columns.with_room(amount)] = True
        return found

    def reported(self) -> Iterable[str]:
        """Returns the uuids of nodes and parts; of those that are gone and shown, too."""
        state, forest = self.state, self.state.forest
        named = state.named(self.name) if self.name else None
        if self.name and (named is None or named in state.providers or self.uuid not in (None, "", named)):
            return []
        if only := named or self.uuid:
            found = [only] if only not in state.providers and state.find(only) is not None else []
            if self.tree is not None:
                found = [p for p in found if state.has(self.tree) and state.root_of(p) == state.root_of(self.tree)]
            rows = np.array([forest.rows[p] for p in found if p in forest.rows], np.int64)
            gone = [p for p in found if p not in forest.rows]
        elif self.tree is not None:
            if self.tree in state.providers or not state.has(self.tree):
                return []
            root = state.root_of(self.tree)
            row = forest.rows.get(root)
            rows = np.arange(row, int(forest.leave[row])) if row is not None else np.empty(0, np.int64)
            gone = state.missing(root)
        else:
            rows = np.flatnonzero((forest.block[: forest.n] < 0) & (forest.root[: forest.n] >= 0))
            gone = state.missing(None)
        those = (forest.ids[row] for row in self._meeting(rows))
        return chain(those, gone if not self._has_conditions else ())

    @property
    def _has_conditions(self) -> bool:
        return bool(self.resources or self.traits.required or self.aggregates.required)

    def _meeting(self, rows: NDArray[np.int64]) -> list[int]:
        forest = self.state.forest
        for table, numbers, asked in (
            (forest.traits, forest.trait_set, self.traits),
            (forest.aggregates, forest.aggregate_set, self.aggregates),
        ):
            if asked.required or asked.forbidden:
                meets = table.where(("list", *asked), lambda names, asked=asked: _meets(asked, names))  # type: ignore[misc]
                rows = rows[meets[numbers[rows]]]
        for name, amount in self.resources.items():
            rows = rows[self._with_room(name, amount)[rows]]
        found: list[int] = rows.tolist()
        return found


def _meets(asked: parsing.Traits | parsing.Aggregates, names: AbstractSet[str]) -> bool:
    return all(any_of & names for any_of in asked.required) and not asked.forbidden & names


def listed(call: Call) -> Generator[None, None, Answer]:
    schemas.check_query(call.query, schemas.provider_query(call.version))
    try:
        wanted = _Filter(call)
    except UnknownName as error:
        where = '"required"' if "trait" in str(error) else "resources"
        kind = "trait(s)" if "trait" in str(error) else "resource class"
        raise bad_request(f"Invalid {kind} in {where} parameter: {error}") from None
    made = yield from wanted.made()
    reported = wanted.reported()
    yield
    pieces: list[bytes] = []
    newest = 0.0  # of the made ones
    for begin in range(0, len(made), _LOOKED_AT):
        newest = max(newest, max(provider.updated for provider in made[begin : begin + _LOOKED_AT]))
        yield
    found = chain(made, map(call.state.brief, reported))
    while some := list(islice(found, _SLICE)):
        pieces.append(msgspec.json.encode([shown(call, provider) for provider in some])[1:-1] + b",")
        yield
    if pieces:
        pieces[-1] = pieces[-1][:-1]
    body = LongBody([b'{"resource_providers":[', *pieces, b"]}"])
    return Answer(body=body, modified=newest or call.now)


def update(call: Call) -> Answer:
    state = call.state
    old = state.provider(call.path["uuid"])
    data = schemas.decoded(call.body, schemas.provider(call.version, create=False))
    name, parent = data["name"], data.get("parent_provider_uuid", old.parent)

    def refused(action: str, reason: str) -> Exception:
        return bad_request(
            f"Unable to save resource provider {old.uuid}: Object action {action} failed because: {reason}"
        )

    if parent is not None:
        if not state.has(parent):
            raise refused("create", "parent provider UUID does not exist.")
        if old.parent not in (None, parent) and call.version < 37:
            raise refused("update", "re-parenting a provider is not currently allowed.")
        if parent in set(state.subtree(old.uuid)):
            raise refused("update", "creating loop in the provider tree is not allowed.")
    elif old.parent is not None and call.version < 37:
        raise refused("update", "un-parenting a provider is not currently allowed.")
    if parent is not None and parent != old.parent:
        state.made(parent)
    if old.uuid not in state.providers and (name, parent) != (old.name, old.parent):
        state.made(old.uuid)
    if state.named(name) not in (None, old.uuid):
        raise conflict(f"Conflicting resource provider {name} already exists.", DUPLICATE_NAME)
    if old.uuid not in state.providers:
        return Answer(body=shown(call, old), modified=call.now)
    new = msgspec.structs.replace(old, name=name, parent=parent, updated=call.now)
    return Answer(body=shown(call, new), modified=call.now, change=Change({old.uuid: new}))


def delete(call: Call) -> Answer:
    state, wanted = call.state, call.path["uuid"]
    if not state.has(wanted):
        raise not_found(f"No resource provider with uuid {wanted} found for delete")
    state.made(wanted)
    if any(True for _ in state.children(wanted)):
        raise conflict(
            f"Unable to delete parent resource provider {wanted}: It has child resource providers.",
            CANNOT_DELETE_PARENT,
        )
    if state.consumers_of(wanted):
        raise conflict(
            f"Unable to delete resource provider {wanted}: Resource provider has allocations.", PROVIDER_IN_USE
        )
    return Answer(204, change=Change({wanted: None}))
