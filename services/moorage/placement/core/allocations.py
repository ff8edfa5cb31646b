"""Allocations of consumers, and the exchange of inventories together with them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from . import inventories, schemas
from .call import Answer, Call, LongBody, finished
from .errors import (
    CONCURRENT_UPDATE,
    INVENTORY_IN_USE,
    PROVIDER_NOT_FOUND,
    bad_request,
    conflict,
    not_found,
)
from .records import Change, Consumer, ConsumerWrite, InventoryRecord, Provider
from .reported import Shortage
from .state import State

#: Project and user of consumers from before 1.8, whose requests name none.
INCOMPLETE = "00000000-0000-0000-0000-000000000000"
UNKNOWN_TYPE = "unknown"
#: Consumers, or providers, that are handled between two steps of a large change.
_SLICE = 100
#: Consumers that are shown between two steps of a long answer.
_SHOWN = 1000


class _Invalid(Exception):
    """Inventories do not allow an allocation."""


class _Missing(Exception):
    """A resource class that is named does not exist."""


# -- showing ------------------------------------------------------------------------------------------------------


def of_consumer(call: Call) -> Answer:
    consumer = call.state.consumer(call.path["consumer_uuid"])
    if consumer is None:
        return Answer(body={"allocations": {}}, modified=call.now)
    body: dict[str, Any] = {
        "allocations": {
            provider: {"resources": amounts, "generation": call.state.generation(provider)}
            for provider, amounts in consumer.allocations.items()
        }
    }
    if call.version >= 12:
        body |= {"project_id": consumer.project, "user_id": consumer.user}
    if call.version >= 28:
        body["consumer_generation"] = consumer.generation
    if call.version >= 38:
        body["consumer_type"] = consumer.type or UNKNOWN_TYPE
    return Answer(body=body, modified=consumer.updated or call.now)


def of_provider(call: Call) -> Generator[None, None, Answer]:
    """Makes the answer in steps: one that shares with other trees may have very many consumers."""
    wanted = call.path["uuid"]
    if not call.state.has(wanted):
        raise not_found(f"Resource provider '{wanted}' not found: No resource provider with uuid {wanted} found")
    holders = call.state.consumers_of(wanted)
    generation = call.state.generation(wanted)
    pieces: list[bytes] = []
    newest = 0.0
    for begin in range(0, len(holders), _SHOWN):
        shown: dict[str, dict[str, Any]] = {}
        for consumer in holders[begin : begin + _SHOWN]:
            newest = max(newest, consumer.updated)
            shown[consumer.uuid] = {"resources": consumer.allocations[wanted]}
            if call.version >= 28:
                shown[consumer.uuid]["consumer_generation"] = consumer.generation
        pieces.append(b"," + msgspec.json.encode(shown)[1:-1])
        yield
    if pieces:
        pieces[0] = pieces[0][1:]
    end = b'},"resource_provider_generation":%d}' % generation
    return Answer(body=LongBody([b'{"allocations":{', *pieces, end]), modified=newest or call.now)


# -- writing ------------------------------------------------------------------------------------------------------


def replace(call: Call) -> Answer:
    given = call.path["consumer_uuid"]
    if not schemas.is_uuid(given):
        raise bad_request(f"Malformed consumer_uuid: {given}")
    consumer = str(uuid.UUID(given))
    data = schemas.decoded(call.body, schemas.allocations(call.version))
    if call.version < 12:
        listed = data["allocations"]
        data["allocations"] = {a["resource_provider"]["uuid"]: {"resources": a["resources"]} for a in listed}
    writes = _writes(call, {consumer: data})
    return _committed(call, writes, lambda error: f"Unable to allocate inventory for consumer {consumer}: {error}")


def replace_many(call: Call) -> Answer:
    data = schemas.decoded(call.body, schemas.many_allocations(call.version))
    writes = _writes(call, data)
    return _committed(call, writes, lambda error: f"Unable to allocate inventory {error}")


def delete(call: Call) -> Answer:
    wanted = call.path["consumer_uuid"]
    consumer = call.state.consumers.get(wanted)
    _check_no_claim(call.state, wanted)
    if consumer is None:
        raise not_found(f"No allocations for consumer '{wanted}'")
    ended = msgspec.structs.replace(consumer, allocations={}, names={}, taken={}, updated=call.now)
    return Answer(204, change=Change(consumers=(ConsumerWrite(consumer=ended, expected=consumer.generation),)))


def reshape(call: Call) -> Generator[None, None, Answer]:
    """Makes the change in steps, between which nothing else may change anything."""
    data = schemas.decoded(call.body, schemas.reshape(call.version))
    state = call.state
    new: dict[str, dict[str, InventoryRecord]] = {}
    for number, (wanted, given) in enumerate(data["inventories"].items(), 1):
        if not state.has(wanted):
            raise bad_request(
                f"Resource provider {wanted} in inventories not found: No resource provider with uuid {wanted} found",
                PROVIDER_NOT_FOUND,
            )
        generation = state.generation(wanted)
        if given["resource_provider_generation"] != generation:
            raise conflict(
                f"resource provider generation conflict for provider {wanted}: actual: {generation}, "
                f"given: {given['resource_provider_generation']}",
                CONCURRENT_UPDATE,
            )
        state.made(wanted)
        new[wanted] = {name: inventories.record(f, call.now) for name, f in given["inventories"].items()}
        if number % _SLICE == 0:
            yield
    writes = yield from _writes_in_steps(call, data["allocations"])
    for found in new.values():
        for name in found:
            if name not in state.classes:
                raise bad_request(f"malformed reshaper data: No such resource class {name}.")
    try:
        # While allocations move, a provider has what it had and what it will have.
        both = {wanted: {**state.providers[wanted].inventories, **found} for wanted, found in new.items()}
        writes = yield from _check_in_steps(state, writes, both)
    except _Invalid as error:
        raise conflict(f"Unable to allocate inventory: {error}") from None
    except _Missing as error:
        raise bad_request(f"malformed reshaper data: {error}") from None
    yield
    after = _used_after(state, writes)
    yield
    written: dict[str, Provider | None] = {}
    for number, (wanted, found) in enumerate(new.items(), 1):
        if number % _SLICE == 0:
            yield
        old = state.providers[wanted]
        lost = [n for n in old.inventories if n not in found and after.get((wanted, n), state.used(wanted, n))]
        if lost:
            raise conflict(
                f"update conflict: Inventory for '{', '.join(lost)}' on resource provider '{wanted}' in use.",
                INVENTORY_IN_USE,
            )
        # Inventories that are not empty are written twice: with the old ones while allocations move, then alone.
        grown = old.generation + (2 if found else 1)
        written[wanted] = msgspec.structs.replace(old, inventories=found, generation=grown)
    return Answer(204, change=Change(written, consumers=_named_once(writes), exchanges=new))


def _writes(call: Call, data: dict[str, Any]) -> list[ConsumerWrite]:
    return finished(_writes_in_steps(call, data))


def _writes_in_steps(call: Call, data: dict[str, Any]) -> Generator[None, None, list[ConsumerWrite]]:
    """Checks generations and providers of all consumers, and returns their writes."""
    for consumer, given in data.items():
        _check_no_claim(call.state, consumer)
        _check_generation(call, consumer, given)
    yield
    found: list[ConsumerWrite] = []
    for number, (consumer, given) in enumerate(data.items(), 1):
        if number % _SLICE == 0:
            yield
        old = call.state.consumers.get(consumer)
        for provider in given["allocations"]:
            if not call.state.has(provider):
                raise bad_request(f"Allocation for resource provider '{provider}' that does not exist.")
        amounts = {provider: a["resources"] for provider, a in given["allocations"].items()}
        named = tuple(amounts or (old.allocations if old is not None else ()))
        if not amounts and old is None:
            continue
        kept = given.get("consumer_type") or (old.type if old is not None else None)
        new = Consumer(
            uuid=consumer,
            project=given.get("project_id") or INCOMPLETE,
            user=given.get("user_id") or INCOMPLETE,
            type=kept,
            generation=(old.generation if old is not None else 0) + 1,
            allocations=amounts,
            updated=call.now,
        )
        expected = old.generation if old is not None else None
        found.append(ConsumerWrite(consumer=new, expected=expected, named=named))
    return found


def _check_no_claim(state: State, consumer: str) -> None:
    if state.reported.claims.is_claim(consumer):
        raise conflict(f"Consumer {consumer} is a claim of the mesh. It is changed by changing its application.")


def _check_generation(call: Call, consumer: str, given: dict[str, Any]) -> None:
    if call.version < 28:
        return
    old, told = call.state.consumers.get(consumer), given.get("consumer_generation")
    if old is not None and old.generation != told:
        raise conflict(f"consumer generation conflict - expected {old.generation} but got {told}", CONCURRENT_UPDATE)
    if old is None and told is not None:
        raise conflict(f"consumer generation conflict - expected null but got {told}", CONCURRENT_UPDATE)


def _committed(call: Call, writes: list[ConsumerWrite], missing: Callable[[object], str]) -> Answer:
    try:
        writes = _check(call.state, writes)
    except _Missing as error:
        raise bad_request(missing(error)) from None
    except _Invalid as error:
        raise conflict(f"Unable to allocate inventory: {error}") from None
    return Answer(204, change=Change(consumers=_named_once(writes)))


def _named_once(writes: list[ConsumerWrite]) -> tuple[ConsumerWrite, ...]:
    """A provider's generation grows once, however many consumers of a request name it."""
    seen: set[str] = set()
    found = []
    for write in writes:
        found.append(msgspec.structs.replace(write, named=tuple(p for p in write.named if p not in seen)))
        seen.update(write.named)
    return tuple(found)


