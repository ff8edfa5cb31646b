"""Resource providers: create, show, list, rename, move, delete."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from . import parsing, schemas
from .call import Answer, Call
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
        if parent not in state.providers:
            raise refused("parent provider UUID does not exist.")
    twice = f"name: {name}" if state.named(name) is not None else f"uuid: {made}" if made in state.providers else ""
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
    return Answer(body=shown(call, provider), modified=provider.updated)


def listed(call: Call) -> Answer:
    schemas.check_query(call.query, schemas.provider_query(call.version))
    state = call.state
    conditions: list[Callable[[Provider], bool]] = []
    if name := call.parameter("name"):
        conditions.append(lambda p: p.name == name)
    if wanted := call.parameter("uuid"):
        conditions.append(lambda p: p.uuid == wanted)
    try:
        _with_traits(call, conditions)
        _with_aggregates(call, conditions)
        if (text := call.parameter("resources")) is not None:
            _with_room(state, parsing.resources(text), conditions)
    except UnknownName as error:
        where = '"required"' if "trait" in str(error) else "resources"
        kind = "trait(s)" if "trait" in str(error) else "resource class"
        raise bad_request(f"Invalid {kind} in {where} parameter: {error}") from None
    found = [p for p in state.providers.values() if all(condition(p) for condition in conditions)]
    if (tree := call.parameter("in_tree")) is not None:
        root = state.root_of(tree) if tree in state.providers else None
        found = [p for p in found if root is not None and state.root_of(p.uuid) == root]
    body = {"resource_providers": [shown(call, p) for p in found]}
    return Answer(body=body, modified=max((p.updated for p in found), default=call.now))


def _with_traits(call: Call, conditions: list[Callable[[Provider], bool]]) -> None:
    if values := call.parameters("required"):
        required, forbidden = parsing.traits(values, call.version)
        call.state.check_traits(sorted({name for any_of in required for name in any_of} | forbidden))
        conditions.append(
            lambda p: all(any_of & set(p.traits) for any_of in required) and not forbidden & set(p.traits)
        )


def _with_aggregates(call: Call, conditions: list[Callable[[Provider], bool]]) -> None:
    if values := call.parameters("member_of"):
        required, forbidden = parsing.aggregates(values, call.version)
        conditions.append(
            lambda p: all(any_of & set(p.aggregates) for any_of in required) and not forbidden & set(p.aggregates)
        )


def _with_room(state: State, resources: dict[str, int], conditions: list[Callable[[Provider], bool]]) -> None:
    for name, amount in resources.items():
        state.check_class(name)
        columns = state.forest.classes.get(name)
        rows = columns.with_room(amount).tolist() if columns is not None else []
        having = {state.forest.ids[row] for row in rows}
        conditions.append(lambda p, having=having: p.uuid in having)  # type: ignore[misc]


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
        if parent not in state.providers:
            raise refused("create", "parent provider UUID does not exist.")
        if old.parent not in (None, parent) and call.version < 37:
            raise refused("update", "re-parenting a provider is not currently allowed.")
        if parent in set(state.subtree(old.uuid)):
            raise refused("update", "creating loop in the provider tree is not allowed.")
    elif old.parent is not None and call.version < 37:
        raise refused("update", "un-parenting a provider is not currently allowed.")
    if state.named(name) not in (None, old.uuid):
        raise conflict(f"Conflicting resource provider {name} already exists.", DUPLICATE_NAME)
    new = msgspec.structs.replace(old, name=name, parent=parent, updated=call.now)
    return Answer(body=shown(call, new), modified=call.now, change=Change({old.uuid: new}))


def delete(call: Call) -> Answer:
    state, wanted = call.state, call.path["uuid"]
    if wanted not in state.providers:
        raise not_found(f"No resource provider with uuid {wanted} found for delete")
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
