"""Traits, resource classes and aggregates."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import msgspec

from . import schemas
from .call import Answer, Call
from .errors import CONCURRENT_UPDATE, UnknownName, bad_request, conflict, not_found
from .records import Addition, Change, Consumer, ConsumerWrite, InventoryRecord, Provider

CUSTOM = "CUSTOM_"
#: Providers, or consumers, that are looked at between two steps.
_SLICE = 500


# -- resource classes ---------------------------------------------------------------------------------------------


def _class_url(call: Call, name: str) -> str:
    return f"{call.prefix}/resource_classes/{name}"


def _class_shown(call: Call, name: str) -> dict[str, object]:
    return {"name": name, "links": [{"rel": "self", "href": _class_url(call, name)}]}


def list_classes(call: Call) -> Answer:
    known = call.state.classes
    body = {"resource_classes": [_class_shown(call, name) for name in known]}
    return Answer(body=body, modified=max(known.values()) or call.now)


def show_class(call: Call) -> Answer:
    name = _known_class(call)
    return Answer(body=_class_shown(call, name), modified=call.state.classes[name] or call.now)


def create_class(call: Call) -> Answer:
    name = schemas.decoded(call.body, schemas.RESOURCE_CLASS)["name"]
    if name in call.state.classes:
        raise conflict(f"Conflicting resource class already exists: {name}")
    return Answer(201, location=_class_url(call, name), change=Change(classes={name: call.now}))


def rename_class(call: Call) -> Generator[None, None, Answer]:
    """Renames a class (1.2 to 1.6), in steps, between which nothing else may change anything."""
    new = schemas.decoded(call.body, schemas.RESOURCE_CLASS)["name"]
    old = _known_class(call)
    if not old.startswith(CUSTOM):
        raise bad_request(f"Cannot update standard resource class {old}")
    if old in call.state.reported.columns.class_names:
        raise conflict(f"Resource class {old} is offered by nodes of clusters.")
    if new in call.state.classes:
        raise conflict(f"Resource class already exists: {new}")
    changed: dict[str, Provider | None] = {}
    exchanges: dict[str, dict[str, InventoryRecord]] = {}
    for number, provider in enumerate(call.state.providers.values()):
        if number % _SLICE == 0:
            yield
        if old in provider.inventories:
            moved = {new if name == old else name: i for name, i in provider.inventories.items()}
            changed[provider.uuid] = msgspec.structs.replace(provider, inventories=moved)
            exchanges[provider.uuid] = moved
    writes: list[ConsumerWrite] = []
    for number, consumer in enumerate(call.state.consumers.values()):
        if number % _SLICE == 0:
            yield
        if _holds(consumer, old):
            writes.append(_renamed(consumer, old, new))
    classes = {old: None, new: call.now}
    return Answer(body=_class_shown(call, new), change=Change(changed, classes, {}, tuple(writes), exchanges))


def _holds(consumer: Consumer, name: str) -> bool:
    return any(name in amounts for amounts in consumer.allocations.values())


def _renamed(consumer: Consumer, old: str, new: str) -> ConsumerWrite:
    """Names a class anew in what a consumer holds. That is no write of the consumer: its generation stays."""
    allocations = {
        provider: {new if name == old else name: amount for name, amount in amounts.items()}
        for provider, amounts in consumer.allocations.items()
    }
    renamed = msgspec.structs.replace(consumer, allocations=allocations)
    return ConsumerWrite(consumer=renamed, expected=consumer.generation)


def ensure_class(call: Call) -> Answer:
    name = call.path["name"]
    schemas.decoded(msgspec.json.encode({"name": name}), schemas.RESOURCE_CLASS)
    if name in call.state.classes:
        return Answer(204, location=_class_url(call, name))
    return Answer(201, location=_class_url(call, name), change=Change(classes={name: call.now}))


def delete_class(call: Call) -> Answer:
    name = _known_class(call)
    if not name.startswith(CUSTOM):
        raise bad_request(f"Error in delete resource class: Cannot delete standard resource class {name}.")
    if call.state.is_class_used(name):
        raise conflict(
            f"Error in delete resource class: Cannot delete resource class {name}. Class is in use in inventory."
        )
    return Answer(204, change=Change(classes={name: None}))


def _known_class(call: Call) -> str:
    try:
        call.state.check_class(call.path["name"])
    except UnknownName as error:
        raise not_found(str(error)) from None
    return call.path["name"]


# -- traits -------------------------------------------------------------------------------------------------------


def list_traits(call: Call) -> Answer:
    schemas.check_query(call.query, schemas.TRAIT_QUERY)
    found = list(call.state.traits)
    if (text := call.parameter("name")) is not None:
        operation, colon, value = text.partition(":")
        if not colon:
            raise bad_request(
                "Badly formatted name parameter. Expected name query string parameter in form: "
                f'?name=[in|startswith]:[name1,name2|prefix]. Got: "{text}"'
            )
        if operation == "in":
            wanted = set(value.split(","))
            found = [name for name in found if name in wanted]
        elif operation == "startswith":
            found = [name for name in found if name.startswith(value)]
    if (associated := call.parameter("associated")) is not None:
        if associated.lower() not in ("true", "false"):
            raise bad_request('The query parameter "associated" only accepts "true" or "false"')
        used = associated.lower() == "true"
        found = [name for name in found if call.state.is_trait_used(name) == used]
    return _traits_shown(call, found)


def _traits_shown(call: Call, names: list[str]) -> Answer:
    newest = max((call.state.traits[name] for name in names), default=0.0)
    return Answer(body={"traits": names}, modified=newest or call.now)


def show_trait(call: Call) -> Answer:
    return Answer(204, modified=call.state.traits[_known_trait(call)] or call.now)


def ensure_trait(call: Call) -> Answer:
    name = call.path["name"]
    if not schemas.is_custom_trait(name):
        raise bad_request(
            "The trait is invalid. A valid trait must be no longer than 255 characters, start with the prefix "
            '"CUSTOM_" and use following characters: "A"-"Z", "0"-"9" and "_"'
        )
    location = f"{call.prefix}/traits/{name}"
    if name in call.state.traits:
        return Answer(204, location=location, modified=call.state.traits[name])
    return Answer(201, location=location, modified=call.now, change=Change(traits={name: call.now}))


def delete_trait(call: Call) -> Answer:
    name = _known_trait(call)
    if not name.startswith(CUSTOM):
        raise bad_request(f"Cannot delete standard trait {name}.")
    if call.state.is_trait_used(name):
        raise conflict(f"The trait {name} is in use by a resource provider.")
    return Answer(204, change=Change(traits={name: None}))


def _known_trait(call: Call) -> str:
    try:
        call.state.check_traits([call.path["name"]])
    except UnknownName as error:
        raise not_found(str(error)) from None
    return call.path["name"]


def provider_traits(call: Call) -> Answer:
    wanted = call.path["uuid"]
    provider = call.state.find(wanted)
    if provider is None:
        raise not_found(f"No resource provider with uuid {wanted} found: No resource provider with uuid {wanted} found")
    answer = _traits_shown(call, list(provider.traits))
    answer.body["resource_provider_generation"] = call.state.generation(wanted)
    return answer


def replace_provider_traits(call: Call) -> Answer:
    wanted = call.path["uuid"]
    data = schemas.decoded(call.body, schemas.PROVIDER_TRAITS)
    provider = call.state.provider(wanted)
    generation = call.state.generation(wanted)
    if data["resource_provider_generation"] != generation:
        raise conflict(
            "Resource provider's generation already changed. Please update the generation and try again.",
            CONCURRENT_UPDATE,
        )
    missing = sorted(set(data["traits"]) - set(call.state.traits))
    if missing:
        raise bad_request(f"No such trait {', '.join(missing)}")
    given = set(data["traits"])
    if wanted not in call.state.providers:
        given |= _reported_names(call, provider).traits
    new = tuple(name for name in call.state.traits if name in given)
    answer = _traits_shown(call, list(new))
    answer.change = _with_traits(call, provider, new)
    answer.body["resource_provider_generation"] = generation + (answer.change is not None)
    return answer


def clear_provider_traits(call: Call) -> Answer:
    return Answer(204, change=_with_traits(call, call.state.provider(call.path["uuid"]), ()))


class _Names(NamedTuple):
    traits: frozenset[str]
    aggregates: frozenset[str]


def _reported_names(call: Call, provider: Provider) -> _Names:
    """Returns what a cluster reports of its node or part. Clients may add to that, and remove what they added."""
    addition = call.state.additions.get(provider.uuid)
    if addition is None:
        return _Names(frozenset(provider.traits), frozenset(provider.aggregates))
    return _Names(*call.state.reported.own_names(provider.uuid))


def _added(call: Call, provider: Provider, traits: set[str], aggregates: set[str], grows: int) -> Change:
    """Keeps what is not reported of these as additions."""
    reported = _reported_names(call, provider)
    new = Addition(
        uuid=provider.uuid,
        name=provider.name,
        generation=provider.generation + grows,
        traits=tuple(sorted(traits - reported.traits)),
        aggregates=tuple(sorted(aggregates - reported.aggregates)),
        updated=call.now,
    )
    return Change(additions={provider.uuid: new})


def _with_traits(call: Call, provider: Provider, new: tuple[str, ...]) -> Change | None:
    if provider.uuid not in call.state.providers:
        reported = _reported_names(call, provider)
        if set(new) | reported.traits == set(provider.traits):
            return None
        return _added(call, provider, set(new), set(provider.aggregates), 1)
    if set(new) == set(provider.traits):
        return None
    return Change({provider.uuid: msgspec.structs.replace(provider, traits=new, generation=provider.generation + 1)})


# -- aggregates ---------------------------------------------------------------------------------------------------


def provider_aggregates(call: Call) -> Answer:
    provider = call.state.provider(call.path["uuid"])
    return _aggregates_shown(call, list(provider.aggregates), call.state.generation(provider.uuid))


def replace_aggregates(call: Call) -> Answer:
    provider = call.state.provider(call.path["uuid"])
    data = schemas.decoded(call.body, schemas.aggregates(call.version))
    generation = call.state.generation(provider.uuid)
    grows = call.version >= 19
    if grows and data["resource_provider_generation"] != generation:
        raise conflict(
            "Resource provider's generation already changed. Please update the generation and try again.",
            CONCURRENT_UPDATE,
        )
    new = tuple(data["aggregates"] if grows else data)
    if provider.uuid not in call.state.providers:
        change = _added(call, provider, set(provider.traits), set(new), int(grows))
        shown = sorted(set(new) | _reported_names(call, provider).aggregates)
        answer = _aggregates_shown(call, shown, generation + grows)
        answer.change = change
        return answer
    written = msgspec.structs.replace(provider, aggregates=new, generation=provider.generation + grows)
    answer = _aggregates_shown(call, list(new), generation + grows)
    answer.change = Change({provider.uuid: written})
    return answer


def _aggregates_shown(call: Call, names: list[str], generation: int) -> Answer:
    body: dict[str, object] = {"aggregates": names}
    if call.version >= 19:
        body["resource_provider_generation"] = generation
    return Answer(body=body, modified=call.now)
