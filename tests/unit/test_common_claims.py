"""Devices of a claim that pods of several objects have together stay with the pods that stay, whichever object had them."""

from __future__ import annotations

import pytest

from moorage.ledger.held_devices import hold_common
from moorage.ledger.takeovers import Wanted
from moorage.model.candidates import OwnClaim
from moorage.model.part_requests import DeviceAsk, PartGroup
from moorage.model.shapes import Shape
from moorage.model.slots import DeviceGrant, Slot

JOINT = "claim:default/joint"


def slot(need: str = "", part: str = "g0", node: str = "n", count: int = 1) -> Slot:
    if not need:
        return Slot(node=node, count=count)
    grant = DeviceGrant(part=part, need=need, name="GPU", amount=1)
    return Slot(node=node, count=count, parts={part: {"GPU": 1}}, devices=[grant])


def shape(name: str, called: str, shared: str = JOINT) -> Shape:
    group = PartGroup(suffix=f"{called}/one", devices=(DeviceAsk(device_class="gpu"),), shared=shared)
    return Shape(key="", object=f"Deployment/{name}", count=2, resources={}, groups=[group])


def own(name: str, *slots: Slot) -> OwnClaim:
    return OwnClaim(id=name, object=f"Deployment/{name}", slots=list(slots))


def held(beside: list[OwnClaim], *others: Shape, node: str = "n") -> list[Slot]:
    """Returns the slots of an object of which two pods stay on a node and call the claim `card`."""
    stays = slot(node=node, count=2)
    wanted = [Wanted(shape("y", "card"), "y", [own("y", stays)], beside), *(Wanted(each, "x") for each in others)]
    kept = [[stays], *([] for _ in others)]
    claims = hold_common(wanted, kept)
    assert claims == ({JOINT} if any(each.devices for each in kept[0]) else set())
    return kept[0]


GIVEN = [slot("card/one"), slot()]


def test_pods_that_stay_get_what_an_object_without_pods_had() -> None:
    assert held([own("x", slot("gpu/one"))], shape("x", "gpu")) == GIVEN
    assert held([own("x", slot("gpu/one/big"))], shape("x", "gpu")) == [slot("card/one/big"), slot()]


def test_pods_that_stay_get_what_an_object_that_is_gone_had() -> None:
    assert held([own("x", slot("gpu/one"))]) == GIVEN
    assert held([own("x", slot("gpu/other"), slot("class"))]) == [slot(count=2)], "of other requests and needs"


@pytest.mark.parametrize("called", ["gpu", "card"])
def test_what_is_of_claims_of_its_own_stays_with_an_object(called: str) -> None:
    assert held([own("x", slot(f"{called}/one"))], shape("x", called, shared="")) == [slot(count=2)]
    mixed = shape("x", "gpu")
    mixed.groups.append(PartGroup(suffix="mine/one", devices=(DeviceAsk(device_class="gpu"),)))
    assert held([own("x", slot("gpu/one"), slot("mine/one", "g1"))], mixed) == GIVEN


def test_nobody_gets_what_is_elsewhere_or_not_known_to_be_of_the_claim() -> None:
    assert held([own("x", slot("gpu/one"))], shape("x", "gpu"), node="m") == [slot(node="m", count=2)]
    assert held([own("x", slot("gpu/one"), slot("mine/one", "g1"))]) == [slot(count=2)], "which of them is not known"


def test_what_stays_where_it_is_is_given_to_nobody_else() -> None:
    stays = slot(count=2)
    kept = [[stays], [slot("gpu/one")]]
    wanted = [
        Wanted(shape("y", "card"), "y", [own("y", stays)], [own("x", *kept[1])]),
        Wanted(shape("x", "gpu"), "x", [own("x", *kept[1])], [own("y", stays)]),
    ]
    assert hold_common(wanted, kept) == {JOINT}
    assert kept == [[stays], [slot("gpu/one")]]
