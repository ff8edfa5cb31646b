"""Inventories of a provider."""

from __future__ import annotations

from typing import Any

import msgspec

from . import schemas
from .call import Answer, Call
from .errors import CONCURRENT_UPDATE, INVENTORY_IN_USE, Refused, UnknownName, bad_request, conflict, not_found
from .records import Change, InventoryRecord, Provider


def listed(call: Call) -> Answer:
    return _list(call, _provider(call), call.state.generation(call.path["uuid"]))


def show(call: Call) -> Answer:
    provider, name = _provider(call), call.path["resource_class"]
    found = provider.inventories.get(name)
    if found is None:
        raise not_found(f"No inventory of class {name} for {provider.uuid}")
    answer = _one(found, call.state.generation(provider.uuid))
    answer.modified = found.updated or call.now
    return answer


def create(call: Call) -> Answer:
    provider = call.state.made(call.path["uuid"])
    data = schemas.decoded(call.body, schemas.NEW_INVENTORY)
    name = data["resource_class"]

    def refused(error: object) -> Refused:
        return bad_request(f"Unable to create inventory for resource provider {provider.uuid}: {error}")

    new = _record(call, data)
    if (text := _capacity_problem(call, provider, {name: new})) is not None:
        raise refused(text)
    try:
        call.state.check_class(name)
    except UnknownName as error:
        raise refused(error) from None
    if name in provider.inventories:
        raise conflict(f"Update conflict: {provider.uuid} has an inventory of {name} already", CONCURRENT_UPDATE)
    change, generation = _written(call, provider, {**provider.inventories, name: new})
    answer = _one(new, generation)
    answer.status, answer.change = 201, change
    answer.location = f"{call.prefix}/resource_providers/{provider.uuid}/inventories/{name}"
    return answer


def replace(call: Call) -> Answer:
    provider = call.state.made(call.path["uuid"])
    data = schemas.decoded(call.body, schemas.INVENTORIES)
    _check_generation(call, provider, data)
    new = {name: _record(call, fields) for name, fields in data["inventories"].items()}
    if (text := _capacity_problem(call, provider, new)) is not None:
        raise bad_request(f"Unable to update inventory for resource provider {provider.uuid}: {text}")
    for name in new:
        try:
            call.state.check_class(name)
        except UnknownName as error:
            raise bad_request(
                f"Unknown resource class in inventory for resource provider {provider.uuid}: {error}"
            ) from None
    if (text := in_use(call, provider, new)) is not None:
        raise conflict(f"update conflict: {text}", INVENTORY_IN_USE)
    change, generation = _written(call, provider, new)
    answer = _list(call, msgspec.structs.replace(provider, inventories=new), generation)
    answer.change = change
    return answer


def update(call: Call) -> Answer:
    provider, name = call.state.made(call.path["uuid"]), call.path["resource_class"]
    data = schemas.decoded(call.body, schemas.INVENTORY)
    _check_generation(call, provider, data)
    new = _record(call, data)
    if (text := _capacity_problem(call, provider, {name: new})) is not None:
        raise bad_request(f"Unable to update inventory for resource provider {provider.uuid}: {text}")
    if name not in call.state.classes:
        raise not_found(f"No such resource class {name}.")
    if name not in provider.inventories:
        raise bad_request(
            f"No inventory record with resource class for resource provider {provider.uuid}: "
            f"No inventory of class {name} found."
        )
    change, generation = _written(call, provider, {**provider.inventories, name: new})
    answer = _one(new, generation)
    answer.change = change
    return answer


def delete(call: Call) -> Answer:
    provider, name = call.state.made(call.path["uuid"]), call.path["resource_class"]
    missing = f"No inventory of class {name} found for delete"
    if name not in call.state.classes:
        raise not_found(f"{missing}: No such resource class {name}.")
    rest = {n: i for n, i in provider.inventories.items() if n != name}
    if (text := in_use(call, provider, rest, only=name)) is not None:
        raise conflict(f"Unable to delete inventory of class {name}: {text}", CONCURRENT_UPDATE)
    if name not in provider.inventories:
        raise not_found(f"{missing}: {missing}")
    return Answer(204, change=_written(call, provider, rest)[0])


def delete_all(call: Call) -> Answer:
    provider = call.state.made(call.path["uuid"])
    if (text := in_use(call, provider, {})) is not None:
        raise conflict(text, INVENTORY_IN_USE)
    return Answer(204, change=_written(call, provider, {})[0])


def in_use(call: Call, provider: Provider, new: dict[str, InventoryRecord], only: str | None = None) -> str | None:
    """Returns what is wrong if `new` lacks classes of which something is allocated."""
    gone = [n for n in provider.inventories if n not in new and (only is None or n == only)]
    used = [n for n in call.state.classes if n in gone and call.state.used(provider.uuid, n)]
    if not used:
        return None
    return f"Inventory for '{', '.join(used)}' on resource provider '{provider.uuid}' in use."


def record(fields: dict[str, Any], now: float) -> InventoryRecord:
    known = {f: v for f, v in fields.items() if f in _FIELDS}
    return InventoryRecord(**known, updated=now)


def _record(call: Call, fields: dict[str, Any]) -> InventoryRecord:
    return record(fields, call.now)


def _provider(call: Call) -> Provider:
    wanted = call.path["uuid"]
    found = call.state.find(wanted)
    if found is None:
        raise not_found(
            f"No resource provider with uuid {wanted} found : No resource provider with uuid {wanted} found"
        )
    return found


def _check_generation(call: Call, provider: Provider, data: dict[str, Any]) -> None:
    if data["resource_provider_generation"] != call.state.generation(provider.uuid):
        raise conflict("resource provider generation conflict", CONCURRENT_UPDATE)


def _capacity_problem(call: Call, provider: Provider, new: dict[str, InventoryRecord]) -> str | None:
    for name, inventory in new.items():
        invalid = f"Invalid inventory for '{name}' on resource provider '{provider.uuid}'. The reserved value is greater than "
        if call.version < 26 and inventory.capacity <= 0:
            return f"{invalid}or equal to total."
        if inventory.capacity < 0:
            return f"{invalid}total."
    return None


def _written(call: Call, provider: Provider, new: dict[str, InventoryRecord]) -> tuple[Change, int]:
    """Returns the change, and the generation after it."""
    written = msgspec.structs.replace(provider, inventories=new, generation=provider.generation + 1)
    return Change({provider.uuid: written}), call.state.generation(provider.uuid) + 1


_FIELDS = ("total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio")


def _fields(found: InventoryRecord) -> dict[str, Any]:
    return {field: getattr(found, field) for field in _FIELDS}


def _one(found: InventoryRecord, generation: int) -> Answer:
    body: dict[str, Any] = _fields(found)
    if generation:
        body["resource_provider_generation"] = generation
    return Answer(body=body, modified=found.updated)


def _list(call: Call, provider: Provider, generation: int) -> Answer:
    shown = {name: _fields(inventory) for name, inventory in provider.inventories.items()}
    newest = max((i.updated for i in provider.inventories.values()), default=0) or call.now
    return Answer(body={"resource_provider_generation": generation, "inventories": shown}, modified=newest)
