"""Reads the slots that templates of pinned claims name, and chooses one of them for a pod, where nothing but Moorage allocates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec

from moorage.podspec import TEMPLATE_SLOTS


class TemplateSlot(msgspec.Struct, kw_only=True):
    """A place for one pod: its node, and the devices of a claim by REQUEST[/ALTERNATIVE]."""

    node: str
    devices: dict[str, list[str]] = {}


_read_slots = msgspec.json.Decoder(list[TemplateSlot]).decode


def slots_of_template(template: Mapping[str, Any]) -> list[TemplateSlot]:
    text = (template.get("metadata", {}).get("annotations") or {}).get(TEMPLATE_SLOTS, "[]")
    try:
        return _read_slots(text)
    except msgspec.MsgspecError:
        return []


class SchedulerAllocates(Exception):
    """The devices of a slot are not allocated by name alone."""


def open_slot(
    of_template: Mapping[str, Sequence[TemplateSlot]],
    own: AbstractSet[str],
    taken: AbstractSet[str],
    is_allocable: Callable[[str], bool | None],
) -> dict[str, TemplateSlot] | None:
    """Returns the first slot whose devices are there and free, by template; None if there is none. `own`: the devices that claims of
    the pod have already. `is_allocable`: whether a device exists and can be allocated as a whole; None if the scheduler has to do
    it. Raises SchedulerAllocates."""
    for i in range(min((len(slots) for slots in of_template.values()), default=0)):
        slots = {of: found[i] for of, found in of_template.items()}
        devices = {device for slot in slots.values() for of in slot.devices.values() for device in of}
        verdicts = {is_allocable(device) for device in devices}
        if None in verdicts:
            raise SchedulerAllocates
        if False not in verdicts and own <= devices and not (devices - own) & taken:
            return slots
    return None
