"""Changes entries of the controller registry: a controller registers or leaves, an operator sets fields, which always win.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from moorage.model.controllers import DEVICES, MACHINES, PARTS, Controller, Register, Setting
from moorage.model.intent_kinds import INTENT_KINDS
from moorage.model.names import is_name
from moorage.model.problems import Refused, invalid

from .diagnostics import Diagnostics
from .validate import APPLICATION

_TOPICS = (PARTS, DEVICES, MACHINES)
_SETTABLE = ("deadline_ms", "policy", "weight", "placement", "actions")
MAX_DEADLINE_MS = 60_000
MAX_WEIGHT = 1000


def register(
    old: Controller | None, name: str, registration: Register, others: Iterable[Controller] = ()
) -> Controller:
    """`others` are the controllers registered already: every kind of intent has one schema."""
    owners = {kind: other for other in others if other.name != name for kind in other.kinds}
    _check(name, registration.deadline_ms, registration.weight, registration.kinds, owners)
    _check_concerns(registration)
    controller = Controller(
        name=name,
        deadline_ms=registration.deadline_ms,
        policy=registration.policy,
        weight=registration.weight,
        placement=registration.placement,
        actions=registration.actions,
        kinds=registration.kinds,
        steady=registration.steady,
        together=registration.together,
        concerns=registration.concerns,
        action_concerns=registration.action_concerns,
    )
    if old is None:
        return controller
    return msgspec.structs.replace(
        controller, pinned=old.pinned, **{field: getattr(old, field) for field in old.pinned}
    )


def leave(old: Controller) -> Controller | None:
    """None: the entry is deleted. Fields that an operator set are kept, and the controller is asked nothing."""
    kept = [field for field in old.pinned if field not in ("placement", "actions")]
    if not kept:
        return None
    return Controller(
        name=old.name,
        deadline_ms=old.deadline_ms,
        policy=old.policy,
        weight=old.weight,
        placement=False,
        priority=old.priority,
        pinned=kept,
    )


def apply_setting(old: Controller | None, setting: Setting) -> Controller:
    """Creates the entry where there is none, which is how controllers without the SDK are registered."""
    changes = {field: value for field in _SETTABLE if (value := getattr(setting, field)) is not None}
    base = old if old is not None else Controller(name=setting.name)
    pinned = sorted({*base.pinned, *changes})
    changed = msgspec.structs.replace(base, **changes, pinned=pinned)
    _check(changed.name, changed.deadline_ms, changed.weight, {}, {})
    return changed


def _check(
    name: str,
    deadline_ms: float,
    weight: float,
    kinds: dict[str, dict[str, Any]],
    owners: Mapping[str, Controller],
) -> None:
    diagnostics = Diagnostics()
    if not is_name(name):
        diagnostics.error("name", "InvalidName", f"{name!r} cannot name a controller")
    if not 1 <= deadline_ms <= MAX_DEADLINE_MS:
        diagnostics.error("deadlineMs", "OutOfRange", f"must be 1 to {MAX_DEADLINE_MS}")
    if not 0 <= weight <= MAX_WEIGHT:
        diagnostics.error("weight", "OutOfRange", f"must be 0 to {MAX_WEIGHT}")
    for kind, schema in kinds.items():
        if not kind.isalnum() or not kind.isascii() or kind == APPLICATION or kind == "Fleet" or kind in INTENT_KINDS:
            message = "must consist of letters and digits, and must not be a built-in kind"
            diagnostics.error(f"kinds.{kind}", "InvalidName", message)
        elif wrong := _wrong_with(schema):
            diagnostics.error(f"kinds.{kind}", "InvalidSchema", f"is not a usable JSON Schema: {wrong}")
        elif (other := owners.get(kind)) is not None and other.kinds[kind] != schema:
            message = f"{other.name} registered this kind with another schema; use the same schema or another kind"
            diagnostics.error(f"kinds.{kind}", "KindTaken", message)
    if diagnostics.errors:
        raise Refused(invalid(diagnostics.errors))


def _check_concerns(registration: Register) -> None:
    """Refuses what can never concern a controller. A kind of intent may be registered later."""
    diagnostics = Diagnostics()
    for field, concerns in (("concerns", registration.concerns), ("actionConcerns", registration.action_concerns)):
        for i, concern in enumerate(concerns):
            if concern not in _TOPICS and not concern[:1].isupper():
                message = f"{concern!r} is neither a kind of intent nor one of {', '.join(_TOPICS)}"
                diagnostics.error(f"{field}[{i}]", "UnknownConcern", message)
    if diagnostics.errors:
        raise Refused(invalid(diagnostics.errors))


def _wrong_with(schema: dict[str, Any]) -> str:
    from . import json_schemas  # takes a while, and most meshes have no such controllers

    return json_schemas.wrong_with(schema)
