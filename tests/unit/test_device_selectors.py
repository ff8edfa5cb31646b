"""Expressions select the devices that slots name, and no others that differ in anything that expressions see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.cel import MAX_LENGTH, CelDevice, compile_selector
from moorage.cel.devices import version
from moorage.dra import objects as dra
from moorage.dra.device_selectors import MAX_SELECTORS, selectors_of
from moorage.dra.slices import Devices

Json = dict[str, Any]
DRIVER = "gpu.example.com"


def device(name: str, memory: str = "", shared: bool = False, **attributes: Any) -> Json:
    kinds: dict[type, str] = {str: "string", int: "int", bool: "bool"}
    values = {k: v if isinstance(v, dict) else {kinds[type(v)]: v} for k, v in attributes.items()}
    found: Json = {"name": name, "attributes": values}
    if memory:
        found["capacity"] = {"memory": {"value": memory}}
    if shared:
        found["allowMultipleAllocations"] = True
    return found


def devices_of(*devices: Json, driver: str = DRIVER, into: Devices | None = None) -> Devices:
    """Returns the devices in slices of 64."""
    found = into or Devices(lambda _node: None, lambda: None)
    for at in range(0, len(devices), 64):
        pool = {"name": f"p{at}", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "pool": pool, "nodeName": "n", "devices": list(devices[at : at + 64])}
        found.put(f"{driver}{at}", dra.slice_(msgspec.json.encode({"metadata": {"name": "s"}, "spec": spec})))
    return found


def selected(wanted: Iterable[str], *devices: Json) -> list[str]:
    """Returns the devices that the expressions for the wanted ones select, and asserts that none has an error on any."""
    known = devices_of(*devices)
    names = set(wanted)
    idents = [ident for ident, _ in known.of_driver(DRIVER) if ident.rpartition("/")[2] in names]
    programs = [compile_selector(expression) for expression in selectors_of(idents, known)]
    found = []
    for one in devices:
        attributes = {
            name: version(value["version"]) if "version" in value else next(iter(value.values()))
            for name, value in one["attributes"].items()
        }
        capacity = {name: of["value"] for name, of in one.get("capacity", {}).items()}
        seen = CelDevice.of(DRIVER, attributes, capacity, one.get("allowMultipleAllocations", False))
        answers = [program.matches(seen) for program in programs]
        assert None not in answers
        if all(answers):
            found.append(one["name"])
    return found


CARD: Json = {"model": "h100", "type": "gpu"}


@pytest.mark.parametrize(
    "devices",
    [
        [device(f"g{i}", model="a", uuid=f"GPU-{i}") for i in range(4)],
        [device(f"g{i}", model="a", minor=i, even=bool(i % 2)) for i in range(4)],
        [
            device("g0", model="a", uuid="GPU-0"),
            device("g1", model="b"),
            device("g2"),
            device("g3", uuid='"\U0001f980'),
        ],
        [{"name": f"g{i}", "attributes": {"other.example.com/serial": {"string": f"s{i}"}}} for i in range(4)],
        # Cards and parts of them, which have no names of their own.
        [
            device("g0", "80Gi", **CARD),
            device("g1", "40Gi", **CARD),
            device("g2", "20Gi", **CARD),
            device("g3", **CARD),
        ],
        [
            device("g0", **CARD),
            device("g1", **CARD, profile="half"),
            device("g2", **CARD, profile="half", at=1),
            device("g3"),
        ],
        [device(f"g{i}", parent=i // 2, slot=i % 2) for i in range(4)],
        [
            device(f"g{i}", firmware={"version": text})
            for i, text in enumerate(("1.2.3", "1.2.4", "1.2.3-rc.1", "2.0.0"))
        ],
        [device(f"g{i}", "8Gi" if i % 2 else "", shared=i > 1, model="a") for i in range(4)],
        # Values of one attribute that cannot be compared with each other.
        [device("g0", at=1), device("g1", at="1"), device("g2", at={"version": "1.0.0"}, a=1), device("g3", at=True)],
    ],
)
def test_devices_are_told_by_what_tells_them_apart(devices: list[Json]) -> None:
    for wanted in (["g0"], ["g2"], ["g1", "g3"], ["g0", "g1", "g2"], ["g0", "g1", "g2", "g3"]):
        assert selected(wanted, *devices) == wanted


def test_equal_devices_are_told_together_and_those_that_are_gone_not_at_all() -> None:
    devices = [device("g0", "1Gi", model="a"), device("g1", "1024Mi", model="a"), device("g2", "1G", model="a")]
    assert selected(["g0"], *devices) == ["g0", "g1"]
    assert selected(["g2"], *devices) == ["g2"]
    assert selected(["gone"], *devices) == []


def test_what_cannot_be_read_tells_nothing_and_is_no_error() -> None:
    odd = {"name": "g1", "attributes": {"at": {"version": "one"}}, "capacity": {"memory": {"value": "much"}}}
    known = devices_of(device("g0", "1Gi", at={"version": "1.0.0"}), odd, device("g2", at={"strings": ["a"]}))
    (expression,) = selectors_of([f"{DRIVER}/p0/g0"], known)
    assert 'quantity("1Gi")' in expression and "semver" not in expression
    assert "much" not in "".join(selectors_of([f"{DRIVER}/p0/g1"], known))


_VALUES = {
    "uuid": st.sampled_from(["a", "b", "c"]),
    "index": st.integers(0, 2),
    "other.example.com/flag": st.booleans(),
    "firmware": st.sampled_from([{"version": "1.0.0"}, {"version": "1.0.0+build"}, {"version": "1.1.0"}]),
    "mixed": st.sampled_from(["x", 1, True, {"version": "1.0.0"}]),
}
_DEVICES = st.lists(
    st.tuples(
        st.fixed_dictionaries({}, optional=_VALUES), st.sampled_from(["", "1Gi", "1024Mi", "2Gi"]), st.booleans()
    ),
    min_size=1,
    max_size=8,
)


def _equal(one: Json, other: Json) -> bool:
    """Returns whether expressions see no difference that they can compare."""

    def seen(found: Json) -> object:
        size = (found.get("capacity") or {"memory": {"value": ""}})["memory"]["value"].replace("1024Mi", "1Gi")
        attributes = {name: repr(value).replace("+build", "") for name, value in found["attributes"].items()}
        return attributes, size, found.get("allowMultipleAllocations", False)

    return seen(one) == seen(other)


@given(_DEVICES, st.sets(st.integers(0, 7), min_size=1))
def test_exactly_the_devices_that_are_equal_to_wanted_ones_are_selected(
    given_: list[tuple[Json, str, bool]], wanted: set[int]
) -> None:
    kinds = {
        next(iter(v)) if isinstance(v, dict) else type(v) for a, _, _ in given_ if (v := a.get("mixed")) is not None
    }
    if dict in map(type, (a.get("mixed") for a, _, _ in given_)) and len(kinds) > 1:
        for attributes, _, _ in given_:
            attributes.pop("mixed", None)  # versions beside others are not compared
    devices = [device(f"g{i}", memory, shared, **a) for i, (a, memory, shared) in enumerate(given_)]
    names = {f"g{i}" for i in wanted if i < len(devices)}
    expected = [one["name"] for one in devices if any(_equal(one, o) for o in devices if o["name"] in names)]
    assert selected(names, *devices) == expected


@pytest.mark.parametrize(
    "own", [lambda i: {"uuid": f"GPU-{i * 7919 % 3000:08}-{i:030}"}, lambda i: {"index": i - 1500}]
)
def test_more_devices_than_one_expression_can_list_are_told_exactly(own: Any) -> None:
    devices = [device(f"g{i:04}", "80Gi" if i % 5 else "40Gi", model="a", **own(i)) for i in range(3000)]
    devices += [device("half", "40Gi", model="b"), device("other", "40Gi", model="c")]
    wanted = [one["name"] for one in devices[:3000] if int(one["name"][1:]) % 3] + ["half"]
    known = devices_of(*devices)
    idents = [ident for ident, _ in known.of_driver(DRIVER) if ident.rpartition("/")[2] in set(wanted)]
    expressions = selectors_of(idents, known)
    assert 1 < len(expressions) <= MAX_SELECTORS and max(len(e.encode()) for e in expressions) <= MAX_LENGTH
    assert selected(wanted, *devices) == wanted


def test_where_the_expressions_would_be_too_many_all_devices_of_the_driver_are_selected() -> None:
    devices = [device(f"g{i:04}", uuid=f"GPU-{i:040}") for i in range(500)]
    known = devices_of(*devices, driver=DRIVER)
    idents = [ident for ident, _ in known.of_driver(DRIVER)][:400]
    assert selectors_of(idents, known, most=1) == [f'device.driver == "{DRIVER}"']
    assert len(selectors_of(idents, known, most=3)) in (2, 3)


def test_devices_of_several_drivers_are_told_each_by_its_own() -> None:
    known = devices_of(device("g0", uuid="a"), device("g1", uuid="b"))
    devices_of(device("n0", uuid="a"), device("n1", uuid="b"), driver="nic.example.com", into=known)
    (expression,) = selectors_of([f"{DRIVER}/p0/g0", "nic.example.com/p0/n1"], known)
    program = compile_selector(expression)
    found = [
        (driver, uuid)
        for driver in (DRIVER, "nic.example.com")
        for uuid in "ab"
        if program.matches(CelDevice.of(driver, {"uuid": uuid}, {}, False))
    ]
    assert found == [(DRIVER, "a"), ("nic.example.com", "b")]