def _used_after(state: State, writes: list[ConsumerWrite]) -> dict[tuple[str, str], int]:
    """Returns what is used of each class that a write changes, after all writes."""
    after: dict[tuple[str, str], int] = {}
    for write in writes:
        old = state.consumers.get(write.consumer.uuid)
        for sign, allocations in ((-1, old.allocations if old is not None else {}), (1, write.consumer.allocations)):
            for provider, amounts in allocations.items():
                for name, amount in amounts.items():
                    key = provider, name
                    after[key] = after.get(key, state.used(*key)) + sign * amount
    return after


def _check(state: State, writes: list[ConsumerWrite]) -> list[ConsumerWrite]:
    return finished(_check_in_steps(state, writes, {}))


def _check_in_steps(
    state: State, writes: list[ConsumerWrite], replaced: dict[str, dict[str, InventoryRecord]]
) -> Generator[None, None, list[ConsumerWrite]]:
    """Raises if the writes take more than there is. What does not add to an amount over capacity is allowed. Returns the
    writes with what they take of the nodes of clusters."""
    after = _used_after(state, writes)
    looked_at = 0
    yield
    for write in writes:
        for amounts in write.consumer.allocations.values():
            for name in amounts:
                if name not in state.classes:
                    raise _Missing(f"No such resource class {name}.")
    for write in writes:
        for provider, amounts in write.consumer.allocations.items():
            known = replaced.get(provider) or state.provider(provider).inventories
            held = state.held_of_gone(write.consumer.uuid, provider)
            for name, amount in amounts.items():
                if amount > held.get(name, 0):
                    _check_amount(state, provider, name, amount, known.get(name), after)
            if (looked_at := looked_at + 1) % _SLICE == 0:
                yield
    reported = state.reported
    located: list[ConsumerWrite] = []
    for number, write in enumerate(writes, 1):
        consumer = reported.located(write.consumer, state.consumers.get(write.consumer.uuid))
        located.append(msgspec.structs.replace(write, consumer=consumer))
        if number % _SLICE == 0:
            yield
    try:
        reported.check_room(located, state.consumers)
    except Shortage as short:
        raise _Invalid(_said(short.name, short.provider) + "exceed the capacity.") from None
    return located


def _said(name: str, provider: str) -> str:
    return f"Unable to create allocation for '{name}' on resource provider '{provider}'. The requested amount would "


def _check_amount(
    state: State,
    provider: str,
    name: str,
    amount: int,
    found: InventoryRecord | None,
    after: dict[tuple[str, str], int],
) -> None:
    if found is None:
        raise _Invalid(f"Inventory for '{name}' on resource provider '{provider}' invalid.")
    said = _said(name, provider)
    if not found.min_unit <= amount <= found.max_unit or amount % found.step_size:
        raise _Invalid(f"{said}violate inventory constraints.")
    if provider not in state.providers:
        return  # its room is counted in the units of its node
    used = after[provider, name]
    if used > (found.total - found.reserved) * found.allocation_ratio and used > state.used(provider, name):
        raise _Invalid(f"{said}exceed the capacity.")
