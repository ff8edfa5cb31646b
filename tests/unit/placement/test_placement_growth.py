"""Tests that records that are made and deleted leave nothing behind, however often."""

from __future__ import annotations

from typing import Any

import numpy as np

from moorage.parts.interning import IDLE, SetTable

from .service import PlacementService as Service

AGGREGATE = "a0000000-0000-4000-8000-{:012d}"


def sizes(found: Any, depth: int = 0) -> dict[str, int]:
    """Returns the sizes of all containers of an object, and of its objects, by attribute."""
    known: dict[str, int] = {}
    names = [*getattr(found, "__slots__", ()), *vars(found)] if hasattr(found, "__dict__") else found.__slots__
    for name in names:
        value = getattr(found, name)
        if isinstance(value, np.ndarray | list | dict | set):
            known[name] = len(value)
        elif type(value).__module__.startswith("moorage") and depth < 3 and not isinstance(value, tuple):
            known |= {f"{name}.{inner}": size for inner, size in sizes(value, depth + 1).items()}
    return known


def test_providers_that_are_made_and_deleted_leave_the_columns_as_they_were() -> None:
    """Each has traits, aggregates and a class that no other one had."""
    service = Service()
    service.tree({"stays": {"VCPU": 8, "children": {"child": {"VGPU": 1}}}})

    def make_and_delete(number: int) -> None:
        name = f"cn{number}"
        trait, kind = f"CUSTOM_T{number}", f"CUSTOM_C{number}"
        offers = {"traits": [trait], "aggregates": [AGGREGATE.format(number)], kind: 4}
        service.tree({name: {"VCPU": 4, "used": {"VCPU": 1}, "children": {f"{name}-c": offers}}})
        query = f"resources_A={kind}:1&required_A={trait}&member_of_A={AGGREGATE.format(number)}"
        assert service.candidates(query) == [{f"{name}-c": {kind: 1}}]
        consumer = next(iter(service.state.consumers))
        service.call("DELETE", "/allocations/{consumer_uuid}", consumer_uuid=consumer)
        for gone in (f"{name}-c", name):
            service.call("DELETE", "/resource_providers/{uuid}", uuid=service.ids.pop(gone))
        service.call("DELETE", "/traits/{name}", name=trait)
        service.call("DELETE", "/resource_classes/{name}", name=kind)
        service.state.forget_writes(service.state.gone())

    for number in range(IDLE + 20):
        make_and_delete(number)
    before = sizes(service.state)
    assert "forest.traits.sets" in before and "forest.root" in before
    for number in range(1000, 1000 + IDLE):
        make_and_delete(number)
    grown = {
        name: (before.get(name), size) for name, size in sizes(service.state).items() if size > before.get(name, 0)
    }
    # Conditions whose answers are kept, and numbers of blocks that are used again, have limits of their own.
    assert {name: found for name, found in grown.items() if not name.endswith("_answers")} == {}
    assert service.candidates("resources=VCPU:1") == [{"stays": {"VCPU": 1}}]


def test_a_number_that_is_used_again_has_the_answers_of_its_new_set() -> None:
    table: SetTable[str] = SetTable()

    def has_x(names: frozenset[str]) -> bool:
        return "x" in names

    kept = table.number({"x", "kept"})
    for number in range(10 * IDLE):
        given = table.acquire(frozenset({"x" if number % 2 else "y", str(number)}))
        assert table.where("has x", has_x)[given] == bool(number % 2)
        table.release(given)
    assert len(table.sets) <= 2 * IDLE
    assert table.number({"x", "kept"}) == kept and table.where("has x", has_x)[kept]


def test_a_set_in_use_keeps_its_number() -> None:
    table: SetTable[str] = SetTable()
    held = table.acquire(frozenset({"held"}))
    again = table.acquire(frozenset({"held"}))
    table.release(again)
    pinned = table.acquire(frozenset({"pinned"}))
    assert table.number({"pinned"}) == pinned
    table.release(pinned)
    for number in range(10 * IDLE):
        table.release(table.acquire(frozenset({str(number)})))
    assert table.sets[held] == {"held"} and table.sets[pinned] == {"pinned"}
