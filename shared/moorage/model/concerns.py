"""Tells which controllers a group concerns, so that the others need not be asked about it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

from .controllers import DEVICES, MACHINES, PARTS
from .machine_slots import uses_slots
from .shapes import Intent, Shape, ShapedApp


def may_ask_parts(shape: Shape) -> bool:
    """Returns whether there are nodes whose inside matters to the shape's pods."""
    return bool(shape.groups or shape.relations or shape.containers or shape.guaranteed)


def concerns_of(
    apps: Iterable[ShapedApp], intents: Iterable[Intent], asks_parts: Callable[[Shape], bool] = may_ask_parts
) -> set[str]:
    """Returns what a group has that may concern a controller. `asks_parts` tells whether the inside of any node matters."""
    found = {intent.kind for intent in intents}
    for app in apps:
        for shape in app.shapes:
            if asks_parts(shape):
                found.add(PARTS)
            if any(group.devices for group in shape.groups):
                found.add(DEVICES)
            if uses_slots(shape.resources):
                found.add(MACHINES)
    return found


def is_concerned(concerns: Sequence[str], found: Container[str]) -> bool:
    """Returns whether a controller with these concerns is asked about a group that has what was found."""
    return not concerns or any(concern in found for concern in concerns)
